"""End of a rank's context: normal, by an exception, or by the end of the interpreter."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.train.checkpoint.saver import Saver
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.environment import Environment
from airflow_provider_dtrain.train.errors import InvalidHP
from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients
from airflow_provider_dtrain.train.process.heartbeat import HERE
from airflow_provider_dtrain.train.reports import console, failure
from airflow_provider_dtrain.train.reports.events import EventWriter
from airflow_provider_dtrain.train.reports.metrics import Reporter
from airflow_provider_dtrain.train.reports.profiler import Profiler
from airflow_provider_dtrain.train.reports.timings import Timings
from airflow_provider_dtrain.train.search.rungs import Rungs


class Ending:
    """The part of a context that closes it."""

    distributed: Distributed
    profiler: Profiler
    _env: Environment
    _writer: EventWriter
    _reporter: Reporter
    _saver: Saver
    _gradients: Gradients
    _rungs: Rungs
    _timings: Timings
    _stop = _closed = _together = False
    #: The program has seen the stop request, so its end is not the end of training.
    _left_early = False
    _batches = _last_step = 0
    #: Step and metrics of the latest validation.
    _validated: tuple[int, Mapping[str, Any]] | None = None
    _result: Any = None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.close()
            return
        if isinstance(error, InvalidHP):
            self._writer.write("invalid_hp", {"reason": str(error)}, sync=True)
        if isinstance(error, Exception):
            failure.record(error)
        self.abandon()

    def close(self) -> None:
        """Write the result and wait for the other ranks. The ``with`` block calls it. Called by all ranks."""
        if self._closed:
            return
        if not self._stop:
            self._gradients.check_end(trained_before=self._batches > 0)
        self._closed = True
        self.profiler.stop()
        self._rungs.settle()
        self._meet()
        self._saver.finish()
        self._saver.release()
        self._timings.close()
        self._reporter.loggers.close()
        self._write_result()
        console.say_where(self._env, self._saver.shown_latest())
        self.distributed.barrier()
        HERE.end()
        self._together = True

    def leave(self) -> None:
        """Close files and process group, at the end of the interpreter.

        Without a ``with`` block, it is unknown whether the other ranks come this far, so this rank waits for none.
        """
        self.abandon(result=not failure.failed())
        self._writer.close()
        if self._together and not failure.failed():
            self.distributed.leave()

    def abandon(self, *, result: bool = False) -> None:
        """Write the data of this rank without the other ranks, which may have ended or be elsewhere in the program.

        :param result: write the result as well
        """
        if self._closed:
            return
        self._closed = True
        HERE.end()
        # A broken device must not hide the error that broke it.
        with contextlib.suppress(Exception):
            self._reporter.flush()
            self._reporter.loggers.close()
            self._timings.close()
        self._saver.settle()
        self._saver.release()
        if result:
            self._write_result()

    @property
    def closed(self) -> bool:
        """True when the context is closed."""
        return self._closed

    def _write_result(self) -> None:
        if self.distributed.get_rank() == 0:
            if self._left_early:
                self._writer.write("stopped", {"step": self._last_step}, sync=True)
            self._writer.write("result", {"value": self._final()}, sync=True)

    def _final(self) -> Any:
        if self._result is not None:
            return self._result
        return {
            "step": self._last_step,
            "metrics": dict(self._validated[1]) if self._validated else {},
            "checkpoint": self._saver.shown_latest(),
        }

    if TYPE_CHECKING:

        def _meet(self) -> None: ...
