"""Coroutine that takes a trial through wait, launch, follow and finish.

The trigger runs it, or the operator when it does not defer. It keeps no state of its own: a process that takes over
reads the attempt from the store and resumes at the same place.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.lifecycle.after_failure import restart_of
from airflow_provider_dtrain.core.lifecycle.states import STARTED
from airflow_provider_dtrain.engine.attempt import teardown
from airflow_provider_dtrain.engine.attempt.decision_delivery import decided
from airflow_provider_dtrain.engine.attempt.failure_analysis import check_metric, failure_of
from airflow_provider_dtrain.engine.attempt.gang_follower import GangFollower, max_runtime_over
from airflow_provider_dtrain.engine.attempt.job import Job, load_job
from airflow_provider_dtrain.engine.attempt.launch import launch
from airflow_provider_dtrain.engine.attempt.outcome import Failure, Outcome, State
from airflow_provider_dtrain.engine.attempt.queue_wait import wait_for_gang
from airflow_provider_dtrain.engine.attempt.restarts import Restarting, failure_dict
from airflow_provider_dtrain.engine.attempt.sampling import drawn
from airflow_provider_dtrain.engine.attempt.xcom_result import trial_result
from airflow_provider_dtrain.engine.copies.checkpoints import CheckpointCopier
from airflow_provider_dtrain.engine.copies.last import SLOTS_WAIT_S, until_copied
from airflow_provider_dtrain.engine.copies.outputs import OutputKeeper, copy_in_time
from airflow_provider_dtrain.engine.session.runtime import HandedOver, Killed, Runtime, Stopped, TimedOut
from airflow_provider_dtrain.engine.upkeep.checkpoint_cleanup import find_unkept, remove_in_time
from airflow_provider_dtrain.engine.upkeep.recovery import RECOVERY, RECOVERY_DONE, Recovery
from airflow_provider_dtrain.errors import (
    DtrainError,
    ExecutionTimeoutError,
    HostError,
    HostProtocolError,
    NotFoundError,
    StaleWatchError,
    StoreError,
    StoreSetBackError,
    TaskEndedError,
    TrialKilledError,
)

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.attempt.gang_follower import GangEnd
    from airflow_provider_dtrain.store.records.trials import AttemptView

RETAKE_LOOK_S, RETAKE_MOST_S = 2.0, 180.0
#: Seconds by which a host may end a run earlier than its follower expects.
CLOCK_SLACK_S = 5.0
#: Metrics of a validation that its line in the task log shows.
MOST_METRICS = 50


class Superseded(Exception):
    """Another process follows this attempt now."""


class AttemptRunner(Restarting):
    """Runner that takes one trial to its end.

    :param rt: store, hosts and log of this follower
    :param deadline: Unix time when the trial must have ended; None = never
    :param patient: wait in the queue; False: hand over when the gang is not granted at once
    """

    def __init__(self, rt: Runtime, *, deadline: float | None = None, patient: bool = True) -> None:
        self.rt, self.deadline, self.patient = rt, deadline, patient
        rt.deadline = deadline
        self._noting: asyncio.Future[None] | None = None
        #: The trial's attempt as first read, and an attempt whose run the store has lost.
        self._known: AttemptView | None = None
        self._lost: AttemptView | None = None

    async def run(self) -> Outcome | None:
        """Return the outcome of the trial, or None when it was handed over and continues.

        :raises Superseded: another process follows the trial, and this one must not act on it
        """
        Recovery(self.rt.hook).once()
        try:
            while True:
                try:
                    outcome = await self._run()
                except (StoreSetBackError, NotFoundError) as error:
                    self.rt.logs.abandon()
                    await self._look_anew(error)
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
                await self.rt.db(self.rt.store.hand_over, self.rt.attempt_id, self.rt.watch)
            return None
        finally:
            self.rt.logs.abandon()

    async def _run(self) -> Outcome:
        await end_older(self.rt)
        view = self._known = await self.rt.view()
        self.rt.logs.look_back(view)
        if restart_of(view):
            # Another process ended it by the rules for a dead follower. It has restarts left.
            await self._restart_ended(view)
        while True:
            view = await self.rt.view()
            if (outcome := await self._step(view)) is not None:
                return outcome

    async def _restart_ended(self, view: AttemptView) -> None:
        ticket = await self.rt.db(
            self.rt.store.next_attempt, view.attempt_id, self.rt.watch, failure=view.failure or {}, counted=True
        )
        self.rt.log.warning("Restart %d of %d", view.restarts + 1, view.max_restarts)
        await self.rt.follow_attempt(ticket.attempt_id)

    async def _look_anew(self, error: StoreSetBackError | NotFoundError) -> None:
        """Follow the attempt that the store still has, and end the run that it has lost.

        :param error: the error that showed the loss
        :raises NotFoundError: something else is missing
        :raises StoreError: the store has lost the trial
        """
        known, lost, view = self._known, self._lost, None
        if known is None or (isinstance(error, NotFoundError) and await self._is_stored()):
            raise error
        self.rt.log.warning(
            "%s Possible cause: the store was restored from a backup, or a lagging replica took over.", error
        )
        with contextlib.suppress(NotFoundError):
            latest = (await self.rt.db(self.rt.store.trial, known.trial_id)).attempt_id
            view = await self.rt.db(self.rt.store.attempt, latest)
        if lost is not None and (view is None or (view.run, view.created_at) != (lost.run, lost.created_at)):
            # The store may issue its token again, and with it the name of the run.
            await self.rt.db(self.rt.store.raise_token, lost.token or 0)
            await teardown.fence_forgotten(self.rt, lost)
        if view is None or view.key != known.key:
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
            await asyncio.sleep(RETAKE_LOOK_S)
        latest = (await self.rt.db(self.rt.store.trial, mine.trial_id)).attempt_id
        if latest != mine.attempt_id and (await self.rt.db(self.rt.store.attempt, latest)).watcher is not None:
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
            error = ExecutionTimeoutError("The trial was ended: the task's execution_timeout has passed.")
            return await self._finish(await self.rt.view(), "errored", error)

    async def _advance(self, view: AttemptView) -> Outcome | None:
        try:
            await self.rt.check(runs=view.state in STARTED)
            if view.state in ("waiting", "starting"):
                outcome = await self._ended_by_searcher(view)
                if outcome is not None:
                    return outcome
            match view.state:
                case "waiting":
                    await wait_for_gang(self.rt, patient=self.patient)
                case "starting":
                    async with self.rt.renewing():
                        with _lease(self.rt, view):
                            view = await self._with_hparams(view)
                            await launch(self.rt, view, await self._job(view))
                case "running" | "stopping":
                    return await self._follow(view)
                case _:
                    return _ended(view)
        except HostError as error:
            view = await self.rt.view()
            return await self._ended_by_searcher(view) or await self._attempt_failed(view, error)
        except DtrainError as error:
            if error.kind == "platform":
                # The gang is healthy. It keeps running, and the next process takes over.
                raise
            return await self._finish(await self.rt.view(), "errored", error)
        return None

    async def kill(self, because: DtrainError | None = None) -> Outcome:
        """End the gang on every host and the trial with it.

        :param because: None = a user killed the trial, or Airflow ended its task
        """
        view = await self.rt.view()
        if view.ended_at is not None:
            return _ended(view)
        by = (await self.rt.db(self.rt.store.trial, view.trial_id)).kill_requested_by
        if because is None and by is not None:
            because = TrialKilledError(f"The trial was killed by {by}.")
        by_airflow = "The trial was killed by Airflow: the task was marked, cleared or ended there."
        return await self._finish(view, "killed", because or TaskEndedError(by_airflow))

    async def stop(self) -> Outcome:
        """End a trial that a user stopped while its ranks do not run. It keeps its results."""
        return await self._stopped(await self.rt.view())

    async def _stopped(self, view: AttemptView) -> Outcome:
        if view.ended_at is not None:
            return _ended(view)
        self.rt.log.warning(
            "The trial was stopped by %s. Its checkpoints are kept.", self.rt.wishes.stop_by or "a user"
        )
        return await self._finish(view, "stopped", None)

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
        return await self._finish(view, "stopped" if decision == "stop" else "completed", None)

    async def _with_hparams(self, view: AttemptView) -> AttemptView:
        """Return the attempt with its trial's hyperparameters, which may be sampled only now.

        The searcher then knows the results of all trials that ended before.
        """
        if view.is_drawn:
            return view
        hparams = await self.rt.db(drawn, self.rt.store, view, view.draw)
        await self.rt.db(self.rt.store.set_hparams, self.rt.attempt_id, self.rt.watch, hparams or {}, view.draw)
        self.rt.log.info("Hyperparameters: %s", hparams)
        return await self.rt.view()

    # -- running -------------------------------------------------------------------------------
    async def salvage(self, lost: Mapping[str, HostError]) -> Outcome | None:
        """End an attempt whose follower has died, by the usual rules. No new attempt starts.

        :param lost: hosts that no longer have anything of it
        """
        self.salvaging = True
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
            return await self._finish(await self.rt.view(), "errored", error)

    async def end_unread(self, error: Exception) -> Outcome:
        """Fence an attempt whose events cannot be read, and end it with the data in the store.

        :param error: why they cannot be read
        """
        view = await self.rt.view()
        host = next(iter(view.placement), "")
        words = f"The hosts' data of this attempt cannot be read, so the attempt was fenced and ended: {error!r:.500}"
        return await self._finish(view, "errored", HostProtocolError(host, words))

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
        job = await self._job(view)
        copier = CheckpointCopier(self.rt, view, job.config)
        keeper = OutputKeeper(self.rt, view)
        copying = asyncio.gather(copier.run(), keeper.run())
        # Retrieve the exception even if nothing awaits the task: asyncio would log a traceback into the task log.
        copying.add_done_callback(lambda found: found.cancelled() or found.exception())
        try:
            gang = GangFollower(
                self.rt, view, lambda host, event: self._on_event(copier, host, event),
                preemption_timeout_s=job.config.preemption_timeout, hang_timeout_s=job.config.hang_timeout,
                max_runtime=_max_runtime(view, job), lost=lost,
            )  # fmt: skip
            await gang.run()
            self.rt.logs.end(view)
            # No supervisor sends heartbeats for it now, and the last copies may take long.
            async with self.rt.renewing():
                has_failed = gang.end.failed
                if not has_failed:
                    # Every way on releases the gang. A run's folder stays on its host, so it is copied afterwards.
                    await teardown.release(self.rt, await self.rt.view())
                copier.noticed()
                copier.close()
                keeper.close()
                # A failed attempt may restart on its gang, so the slots are held, but not for as long as a host likes.
                await until_copied(
                    self.rt, _last_copies(copying, keeper, gang.end), most_s=SLOTS_WAIT_S if has_failed else None
                )
                return await self._after(job, gang)
        finally:
            copying.cancel()
            self.rt.log.flush()

    async def _after(self, job: Job, gang: GangFollower) -> Outcome | None:
        """Handle the end of a gang: return the trial's outcome, or None when the trial continues."""
        if self._noting is not None:
            await self._noting
        view, end = await self.rt.view(), gang.end
        if "timeout" in end.ended.values() and end.over is None:
            end.over = _timed_out(view, job)
        error = await failure_of(self.rt, view, job, end) if end.failed else None
        if (outcome := await self._ended_by_searcher(view, error)) is not None:
            return outcome
        give_way = gang.give_way if gang.give_way.gave_way() else None
        if error is not None or give_way is not None:
            first = error.host if isinstance(error, HostError) else None
            others = {host: lost for host, lost in end.lost.items() if host != first}
            return await self._attempt_failed(view, error, also=others, give_way=give_way)
        error = await check_metric(self.rt, view, job)
        return await self._finish(view, "errored" if error else "completed", error)

    def _first_step(self) -> None:
        """Store the total cost of the last stop and this start, once the ranks have finished a step."""
        since, self.rt.taken_up_at = self.rt.taken_up_at, None
        if since is None or self.stop_took_s is None:
            return
        seconds = self.stop_took_s + time.monotonic() - since
        noting = self.rt.db(self.rt.store.set_cost, self.rt.attempt_id, self.rt.watch, seconds)
        self._noting = asyncio.ensure_future(noting)

    def _on_event(self, copier: CheckpointCopier, host: str, event: dict[str, Any]) -> None:
        log = self.rt.log
        match event["kind"]:
            case "first_step":
                self._first_step()
            case "checkpoint":
                copier.reported(event)
            case "validation":
                log.event("Validation at step %s: %s", event.get("step"), _words(event.get("metrics")))
            case "exit" if event.get("exit_code") != 0 and not event.get("sent_signal"):
                log.error("Rank %s on host '%s' ended with exit code %s", event["rank"], host, event.get("exit_code"))
                if event["rank"] != 0 and event.get("log_tail") and not event.get("error"):
                    log.error("Last lines of rank %s:\n%s", event["rank"], event["log_tail"])

    async def _job(self, view: AttemptView) -> Job:
        left_s = self.deadline - time.time() if self.deadline is not None else None
        job = await self.rt.db(load_job, self.rt.store, view, self.rt.settings, timeout_s=left_s)
        if (limit := _max_runtime(view, job)) is not None:
            job = replace(job, timeout_s=max(1.0, min(limit[1] - time.monotonic(), left_s or limit[0])))
        return job

    async def _finish(
        self, view: AttemptView, state: State, error: DtrainError | None, *, is_final: bool = True
    ) -> Outcome:
        """Release the slots where every process is confirmed gone, and end the trial.

        :param is_final: False: the trial resumes from its latest checkpoint when Airflow retries its task
        """
        await teardown.release(self.rt, view)
        if state != "killed":
            # The trial ends in the same state when it is killed now, only without waiting.
            with contextlib.suppress(Killed):
                await until_copied(self.rt, OutputKeeper(self.rt, view).copy_last(), requests=(Killed,))
        unkept = await find_unkept(self.rt, view, state, error) if is_final else None
        gone = unkept.ids if unkept is not None else frozenset()
        result = await self.rt.db(trial_result, self.rt.store, view, state, without=gone)
        failure = Failure.of(error) if error is not None else None
        await self.rt.db(
            self.rt.store.end_attempt,
            self.rt.attempt_id,
            self.rt.watch,
            state=state,
            failure=failure_dict(error) if error is not None else None,
            result=result,
        )
        if unkept is not None:
            await remove_in_time(self.rt, unkept)
        if state == "killed":
            # Airflow may end this process within seconds, so the end was written to the store first.
            await copy_in_time(self.rt, view)
        return Outcome(state=state, result=result, failure=failure)


