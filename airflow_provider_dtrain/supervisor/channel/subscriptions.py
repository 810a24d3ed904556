"""Subscriptions of a channel to runs: their streams, their progress, and the death of their supervisors."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping

from ..fields import Fields
from ..files.layout import Layout, RunFolder
from ..limits import FRAME_PAUSE_S, HIGH_WATER, SMALL
from ..machine.processes import find_process, open_pidfd
from ..names import STREAM, Json
from .outbox import Outbox
from .progress import Watcher
from .run_commands import folder_of
from .streams import Subscription


class Subscriptions:
    """Subscriptions of one channel.

    :param handle: lets a function run whenever a descriptor can be read
    :param forget: ends that
    :param recover: recovers a run whose supervisor is dead
    """

    def __init__(
        self,
        layout: Layout,
        output: Outbox,
        *,
        handle: Callable[[int, Callable[[], None]], None],
        forget: Callable[[int], None],
        recover: Callable[[RunFolder], None],
    ) -> None:
        self.layout = layout
        self.output = output
        self._handle = handle
        self._forget = forget
        self._recover = recover
        #: Run -> its subscription.
        self.of_runs: dict[str, Subscription] = {}
        self.watcher = Watcher()
        self.pidfds: dict[str, int] = {}
        self.idle_s = 0.02
        self.next_poll = 0.0

    def start(self) -> None:
        """Notice changes of files from now on."""
        if self.watcher.fd >= 0:
            self._handle(self.watcher.fd, self._note_changes)

    def deadlines(self, now: float) -> list[float]:
        """Return the seconds until each moment at which :meth:`pump` may have something to send."""
        times = []
        room = self.output.size < HIGH_WATER
        for run, subscription in self.of_runs.items():
            if subscription.complete:
                continue
            if subscription.dirty and room:
                times.append(subscription.not_before - now)
            if subscription.log_due is not None and room:
                times.append(subscription.log_due - now)
            if run in self.watcher.blind:
                times.append(self.next_poll - now)
        return times

    def subscribe(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        """Send the streams of a run from the given offsets on."""
        folder = folder_of(self.layout, fields)
        inner = fields.inner("offsets", default={})
        if len(inner.values) > 8192 or not all(STREAM.fullmatch(str(name)) for name in inner.values):
            raise inner.bad("", "must have at most 8192 keys, each the name of a stream")
        offsets = {name: inner.integer(name, 0, 1 << 62) for name in inner.values}
        logs = fields.text("logs", re.compile("rank0|all|none"), default="rank0")
        plan = folder.plan() or {}
        self._leave(folder.name)
        subscription = Subscription(folder, plan, offsets, logs)
        self.of_runs[folder.name] = subscription
        self.watcher.add(folder.name, folder.path)
        for rank in plan["ranks"]:
            self.watcher.add(folder.name, folder.file(f"rank{rank['rank']}"))
        self._watch_supervisor(folder)
        return {}, b""

    def report_lost(self, failures: Mapping[str, str]) -> None:
        """Report to the control side the runs whose files can no longer show their end, and end their subscriptions.

        :param failures: run -> why the end of a run without supervisor cannot be recorded
        """
        for run, subscription in list(self.of_runs.items()):
            reason = "its folder was removed" if subscription.folder.is_removed(subscription.inode) else None
            if reason is None and run in failures and not subscription.final and not subscription.folder.alive():
                reason = f"its end cannot be recorded: {failures[run]}"
            if reason is not None:
                self._leave(run)
                self.output.frame({"t": "gone", "run": run, "reason": reason})

    def _watch_supervisor(self, folder: RunFolder) -> None:
        """Watch the supervisor of a subscribed run, so that its death is noticed at once."""
        proc = find_process(folder.supervisor())
        fd = open_pidfd(proc.pid) if proc is not None else -1
        if fd < 0:
            self._recover(folder)
            return
        self.pidfds[folder.name] = fd

        def died() -> None:
            self._unwatch(folder.name)
            self._recover(folder)
            if folder.name in self.of_runs:
                self.of_runs[folder.name].dirty = True

        self._handle(fd, died)

    def _unwatch(self, run: str) -> None:
        fd = self.pidfds.pop(run, -1)
        if fd >= 0:
            self._forget(fd)
            os.close(fd)

    def _leave(self, run: str) -> None:
        if self.of_runs.pop(run, None) is not None:
            self.watcher.remove(run)
            self._unwatch(run)

    def unsubscribe(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        """Send no further data of a run."""
        self._leave(fields.run())
        return {}, b""

    def acknowledge(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        """Record that the control side has a part of a stream."""
        subscription = self.of_runs.get(fields.run())
        stream = subscription.stream(fields.text("stream", STREAM)) if subscription else None
        offset = fields.integer("offset", 0, 1 << 62)
        if subscription is not None and stream is not None:
            stream.acknowledge(offset)
            subscription.dirty = True
        return {}, b""

    def _note_changes(self) -> None:
        for run in self.watcher.changed():
            if run in self.of_runs:
                self.of_runs[run].dirty = True

    def send_progress(self, with_beat: bool) -> None:
        """Poll the ranks of subscribed runs. Report them with each heartbeat, and a stalled one at once."""
        for run, subscription in self.of_runs.items():
            if subscription.final:
                continue
            report, is_news = subscription.progress.poll()
            if report["ranks"] and (is_news or with_beat):
                self.output.frame({"t": "progress", "run": run, **report})

    def pump(self) -> None:
        """Send the new data of all subscriptions, one frame of each stream in turn."""
        now = time.monotonic()
        if now >= self.next_poll:
            busy = False
            for run in self.watcher.blind & set(self.of_runs):
                busy = busy or self.of_runs[run].dirty
                self.of_runs[run].dirty = True
            self.idle_s = 0.02 if busy else min(0.25, self.idle_s * 2)
            self.next_poll = now + self.idle_s
        for subscription in list(self.of_runs.values()):
            if subscription.complete or not subscription.is_due(now):
                continue
            if self.output.size >= HIGH_WATER:
                return
            sent = 0
            for frame, data in subscription.frames(now):
                self.output.frame(frame, data)
                sent += len(data)
            subscription.not_before = now + (FRAME_PAUSE_S if sent < SMALL else 0.0)
