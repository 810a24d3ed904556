"""Comparison of the weights of two trials, by the digests that their ranks recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_dtrain.core.event_log import WEIGHT_DIGITS, WEIGHTS
from airflow_provider_dtrain.core.lifecycle.current_branch import current_branch


@dataclass(frozen=True, kw_only=True)
class WeightRecord:
    """Digest of the weights of one rank after a step."""

    event_id: int
    #: One of :data:`WEIGHTS`.
    kind: str
    #: Number of the attempt.
    attempt: int
    rank: int
    step: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class FirstDifference:
    """The first records of both trials that differ."""

    original: WeightRecord
    again: WeightRecord


@dataclass(frozen=True, kw_only=True)
class WeightComparison:
    """Result of a comparison."""

    #: Steps whose checkpoints both trials recorded, and those that only one of the trials did.
    checkpoints: int
    checkpoints_left: int
    #: The same for recorded steps.
    steps: int
    steps_left: int
    #: None: everything that was compared is equal, which may be nothing.
    first: FirstDifference | None

    @property
    def is_empty(self) -> bool:
        """True if nothing was compared."""
        return not self.checkpoints + self.steps


def compare(original: Sequence[WeightRecord], again: Sequence[WeightRecord]) -> WeightComparison:
    """Compare the records of two trials.

    A step counts if both trials recorded it on the same ranks. Of steps that an attempt repeated, the latest counts.

    :param original: in the order of their arrival
    """
    differences: list[FirstDifference] = []
    counts = []
    for kind in WEIGHTS:
        mine, theirs = _by_step(original, kind), _by_step(again, kind)
        common = [step for step in mine if step in theirs and mine[step].keys() == theirs[step].keys()]
        counts.append((len(common), len(mine.keys() | theirs.keys()) - len(common)))
        differences += [
            FirstDifference(original=one, again=theirs[step][rank])
            for step in common
            for rank, one in mine[step].items()
            if one.digest != theirs[step][rank].digest
        ]
    # A step comes before the checkpoint of the same step: both are of the same weights.
    first = min(
        differences,
        key=lambda one: (one.original.step, -WEIGHTS.index(one.original.kind), one.original.rank),
        default=None,
    )
    (checkpoints, checkpoints_left), (steps, steps_left) = counts
    return WeightComparison(
        checkpoints=checkpoints, checkpoints_left=checkpoints_left, steps=steps, steps_left=steps_left, first=first
    )


def _by_step(records: Sequence[WeightRecord], kind: str) -> Mapping[int, Mapping[int, WeightRecord]]:
    """Return the records that count, by step and rank."""
    found: dict[int, dict[int, WeightRecord]] = {}
    for record in current_branch([one for one in records if one.kind == kind]):
        found.setdefault(record.step, {})[record.rank] = record
    return found


def names_record(records: Sequence[WeightRecord], of: WeightRecord) -> WeightRecord:
    """Return the record that has the names of tensors for another one: the first of the same rank and attempt."""
    same = (of.kind, of.attempt, of.rank)
    return next(one for one in records if (one.kind, one.attempt, one.rank) == same)


def differing_tensor(
    original: str, again: str, original_names: Sequence[str], again_names: Sequence[str]
) -> tuple[str | None, int]:
    """Return the name of the first tensor that differs and the number of those that do. None: it is not known.

    :param original: digests of the tensors, one behind the other
    :param original_names: names of the tensors, or of groups of them
    """
    if not original_names or list(original_names) != list(again_names):
        return None, 0
    pairs = zip(original_names, _cut(original), _cut(again), strict=False)
    differing = [name for name, one, other in pairs if one != other]
    return (differing[0] if differing else None), len(differing)


def _cut(digests: str) -> list[str]:
    return [digests[at : at + WEIGHT_DIGITS] for at in range(0, len(digests), WEIGHT_DIGITS)]


def comparison_text(
    found: WeightComparison, tensor: str | None, differing: int, *, original: int, again: int, is_gpu: bool
) -> str:
    """Return the result of a comparison in sentences.

    :param tensor: of the first difference
    :param differing: number of tensors that differ there
    :param original: id of the trial that was run first
    :param again: id of the trial that runs it again
    """
    if found.is_empty:
        return (
            f"Nothing was compared: trials {original} and {again} have no digests of weights of the same step. "
            "ctx.save_checkpoint records them, and reproducibility.record_steps those of each step."
        )
    compared = f"{_counted(found.checkpoints, 'checkpoint')} and {_counted(found.steps, 'step')} were compared"
    left = found.checkpoints_left + found.steps_left
    compared += f", {left} that only one of the trials has were not." if left else "."
    if found.first is None:
        return f"The weights of trial {again} equal those of trial {original} bit for bit. {compared}"
    record = found.first.original
    where = "in tensors of another form" if not tensor else f"in tensor {tensor}"
    more = f" and {differing - 1} more" if differing > 1 else ""
    at = f"at step {record.step}" if record.kind == WEIGHTS[1] else f"at the checkpoint of step {record.step}"
    of_rank = f" on rank {record.rank}" if record.rank else ""
    note = " On GPUs, this is information: equal bits are not promised." if is_gpu else ""
    return (
        f"The weights of trial {again} differ from those of trial {original}, first {at}{of_rank}, {where}{more}. "
        f"{compared}{note}"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
