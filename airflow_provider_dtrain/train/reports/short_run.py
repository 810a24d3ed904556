"""Short runs of a diagnosis: some steps of a program, also on repeated data or on one rank alone."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.process.imported import imported
from airflow_provider_dtrain.train.reports.timings import RankTimings

log = logging.getLogger(__name__)

#: Parts of the time limit of a run that the warm-up and the measured steps may take. The start of the program has the
#: rest.
WARM_UP_SHARE, MEASURED_SHARE = 0.15, 0.35
#: Fewest steps that are measured, however long they take.
STEPS_LEAST = 5
#: Longest step that ranks exchange, microseconds: their messages have 32 bits.
_MOST_US = 2**31 - 1


@dataclass(frozen=True)
class ShortRun:
    """Limits of a short run, from section ``diagnosis`` of the configuration."""

    #: Steps that are measured, and steps before them.
    steps: int
    warm_up: int
    #: Time limit of the whole run, seconds.
    most_s: float
    #: The training loader repeats its first batch.
    is_synthetic: bool = False
    #: Rank 0 trains alone, and the other ranks end at once.
    is_alone: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ShortRun | None:
        """Return the limits that a configuration has, None for a usual run."""
        section = config.get("diagnosis")
        if not section:
            return None
        return cls(
            steps=int(section["steps"]),
            warm_up=int(section["warm_up"]),
            most_s=float(section["most_s"]),
            is_synthetic=bool(section["synthetic"]),
            is_alone=bool(section["alone"]),
        )


def reduced(env: RankEnvironment) -> RankEnvironment:
    """Return the environment of a rank that trains alone if the run says so, else the same one.

    Ranks other than rank 0 end here.
    """
    run = ShortRun.of(env.config) if env.on_cluster else None
    if run is None or not run.is_alone or env.world_size == 1:
        return env
    if env.rank:
        log.info("This short run has one rank, so rank %d ends.", env.rank)
        sys.exit(0)
    # For programs that read them themselves.
    os.environ.update(WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    return replace(env, world_size=1, local_world_size=1)


class StepLimit:
    """Ends the program of a short run after its steps, and leaves the steps of the warm-up out of the timings.

    All ranks end at the same step, because they agree on its number at the end of the warm-up.

    :param settle: waits until the device has done all work
    :param check: raises an error if the measured steps were not those of the configuration
    """

    def __init__(
        self,
        run: ShortRun,
        distributed: Distributed,
        timings: RankTimings,
        *,
        settle: Callable[[], None],
        check: Callable[[], None],
    ) -> None:
        self._run = run
        self._distributed = distributed
        self._timings = timings
        self._settle = settle
        self._check = check
        self._began = 0.0
        self._last: int | None = None

    def __call__(self, batches: int, now: float) -> None:
        """Count a step. Called by all ranks.

        :param batches: number of steps so far, from 1
        :param now: time at which it ended, by the clock of the timings
        :raises SystemExit: it was the last one
        """
        if self._last is None:
            self._warm_up(batches, now)
        elif batches >= self._last:
            with self._timings.of("from_device"):
                self._settle()
            self._check()
            # The program must neither validate nor save.
            raise SystemExit(0)

    def _warm_up(self, batches: int, now: float) -> None:
        if batches == 1:
            self._began = now
            return
        is_long = now - self._began > WARM_UP_SHARE * self._run.most_s
        if batches <= self._run.warm_up and not self._distributed.any(is_long):
            return
        self._settle()
        step_s = (self._timings.clock() - self._began) / (batches - 1)
        slowest_s = self._distributed.largest(min(_MOST_US, int(step_s * 1e6) + 1)) / 1e6
        steps = min(self._run.steps, int(MEASURED_SHARE * self._run.most_s / slowest_s))
        self._last = batches + max(STEPS_LEAST, steps)
        self._timings.discard()


def wait_for_device() -> None:
    """Wait until the current GPU has done all work, if the program uses one."""
    torch = imported("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
