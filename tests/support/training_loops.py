"""Training loops of many shapes, run in this process: with checkpoints anywhere, killed anywhere, and resumed."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.train import initialization
from airflow_provider_dtrain.train.data.batch_size import Hparams
from airflow_provider_dtrain.train.environment import RankEnvironment
from tests.support.rank_threads import ThreadRank, in_ranks

#: Samples of a batch of all ranks together.
BATCH = 4
HPARAMS = {"global_batch_size": BATCH}

#: Places of a call of ``ctx.save_checkpoint``. Those in the middle of a batch, or of what follows the loop, are early:
#: a resumed program does not run the rest.
EARLY = frozenset({"middle", "after step", "after loop"})
IN_BODY = frozenset({"head", "middle", "after step", "end"})
SAVES = ("head", "middle", "after step", "end", "after loop", "tail", "epoch", "outside")
OUTER = ("epochs", "range", "while")
INNER = ("one", "zip", "shorter", "next", "cycle", "nested", "turns")
LIMITS = ("", "max_batches", "break before", "break after", "break by step")


class Killed(BaseException):
    """Stands for the end of the process: nothing after it runs."""


@dataclass(frozen=True)
class Loop:
    """Shape of a training program."""

    outer: str = "epochs"
    inner: str = "one"
    limit: str = ""
    saves: frozenset[str] = frozenset({"end"})
    every: int = 1
    epochs: int = 2
    batches: int = 3
    aggregation: int = 1
    ranks: int = 1
    #: The batches are loaded with random numbers.
    augments: bool = False

    @property
    def steps_per_epoch(self) -> int:
        """Batches that one epoch trains."""
        most = min(2, self.batches) if self.limit == "max_batches" else self.batches
        shorter = min(most, self.batches - 1)
        steps = {"shorter": shorter, "nested": 2 * most, "turns": 2 * most}.get(self.inner, most)
        return min(2, steps) if self.limit.startswith("break") else steps

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the experiment."""
        options = {"optimizations": {"aggregation_frequency": self.aggregation}} if self.aggregation > 1 else {}
        return {"scheduling_unit": 1, **options}


class Numbers(torch.utils.data.Dataset):
    """Samples whose first value is their number."""

    def __init__(self, batches: int, base: float = 0.0, *, augments: bool = False) -> None:
        self._count = BATCH * batches
        self._base = base
        self._augments = augments

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = torch.rand(()).item() + random.random() if self._augments else 0.0
        return torch.tensor([self._base + index, noise])


