"""Coroutine that takes a trial through wait, launch, follow and finish.

The trigger runs it, or the operator when it does not defer. It keeps no state of its own: a process that takes over
reads the attempt from the store and resumes at the same place.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.after_failure import restart_of
from airflow_provider_dtrain.core.lifecycle.states import STARTED, AttemptState
from airflow_provider_dtrain.core.lifecycle.timing import RETAKE_MOST_S, RETAKE_POLL_S, SLOTS_WAIT_S
from airflow_provider_dtrain.core.series.step_times import slow_rule
from airflow_provider_dtrain.engine.attempt import teardown
from airflow_provider_dtrain.engine.attempt.decision_delivery import decided
from airflow_provider_dtrain.engine.attempt.end_place import ended_by_airflow, ended_by_time_limit, killed_by_user
from airflow_provider_dtrain.engine.attempt.failure_analysis import check_manifest, check_metric, failure_of
from airflow_provider_dtrain.engine.attempt.gang_follower import GangFollower
from airflow_provider_dtrain.engine.attempt.job import Job, job_of
from airflow_provider_dtrain.engine.attempt.launch import launch
from airflow_provider_dtrain.engine.attempt.max_runtime import max_runtime, timed_out
from airflow_provider_dtrain.engine.attempt.outcome import Outcome
from airflow_provider_dtrain.engine.attempt.queue_wait import wait_for_gang
from airflow_provider_dtrain.engine.attempt.restarts import Restarts
from airflow_provider_dtrain.engine.attempt.sampling import drawn
from airflow_provider_dtrain.engine.attempt.spans import trace_trial
from airflow_provider_dtrain.engine.attempt.telemetry import TelemetryCollector
from airflow_provider_dtrain.engine.attempt.trial_end import ended, finish, stopped
from airflow_provider_dtrain.engine.copies.checkpoints import CheckpointCopier
from airflow_provider_dtrain.engine.copies.collector import Collector, results_of
from airflow_provider_dtrain.engine.copies.last import until_copied
from airflow_provider_dtrain.engine.copies.outputs import OutputKeeper, chief_of
from airflow_provider_dtrain.engine.copies.tensorboard import TensorboardKeeper
from airflow_provider_dtrain.engine.session.gauges import measuring
from airflow_provider_dtrain.engine.session.runtime import (
    RECOVERY,
    RECOVERY_DONE,
    HandedOver,
    Killed,
    Runtime,
    Stopped,
    TimedOut,
    turn,
)
from airflow_provider_dtrain.engine.slots.source import slots_of
from airflow_provider_dtrain.errors import (
    DtrainError,
    HostError,
    HostProtocolError,
    NotFoundError,
    StaleWatchError,
    StoreError,
    StoreSetBackError,
)

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.attempt.gang import GangEnd
    from airflow_provider_dtrain.engine.attempt.queue_wait import RecoveryRounds
    from airflow_provider_dtrain.store.records.trials import AttemptView

#: Metrics of a validation that its line in the task log shows.
MOST_METRICS = 50


class Superseded(Exception):
    """Another process follows this attempt now."""


class AttemptRunner:
    """Runner that takes one trial to its end.

    :param rt: store, hosts and log of this follower
    :param deadline: Unix time when the trial must have ended; None = never
    :param patient: wait in the queue; False: hand over when the gang is not granted at once
    :param on_state: called with each state of the trial's attempts
    """

    def __init__(
        self,
        rt: Runtime,
        *,
        deadline: float | None = None,
        patient: bool = True,
        on_state: Callable[[str], None] | None = None,
    ) -> None:
        self.rt = rt
        self._on_state = on_state
        self.patient = patient
        rt.deadline = deadline
        self.restarts = Restarts(rt)
        #: Background recovery while the trial waits; None for a follower that only ends an attempt.
        self._recovery: RecoveryRounds | None = None
        self._noting: asyncio.Future[None] | None = None
        #: The trial's attempt as first read, and an attempt whose run the store has lost.
        self._known: AttemptView | None = None
        self._lost: AttemptView | None = None

    async def run(self, recovery: RecoveryRounds) -> Outcome | None:
        """Return the outcome of the trial, or None when it was handed over and continues.

        :param recovery: runs one round now, and further rounds while the trial waits for slots
        :raises Superseded: another process follows the trial, and this one must not act on it
        """
        recovery.once()
        self._recovery = recovery
        with measuring(self.rt.store):
            outcome = await self._run_to_end()
        if outcome is not None:
            await trace_trial(self.rt)
        return outcome

    async def _run_to_end(self) -> Outcome | None:
        try:
            while True:
                try:
                    outcome = await self._run()
                except (StoreSetBackError, NotFoundError) as error:
                    self.rt.logs.abandon()
                    await self._read_again(error)
                except StaleWatchError as error:
                    self.rt.logs.abandon()
                    if not await self._retake():
                        raise Superseded(str(error)) from error
                else:
                    await self.rt.logs.finish(await self.rt.view())
                    return outcome
        except HandedOver:
            await self.rt.logs.hand_over()
            with contextlib.suppress(StaleWatchError):
                await self.rt.db(self.rt.store.attempts.hand_over, self.rt.attempt_id, self.rt.watch)
            return None
        finally:
            self.rt.logs.abandon()

    async def _run(self) -> Outcome:
        view = self._known = await self.rt.view()
        if await end_older(self.rt, view):
            view = self._known = await self.rt.view()
        self.rt.logs.resume_earlier(view)
        if restart_of(view):
            # Another process ended it by the rules for a dead follower. It has restarts left.
            await self._restart_ended(view)
            view = await self.rt.view()
        elif view.number > 1 and view.state in (AttemptState.WAITING, AttemptState.STARTING):
            await self._show_former(view)
        while True:
            if self._on_state is not None:
                self._on_state(view.state)
            if (outcome := await self._step(view)) is not None:
                return outcome
            view = await self.rt.view()

    async def _show_former(self, view: AttemptView) -> None:
        """Log why the attempt before this one ended. Airflow may have replaced the log that has it."""
        attempts = await self.rt.db(self.rt.store.attempts.of_trial, view.trial_id)
        former = next((one for one in attempts if one.number == view.number - 1), None)
        if former is not None and former.failure is not None and former.ended_at is not None:
            self.rt.log.info(
                "Attempt %d ended at %s: %s Attempt %d continues the trial.",
                former.number,
                former.ended_at.strftime("%Y-%m-%d %H:%M:%S UTC"),
                str(former.failure.get("message") or former.failure.get("error")).partition("\n")[0],
                view.number,
            )

    async def _restart_ended(self, view: AttemptView) -> None:
        ticket = await self.rt.db(
            self.rt.store.attempts.next, view.attempt_id, self.rt.watch, failure=view.failure or {}, counted=True
        )
        self.rt.log.warning("Restart %d of %d", view.restarts + 1, view.max_restarts)
        await self.rt.follow_attempt(ticket.attempt_id)

    async def _read_again(self, error: StoreSetBackError | NotFoundError) -> None:
        """Follow the attempt that the store still has, and end the run that it has lost.

        :param error: the error that showed the loss
        :raises NotFoundError: something else is missing
        :raises StoreError: the store has lost the trial
        """
        known = self._known
        lost = self._lost
        view = None
        if known is None or (isinstance(error, NotFoundError) and await self._is_stored()):
            raise error
        self.rt.log.warning(
            "%s Possible cause: the store was restored from a backup, or a lagging replica took over.", error
        )
        with contextlib.suppress(NotFoundError):
            latest = (await self.rt.db(self.rt.store.trials.get, known.trial_id)).attempt_id
            view = await self.rt.db(self.rt.store.attempts.get, latest)
        if lost is not None and (view is None or (view.run, view.created_at) != (lost.run, lost.created_at)):
            # The store may issue its token again, and with it the name of the run.
            await self.rt.db(self.rt.store.queue.raise_token, lost.token or 0)
            await teardown.fence_forgotten(self.rt, lost)
        if view is None or (view.key, view.trial_index) != (known.key, known.trial_index):
            raise StoreError(
                f"The store has lost trial {known.trial_id}, as after a failover to a replica that lagged behind. "
                "Run the task again: clear it in Airflow."
            ) from error
        self._lost = None
        await self.rt.retake(view.attempt_id)

    async def _is_stored(self) -> bool:
        with contextlib.suppress(NotFoundError):
            await self.rt.view()
            return True
        return False

    async def _retake(self) -> bool:
        """Take the trial back once recovery is done with it, and return False when a follower has it."""
        give_up_at = time.monotonic() + RETAKE_MOST_S
        while True:
            mine = await self.rt.view()
            watcher = mine.watcher or ""
            if not watcher.startswith(RECOVERY):
                return False
            if mine.ended_at is not None or watcher == RECOVERY_DONE or time.monotonic() > give_up_at:
                break
            await asyncio.sleep(RETAKE_POLL_S)
        latest = (await self.rt.db(self.rt.store.trials.get, mine.trial_id)).attempt_id
        if latest != mine.attempt_id and (await self.rt.db(self.rt.store.attempts.get, latest)).watcher is not None:
            return False
        self.rt.log.info("Taking the trial back: recovery took it over while this process was silent")
        await self.rt.retake(latest)
        return True

    async def _step(self, view: AttemptView) -> Outcome | None:
        """Do the next step for the attempt's state and control requests.

        Return the outcome of the trial, or None to read the state again.
        """
        try:
            return await self._advance(view)
        except Killed:
            return await self.kill()
        except Stopped:
            return await self.stop()
        except TimedOut:
            if (outcome := await self._ended_by_searcher(await self.rt.view())) is not None:
                return outcome
            view = await self.rt.view()
            return await finish(self.rt, view, "errored", ended_by_time_limit(view))

    async def _advance(self, view: AttemptView) -> Outcome | None:
        try:
            await self.rt.check(runs=view.state in STARTED)
            if view.state in (AttemptState.WAITING, AttemptState.STARTING):
                outcome = await self._ended_by_searcher(view)
                if outcome is not None:
                    return outcome
            match view.state:
                case AttemptState.WAITING:
                    assert self._recovery is not None
                    await wait_for_gang(self.rt, view, self._recovery, patient=self.patient)
                case AttemptState.STARTING:
                    async with self.rt.renewing():
                        with _lease(self.rt, view):
                            view = await self._with_hparams(view)
                            await launch(self.rt, view)
                case AttemptState.RUNNING | AttemptState.STOPPING:
                    return await self._follow(view)
                case _:
                    return ended(view)
        except HostError as error:
            view = await self.rt.view()
            return await self._ended_by_searcher(view) or await self.restarts.attempt_failed(view, error)
        except DtrainError as error:
            if error.kind == "platform":
                # The gang is healthy. It keeps running, and the next process takes over.
                raise
            return await finish(self.rt, await self.rt.view(), "errored", error)
        return None

    async def kill(self, because: DtrainError | None = None) -> Outcome:
        """End the gang on every host and the trial with it.

        :param because: None = a user killed the trial, or Airflow ended its task
        """
        view = await self.rt.view()
        if view.ended_at is not None:
            return ended(view)
        by = (await self.rt.db(self.rt.store.trials.get, view.trial_id)).kill_requested_by
        if because is None and by is not None:
            because = killed_by_user(view, by)
        return await finish(self.rt, view, "killed", because or ended_by_airflow(view))

    async def stop(self) -> Outcome:
        """End a trial that a user stopped while its ranks do not run. It keeps its results."""
        return await stopped(self.rt, await self.rt.view())

    async def _ended_by_searcher(self, view: AttemptView, error: DtrainError | None = None) -> Outcome | None:
        """End a trial that the searcher has ended, or return None when the trial continues.

        Nothing is launched for a trial that the searcher has ended.

        :param error: why its ranks ended, when not by themselves; not a failure of the trial
        """
        decision = await decided(self.rt, view)
        if decision is None:
            return None
        if error is not None:
            self.rt.log.warning("After the searcher had ended the trial: %s", error)
        return await finish(self.rt, view, "stopped" if decision == "stop" else "completed", None)

    async def _with_hparams(self, view: AttemptView) -> AttemptView:
        """Return the attempt with its trial's hyperparameters, which may be sampled only now.

        The searcher then knows what all other trials have shown, and what those that started before have drawn.
        """
        if view.is_drawn:
            return view
        async with turn(f"search {view.search_id}", "draw"):
            hparams = await self.rt.db(drawn, self.rt.store, view, view.draw)
            await self.rt.db(
                self.rt.store.searches.set_hparams, self.rt.attempt_id, self.rt.watch, hparams or {}, view.draw
            )
        self.rt.log.info("Hyperparameters: %s", hparams)
        return await self.rt.view()

    # -- running -------------------------------------------------------------------------------
    async def salvage(self, lost: Mapping[str, HostError]) -> Outcome | None:
        """End an attempt whose follower has died, by the usual rules. No new attempt starts.

        :param lost: hosts that no longer have anything of it
        """
        self.restarts.salvaging = True
        view = await self.rt.view()
        try:
            # This process does not write the trial's task log. The trial's next follower reads the rest of the log.
            await self.rt.logs.keep_tail(view, [host for host in view.placement if host not in lost])
            return await self._follow(view, lost)
        except Killed:
            return await self.kill()
        except Stopped:
            return await self.stop()
        except DtrainError as error:
            if error.kind != "user":
                raise
            return await finish(self.rt, await self.rt.view(), "errored", error)

    async def end_unread(self, error: Exception) -> Outcome:
        """Fence an attempt whose events cannot be read, and end it with the data in the store.

        :param error: why they cannot be read
        """
        view = await self.rt.view()
        host = next(iter(view.placement), "")
        message = f"The hosts' data of this attempt cannot be read, so the attempt was fenced and ended: {error!r:.500}"
        return await finish(self.rt, view, "errored", HostProtocolError(host, message))

    async def _follow(self, view: AttemptView, lost: Mapping[str, HostError] | None = None) -> Outcome | None:
        """Follow the run of an attempt, as long as the store knows it."""
        self.rt.followed = view
        try:
            return await self._follow_run(view, lost)
        except (StoreSetBackError, NotFoundError):
            self._lost = view
            raise
        finally:
            self.rt.followed = None

    async def _follow_run(self, view: AttemptView, lost: Mapping[str, HostError] | None) -> Outcome | None:
        job = await job_of(self.rt, view)
        copier = CheckpointCopier(self.rt, view, job.config)
        keeper = OutputKeeper(self.rt, view)
        collector = self._collector(view, job)
        board = TensorboardKeeper(self.rt, view, is_on=job.config.tensorboard)
        copying = asyncio.gather(copier.run(), keeper.run(), board.run(), *([collector.run()] if collector else ()))
        # Retrieve the exception even if nothing awaits the task: asyncio would log a traceback into the task log.
        copying.add_done_callback(lambda found: found.cancelled() or found.exception())
        try:
            gang = GangFollower(
                self.rt,
                view,
                lambda host, event: self._on_event(copier, keeper, collector, host, event),
                preemption_timeout_s=job.config.preemption_timeout,
                hang_timeout_s=job.config.hang_timeout,
                max_runtime=max_runtime(view, job.config),
                lost=lost,
            )
            if collector is not None:
                collector.on_problem = gang.end_because
            telemetry = TelemetryCollector(self.rt, view, gang.gang.links, slow_rule(vars(job.config.profiling)))
            slots = slots_of(self.rt, view)
            async with telemetry.collecting(is_on=job.config.profiling.enabled), slots.watching(gang):
                await gang.run()
            self.rt.logs.end(view)
            # No supervisor sends heartbeats for it now, and the last copies may take long.
            async with self.rt.renewing():
                has_failed = gang.end.failed
                if not has_failed and slots.keeps_files:
                    # Every way on releases the gang. A run's folder stays on its host, so it is copied afterwards.
                    await teardown.release(self.rt, await self.rt.view())
                copier.close()
                keeper.close()
                board.close()
                if collector is not None:
                    collector.close(gang.end.lost)
                finishing = asyncio.ensure_future(telemetry.finish())
                # A failed attempt may restart on its gang, so the slots are held, but not for as long as a host likes.
                await until_copied(
                    self.rt, _last_copies(view, copying, keeper, gang.end), most_s=SLOTS_WAIT_S if has_failed else None
                )
                await finishing
                outcome = await self._after(job, gang, collector)
                if collector is not None:
                    await collector.leave(for_good=outcome is not None)
                return outcome
        finally:
            copying.cancel()
            if collector is not None:
                await collector.leave(for_good=False)
            self.rt.log.flush()

    def _collector(self, view: AttemptView, job: Job) -> Collector | None:
        """Return the collector of a batch inference whose results are fetched from its hosts, or None."""
        results = results_of(self.rt, view, job.config)
        return Collector(self.rt, view, results, chief=chief_of(view)) if results is not None else None

    async def _after(self, job: Job, gang: GangFollower, collector: Collector | None) -> Outcome | None:
        """Handle the end of a gang: return the trial's outcome, or None when the trial continues."""
        if self._noting is not None:
            await self._noting
        view, end = await self.rt.view(), gang.end
        if "timeout" in end.ended.values() and end.over is None:
            end.over = timed_out(view, job.config)
        # Only results can be missing of ranks that have all succeeded, and the collector knows which.
        has_failed = end.failed and not (collector is not None and end.has_succeeded(view))
        error = await failure_of(self.rt, view, job, end) if has_failed else None
        if (outcome := await self._ended_by_searcher(view, error)) is not None:
            return outcome
        give_way = gang.give_way if gang.give_way.gave_way() else None
        if error is not None or give_way is not None:
            first = error.host if isinstance(error, HostError) else None
            other_hosts = {host: lost for host, lost in end.lost.items() if host != first}
            return await self.restarts.attempt_failed(view, error, also=other_hosts, give_way=give_way)
        error = await collector.publish() if collector is not None else None
        if collector is not None and isinstance(error, HostError):
            other_hosts = {host: lost for host, lost in collector.lost.items() if host != error.host}
            return await self.restarts.attempt_failed(view, error, also=other_hosts)
        error = error or await check_manifest(self.rt, view, job) or await check_metric(self.rt, view, job)
        return await finish(self.rt, view, "errored" if error else "completed", error)

    def _first_step(self) -> None:
        """Store the total cost of the last stop and this start, once the ranks have finished a step."""
        since = self.rt.taken_up_at
        self.rt.taken_up_at = None
        stop_took_s = self.restarts.stop_took_s
        if since is None or stop_took_s is None:
            return
        seconds = stop_took_s + time.monotonic() - since
        noting = self.rt.db(self.rt.store.attempts.set_cost, self.rt.attempt_id, self.rt.watch, seconds)
        self._noting = asyncio.ensure_future(noting)

    def _on_event(
        self,
        copier: CheckpointCopier,
        keeper: OutputKeeper,
        collector: Collector | None,
        host: str,
        event: JsonObject,
    ) -> None:
        log = self.rt.log
        if collector is not None:
            collector.reported(host, event)
        match event["kind"]:
            case "first_step":
                self._first_step()
            case "checkpoint":
                copier.reported(event)
            case "media":
                keeper.reported()
            case "warning":
                log.warning("Host '%s': %s", host, event["text"])
            case "trace":
                log.info("A rank on host '%s' wrote a trace of the profiler: %s", host, event["path"])
                keeper.reported()
            case "validation":
                log.event("Validation at step %s: %s", event.get("step"), _metrics_text(event.get("metrics")))
            case "exit" if event.get("exit_code") != 0 and not event.get("sent_signal"):
                log.error("Rank %s on host '%s' ended with exit code %s", event["rank"], host, event.get("exit_code"))
                if event["rank"] != 0 and event.get("log_tail") and not event.get("error"):
                    log.error("Last lines of rank %s:\n%s", event["rank"], event["log_tail"])


