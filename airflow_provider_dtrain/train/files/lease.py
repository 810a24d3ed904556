"""Lease of a place: one run at a time writes to it."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.errors import TrainError
from airflow_provider_dtrain.train.files.place import Place
from airflow_provider_dtrain.train.values import JsonObject

log = logging.getLogger(__name__)

#: Interval at which the holder raises its counter, seconds.
BEAT_S = 5.0
#: Intervals without a new counter after which a holder is dead. Only the observer's own clock counts.
DEAD_AFTER_BEATS = 6
#: Time after which a run that wrote its name reads it again: of two that wrote at once, one finds the other's name.
SETTLE_S = 1.0
#: Largest file that is read, bytes.
_LIMIT_BYTES = 4096


class Lease:
    """A file with the name of the run that may write, and a counter that a thread of this run raises.

    An earlier attempt of the same task, which has ended for certain, is replaced at once. So is a process of this host
    that has ended, if its lease names it. Any other holder must have stopped to raise its counter.

    :param name: name of the file in the place
    :param run: name of this run
    :param key: name that all attempts of one task share; None: there is no other attempt
    :param in_use: returns the error that names the other holder. True: it has taken the lease from this run
    :param unsure: returns the error of a run that has not reached the place for so many seconds
    :param names_process: this process has one lease of the place: while it lives, the lease is held
    :param recreates: a lease that was removed is written anew. Else another run has held it in between
    """

    def __init__(
        self,
        place: Place,
        name: str,
        *,
        run: str,
        key: str | None,
        in_use: Callable[[Mapping[str, Any], bool], TrainError],
        unsure: Callable[[float], TrainError] | None = None,
        names_process: bool = False,
        recreates: bool = False,
        beat_s: float = BEAT_S,
        settle_s: float = SETTLE_S,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._place = place
        self._name = name
        process = {"boot": _boot(), "pid": os.getpid(), "started": _started(os.getpid())} if names_process else {}
        self._mine: JsonObject = {"run": run, "key": key, "host": os.uname().nodename, **process}
        self._in_use = in_use
        self._unsure = unsure
        self._recreates = recreates
        self._beat_s = beat_s
        self._settle_s = settle_s
        self._pause = pause
        self._beat = 0
        self._confirmed_at = 0.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        #: The other run that has taken the lease, once the thread knows it.
        self._rival: Mapping[str, Any] | None = None

    def acquire(self) -> None:
        """Take the lease, and hold it until :meth:`release`. A second call does nothing.

        :raises TrainError: another run holds it
        :raises OSError: the place cannot be used
        """
        if self._thread is not None:
            return
        holder = self._read()
        if holder is None:
            if self._place.create(self._name, self._document()) is None:
                self._write()
                self._pause(self._settle_s)
        elif self._is_over(holder):
            self._write()
        else:
            self._wait_for_its_end(holder)
            self._write()
            self._pause(self._settle_s)
        self.confirm()
        self._over.clear()
        self._thread = threading.Thread(target=self._renew, name="dtrain-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise when another run has taken the lease by now, or this run cannot know. Takes no time."""
        if self._rival is not None:
            raise self._in_use(self._rival, True)
        silent_s = time.monotonic() - self._confirmed_at
        if self._unsure is not None and silent_s > DEAD_AFTER_BEATS * self._beat_s:
            raise self._unsure(silent_s)

    def confirm(self) -> None:
        """Read the lease, and raise when another run holds it."""
        rival = self._find_rival()
        if rival is not None:
            raise self._in_use(rival, self._thread is not None)

    def suspend(self) -> None:
        """Stop renewing the lease. Other attempts of this task may replace it at once, other runs after a wait."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def release(self) -> None:
        """Give the lease back, so that the next run does not wait."""
        self.suspend()
        if self._thread is None:
            return
        self._thread = None
        try:
            if self._find_rival() is None:
                self._place.remove(self._name)
        except (OSError, TrainError) as error:
            log.warning("%s was not given back, so the next run may wait: %s", self._place.location, error)

    def _is_over(self, holder: Mapping[str, Any]) -> bool:
        """Return whether a holder writes no longer, for certain.

        :raises TrainError: it writes, for certain
        """
        key, pid = holder.get("key"), holder.get("pid")
        if self._is_mine(holder) or (key is not None and key == self._mine["key"]):
            return True
        # The number of a process says something where its host started, and in its container.
        if type(pid) is not int or any(holder.get(name) != self._mine.get(name) for name in ("host", "boot")):
            return False
        if holder.get("started") and _started(pid) == holder["started"]:
            raise self._in_use(holder, False)
        return True

    def _wait_for_its_end(self, holder: Mapping[str, Any]) -> None:
        """Return once another holder has not raised its counter for long enough."""
        log.warning(
            "%s is in use by %s: waiting up to %.0f s for a sign of life.",
            self._place.location,
            describe(holder),
            DEAD_AFTER_BEATS * self._beat_s,
        )
        for _ in range(DEAD_AFTER_BEATS):
            self._pause(self._beat_s)
            now = self._read()
            if now is None:
                return
            if now != holder:
                raise self._in_use(now, False)

    def _renew(self) -> None:
        while not self._over.wait(self._beat_s):
            try:
                self._rival = self._find_rival()
                if self._rival is not None:
                    return
                self._write()
            except (OSError, TrainError) as error:
                log.warning("The counter in %s was not raised: %s", self._place.location, error)

    def _find_rival(self) -> Mapping[str, Any] | None:
        """Return the other run that holds the lease, None if this one does."""
        holder = self._read()
        if holder is None and not self._recreates:
            return {}
        if holder is not None and not self._is_mine(holder):
            return holder
        self._confirmed_at = time.monotonic()
        return None

    def _is_mine(self, holder: Mapping[str, Any]) -> bool:
        return all(holder.get(name) == value for name, value in self._mine.items())

    def _read(self) -> JsonObject | None:
        """Return the holder, or None. A damaged file is a holder without a name, which never raises its counter."""
        content = self._place.read(self._name, _LIMIT_BYTES)
        if content is None:
            return None
        try:
            holder = json.loads(content)
        except (ValueError, RecursionError):
            return {}
        return holder if isinstance(holder, dict) else {}

    def _write(self) -> None:
        # A sync would wait for the large files that are being written.
        self._place.write(self._name, self._document(), is_durable=False)

    def _document(self) -> bytes:
        self._beat += 1
        return json.dumps({**self._mine, "beat": self._beat}).encode()


def describe(holder: Mapping[str, Any]) -> str:
    """Return a holder in words."""
    if not holder:
        return "another run"
    process = f", process {holder['pid']}" if "pid" in holder else ""
    return f"run {holder.get('run')} on host {holder.get('host')}{process}"


def _boot() -> str | None:
    """Return what identifies this start of the host and the process numbers in use, or None if the system is silent.

    Containers of a host share its start and often its name, but number their processes by themselves.
    """
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """Return the start time of a process in the kernel's own unit, or None if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except (OSError, IndexError):
        return None
