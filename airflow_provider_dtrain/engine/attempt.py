"""The one coroutine that carries a trial through wait, launch, follow and finish.

The trigger and, when it does not defer, the operator run it. It keeps no state of its own: a process
that takes over reads the attempt from the store and goes on in the same place.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.engine import finishing
from airflow_provider_dtrain.engine.checkpoints import CheckpointCopier
from airflow_provider_dtrain.engine.following import GangFollower
from airflow_provider_dtrain.engine.launching import launch
from airflow_provider_dtrain.engine.outcome import Failure, Outcome, State
from airflow_provider_dtrain.engine.plan import Job, load_job
from airflow_provider_dtrain.engine.removal import remove_unkept
from airflow_provider_dtrain.engine.result import trial_result
from airflow_provider_dtrain.engine.runtime import HandedOver, Killed, Runtime, TimedOut
from airflow_provider_dtrain.engine.verdict import back_off_s, check_metric, failure_of, shortened
from airflow_provider_dtrain.engine.waiting import wait_for_gang
from airflow_provider_dtrain.errors import (
    DtrainError,
    ExecutionTimeoutError,
    HostError,
    InvalidHPError,
    LogPolicyError,
    StaleWatchError,
    TrainingRefusedError,
    TrialKilledError,
)

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.records import AttemptView

#: Failures of kind ``user`` that another attempt would repeat.
FINAL = (InvalidHPError, LogPolicyError, TrainingRefusedError)
#: Between two attempts to fence a host that does not answer.
FENCE_AGAIN_S = 10.0


class Superseded(Exception):
    """Another process follows this attempt now."""


class AttemptRunner:
    """Carries one trial to its end.

    :param rt: store, hosts and log of this follower
    :param deadline: Unix time when the trial must have ended; None = never
    :param patient: wait in the queue; False: hand over when the gang is not granted at once
    """

    def __init__(self, rt: Runtime, *, deadline: float | None = None, patient: bool = True) -> None:
        self.rt, self.deadline, self.patient = rt, deadline, patient
        rt.deadline = deadline

    async def run(self) -> Outcome | None:
        """Return how the trial ended; None when it was handed over and goes on.

        :raises Superseded: another process follows it; nothing more may be done here
        """
        try:
            await end_older(self.rt)
            while True:
                view = await self.rt.view()
                if (outcome := await self._step(view)) is not None:
                    return outcome
        except HandedOver:
            await self.rt.db(self.rt.store.hand_over, self.rt.attempt_id, self.rt.watch)
            return None
        except StaleWatchError as error:
            raise Superseded(str(error)) from error

    async def _step(self, view: AttemptView) -> Outcome | None:
        """Do what the attempt's state or somebody's wish asks for; None = look at the state again."""
        try:
            return await self._advance(view)
        except Killed:
            return await self.kill()
        except TimedOut:
            error = ExecutionTimeoutError("The trial was ended: the task's execution_timeout has passed.")
            return await self._finish(await self.rt.view(), "errored", error)

    async def _advance(self, view: AttemptView) -> Outcome | None:
        try:
            await self.rt.check()
            match view.state:
                case "waiting":
                    await wait_for_gang(self.rt, patient=self.patient)
                case "starting":
                    with _lease(self.rt, view):
                        await launch(self.rt, view, await self._job(view))
                case "running" | "stopping":
                    return await self._follow(view)
                case _:
                    return _ended(view)
        except HostError as error:
            return await self._host_failed(await self.rt.view(), error)
        except DtrainError as error:
            if error.kind == "platform":
                # Nothing is wrong with the gang: it goes on, and the next process takes over.
                raise
            return await self._finish(await self.rt.view(), "errored", error)
        return None

    async def kill(self) -> Outcome:
        """End the gang on every host and the trial with it."""
        view = await self.rt.view()
        if view.ended_at is not None:
            return _ended(view)
        by = (await self.rt.db(self.rt.store.trial, view.trial_id)).kill_requested_by
        who = f"by {by}" if by else "by Airflow: the task was marked, cleared or ended there"
        return await self._finish(view, "killed", TrialKilledError(f"The trial was killed {who}."))

    # -- running -------------------------------------------------------------------------------
    async def _follow(self, view: AttemptView) -> Outcome | None:
        job = await self._job(view)
        copier = CheckpointCopier(self.rt, view, job.config)
        copying = asyncio.ensure_future(copier.run())
        try:
            gang = GangFollower(self.rt, view, lambda host, event: self._on_event(copier, host, event))
            end = await gang.run()
            self.rt.log.flush()
            copier.noticed()
            copier.close()
            await copying
        finally:
            copying.cancel()
        view = await self.rt.view()
        if end.failed:
            return await self._attempt_failed(view, await failure_of(self.rt, view, job, end))
        error = await check_metric(self.rt, view, job)
        return await self._finish(view, "errored" if error else "completed", error)

    def _on_event(self, copier: CheckpointCopier, host: str, event: dict[str, Any]) -> None:
        log = self.rt.log
        match event["kind"]:
            case "checkpoint":
                copier.noticed()
                log.info("Checkpoint at step %s: %s", event.get("step"), event.get("path"))
            case "validation":
                log.info("Validation at step %s: %s", event.get("step"), _words(event.get("metrics")))
            case "exit" if event.get("exit_code") != 0 and not event.get("sent_signal"):
                log.error("Rank %s on host '%s' ended with exit code %s", event["rank"], host, event.get("exit_code"))
                if event["rank"] != 0 and event.get("log_tail") and not event.get("error"):
                    log.error("Last lines of rank %s:\n%s", event["rank"], event["log_tail"])

    async def _job(self, view: AttemptView) -> Job:
        left_s = self.deadline - time.time() if self.deadline is not None else None
        return await self.rt.db(load_job, self.rt.store, view, self.rt.settings, timeout_s=left_s)

    # -- failures ------------------------------------------------------------------------------
    async def _attempt_failed(self, view: AttemptView, error: DtrainError) -> Outcome | None:
        """Start again from the latest checkpoint, or end the trial."""
        if isinstance(error, HostError):
            return await self._host_failed(view, error)
        if error.kind != "user" or isinstance(error, FINAL) or view.restarts >= view.max_restarts:
            return await self._finish(view, "errored", error)
        attempts = await self.rt.db(self.rt.store.trial_attempts, view.trial_id)
        self.rt.log.error("%s", shortened(str(error), {one.number: one.failure for one in attempts}))
        if set(await finishing.fence(self.rt, view)) != set(view.held_hosts):
            return await self._finish(view, "errored", error)
        ticket = await self.rt.db(
            self.rt.store.next_attempt, self.rt.attempt_id, self.rt.watch, failure=_failure(error), counted=True
        )
        await self._move_to(ticket.attempt_id)
        source, pause_s = (await self._job(await self.rt.view())).checkpoint_source, back_off_s(view.restarts)
        where = f"step {source.step}" if source is not None else "the beginning: there is no checkpoint yet"
        self.rt.log.warning("Restart %d of %d in %.0f s from %s", view.restarts + 1, view.max_restarts, pause_s, where)
        await self.rt.pause(pause_s)
        return None

    async def _host_failed(self, view: AttemptView, error: HostError) -> Outcome | None:
        """Look for other hosts when one is at fault; end the attempt when there are none."""
        self.rt.log.warning("%s", error)
        await self._until_gone(view)
        ticket = await self.rt.db(
            self.rt.store.move_on, self.rt.attempt_id, self.rt.watch, failure=_failure(error), exclude_host=error.host
        )
        if ticket is None:
            return await self._finish(await self.rt.view(), "errored", error)
        self.rt.log.warning("Host '%s' is left out of this trial from now on; looking for others", error.host)
        await self._move_to(ticket.attempt_id)
        return None

    async def _until_gone(self, view: AttemptView) -> None:
        """Return when no process of the attempt can be running any more.

        A host that does not answer is given the time after which its supervisor ends the run by itself.
        """
        limit_s = (self.rt.settings.orphan_timeout_s + self.rt.settings.kill_grace_s) * 1.05
        give_up_at = time.monotonic() + limit_s
        while True:
            clear = await finishing.release(self.rt, view)
            missing = set(view.held_hosts) - set(clear)
            if not missing or view.plan is None or time.monotonic() > give_up_at:
                return
            self.rt.log.warning("Waiting for %s to confirm that %s is gone", ", ".join(sorted(missing)), view.run)
            await self.rt.pause(FENCE_AGAIN_S)
            view = await self.rt.view()

    async def _move_to(self, attempt_id: int) -> None:
        """Follow the trial's next attempt under a watch of its own."""
        if attempt_id != self.rt.attempt_id:
            self.rt.watch = await self.rt.db(self.rt.store.watch, attempt_id, watcher=self.rt.watcher)
            self.rt.attempt_id = attempt_id

    async def _finish(self, view: AttemptView, state: State, error: DtrainError | None) -> Outcome:
        """Free the slots where every process is confirmed gone, and end the trial."""
        await finishing.release(self.rt, view)
        await remove_unkept(self.rt, view, state, error)
        result = await self.rt.db(trial_result, self.rt.store, view, state)
        failure = Failure.of(error) if error is not None else None
        await self.rt.db(
            self.rt.store.end_attempt,
            self.rt.attempt_id,
            self.rt.watch,
            state=state,
            failure=_failure(error) if error is not None else None,
            result=result,
        )
        return Outcome(state=state, result=result, failure=failure)