async def end_older(rt: Runtime) -> None:
    """End every live attempt that an earlier clear left behind, and wait for the hosts to confirm."""
    view = await rt.view()
    for older in await rt.db(rt.store.older_attempts, view.key):
        rt.log.info("Ending %s of a cleared task first", older.label)
        watch = await rt.db(rt.store.watch, older.attempt_id, watcher=rt.watcher)
        previous = Runtime(rt.hook, rt.store, older.attempt_id, watch, rt.log, watcher=rt.watcher)
        await AttemptRunner(previous).kill()


async def _last_copies(copying: asyncio.Future[Any], keeper: OutputKeeper, end: GangEnd) -> None:
    """Copy the last checkpoints, and the outputs of a trial that may resume on other hosts."""
    await copying
    if end.failed or end.is_unfinished:
        await keeper.copy_last()


def _lease(rt: Runtime, view: AttemptView) -> contextlib.AbstractContextManager[Any]:
    return rt.lease(view.run) if view.run else contextlib.nullcontext()


def _max_runtime(view: AttemptView, job: Job) -> tuple[float, float] | None:
    """Return ``max_runtime`` and time.monotonic() when it is over, or None without a limit.

    It counts from the grant, so restarts on the same gang do not extend it.
    """
    limit_s, since = job.config.max_runtime, view.created_at if view.is_held_gang else view.granted_at
    if limit_s is None or since is None:
        return None
    return limit_s, time.monotonic() + limit_s - (datetime.now(UTC) - since).total_seconds()


def _timed_out(view: AttemptView, job: Job) -> DtrainError | None:
    """Return the error of a run that its host ended because of ``max_runtime``, or None."""
    limit = _max_runtime(view, job)
    return max_runtime_over(limit[0]) if limit is not None and limit[1] < time.monotonic() + CLOCK_SLACK_S else None


def _ended(view: AttemptView) -> Outcome:
    """Return the outcome of a trial that has already ended."""
    failure = Failure(**view.failure) if view.failure else None
    states: dict[str, State] = {"completed": "completed", "stopped": "stopped", "killed": "killed"}
    state = states.get(view.trial_state, "errored")
    return Outcome(state=state, result=dict(view.result) if view.result else None, failure=failure)


def _words(metrics: Any) -> str:
    pairs: Iterator[str] = (
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in itertools.islice((metrics or {}).items(), MOST_METRICS)
    )
    more = len(metrics or {}) - MOST_METRICS
    return ", ".join(pairs) + (f" and {more} more" if more > 0 else "")
