"""Outputs of plain scripts: copied from rank 0's host, and into the next attempt.

They are copied while the script runs and at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.launch.plan import rank_order
from airflow_provider_dtrain.core.scheduling.model import Placement
from airflow_provider_dtrain.engine.copies.checkpoints import trial_folder
from airflow_provider_dtrain.engine.copies.first_attempt import first_attempt
from airflow_provider_dtrain.engine.copies.keeper import Keeper
from airflow_provider_dtrain.engine.copies.last import REQUESTS, until_copied
from airflow_provider_dtrain.engine.copies.mirror import NOT_COPIED, sweep
from airflow_provider_dtrain.engine.copies.output_generations import (
    Generation,
    Manifest,
    OutputCopies,
    is_of_library,
)
from airflow_provider_dtrain.engine.session.background import in_background
from airflow_provider_dtrain.engine.session.threads import in_copy_thread, in_thread
from airflow_provider_dtrain.errors import DtrainError, HostRefusedError
from airflow_provider_dtrain.hosts.channel.archive_reader import ArchiveLimitError, tree_bytes

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.store.records.trials import AttemptView

#: Seconds that a start waits for the outputs of the attempt before, whose host may be unreachable.
CATCH_UP_S = 300.0
#: Seconds that the end of a trial waits for a copy that was not made while it was followed.
PATIENCE_S = 3.0
#: Least seconds between two copies that reports of media start, whatever a host sends.
MEDIA_PERIOD_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Carried:
    """Outputs that are put into an attempt's folders before its ranks start."""

    generation: Generation
    #: Random name for one start, so that a partial transfer of another process is never used.
    name: str

    @classmethod
    def of(cls, generation: Generation) -> Carried:
        """Return a generation under a new name."""
        return cls(generation=generation, name=secrets.token_hex(8))


class OutputKeeper(Keeper):
    """Copier of the outputs of one attempt, while its ranks run and when they have ended.

    Of programs that join the training library, only traces of the profiler and media are copied, because they resume
    from their checkpoints.
    """

    def __init__(self, rt: Runtime, view: AttemptView) -> None:
        super().__init__(rt.settings.output_sync_period_s or None)
        self.rt = rt
        self.view = view
        self.copies = copies_of(rt, view)
        self._reported: set[str] = set()
        #: time.monotonic() from which on a report of media starts a copy; None: only the end copies.
        self._next_copy_at = 0.0 if rt.settings.output_sync_period_s else None

    def reported(self) -> None:
        """Request a copy of media or a trace that a rank has written, at most one in :data:`MEDIA_PERIOD_S`."""
        now = time.monotonic()
        # A copy that is planned already takes this file as well.
        if self._next_copy_at is None or self._next_copy_at > now + MEDIA_PERIOD_S:
            return
        at = max(now, self._next_copy_at)
        self._next_copy_at = at + MEDIA_PERIOD_S
        asyncio.get_running_loop().call_later(at - now, self.wake)

    async def run(self) -> None:
        """Copy every ``output_sync_period`` until :meth:`close`."""
        await in_thread(sweep, self.copies.folder)
        await super().run()

    async def round(self, *, is_last: bool) -> None:
        """Copy new outputs. The last copy is that of :meth:`copy_last`."""
        if not is_last:
            await self.copy(is_final=False)

    async def copy_last(self) -> None:
        """Copy the outputs after the ranks have ended, unless that was done already."""
        newest = await in_thread(self.copies.newest)
        if newest is None or newest.manifest.run != self.view.run or not newest.manifest.is_final:
            async with self.rt.renewing():
                await self.copy(is_final=True)

    async def copy(self, *, is_final: bool) -> Generation | None:
        """Copy new outputs, and return the generation, or None.

        None means that there is nothing to copy, or that the copy failed, which is logged.
        """
        view = self.view
        if view.run is None or view.plan is None:
            return None
        library_only = await uses_library(self.rt, view)
        if library_only and not await _has(self.rt, view, "trace", "media"):
            return None
        manifest = Manifest(run=view.run, attempt=view.number, host=chief_of(view), at=time.time(), is_final=is_final)
        try:
            found = await self._take(manifest, library_only=library_only)
        except ArchiveLimitError as error:
            self._warn(f"Outputs of rank 0 are not copied: {error}. Raise checkpoint_copy_limit or trial_copy_limit.")
            return None
        except NOT_COPIED as error:
            if not is_absent(error) or await _has(self.rt, view, "started"):
                self._warn_lost(error, is_final=is_final)
            return None
        self._report(found, is_final=is_final)
        return found

    async def _take(self, manifest: Manifest, *, library_only: bool) -> Generation:
        first = await self.rt.db(first_attempt, self.rt.store, self.view)
        limit = await in_thread(self._limit)
        link = await self.rt.link(manifest.host)
        return await in_copy_thread(
            lambda: self.copies.take(link, manifest, limit_bytes=limit, first_attempt=first, library_only=library_only)
        )

    def _limit(self) -> int:
        """Return how many bytes the outputs may have. Blocks."""
        settings = self.rt.settings
        newest = self.copies.newest()
        other_bytes = tree_bytes(self.copies.folder) - (tree_bytes(newest.folder) if newest else 0)
        return max(0, min(settings.checkpoint_copy_limit_bytes, settings.trial_copy_limit_bytes - other_bytes))

    def _report(self, found: Generation, *, is_final: bool) -> None:
        manifest = found.manifest
        if is_final and manifest.files:
            self.rt.log.info(
                "Outputs: %s. See: airflow dtrain trials outputs %d", size_text(manifest), self.view.trial_id
            )
        if manifest.left_out_files:
            self._warn(
                f"{manifest.left_out_files} output file(s) with {manifest.left_out_bytes} bytes are not copied: they "
                f"exceed checkpoint_copy_limit, trial_copy_limit or 10,000 files. The largest: "
                f"{', '.join(manifest.left_out)}. They stay only on host '{manifest.host}'."
            )
        if manifest.others:
            message = "output(s) are links, sockets, unreadable or have no plain name: they are not copied."
            self._warn(f"{manifest.others} {message}")

    def _warn_lost(self, error: BaseException, *, is_final: bool) -> None:
        if not is_final:
            self._warn(f"Outputs could not be copied from host '{chief_of(self.view)}', retrying: {_message(error)}")
            return
        self.rt.log.warning(
            "Outputs that rank 0 wrote on host '%s' since the last copy (%s) do not reach the next attempt: %s",
            chief_of(self.view),
            last_copy_text(self.copies.newest()),
            _message(error),
        )

    def _warn(self, message: str) -> None:
        """Log a warning once for each attempt."""
        if message not in self._reported:
            self._reported.add(message)
            self.rt.log.warning("%s", message)