class Average:
    """Average of a model's weights, as an object with a state of its own."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = copy.deepcopy(model)

    def update(self, model: torch.nn.Module) -> None:
        with torch.no_grad():
            for mine, theirs in zip(self.model.parameters(), model.parameters(), strict=True):
                mine.mul_(0.9).add_(theirs, alpha=0.1)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        return self.model.parameters()

    def buffers(self) -> Iterator[torch.Tensor]:
        return self.model.buffers()

    def state_dict(self) -> dict[str, Any]:
        return self.model.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state)


@dataclass
class Trace:
    """Record of what a program has done."""

    #: Place at which it is killed, or from which on it is asked to stop, by number.
    kill_at: int = -1
    stop_at: int = -1
    places: int = 0
    #: Place of the latest checkpoint in the current batch or end of an epoch.
    saved: str = ""
    digest: str = ""
    #: Digest of the random states at the end; empty if nothing was left to train.
    random_digest: str = ""
    #: It was resumed inside an epoch.
    is_inside: bool = False
    steps: int = 0

    def enter(self) -> None:
        """Note that the program enters a loop."""
        self.saved = ""

    def at(self) -> None:
        """Note a place of the program."""
        self.places += 1
        if self.places - 1 == self.kill_at:
            raise Killed

    @property
    def is_asked_to_stop(self) -> bool:
        """The control side has asked the program to stop."""
        return 0 <= self.stop_at < self.places


class Program:
    """One rank that runs a loop."""

    def __init__(self, loop: Loop, ctx: Any, trace: Trace) -> None:
        self.loop = loop
        self.ctx = ctx
        self.trace = trace
        ctx._is_stop_requested = lambda: trace.is_asked_to_stop
        torch.manual_seed(1)
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.average = Average(self.model)
        ctx.prepare(self.model, self.optimizer, self.scheduler, scheduler_step="manual", wrap=False)
        ctx.register(average=self.average)
        self.data = {base: Numbers(loop.batches, base, augments=loop.augments) for base in (0.0, 100.0)}
        self.data[200.0] = Numbers(max(1, loop.batches - 1), 200.0)
        self.data[300.0] = Numbers(2, 300.0)
        self.step = ctx.restore_checkpoint()
        trace.is_inside = any(spec["samples"] or spec["is_again"] for spec in ctx._progress.restored)
        self.has_trained = False

    # -- the parts of a loop -------------------------------------------------------------------------------------------

    def loader(self, base: float = 0.0) -> Any:
        most = 2 if self.loop.limit == "max_batches" else None
        return self.ctx.loader(self.data[base], max_batches=most)

    def outer(self) -> Iterator[Any]:
        loop = self.loop
        if loop.outer == "epochs":
            yield from self.ctx.epochs(loop.epochs)
        elif loop.outer == "range":
            yield from range(self.step // loop.steps_per_epoch, loop.epochs)
        else:
            while self.step < loop.epochs * loop.steps_per_epoch:
                yield None

    def inner(self) -> Iterator[tuple[Any, ...]]:
        """Yield the batches of an epoch. The loops are written out, because their iterators must end as in a script."""
        loop = self.loop
        if loop.inner == "one":
            for one in self.loader():
                yield (one,)
        elif loop.inner == "zip":
            yield from zip(self.loader(), self.loader(100.0), strict=False)
        elif loop.inner == "shorter":
            yield from zip(self.loader(), self.loader(200.0), strict=False)
        elif loop.inner == "next":
            other = iter(self.loader(100.0))
            for one in self.loader():
                yield one, next(other)
        elif loop.inner == "cycle":
            short = self.loader(200.0)
            other = iter(short)
            for one in self.loader():
                two = next(other, None)
                if two is None:
                    other = iter(short)
                    two = next(other)
                yield one, two
        elif loop.inner == "nested":
            for one in self.loader():
                for two in self.loader(300.0):
                    yield one, two
        elif loop.inner == "turns":
            for base in (0.0, 100.0):
                for one in self.loader(base):
                    yield (one,)

    def save(self, place: str) -> None:
        if place in self.loop.saves and self.step % self.loop.every == 0:
            self.ctx.save_checkpoint(self.step)
            self.trace.saved = place
            self.trace.at()

    def at(self) -> None:
        awaited = self.ctx._points._awaited
        self.trace.at(takes_later=awaited is not None and awaited.mark is None)

    def draw(self) -> float:
        return torch.rand(()).item() + random.random() if self.loop.ranks == 1 else 0.0

    def train(self, parts: tuple[Any, ...]) -> None:
        """Run the body of a batch."""
        self.save("head")
        self.trace.at()
        inputs = torch.cat(parts) / 100
        inputs = inputs + self.draw()
        loss = self.model(inputs).square().mean()
        self.has_trained = True
        self.ctx.backward(loss)
        self.save("middle")
        self.trace.at()
        self.exchange()
        self.ctx.step(self.optimizer)
        self.step += 1
        self.save("after step")
        self.trace.at()
        self.average.update(self.model)
        self.save("end")
        self.trace.at()

    def exchange(self) -> None:
        """Average the gradients over the ranks."""
        distributed = self.ctx.distributed
        if distributed.size > 1:
            mine = [parameter.grad for parameter in self.model.parameters()]
            for grad, *all_ranks in zip(mine, *distributed.allgather([grad.clone() for grad in mine]), strict=True):
                grad.copy_(sum(all_ranks) / len(all_ranks))

    def run(self) -> None:
        """Train to the end."""
        loop = self.loop
        most = loop.epochs * loop.steps_per_epoch
        for _ in self.outer():
            if loop.outer == "epochs":
                self.trace.enter()
            self.save("epoch")
            self.trace.at()
            limit = 2 if loop.limit.startswith("break") else None
            for count, parts in enumerate(self.inner()):
                self.trace.enter()
                if loop.limit == "break before" and count == limit:
                    break
                self.train(parts)
                if loop.outer != "epochs" and self.ctx.should_stop:
                    self.ctx.save_checkpoint(self.step)
                    return
                if loop.limit == "break after" and count + 1 == limit:
                    break
                if loop.limit == "break by step" and self.step % limit == 0:
                    break
                if loop.outer == "while" and self.step == most:
                    break
            self.save("after loop")
            self.trace.at()
            self.draw()
            self.scheduler.step()
            self.save("tail")
            self.trace.at()
            if self.ctx.should_stop:
                self.ctx.save_checkpoint(self.step)
                return
        self.save("outside")
        self.trace.steps = self.step
        state = [self.model.state_dict(), self.average.state_dict(), self.optimizer.state_dict(), self.step]
        self.trace.digest = digest_of([*state, self.scheduler.last_epoch])
        # A loop of the program's own that has nothing left to train leaves the random numbers alone.
        if loop.ranks == 1 and (self.has_trained or loop.outer == "epochs"):
            self.trace.random_digest = digest_of([torch.get_rng_state().tolist(), random.getstate()])


def digest_of(state: Any) -> str:
    """Return a digest of plain values and small tensors."""
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


class Rank(ThreadRank):
    """A rank as a thread, with votes."""

    def largest_each(self, numbers: Sequence[int]) -> list[int]:
        return [max(of) for of in zip(*self.allgather(list(numbers)), strict=True)]

    def barrier(self) -> None:
        self.allgather(None)


def run(loop: Loop, folder: Path, *, kill_at: int = -1, stop_at: int = -1) -> list[Trace]:
    """Run a loop from the latest checkpoint in a folder. Return each rank's trace."""
    traces = [Trace(kill_at, stop_at) for _ in range(loop.ranks)]

    def of(ctx: Any, trace: Trace) -> None:
        with contextlib.suppress(Killed), ctx:
            Program(loop, ctx, trace).run()

    def body(distributed: ThreadRank) -> None:
        env = RankEnvironment(rank=distributed.rank, world_size=distributed.size, config=loop.config)
        ctx = initialization._build(
            env, distributed, 3, lambda: torch.device("cpu"), Hparams(HPARAMS), folder, True, 60.0
        )
        of(ctx, traces[distributed.rank])

    if loop.ranks == 1:
        of(dtrain.init(hparams=HPARAMS, config=loop.config, seed=3, checkpoint_dir=folder), traces[0])
    else:
        for result in in_ranks(loop.ranks, body, kind=Rank):
            if result is not None:
                raise result
    return traces


def is_exact(loop: Loop, killed: Trace, resumed: Trace) -> bool:
    """Return whether a resumed program must end as an unbroken one. Otherwise, the library says what is lost."""
    if killed.saved in EARLY or "middle" in loop.saves:
        return False
    if loop.inner == "turns" and loop.outer != "epochs":
        return False
    # The program's own count of batches begins anew.
    counts = loop.limit.startswith("break") and loop.saves & IN_BODY
    return not (counts and (resumed.is_inside or killed.saved in IN_BODY))


def is_exact_after_a_stop(loop: Loop, resumed: Trace) -> bool:
    """Return the same for a program that has saved and ended where it was asked to.

    A loop of the program's own may have left an epoch at its last batch.
    """
    return loop.outer == "epochs" and not (loop.limit.startswith("break") and resumed.is_inside)


@contextlib.contextmanager
def warnings_of_training() -> Iterator[list[str]]:
    """Collect the warnings of the library, and what it says about a restored position."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING or "is not run again" in record.getMessage():
                found.append(record.getMessage())

    logger = logging.getLogger("airflow_provider_dtrain.train")
    handler = Handler(logging.INFO)
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
