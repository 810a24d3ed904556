"""Comparison of the ranks' indices, which decides how the ranks share a data loader."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from airflow_provider_dtrain.train.data.index_source import IndexSource, Keys
from airflow_provider_dtrain.train.data.sample_digest import SampleProbe
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.errors import SetupError

#: Indices of all ranks together in one round of the exchange: 32 MB on each rank.
ROUND = 4_000_000
#: An odd number that spreads multiples of anything over the rounds: 2**63 divided by the golden ratio.
_SPREAD = 0x4F1BBCDCBFA53E0B
_SHOWN = 5
_SAME_DATA = (
    "Build the whole data set on each rank; the library gives each rank its part. If each rank's data set is its own "
    "part already, call context.experimental.disable_dataset_reproducibility_checks() and return a torch DataLoader."
)


class Sharing(enum.Enum):
    """Ways in which the ranks share a data loader."""

    #: All ranks draw the same indices, and the library gives each rank its part of them.
    CUT = "cut"
    #: The ranks draw different indices: their loaders are sharded already and are used as they are.
    OWN = "own"
    #: The indices are not known: each rank iterates its loader.
    STREAM = "stream"


@dataclass(frozen=True)
class Finding:
    """Facts about the loader of one rank, exchanged between the ranks."""

    #: Digest of the first epoch; None when the indices are not known.
    digest: bytes | None = None
    indices: int = 0
    #: Batches of the first epoch.
    batches: int = 0
    #: Batch size and ``drop_last``, which must be the same on all ranks.
    shape: Any = None
    #: Digest of some samples, if the data set is held in tensors.
    contents: bytes = b""
    #: Digest of two samples of any other data set; empty if they cannot be compared.
    samples: bytes = b""
    #: Equal samples have equal numbers on all ranks.
    comparable: bool = True
    #: A sampler of torch takes the whole data set, so that only its length is compared.
    whole: bool = False
    #: The indices are a part of the data, or repeat some of it, so that each rank may draw its own.
    divided: bool = False
    #: The sampler raised this.
    error: str | None = None


@dataclass(frozen=True)
class IndexVerdict:
    """Decision how the ranks share a loader. The same on all ranks, except for the source."""

    sharing: Sharing
    #: Batches of the first epoch on each rank.
    batches: tuple[int, ...] = ()
    #: Indices that occur on more than one rank although each has its own part.
    repeated: int = 0
    #: The ranks seeded their samplers differently, and each draws its own samples.
    by_rank: bool = False
    #: Draws this rank's indices; None for a stream.
    source: IndexSource | None = None


def compare(
    find_source: Callable[[], IndexSource | None], loader: Any, distributed: Distributed, what: str
) -> IndexVerdict:
    """Return how the ranks share a loader. Called by all ranks, including one whose loader has no indices.

    :param find_source: returns None when the indices are not known
    :param what: ``training`` or ``validation``, for messages
    :raises SetupError: the sampler fails on a rank, or the ranks draw overlapping parts
    """

    def examine() -> tuple[Finding, Keys | None, IndexSource | None]:
        source = find_source()
        if source is None:
            return Finding(), None, None
        return (*_examine(source, loader, distributed.get_size()), source)

    (finding, keys, source), findings = _exchanged(examine, distributed, what)
    if any(item.digest is None for item in findings):
        return IndexVerdict(Sharing.STREAM)
    _refuse_shapes(findings, what)
    batches = tuple(item.batches for item in findings)
    if len({item.digest for item in findings}) == 1:
        _refuse_contents(findings, what)
        _refuse_samples(findings, loader, distributed, what)
        apart = _drawn_by_rank(source, loader, findings, distributed, what) if source is not None else None
        return apart or IndexVerdict(Sharing.CUT, batches, source=source)
    if not all(item.comparable for item in findings):
        return IndexVerdict(Sharing.STREAM)
    _refuse_lengths(findings, what)
    # Only a loader without indices has no keys, and it is a stream.
    keys = Keys(torch.arange(finding.indices)) if keys is None else keys
    repeated, examples = repetitions(keys.numbers, distributed.allgather)
    if repeated >= len(findings):
        raise SetupError(_overlap(findings, repeated, examples if keys.are_indices else [], what, source))
    return IndexVerdict(Sharing.OWN, batches, repeated, source=source)


def _drawn_by_rank(
    source: IndexSource, loader: Any, findings: list[Finding], distributed: Distributed, what: str
) -> IndexVerdict | None:
    """Return the verdict on samplers that the user seeded by rank and that draw a part each, None for others.

    They draw equal indices only because the library seeds them alike. Seeded by rank, they may draw a sample on several
    ranks, as with replacement, so that overlaps are not counted.
    """
    if not source.has_generators_apart() or not any(item.divided for item in findings):
        return None
    mine = source.by_rank(distributed.get_rank())
    _, findings = _exchanged(lambda: _examine(mine, loader, distributed.get_size()), distributed, what)
    if len({item.digest for item in findings} - {None}) < 2:
        return None
    return IndexVerdict(Sharing.OWN, tuple(item.batches for item in findings), by_rank=True, source=mine)


def draw_alike(source: IndexSource, epoch: int, distributed: Distributed, what: str) -> Sequence[Any]:
    """Return the indices of a later epoch of a loader that is cut. Called by all ranks.

    :raises SetupError: the ranks draw different indices although the first epoch was equal
    """

    def draw() -> tuple[Finding, Sequence[Any]]:
        items = source.draw(epoch)
        return Finding(_digest(source, items, source.keys(items)), len(items)), items

    items: Sequence[Any]
    (_, items), findings = _exchanged(draw, distributed, what)
    if len({item.digest for item in findings}) > 1:
        raise SetupError(
            f"The {what} data loader ({type(source.sampler).__name__}) must draw the same indices on all ranks in each "
            f"epoch as it did in the first; got different ones in epoch {epoch}. Shuffle with a seed that is the same "
            "on all ranks (context.get_trial_seed())."
        )
    return items


def _exchanged(examine: Callable[[], Any], distributed: Distributed, what: str) -> tuple[Any, list[Finding]]:
    """Return the function's result on this rank, and the first item of its results on all ranks.

    :raises SetupError: the function failed on another rank
    """
    found = None
    failure = None
    try:
        found = examine()
    except Exception as error:
        # The other ranks wait for this one in the exchange below.
        failure = error
    mine = found[0] if found is not None else Finding(error=f"{type(failure).__name__}: {failure}")
    findings: list[Finding] = distributed.allgather(mine)
    if failure is not None:
        raise failure
    for rank, item in enumerate(findings):
        if item.error is not None:
            raise SetupError(f"The sampler of the {what} data loader failed on rank {rank}: {item.error}")
    return found, findings


def _examine(source: IndexSource, loader: Any, ranks: int) -> tuple[Finding, Keys | None]:
    """Return the facts about this rank's first epoch, and its indices.

    The indices are None when a sampler of torch takes the whole data set.
    """
    if source.plain is not None and not source.is_part():
        length = len(source)
        finding = Finding(b"%d" % length, length, contents=source.contents(), whole=True)
        finding = _with_samples(finding, loader, ranks)
        return _with_batches(finding, source, loader, length), None
    items = source.first() if source.plain is None else source.draw(0, shuffle=False)
    if items is None:
        return Finding(), None
    keys = source.keys(items)
    finding = Finding(
        _digest(source, items, keys),
        keys.numbers.numel(),
        contents=source.contents(),
        comparable=keys.comparable,
        divided=source.has_generators_apart() and source.is_divided(ranks, keys),
    )
    return _with_batches(_with_samples(finding, loader, ranks), source, loader, len(items)), keys


def _with_samples(finding: Finding, loader: Any, ranks: int) -> Finding:
    return finding if finding.contents or ranks == 1 else replace(finding, samples=SampleProbe(loader).digest())


def _digest(source: IndexSource, items: Sequence[Any], keys: Keys) -> bytes:
    """Return a digest of the indices in their order and of the borders between batches."""
    digest = keys.digest()
    if not source.by_sample:
        digest.update(repr([len(item) if isinstance(item, (list, tuple)) else 0 for item in items]).encode())
    return bytes(digest.digest())


def _with_batches(finding: Finding, source: IndexSource, loader: Any, items: int) -> Finding:
    drops = bool(loader.drop_last)
    if not source.by_sample:
        return replace(finding, batches=items, shape=("batches", drops))
    batches = items // loader.batch_size if drops else -(-items // loader.batch_size)
    return replace(finding, batches=batches, shape=(loader.batch_size, drops))


def repetitions(
    keys: torch.Tensor, allgather: Callable[[Any], list[Any]], per_round: int = ROUND
) -> tuple[int, list[int]]:
    """Return the number of repetitions of indices on further ranks, and some of the repeated indices.

    The result is the same on all ranks. The indices are exchanged in rounds of bounded size. The exchange ends with the
    round that proves an overlap.

    :param keys: indices of this rank, int64
    :param per_round: indices of all ranks together in one round
    """
    mine = torch.unique(keys)
    sizes = allgather(mine.numel())
    rounds = max(1, -(-sum(sizes) // per_round))
    turn = ((mine * _SPREAD) >> 32).remainder(rounds)
    count = 0
    examples: list[int] = []
    for number in range(rounds):
        found, times = torch.unique(torch.cat(allgather(mine[turn == number])), return_counts=True)
        repeated = found[times > 1]
        count += int((times - 1).sum())
        examples += repeated[: _SHOWN - len(examples)].tolist() if len(examples) < _SHOWN else []
        if count >= len(sizes):
            break
    return count, examples


def _refuse_shapes(findings: list[Finding], what: str) -> None:
    if len({item.shape for item in findings}) > 1:
        seen = "; ".join(f"rank {rank}: {item.shape[0]}, {item.shape[1]}" for rank, item in enumerate(findings))
        raise SetupError(
            f"The {what} data loader must have the same batch_size and drop_last on all ranks, got {seen}. Use "
            "context.get_per_slot_batch_size() on each rank."
        )


def _refuse_lengths(findings: list[Finding], what: str) -> None:
    if all(item.whole for item in findings):
        seen = ", ".join(f"rank {rank}: {item.indices}" for rank, item in enumerate(findings))
        raise SetupError(f"The {what} data set must have the same length on all ranks, got {seen}. {_SAME_DATA}")


def _refuse_contents(findings: list[Finding], what: str) -> None:
    odd = [rank for rank, item in enumerate(findings) if item.contents != findings[0].contents]
    if odd:
        raise SetupError(
            f"The {what} data set must hold the same samples on all ranks, got other tensors on rank {odd[0]} than on "
            f"rank 0. {_SAME_DATA}"
        )


def _refuse_samples(findings: list[Finding], loader: Any, distributed: Distributed, what: str) -> None:
    odd = [rank for rank, item in enumerate(findings) if item.samples != findings[0].samples]
    if not odd or not all(item.samples for item in findings):
        return
    if all(distributed.allgather(SampleProbe(loader).is_steady())):
        raise SetupError(
            f"The {what} data set ({type(loader.dataset).__name__}) must hold the same samples on all ranks, got "
            f"another first or last sample on rank {odd[0]} than on rank 0. {_SAME_DATA}"
        )


def _overlap(findings: list[Finding], repeated: int, examples: list[int], what: str, source: Any) -> str:
    sampler = type(source.sampler).__name__
    drawn = ", ".join(str(item.indices) for item in findings[:8]) + (", ..." if len(findings) > 8 else "")
    some = f", e.g. {', '.join(map(str, examples))}" if examples else ""
    return (
        f"The {what} data loader ({sampler}) must draw the same indices on all ranks, or a part of its own on each; "
        f"got overlapping parts: the ranks draw {drawn} indices, and at least {repeated} of them occur on another "
        f"rank too{some}. Shuffle with a seed that is the same on all ranks (context.get_trial_seed()), or give rank "
        "r of n every n-th index from r on. If the overlap is intended, "
        "context.experimental.disable_dataset_reproducibility_checks() leaves the loader as it is."
    )