async def end_older(rt: Runtime) -> None:
    """End every live attempt that an earlier clear left behind, and wait for the hosts to confirm."""
    view = await rt.view()
    for older in await rt.db(rt.store.older_attempts, view.key):
        rt.log.info("Ending attempt %s of a cleared task first", older.run or older.attempt_id)
        watch = await rt.db(rt.store.watch, older.attempt_id, watcher=rt.watcher)
        previous = Runtime(rt.hook, rt.store, older.attempt_id, watch, rt.log, watcher=rt.watcher)
        await AttemptRunner(previous).kill()


def _lease(rt: Runtime, view: AttemptView) -> contextlib.AbstractContextManager[Any]:
    return rt.lease(view.run) if view.run else contextlib.nullcontext()


def _failure(error: DtrainError) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(Failure.of(error))


def _ended(view: AttemptView) -> Outcome:
    """Return how a trial ended that ended before."""
    failure = Failure(**view.failure) if view.failure else None
    states: dict[str, State] = {"completed": "completed", "stopped": "stopped", "killed": "killed"}
    state = states.get(view.trial_state, "errored")
    return Outcome(state=state, result=dict(view.result) if view.result else None, failure=failure)


def _words(metrics: Any) -> str:
    pairs: Iterator[str] = (
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in (metrics or {}).items()
    )
    return ", ".join(pairs)
