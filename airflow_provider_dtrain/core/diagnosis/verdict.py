"""Verdict of a diagnosis: where the time of a step goes, what limits it, and what to change.

All ranks exchange gradients in each step of the run as configured, so a step takes as long as that of the slowest rank
plus the exchange that does not overlap with computing. In the run with a large ``aggregation_frequency``, the ranks do
not wait for each other: the step of each rank is its own. The shares follow from the differences of the runs and add up
to 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median_low
from typing import Any, Literal

from airflow_provider_dtrain.core.config import ExperimentConfig
from airflow_provider_dtrain.core.diagnosis.runs import AGAIN, ALONE, INDEPENDENT, REAL, SYNTHETIC, ShortRunSpec
from airflow_provider_dtrain.core.series.step_times import OF_STEP, STEP, WHOLE

#: Share of a step from which a part limits the training, and share of computing from which nothing else does.
LIMIT_SHARE, COMPUTE_SHARE = 0.2, 0.75
#: Share from which a change of a part is suggested.
SUGGEST_SHARE = 0.1
#: Fewest steps of a run that count.
STEPS_LEAST = 5
#: Multiple of its own aggregation frequency that a confirming run has.
AGGREGATION_FACTOR = 4

Part = Literal["communication", "input", "imbalance", "compute"]
PARTS: tuple[Part, ...] = ("communication", "input", "imbalance", "compute")
Limit = Literal["communication", "input", "imbalance", "compute", "balanced", "unknown"]


@dataclass(frozen=True, kw_only=True)
class RankFigures:
    """Mean times of one rank in one run, per measured step, seconds."""

    rank: int
    host: str
    steps: int
    step_s: float
    #: Wait for the next batch; None: the program does not use the loader of the library.
    loading_s: float | None
    optimizer_s: float


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """One short run and its figures."""

    name: str
    title: str
    trial_id: int | None
    ranks: tuple[RankFigures, ...] = ()
    #: Cause why the run has no figures; None: it has.
    problem: str | None = None

    @property
    def step_s(self) -> float:
        """Step time of the gang, seconds: the median of its ranks."""
        return median_low([rank.step_s for rank in self.ranks])

    @property
    def steps(self) -> int:
        """Number of measured steps of each rank."""
        return min((rank.steps for rank in self.ranks), default=0)


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A change that should make the training faster."""

    part: Part
    text: str
    #: Part of the step time that it should save, 0 to 1; None: unknown.
    expected: float | None
    #: The run that tries it; None: it cannot be tried without a change of the program or the cluster.
    run: ShortRunSpec | None = None
    #: Part of the step time that it saved; negative: steps took longer. None: it was not tried.
    measured: float | None = None
    #: Cause why the try has no figure.
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Figures of a diagnosis and their meaning."""

    limit: Limit
    #: Mean step time of the runs as configured, seconds.
    step_s: float
    #: Difference of the two runs as configured, as a part of their mean; None: only one has figures.
    noise: float | None
    #: Part of a step -> its share, 0 to 1; None: it was not measured.
    shares: Mapping[Part, float | None]
    #: Step of one rank alone divided by that of the gang, with the same batch per rank; 1 is perfect.
    efficiency: float | None
    #: Part by which ranks that do not exchange gradients slow each other down; 0: not at all.
    contention: float | None
    #: Ranks that need at least 1.2 times the typical time, slowest first, in words.
    slow: tuple[str, ...]
    #: The verdict in sentences, the most important one first.
    sentences: tuple[str, ...]
    suggestions: tuple[Suggestion, ...]


#: Parts of a step, with the wait for a device. The other timings contain waits for the other ranks.
_OWN_PARTS = frozenset({*OF_STEP, "from_device"})
#: Longest text of a verdict.
TEXT_CHARS = 8_000


def rank_figures(rank: int, host: str, totals: Mapping[str, tuple[int, float]]) -> RankFigures | None:
    """Return the figures of a rank, None if it has finished no step.

    :param totals: timing -> how often it was measured, and seconds
    """
    step = STEP if STEP in totals else WHOLE
    steps, whole_s = totals.get(step, (0, 0.0))
    if not steps:
        return None
    parts: Collection[str] = _OWN_PARTS if step == STEP else ()
    parts_s = sum(totals[name][1] for name in parts if name in totals)
    loading = totals.get("dataloader_next")
    return RankFigures(
        rank=rank,
        host=host,
        steps=steps,
        step_s=(parts_s or whole_s) / steps,
        loading_s=None if loading is None else loading[1] / steps,
        optimizer_s=totals.get("step_optimizer", (0, 0.0))[1] / steps,
    )


#: A rank is slow from this multiple of the typical time on.
SLOW_RATIO = 1.2


def verdict(runs: Sequence[RunFigures], config: ExperimentConfig) -> Verdict:
    """Return the verdict on some runs. That as configured must have figures.

    :param runs: of :func:`.first_runs`; those with a problem count as not measured
    :param config: the effective configuration
    """
    usable = {run.name: run for run in runs if run.problem is None}
    real, again = usable[REAL], usable.get(AGAIN)
    step_s = mean([real.step_s, *([again.step_s] if again is not None else [])])
    noise = abs(real.step_s - again.step_s) / step_s if again is not None and step_s else None
    shares, slow = _shares(usable, step_s)
    alone = usable.get(ALONE)
    efficiency = min(1.0, alone.step_s / step_s) if alone is not None and step_s else None
    limit = _limit(shares, noise)
    independent = usable.get(INDEPENDENT)
    contention = None
    if alone is not None and independent is not None and alone.step_s:
        contention = max(0.0, 1 - alone.step_s / independent.step_s)
    return Verdict(
        limit=limit,
        step_s=step_s,
        noise=noise,
        shares=shares,
        efficiency=efficiency,
        contention=contention,
        slow=slow,
        sentences=tuple(_sentences(limit, shares, slow, efficiency, contention, noise, runs)),
        suggestions=tuple(_suggestions(shares, slow, config, step_s)),
    )


def _shares(runs: Mapping[str, RunFigures], step_s: float) -> tuple[dict[Part, float | None], tuple[str, ...]]:
    """Return the share of each part, and the slow ranks in words."""
    communication_s = imbalance_s = extra_loading_s = 0.0
    slow: tuple[str, ...] = ()
    independent = runs.get(INDEPENDENT)
    if independent is not None:
        own = _own_times(independent, runs[REAL])
        typical = median_low(own.values())
        slowest = max(own.values())
        communication_s = max(0.0, step_s - slowest)
        imbalance_s = max(0.0, min(step_s, slowest) - typical)
        slow, extra_loading_s = _slow_ranks(independent, own, typical)
    input_s = 0.0
    synthetic = runs.get(SYNTHETIC)
    if synthetic is not None:
        saved = max(0.0, step_s - synthetic.step_s)
        input_s = min(saved - min(saved, extra_loading_s, imbalance_s), step_s - communication_s - imbalance_s)
    total = step_s or 1.0
    is_between = independent is not None or len(runs[REAL].ranks) == 1
    is_whole = is_between and synthetic is not None
    return {
        "communication": communication_s / total if is_between else None,
        "input": input_s / total if synthetic is not None else None,
        "imbalance": imbalance_s / total if is_between else None,
        # The remaining part, if all other ones are known.
        "compute": (step_s - communication_s - imbalance_s - input_s) / total if is_whole else None,
    }, slow


def _own_times(independent: RunFigures, real: RunFigures) -> dict[int, float]:
    """Return the time that each rank needs for a step by itself, with the optimizer step that the run leaves out."""
    optimizer = {rank.rank: rank.optimizer_s for rank in real.ranks}
    return {
        rank.rank: rank.step_s + max(0.0, optimizer.get(rank.rank, 0.0) - rank.optimizer_s)
        for rank in independent.ranks
    }


def _slow_ranks(independent: RunFigures, own: Mapping[int, float], typical: float) -> tuple[tuple[str, ...], float]:
    """Return the slow ranks in words, slowest first, and the additional loading time of the slowest one, seconds."""
    loading = {rank.rank: rank.loading_s or 0.0 for rank in independent.ranks}
    usual = median_low(loading.values())
    found = sorted(
        (rank for rank in independent.ranks if own[rank.rank] > SLOW_RATIO * typical), key=lambda one: -own[one.rank]
    )
    texts = []
    for rank in found:
        extra, of_loading = own[rank.rank] - typical, loading[rank.rank] - usual
        what = "loading its data" if of_loading > 0.5 * extra else "computing"
        texts.append(
            f"rank {rank.rank} on host '{rank.host}' needs {own[rank.rank] / typical:.1f} times the time of the other "
            f"ranks, for {what}"
        )
    worst = max(own, key=lambda one: own[one])
    return tuple(texts), max(0.0, loading[worst] - usual)


def _limit(shares: Mapping[Part, float | None], noise: float | None) -> Limit:
    """Return what limits the training."""
    others: dict[Limit, float] = {
        part: share for part, share in shares.items() if part != "compute" and share is not None
    }
    largest = max(others, key=others.__getitem__, default=None)
    if largest is not None and others[largest] >= LIMIT_SHARE:
        return largest if others[largest] >= (noise or 0.0) else "unknown"
    compute = shares["compute"]
    if compute is None:
        return "unknown"
    return "compute" if compute >= COMPUTE_SHARE else "balanced"


_LIMITS: Mapping[Limit, str] = {
    "communication": "The exchange of gradients limits the training",
    "input": "The input data limits the training",
    "imbalance": "A slow rank limits the training",
    "compute": "Computing limits the training: the ranks are well used",
    "balanced": "No single part limits the training",
    "unknown": "It is not known what limits the training, because a run has no figures, or equal runs differ too much",
}


def percent(share: float | None) -> str:
    """Return a share as text."""
    return "not measured" if share is None else f"{100 * share:.0f} %"


def _sentences(
    limit: Limit,
    shares: Mapping[Part, float | None],
    slow: Sequence[str],
    efficiency: float | None,
    contention: float | None,
    noise: float | None,
    runs: Sequence[RunFigures],
) -> list[str]:
    parts = ", ".join(f"{part} {percent(shares[part])}" for part in PARTS)
    found = [f"{_LIMITS[limit]}: {parts}." if ":" not in _LIMITS[limit] else f"{_LIMITS[limit]}. {parts.capitalize()}."]
    found += [f"{text[0].upper()}{text[1:]}." for text in slow]
    if efficiency:
        found.append(
            f"Scaling efficiency {percent(efficiency)}: a step of the gang takes {1 / efficiency:.2f} times that of "
            "one rank alone with the same batch per rank."
        )
    if contention is not None and contention >= SUGGEST_SHARE:
        found.append(
            f"Ranks slow each other down by {percent(contention)} even without an exchange: they share CPUs, memory or "
            "disks of a host."
        )
    if noise is not None and noise >= SUGGEST_SHARE:
        found.append(
            f"The two runs as configured differ by {percent(noise)}, so shares below that mean nothing. Something else "
            "uses the hosts: repeat the diagnosis when they are idle."
        )
    found += [f"Not measured ({run.title}): {run.problem}" for run in runs if run.problem is not None]
    return found


def _suggestions(
    shares: Mapping[Part, float | None], slow: Sequence[str], config: ExperimentConfig, step_s: float
) -> list[Suggestion]:
    found: list[Suggestion] = []
    communication, loading = shares["communication"] or 0.0, shares["input"] or 0.0
    imbalance, compute = shares["imbalance"] or 0.0, shares["compute"] or 0.0
    if loading >= SUGGEST_SHARE:
        text = (
            "Load data faster: more workers (num_workers of ctx.loader or of the DataLoader), data on a local disk of "
            f"the hosts, transformations done once before training. With ready data, a step takes "
            f"{(1 - loading) * step_s:.4g} s."
        )
        found.append(Suggestion(part="input", text=text, expected=loading))
    if communication >= SUGGEST_SHARE:
        found += _about_communication(communication, config)
    if imbalance >= SUGGEST_SHARE:
        which = f": {slow[0]}" if slow else ""
        text = f"Repair or leave out the slow rank's host, or end what else runs there{which}."
        found.append(Suggestion(part="imbalance", text=text, expected=imbalance))
    if not found and compute >= COMPUTE_SHARE:
        text = (
            "More slots make the training faster, if the batch of a rank stays as large. On GPUs, mixed_precision: "
            "bf16 and a larger batch per rank use them better."
        )
        found.append(Suggestion(part="compute", text=text, expected=None))
    return sorted(found, key=by_gain)


def _about_communication(share: float, config: ExperimentConfig) -> list[Suggestion]:
    optimizations = config.optimizations
    often = optimizations.aggregation_frequency
    rarely = AGGREGATION_FACTOR * often
    path = "optimizations.aggregation_frequency"
    found = [
        Suggestion(
            part="communication",
            text=f"Exchange gradients less often: {path}: {rarely}. The optimizer then steps on {AGGREGATION_FACTOR} "
            "times the batch, so adapt the learning rate.",
            expected=share * (1 - 1 / AGGREGATION_FACTOR),
            run=ShortRunSpec(name="aggregation", title=f"aggregation {rarely}", changes={path: rarely}),
        )
    ]
    if not optimizations.gradient_compression:
        path = "optimizations.gradient_compression"
        found += [
            Suggestion(
                part="communication",
                text=f"Exchange gradients in half precision: {path}: fp16.",
                expected=share / 2,
                run=ShortRunSpec(name="fp16", title="compression fp16", changes={path: "fp16"}),
            ),
            Suggestion(
                part="communication",
                text=f"Exchange low-rank approximations of gradients: {path}: powersgd. The accuracy may suffer.",
                expected=None,
                run=ShortRunSpec(name="powersgd", title="compression powersgd", changes={path: "powersgd"}),
            ),
        ]
    text = (
        "Use a larger batch per rank (hyperparameters.global_batch_size), fewer slots, slots of one host "
        "(resources.is_single_host: true), or a faster network (network_interface). With twice the batch, a sample "
        "takes this much less."
    )
    return [*found, Suggestion(part="communication", text=text, expected=share / 2)]


def with_try(suggestion: Suggestion, run: RunFigures, step_s: float) -> Suggestion:
    """Return a suggestion with the gain of the run that tried it.

    :param step_s: step time of the runs as configured, seconds
    """
    if run.problem is not None:
        return replace(suggestion, problem=run.problem)
    return replace(suggestion, measured=1 - run.step_s / step_s if step_s else None)


def by_gain(suggestion: Suggestion) -> float:
    """Return a key that sorts suggestions by their gain, largest first: the measured one, else the expected one."""
    gain = suggestion.expected if suggestion.measured is None else suggestion.measured
    return -(gain or 0.0)


def effect_text(suggestion: Suggestion) -> str:
    """Return expectation and measurement of a suggestion as text."""
    expected = "" if suggestion.expected is None else f"should save {percent(suggestion.expected)} of a step"
    if suggestion.problem is not None:
        measured = f"not measured: {suggestion.problem}"
    elif suggestion.measured is None:
        measured = ""
    elif suggestion.measured >= 0:
        measured = f"measured: saves {percent(suggestion.measured)}"
    else:
        measured = f"measured: costs {percent(-suggestion.measured)} more"
    return "; ".join(filter(None, (expected, measured))) or "effect unknown"


def summary(found: Verdict) -> str:
    """Return a verdict with its suggestions as text, a line each."""
    lines = [*found.sentences, *(f"{one.text} ({effect_text(one)})" for one in found.suggestions)]
    return "\n".join(lines)[:TEXT_CHARS]


def as_data(found: Verdict, runs: Sequence[RunFigures]) -> dict[str, Any]:
    """Return a verdict and its runs as plain JSON."""
    return {
        "limit": found.limit,
        "step_s": found.step_s,
        "noise": found.noise,
        "shares": dict(found.shares),
        "efficiency": found.efficiency,
        "contention": found.contention,
        "slow_ranks": list(found.slow),
        "sentences": list(found.sentences),
        "suggestions": [
            {
                "part": one.part,
                "text": one.text,
                "expected": one.expected,
                "measured": one.measured,
                "problem": one.problem,
                "effect": effect_text(one),
                "changes": dict(one.run.changes) if one.run is not None else {},
            }
            for one in found.suggestions
        ],
        "runs": [
            {
                "name": run.name,
                "title": run.title,
                "trial_id": run.trial_id,
                "steps": run.steps,
                "step_s": run.step_s if run.ranks else None,
                "ranks": [
                    {"rank": one.rank, "host": one.host, "step_s": one.step_s, "loading_s": one.loading_s}
                    for one in run.ranks
                ],
                "problem": run.problem,
            }
            for run in runs
        ],
    }
