"""Ownership of an output folder: one run at a time writes to it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_dtrain.train.errors import FolderInUseError, OutputFolderError
from airflow_provider_dtrain.train.inference.ledger import decode, encode
from airflow_provider_dtrain.train.inference.output_folder import OWN, OutputFolder

log = logging.getLogger(__name__)

OWNER = f"{OWN}/owner.json"
#: Interval at which the owner raises its counter, seconds.
BEAT_S = 5.0
#: Intervals without a new counter after which an owner is dead. Only the observer's own clock counts.
DEAD_AFTER_BEATS = 6
#: Time after which a run that wrote its name reads it again: of two that wrote at once, one finds the other's name.
SETTLE_S = 1.0


class Owner:
    """Claim of one run on an output folder, renewed by a thread.

    A run that Airflow or the engine has ended for certain may be replaced at once: an earlier attempt of the same task.
    Any other owner must have stopped to raise its counter.

    :param run: name of this run
    :param key: name that all attempts of one task share
    :param host: host of rank 0, for messages
    """

    def __init__(
        self,
        folder: OutputFolder,
        *,
        run: str,
        key: str,
        host: str,
        beat_s: float = BEAT_S,
        settle_s: float = SETTLE_S,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder = folder
        self._mine = {"run": run, "key": key, "host": host}
        self._beat_s = beat_s
        self._settle_s = settle_s
        self._pause = pause
        self._beat = 0
        self._confirmed_at = 0.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._problem: Exception | None = None

    def acquire(self) -> None:
        """Become the owner, and remain it until :meth:`release`.

        :raises FolderInUseError: another run owns the folder and is alive
        """
        found = self._read()
        if found is None:
            self._claim()
        elif found.get("key") == self._mine["key"]:
            self._write()
        else:
            self._wait_for_its_end(found)
            self._write()
            self._pause(self._settle_s)
        self.confirm()
        self._thread = threading.Thread(target=self._renew, name="dtrain-owner", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise when the folder belongs to another run by now, or this run cannot know. Takes no time.

        :raises FolderInUseError: another run has taken the folder over
        :raises OutputFolderError: another run may have
        """
        if self._problem is not None:
            raise self._problem
        silent_s = time.monotonic() - self._confirmed_at
        if silent_s > DEAD_AFTER_BEATS * self._beat_s:
            raise OutputFolderError(
                f"This run has not reached the output folder {self._folder.location} for {silent_s:.0f} s, so another "
                "run may own it. The next attempt continues from the shards that are done."
            )

    def confirm(self) -> None:
        """Read the owner, and raise when it is another run.

        :raises FolderInUseError: another run has taken the folder over
        """
        found = self._read()
        if found is None or found.get("run") != self._mine["run"]:
            raise FolderInUseError(
                f"The output folder {self._folder.location} has been taken over by {_name(found)}. Two runs must not "
                "write to one folder."
            )
        self._confirmed_at = time.monotonic()

    def suspend(self) -> None:
        """Stop renewing the claim. Other attempts of this task may replace it at once, other runs after a wait."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def release(self) -> None:
        """Give the folder up, so that the next run does not wait."""
        self.suspend()
        if self._thread is None:
            return
        try:
            if (self._read() or {}).get("run") == self._mine["run"]:
                self._folder.remove(OWNER)
        except OutputFolderError as error:
            log.warning(
                "The output folder %s was not given up, so the next run waits: %s", self._folder.location, error
            )

    def _claim(self) -> None:
        """Write this run's name into a folder without an owner."""
        if self._folder.create(OWNER, self._document()) is None:
            self._write()
            self._pause(self._settle_s)

    def _wait_for_its_end(self, found: Mapping[str, Any]) -> None:
        """Return once another owner has not raised its counter for long enough."""
        log.info(
            "The output folder %s belongs to %s; waiting %.0f s for a sign of life",
            self._folder.location,
            _name(found),
            DEAD_AFTER_BEATS * self._beat_s,
        )
        for _ in range(DEAD_AFTER_BEATS):
            self._pause(self._beat_s)
            now = self._read()
            if now is None:
                return
            if now != found:
                raise FolderInUseError(
                    f"The output folder {self._folder.location} is in use by {_name(now)}. Wait for its end, or use "
                    "another folder."
                )

    def _renew(self) -> None:
        while not self._over.wait(self._beat_s):
            try:
                self.confirm()
                self._write()
            except FolderInUseError as error:
                self._problem = error
                return
            except (OutputFolderError, FileNotFoundError) as error:
                log.warning("The counter of the output folder %s was not raised: %s", self._folder.location, error)

    def _read(self) -> dict[str, Any] | None:
        """Return the owner, or None. A damaged file is an owner without a name, which never raises its counter."""
        content = self._folder.read(OWNER)
        if content is None:
            return None
        found = decode(content)
        return found if isinstance(found, dict) else {}

    def _write(self) -> None:
        self._folder.write(OWNER, self._document())

    def _document(self) -> bytes:
        self._beat += 1
        return encode({**self._mine, "beat": self._beat})


def _name(owner: Mapping[str, Any] | None) -> str:
    if not owner:
        return "another run"
    return f"run {owner.get('run')} on host {owner.get('host')}"