def is_absent(error: BaseException) -> bool:
    """Return whether a host reports that it has nothing of a run."""
    return isinstance(error, HostRefusedError) and error.code == "not_found"


async def copy_in_time(rt: Runtime, view: AttemptView) -> None:
    """Copy the outputs of an attempt that was ended from outside. A long copy continues in the background."""

    async def copy() -> None:
        with contextlib.suppress(DtrainError):
            await OutputKeeper(rt, view).copy_last()

    await asyncio.wait({in_background(copy())}, timeout=PATIENCE_S)


async def carried_to(rt: Runtime, view: AttemptView) -> Carried | None:
    """Return the outputs that an attempt begins with, or None.

    Outputs that an earlier follower did not copy at the end of its attempt are copied now, if the host still has them.

    :raises: control requests, as :meth:`Runtime.check` does, while the copy is awaited
    """
    first = await rt.db(first_attempt, rt.store, view)
    attempts = await rt.db(rt.store.attempts.of_trial, view.trial_id)
    earlier = [one for one in attempts if first <= one.number < view.number and one.run is not None and one.plan]
    if not earlier:
        return None
    last = max(earlier, key=lambda one: one.number)
    copies = copies_of(rt, view)
    newest = await in_thread(lambda: copies.newest(first_attempt=first))
    is_final = newest is not None and newest.manifest.run == last.run and newest.manifest.is_final
    if not is_final:
        await until_copied(rt, OutputKeeper(rt, last).copy_last(), most_s=CATCH_UP_S, raised=REQUESTS)
        newest = await in_thread(lambda: copies.newest(first_attempt=first))
    if newest is None or not newest.manifest.files or await uses_library(rt, last):
        return None
    rt.log.info(
        "The attempt begins with the outputs of rank 0 of attempt %d: %s",
        newest.manifest.attempt,
        size_text(newest.manifest),
    )
    return Carried.of(newest)


async def beginning(rt: Runtime, view: AttemptView) -> str:
    """Return a text that names where a trial without a checkpoint restarts."""
    newest = await in_thread(copies_of(rt, view).newest)
    if newest is None or all(map(is_of_library, newest.manifest.files)):
        return "the beginning: there is no checkpoint yet"
    return f"the outputs of its program: {size_text(newest.manifest)}"


async def uses_library(rt: Runtime, view: AttemptView) -> bool:
    """Return whether a rank of the attempt has joined the training library."""
    return await _has(rt, view, "init", "first_step", "checkpoint")


async def _has(rt: Runtime, view: AttemptView, *kinds: str) -> bool:
    found = await rt.db(rt.store.events.of_attempt, view.attempt_id, kinds=kinds)
    return bool(found)


def copies_of(rt: Runtime, view: AttemptView) -> OutputCopies:
    """Return the copies of a trial's outputs on this machine."""
    return OutputCopies(trial_folder(rt.settings.checkpoint_dir, view.experiment_id, view.trial_id))


def chief_of(view: AttemptView) -> str:
    """Return the host of rank 0."""
    master = (view.plan or {}).get("master") or {}
    return str(master.get("host") or rank_order(Placement(view.placement))[0])


def last_copy_text(newest: Generation | None) -> str:
    """Return a text that names the time of the last copy."""
    if newest is None:
        return "there was none"
    at = datetime.fromtimestamp(newest.manifest.at, UTC)
    return f"of attempt {newest.manifest.attempt}, {at:%Y-%m-%d %H:%M:%S} UTC"


def size_text(manifest: Manifest) -> str:
    """Return number and size of the files as text."""
    return f"{len(manifest.files)} file(s), {byte_size(manifest.size_bytes)}"


def _message(error: BaseException) -> str:
    if isinstance(error, DtrainError):
        return str(error)
    return f"{type(error).__name__}: {error}"
