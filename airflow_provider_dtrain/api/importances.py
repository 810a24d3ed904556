"""Importance of hyperparameters, computed once per state of an experiment in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from airflow_provider_dtrain.core.search.dimensions import Dimension
from airflow_provider_dtrain.core.search.importance import ImportanceResult, importance
from airflow_provider_dtrain.store.database.time_limit import TimeLimit

log = logging.getLogger(__name__)

#: Experiments whose importance a process keeps.
KEPT = 100
#: Seconds between two computations for one experiment. Each report of one of 10,000 trials would cause a computation,
#: which takes half a second of CPU and hardly changes the result.
AGAIN_S = 30.0
#: Longest time for the reading of hyperparameters and metrics.
READ_S = 60.0
#: Hyperparameters and metric of a trial.
Judged = tuple[Mapping[str, Any], float | None]
PENDING = ImportanceResult(shares={}, note="It is being computed.")


class Importances:
    """Results by experiment. A computation takes seconds, so a request never waits for it.

    While trials report, a result may be up to :data:`AGAIN_S` older than the store.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="dtrain-importance")
        self._lock = threading.Lock()
        self._found: dict[Hashable, tuple[Hashable, Future[ImportanceResult]]] = {}
        self._last: dict[Hashable, ImportanceResult] = {}
        #: time.monotonic() of the last computations
        self._began: dict[Hashable, float] = {}

    def known(self, key: Hashable, version: Hashable) -> ImportanceResult | None:
        """Return the result for a version of an experiment, None while there is none."""
        with self._lock:
            known = self._found.get(key)
            return _result(known[1]) if known is not None and known[0] == version and known[1].done() else None

    def latest(self, key: Hashable) -> ImportanceResult:
        """Return the last result for an experiment, :data:`PENDING` before the first one."""
        with self._lock:
            known = self._found.get(key)
            if known is not None and known[1].done():
                self._last[key] = _result(known[1])
            return self._last.get(key, PENDING)

    def start(
        self,
        key: Hashable,
        version: Hashable,
        dimensions: Sequence[Dimension],
        judged: Callable[[], Sequence[Judged]],
        *,
        smaller_is_better: bool,
    ) -> None:
        """Start the computation for a version of an experiment, if it is due and none is running.

        It takes turns with requests at the interpreter, so a request starts it when its answer is ready.

        :param key: of the experiment and metric
        :param version: changes with the metrics of its trials
        :param judged: reads hyperparameters and metric of ended trials, in the thread that computes
        """
        with self._lock:
            known = self._found.get(key)
            if known is None or (known[0] != version and known[1].done() and self._is_due(key)):
                if known is not None:
                    self._last[key] = _result(known[1])
                future = self._executor.submit(_computed, dimensions, judged, smaller_is_better)
                self._found[key] = (version, future)
                self._began[key] = time.monotonic()
                self._drop_oldest()

    def _is_due(self, key: Hashable) -> bool:
        return time.monotonic() - self._began[key] >= AGAIN_S

    def _drop_oldest(self) -> None:
        while len(self._found) > KEPT:
            oldest = next(iter(self._found))
            self._found.pop(oldest)[1].cancel()
            del self._began[oldest]
            self._last.pop(oldest, None)


def _computed(
    dimensions: Sequence[Dimension], judged: Callable[[], Sequence[Judged]], smaller_is_better: bool
) -> ImportanceResult:
    with TimeLimit(READ_S).applied():
        trials = judged()
    return importance(dimensions, trials, smaller_is_better=smaller_is_better)


def _result(future: Future[ImportanceResult]) -> ImportanceResult:
    error = future.exception()
    if error is None:
        return future.result()
    log.warning("The importance of hyperparameters could not be computed", exc_info=error)
    return ImportanceResult(shares={}, note=f"It could not be computed: {type(error).__name__}.")
