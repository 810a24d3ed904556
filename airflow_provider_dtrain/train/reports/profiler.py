"""Profiler: ``torch.profiler`` with a schedule. Its traces are outputs of the trial."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.process.heartbeat import HERE, TRACE
from airflow_provider_dtrain.train.reports.events import EventWriter

log = logging.getLogger(__name__)

#: Folder of the traces below the working folder of the ranks. The control side copies it.
FOLDER = "traces"
#: Bounds of a rank's traces: batches of one trace, traces, and bytes of all of them together (compressed).
MOST_BATCHES, MOST_TRACES, MOST_BYTES = 100, 20, 256 << 20
#: Options of torch.profiler.profile that :meth:`Profiler.start` takes.
OPTIONS = ("activities", "record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
#: Fields of ``profiling.trace``, with the lowest and highest value of numbers.
NUMBERS: Mapping[str, tuple[int, int]] = {
    "wait": (0, 1_000_000_000),
    "warmup": (0, 1_000_000_000),
    "active": (1, MOST_BATCHES),
    "repeat": (1, MOST_TRACES),
}
#: File in the run's folder that requests a trace of the next batches, its most bytes, and seconds between two polls.
#: The supervisor writes it, and has the same name.
REQUEST, REQUEST_BYTES, POLL_S = "profile_requested", 64 << 10, 1.0
_Schedule = Callable[[int], Any]


class Profiler:
    """Recorder of some batches of this rank. ``ctx.profiler`` of a script.

    A profiler that fails is logged and switched off. Training continues.
    """

    def __init__(self, env: RankEnvironment, writer: EventWriter) -> None:
        self._env = env
        self._writer = writer
        #: Whether each batch calls :meth:`step`.
        self.running = False
        self._profile: Any = None
        #: Creates the profile at the first batch.
        self._armed: Callable[[], Any] | None = None
        self._left = self._bytes = 0
        self._request = None if env.run_dir is None else env.run_dir / REQUEST
        #: Time of the next poll, and the version of the file that was read: inode and time of its change.
        self._next_poll = 0.0
        self._known: tuple[int, int] | None = None
        #: A user has requested the trace that is recorded now.
        self._requested = False

    def start(
        self,
        *,
        wait: int = 10,
        warmup: int = 2,
        active: int = 3,
        repeat: int = 1,
        ranks: Collection[int] | str = (0,),
        **options: Any,
    ) -> Profiler:
        """Record batches from now on, and write a trace after each ``active`` batches.

        :meth:`Context.step` and ``ctx.should_stop(step)`` advance it by one batch. It ends by itself after the last
        trace, at the end of a ``with`` block, or by :meth:`stop`.

        :param wait: batches before each trace that are not recorded
        :param warmup: batches before each trace that are recorded and dropped, because the first ones are slower
        :param active: batches in a trace, 1 to 100
        :param repeat: number of traces, 1 to 20
        :param ranks: ranks that record, or ``all``; on other ranks the call has no effect
        :param options: ``record_shapes``, ``profile_memory``, ``with_stack``, ``with_flops``, ``with_modules`` and
            ``activities`` of ``torch.profiler.profile``
        :raises SetupError: a value is not valid, or the profiler is running
        """
        self._end_requested()
        if self.running:
            raise SetupError("ctx.profiler is running already; call ctx.profiler.stop() before another start.")
        plan = {"wait": wait, "warmup": warmup, "active": active, "repeat": repeat}
        _check(plan, options)
        if self._records(ranks):
            self._guarded(lambda: self._begin(_create(plan, options, self._save), repeat))
        return self

    def configure(self, trace: Mapping[str, Any] | None) -> None:
        """Record as ``profiling.trace`` of the configuration says, from the first batch on.

        :raises SetupError: a value is not valid
        """
        if not trace:
            return
        given = {name: value for name, value in trace.items() if value is not None}
        ranks = given.pop("ranks", (0,))
        plan = {"wait": 10, "warmup": 2, "active": 3, "repeat": 1}
        plan.update({name: given.pop(name) for name in NUMBERS if name in given})
        _check(plan, given, "profiling.trace.")
        if self._records(ranks):
            self._armed = lambda: self._begin(_create(plan, given, self._save), plan["repeat"])
            self.running = True

    def set(self, *args: Any, ranks: Collection[int] | str = (0,), **options: Any) -> None:
        """Record with ``torch.profiler.profile(*args, **options)``. Without a schedule, that of :meth:`start` is used.

        :raises SetupError: the arguments are not valid, or the profiler is running
        """
        self._end_requested()
        if self.running:
            raise SetupError("set_profiler was called twice, or profiling.trace is set. Use one of them, once.")
        if not self._records(ranks):
            return
        import torch.profiler as library

        names = ("activities", "schedule")
        if len(args) > len(names) or options.get("on_trace_ready") is not None:
            raise SetupError("set_profiler takes activities, schedule and options by name, and writes traces itself.")
        options.update(zip(names, args))
        schedule = options.pop("schedule", None) or library.schedule(wait=10, warmup=2, active=3, repeat=1)
        try:
            profile = library.profile(schedule=_bounded(schedule), on_trace_ready=self._save, **options)
        except TypeError as error:
            raise SetupError(f"set_profiler: torch.profiler.profile does not take these arguments: {error}") from None
        self._armed = lambda: self._begin(profile, MOST_TRACES)
        self.running = True

    def step(self) -> None:
        """Advance by one batch. Called by loops of programs that use neither ``ctx.step`` nor ``ctx.should_stop``.

        Once a second, it begins a trace that a user has requested while the trial runs.
        """
        if self._armed is not None:
            begin = self._armed
            self._armed = None
            self._guarded(begin)
        elif self._profile is not None:
            self._guarded(self._profile.step)
            if not self._left:
                self.stop()
        elif self._request is not None:
            now = time.monotonic()
            if now >= self._next_poll:
                self._next_poll = now + POLL_S
                self._poll(self._request)

    def _poll(self, path: Path) -> None:
        """Begin the requested trace, once for each request."""
        try:
            state = path.lstat()
            version = (state.st_ino, state.st_mtime_ns)
            if version == self._known or state.st_size > REQUEST_BYTES:
                return
            self._known = version
            wanted = json.loads(path.read_bytes())
            ranks, batches, with_stack = wanted["ranks"], wanted["batches"], wanted["with_stack"] is True
            if self._env.rank in ranks:
                self.start(wait=0, warmup=1, active=batches, repeat=1, ranks="all", with_stack=with_stack)
                self._requested = self.running
                log.info("A user requested a trace of %d batches: it begins with the next one", batches)
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, RecursionError, SetupError) as error:
            log.warning("A request for a trace cannot be read, training continues: %s", error)

    def _end_requested(self) -> None:
        """End a trace that a user has requested, because the program records one of its own."""
        if self._requested:
            self.stop()

    def stop(self) -> None:
        """End the recording. Batches that are recorded and not written yet become a trace."""
        self._requested = False
        profile = self._profile
        self._profile = self._armed = None
        self.running = False
        if profile is not None:
            self._guarded(profile.stop)

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _records(self, ranks: Collection[int] | str) -> bool:
        if ranks == "all":
            return True
        if isinstance(ranks, str) or not all(type(rank) is int and rank >= 0 for rank in ranks):
            raise SetupError(f"ranks of the profiler must be 'all' or a list of ranks from 0 on, got {ranks!r}.")
        return self._env.rank in ranks

    def _begin(self, profile: Any, traces: int) -> None:
        self._left = traces
        profile.start()
        self._profile = profile
        self.running = True

    def _guarded(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:
            profile = self._profile
            self._profile = None
            self.running = False
            self._left = 0
            log.warning(
                "The profiler failed and is off from now on, training continues: %s: %s", type(error).__name__, error
            )
            with contextlib.suppress(Exception):
                if profile is not None:
                    profile.stop()

    def _save(self, profile: Any) -> None:
        """Write the recorded batches as a trace. Called by torch, at the end of a batch."""
        if not self._left:
            return
        with HERE.at(TRACE):
            batch = HERE.steps()
            folder = (self._env.run_dir / "work" if self._env.run_dir else Path.cwd()) / FOLDER
            folder.mkdir(parents=True, exist_ok=True)
            path = _free(folder, f"rank{self._env.rank}-attempt{self._env.attempt or 1}-batch{batch}")
            partial = folder / f".{path.name}"
            try:
                profile.export_chrome_trace(str(partial))
                self._bytes += partial.stat().st_size
                self._left -= 1
                if self._bytes > MOST_BYTES:
                    raise OSError(f"the traces of rank {self._env.rank} exceed {MOST_BYTES >> 20} MiB")
                os.replace(partial, path)
            finally:
                partial.unlink(missing_ok=True)
        size = path.stat().st_size
        log.info("Trace of the profiler up to batch %d: %s (%.1f MiB)", batch, path, size / 2**20)
        self._writer.write("trace", {"path": f"work/{FOLDER}/{path.name}", "step": batch, "size_bytes": size})


def _check(plan: Mapping[str, Any], options: Mapping[str, Any], prefix: str = "") -> None:
    for name, (least, most) in NUMBERS.items():
        if type(plan[name]) is not int or not least <= plan[name] <= most:
            raise SetupError(f"{prefix}{name} must be a whole number from {least} to {most}, got {plan[name]!r}.")
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise SetupError(f"{prefix}{unknown[0]} is no option of the profiler. Options: {', '.join(OPTIONS)}.")


def _create(plan: Mapping[str, int], options: Mapping[str, Any], save: Callable[[Any], None]) -> Any:
    import torch.profiler as library

    return library.profile(schedule=library.schedule(**plan), on_trace_ready=save, **options)


def _bounded(schedule: _Schedule) -> _Schedule:
    from torch.profiler import ProfilerAction

    recorded = 0

    def action_at(step: int) -> Any:
        nonlocal recorded
        action = schedule(step)
        recorded = recorded + 1 if action is ProfilerAction.RECORD else 0
        if recorded < MOST_BATCHES:
            return action
        recorded = 0
        return ProfilerAction.RECORD_AND_SAVE

    return action_at


def _free(folder: Path, stem: str) -> Path:
    names = (f"{stem}{f'-{count}' if count else ''}.pt.trace.json.gz" for count in range(1_000_000))
    return next(path for name in names if not (path := folder / name).exists())
