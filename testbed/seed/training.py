"""Learning curves of a simulated training, and the life of a trial that trains."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.seed.run import Run
from testbed.seed.simulation import AskedError, Life

#: Names of a batch's parts, with their share of its time.
PARTS = {
    "dataloader_next": 0.09, "to_device": 0.04, "train_batch": 1.0, "backward": 0.52, "gradient_exchange": 0.18,
    "step_optimizer": 0.11, "from_device": 0.02, "reduce_metrics": 0.01,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Course:
    """Length and quality of a training.

    :param quality: 0 (learns nothing) to 1 (learns everything)
    """

    epochs: int
    batches: int
    epoch_s: float
    quality: float
    seed: int = 0
    #: Name of the metric that the searcher compares, in a validation; higher is better.
    metric: str = "accuracy"
    #: Learning rate of the first batch.
    lr: float = 3e-3
    #: Reports of training metrics in an epoch.
    reports: int = 3
    #: Epochs between two checkpoints.
    saves_every: int = 2
    #: Further metrics of each validation.
    more: Callable[[float], Mapping[str, float]] = lambda progress: {}

    def loss(self, progress: float, noise: random.Random) -> float:
        """Return the training loss after a part of the training."""
        floor = 0.08 + 0.9 * (1 - self.quality)
        return floor + (2.3 - floor) * math.exp(-(2 + 5 * self.quality) * progress) + noise.gauss(0, 0.02)

    def score(self, progress: float, noise: random.Random) -> float:
        """Return the validation's metric after a part of the training."""
        best = 0.12 + 0.83 * self.quality
        return min(0.999, max(0.0, best * (1 - 0.88 * math.exp(-4.2 * progress)) + noise.gauss(0, 0.006)))


@dataclass
class Progress:
    """Position of a trial, which its attempts share."""

    epoch: int = 0
    #: Checkpoints that exist: step -> path.
    saved: dict[int, str] = field(default_factory=dict)


def quality_of(hparams: Mapping[str, Any], seed: int) -> float:
    """Return the quality that hyperparameters lead to: best near lr 3e-3, dropout 0.2 and a batch of 64."""
    lr, dropout = float(hparams.get("lr", 1e-3)), float(hparams.get("dropout", 0.2))
    distance = abs(math.log10(lr) - math.log10(3e-3)) / 2.2
    distance += abs(dropout - 0.2) * 0.5 + abs(math.log2(int(hparams.get("global_batch_size", 64)) / 64)) * 0.03
    return min(0.99, max(0.02, 0.97 - distance**1.4 + random.Random(seed).gauss(0, 0.02)))  # noqa: S311


def train(run: Run, course: Course, progress: Progress, *, rungs: Sequence[int] = (), until: int | None = None) -> Life:
    """Train from the current position, and set ``run.verdict`` to how it ended.

    ``completed``, ``stopped`` by the searcher, ``asked`` to end or to release its gang, or ``reached`` ``until``.

    :param rungs: epochs after which the searcher decides
    :param until: epoch after which it returns
    """
    noise = random.Random(f"{course.seed}-{run.ticket.attempt_number}")  # noqa: S311
    run.verdict = ""
    try:
        while not run.verdict:
            yield from _epoch(run, course, progress, noise)
            _validate(run, course, progress, rungs, noise)
            if not run.verdict and until is not None and progress.epoch >= until:
                run.verdict = "reached"
    except AskedError:
        run.verdict = "asked"
    if run.verdict == "completed":
        run.commit([{"kind": "result", "value": None}])


def _validate(run: Run, course: Course, progress: Progress, rungs: Sequence[int], noise: random.Random) -> None:
    """Validate at the end of an epoch, save, and ask the searcher at a rung."""
    progress.epoch += 1
    step, done = progress.epoch * course.batches, progress.epoch / course.epochs
    score = course.score(done, noise)
    values = {course.metric: score, "loss": course.loss(done, noise) * 1.15, **course.more(done)}
    run.commit([{"kind": "validation", "step": step, "metrics": values, "epoch": float(progress.epoch)}])
    is_last = progress.epoch == course.epochs
    if progress.epoch % course.saves_every == 0 or is_last or progress.epoch in rungs:
        save(run, progress, step, values)
    if progress.epoch in rungs and run.decision(rungs.index(progress.epoch), progress.epoch, score, step) == "stop":
        run.commit([{"kind": "stopped", "step": step}])
        run.verdict = "stopped"
    elif is_last:
        run.verdict = "completed"
    elif run.is_asked:
        run.verdict = "asked"


def _epoch(run: Run, course: Course, progress: Progress, noise: random.Random) -> Life:
    part_s = course.epoch_s / course.reports
    batches = course.batches // course.reports
    for part in range(1, course.reports + 1):
        yield part_s * noise.uniform(0.95, 1.05)
        done = (progress.epoch + part / course.reports) / course.epochs
        rate = course.lr * 0.5 * (1 + math.cos(math.pi * done))
        metrics = {"loss": course.loss(done, noise), "lr": rate}
        step = progress.epoch * course.batches + part * batches
        report = {"kind": "report", "step": step, "metrics": metrics, "epoch": progress.epoch + part / course.reports}
        run.commit([report, timings(batches, part_s, noise)])


def timings(batches: int, seconds: float, noise: random.Random) -> dict[str, Any]:
    """Return the summary of the timings of some batches."""
    names = {}
    for name, share in PARTS.items():
        total_s = seconds * share * noise.uniform(0.9, 1.1) * 0.93
        names[name] = {"count": batches, "total_s": round(total_s, 6), "max_s": round(3 * total_s / batches, 6)}
    return {"kind": "timings", "batches": batches, "names": names}


def save(run: Run, progress: Progress, step: int, metrics: Mapping[str, float]) -> None:
    """Write a checkpoint. Only the latest three are kept."""
    path = f"checkpoints/step-{step:08d}"
    progress.saved[step] = path
    gone = [progress.saved.pop(old) for old in sorted(progress.saved)[:-3]]
    size, digest = 48_000_000 + 13 * step, f"{step:064x}"
    event = {"kind": "checkpoint", "step": step, "path": path, "size_bytes": size, "sha256": digest}
    run.commit([{**event, "metrics": dict(metrics), "removed": gone}])
