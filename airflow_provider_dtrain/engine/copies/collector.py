"""Collector of the results of a batch inference: fetches each finished shard from its host."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.lifecycle.states import HostState
from airflow_provider_dtrain.core.lifecycle.timing import RECONNECT_FIRST_S, RECONNECT_MOST_S
from airflow_provider_dtrain.core.safe_repr import as_sentence
from airflow_provider_dtrain.engine.copies.collected_results import CollectedResults, Limits
from airflow_provider_dtrain.engine.copies.mirror import DamagedCopyError
from airflow_provider_dtrain.engine.session.threads import in_copy_thread, in_launch_thread, in_thread
from airflow_provider_dtrain.errors import (
    CollectError,
    DtrainError,
    HostError,
    HostProtocolError,
    HostRefusedError,
    HostUnreachableError,
    ResultsLostError,
)
from airflow_provider_dtrain.hosts.channel.archive_reader import ArchiveLimitError

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.hosts.channel.link import HostLink
    from airflow_provider_dtrain.store.records.trials import AttemptView

BEGUN, DONE, SKIPPED, MANIFEST = "shards", "shard_done", "shard_skipped", "manifest"
#: Place in the store of the manifest's event, which no host writes.
OWN_HOST, OWN_STREAM = "", "control.events"
#: Code of a host's answer for a file that is not there.
NOT_FOUND = "not_found"
#: Times that a damaged part is fetched, and seconds for which a host may be silent.
MOST_TRIES, PATIENCE_S = 3, 300.0


def results_of(rt: Runtime, view: AttemptView, config: ExperimentConfig) -> CollectedResults | None:
    """Return the output folder on this machine, or None for a trial whose hosts write their results themselves."""
    section = config.inference
    if section is None or not section.collect or view.run is None:
        return None
    return CollectedResults(section, view.run, Limits.of(rt.settings))


async def send_known(rt: Runtime, view: AttemptView, config: ExperimentConfig, link: HostLink) -> None:
    """Claim the output folder, and send what its ledger knows to the host of rank 0.

    :raises CollectError: the folder cannot be used, or another run owns it
    """
    results = results_of(rt, view, config)
    if results is None:
        return
    try:
        await in_launch_thread(results.claim)
        await in_launch_thread(results.send_known, link)
    finally:
        # The process that follows the ranks claims it again.
        await in_thread(results.suspend)


class Collector:
    """Collector of one attempt. It fetches one shard of each host at a time.

    :param chief: host of rank 0
    """

    def __init__(self, rt: Runtime, view: AttemptView, results: CollectedResults, *, chief: str) -> None:
        self.rt = rt
        self.view = view
        self.results = results
        self.chief = chief
        #: Called with the error after which the ranks work in vain.
        self.on_problem: Callable[[DtrainError], None] = lambda _: None
        #: Error that ends the trial.
        self.problem: DtrainError | None = None
        #: Hosts from which nothing more can be fetched, and why.
        self.lost: dict[str, HostError] = {}
        #: Why single shards cannot be fetched.
        self.refused: list[HostError] = []
        #: Events of each host in their order. None: nothing follows.
        self._events: dict[str, asyncio.Queue[Mapping[str, Any] | None]] = {
            host: asyncio.Queue() for host in view.placement
        }
        #: Rank 0 has written the record of the run.
        self._has_begun = False
        self._wake = asyncio.Event()
        self._known: set[int] = set()
        #: time.monotonic() of :meth:`close`.
        self._closed_at: float | None = None

    def reported(self, host: str, event: Mapping[str, Any]) -> None:
        """Queue an event that is in the store."""
        if event["kind"] == BEGUN:
            self._has_begun = True
            self._wake.set()
        elif event["kind"] in (DONE, SKIPPED):
            self._events[host].put_nowait(event)

    async def run(self) -> None:
        """Fetch until :meth:`close`, then return once everything is fetched that can be."""
        try:
            await in_copy_thread(self.results.claim)
        except CollectError as error:
            self._fail(error)
            return
        for one in await self.rt.db(
            self.rt.store.events.of_attempt, self.view.attempt_id, kinds=(BEGUN, DONE, SKIPPED)
        ):
            if one.host in self._events:
                self.reported(one.host, one.body)
        await self._wake.wait()
        if self._has_begun and await self._open():
            await asyncio.gather(*(self._work(host) for host in self._events))

    def close(self, lost: Mapping[str, HostError]) -> None:
        """Let :meth:`run` end after the queued shards.

        :param lost: hosts that have nothing of the run any longer, or do not answer
        """
        self.lost.update(lost)
        self._closed_at = time.monotonic()
        self._wake.set()
        for events in self._events.values():
            events.put_nowait(None)

    async def leave(self, *, for_good: bool) -> None:
        """Give the folder up.

        :param for_good: the trial has ended, so the next run does not wait. False: the trial continues, and another run
            takes the folder over only when no attempt of the trial claims it for 30 s
        """
        await in_thread(self.results.release if for_good else self.results.suspend)

    async def publish(self) -> DtrainError | None:
        """Publish the results of ranks that have all succeeded, and return the error if that is impossible."""
        if self.problem is not None:
            return self.problem
        store = self.rt.store
        await self.rt.prove_watch()
        try:
            missing = await in_copy_thread(self.results.missing)
            if missing and (lost := await self._lost_results(missing)) is not None:
                return lost
            fields = await in_copy_thread(self.results.publish)
        except CollectError as error:
            return error
        attempt_id = self.view.attempt_id
        if not await self.rt.db(store.events.of_attempt, attempt_id, kinds=(MANIFEST,)):
            event = {"seq": 1, "at": time.time(), "kind": MANIFEST, **fields}
            await self.rt.db(store.events.commit, attempt_id, self.rt.watch, OWN_HOST, OWN_STREAM, 0, 1, [event])
        self.rt.log.info("%d rows in %s", fields["rows"], fields["location"])
        return None

    async def _lost_results(self, missing: str) -> ResultsLostError | None:
        """Return the error of the first host whose results have not arrived, or None if no host is known to lack any.

        :param missing: the shards in words
        """
        for error in (*self.lost.values(), *self.refused):
            if isinstance(error, HostUnreachableError):
                await self.rt.note_host(error.host, HostState.UNREACHABLE, str(error))
            message = f"{missing} not arrived from host '{error.host}', and the next attempt computes them: {error}"
            return ResultsLostError(error.host, message)
        return None

    # -- one host --------------------------------------------------------------------------------------------------

    async def _open(self) -> bool:
        """Fetch the record of the run, or continue by the one that an earlier follower has fetched."""

        async def begin(link: HostLink) -> None:
            self._known |= await in_copy_thread(self.results.begin, link)

        if await self._patiently(self.chief, "the record of the run", begin):
            return True
        if self.problem is None and (found := await in_copy_thread(self.results.resume)) is not None:
            self._known |= found
            return True
        if not self._is_over(self.chief):
            # Without the plan, no shard of any host can be recorded.
            self._give_up(self.refused[-1])
        return False

    async def _work(self, host: str) -> None:
        while (event := await self._events[host].get()) is not None and not self._is_over(host):
            await self._one(host, event)

    def _is_over(self, host: str) -> bool:
        return self.problem is not None or host in self.lost

    async def _one(self, host: str, event: Mapping[str, Any]) -> None:
        shard = int(event["shard"])
        if shard in self._known:
            return

        async def act(link: HostLink) -> None:
            if event["kind"] == SKIPPED:
                await in_copy_thread(self.results.set_aside, shard, str(event["error"]))
            else:
                size, digest = int(event["bytes"]), str(event["sha256"])
                await in_copy_thread(self.results.take, link, shard, size=size, sha256=digest)

        if await self._patiently(host, f"shard {shard}", act):
            self._known.add(shard)

    async def _patiently(self, host: str, what: str, act: Callable[[HostLink], Any]) -> bool:
        """Fetch something, again after failures that may pass, and return whether it was fetched."""
        tries = 0
        since: float | None = None
        wait_s = RECONNECT_FIRST_S
        while not self._is_over(host):
            try:
                await act(await self.rt.link(host))
                return True
            except CollectError as error:
                self._fail(error)
            except (DamagedCopyError, ArchiveLimitError, HostProtocolError, HostRefusedError) as error:
                tries += 1
                if tries >= MOST_TRIES or getattr(error, "code", "") == NOT_FOUND:
                    return self._refuse(host, what, error)
            except (HostError, OSError) as error:
                if since is None:
                    since = time.monotonic()
                    self.rt.log.warning("Fetching %s from host '%s' again: %s", what, host, error)
                # While the ranks run, the gang's follower decides on a silent host.
                if self._closed_at is not None and time.monotonic() - max(since, self._closed_at) > PATIENCE_S:
                    message = f"Host '{host}' has not sent {what} for {PATIENCE_S:.0f} s: {error}."
                    return self._give_up(HostUnreachableError(host, message))
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, RECONNECT_MOST_S)
        return False

    def _refuse(self, host: str, what: str, error: Exception) -> bool:
        """Leave something that cannot be fetched to the next attempt. Return False."""
        message = f"Host '{host}' does not send {what} as it was written: {as_sentence(error)}"
        if not self.refused:
            self.rt.log.warning("%s It is computed again, as everything else that does not arrive.", message)
        self.refused.append(HostProtocolError(host, message))
        return False

    def _give_up(self, error: HostError) -> bool:
        """Leave the rest of a host's shards to the next attempt. Return False."""
        self.rt.log.warning("%s Shards of this host that have not arrived are computed again.", error)
        self.lost[error.host] = error
        return False

    def _fail(self, error: CollectError) -> None:
        if self.problem is None:
            self.problem = error
            self.on_problem(error)