async def end_older(rt: Runtime, view: AttemptView) -> bool:
    """End every live attempt that an earlier clear left behind, and wait for the hosts to confirm.

    Return whether there was one.
    """
    found = await rt.db(rt.store.attempts.older, view.key, view.trial_index)
    for older in found:
        rt.log.info("Ending %s of a cleared task first", older.label)
        watch = await rt.db(rt.store.attempts.watch, older.attempt_id, watcher=rt.watcher)
        previous = Runtime(rt.hook, rt.store, older.attempt_id, watch, rt.log, watcher=rt.watcher)
        await AttemptRunner(previous).kill()
    return bool(found)


async def _last_copies(view: AttemptView, copying: asyncio.Future[Any], keeper: OutputKeeper, end: GangEnd) -> None:
    """Copy the last checkpoints, and the outputs of a trial that may resume on other hosts."""
    await copying
    if end.failed or not end.has_finished(view):
        await keeper.copy_last()


def _lease(rt: Runtime, view: AttemptView) -> contextlib.AbstractContextManager[Any]:
    return rt.lease(view.run) if view.run else contextlib.nullcontext()


def _metrics_text(metrics: Any) -> str:
    pairs: Iterator[str] = (
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in itertools.islice((metrics or {}).items(), MOST_METRICS)
    )
    more = len(metrics or {}) - MOST_METRICS
    return ", ".join(pairs) + (f" and {more} more" if more > 0 else "")
