"""Operator for one trial: it acquires a gang of slots, runs the ranks on it and returns their result."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_provider_dtrain.errors import DtrainError, ExecutionTimeoutError
from airflow_provider_dtrain.hooks.arguments import (
    DOCUMENT,
    FLAG,
    MAP,
    SECONDS,
    CheckedArguments,
    Kind,
    configured,
    text_of_path,
)
from airflow_provider_dtrain.hooks.tasks import (
    as_airflow,
    failing_at_once,
    show_map_index_name,
    task_facts,
)
from airflow_provider_dtrain.links.pages import ExperimentLink, TrialLink, keep_pages, note_pages
from airflow_provider_dtrain.operators._notifications import WAITING_AFTER, TrialNotifications

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import Context

    from airflow_provider_dtrain.core.documents import JsonObject
    from airflow_provider_dtrain.engine.attempt.outcome import Outcome
    from airflow_provider_dtrain.engine.attempt.xcom_result import TrialResult
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.engine.upkeep.held_gangs import HeldGang
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.hooks.tasks import TaskFacts
    from airflow_provider_dtrain.notifications.events import Given
    from airflow_provider_dtrain.store.records.gangs import GangView
    from airflow_provider_dtrain.store.records.trials import Config, Ticket, TrialKey
    from airflow_provider_dtrain.triggers.trial import TrialEvent


#: Airflow renders it before and after the task, so the UI shows the name while the trial waits and runs.
#: The word ``trial`` keeps it a text: a DAG that renders native objects would render a number alone as an integer,
#: which Airflow does not accept.
MAP_INDEX_TEMPLATE = "{{ task.map_index_name or 'trial ' ~ ti.map_index }}"


class TrialOperator(CheckedArguments, BaseOperator):
    """Trains one trial on a gang of slots.

    The operator waits in the pool's queue, starts one rank per slot over SSH (or on this machine) and streams the log
    of rank 0 into the task log. It returns when every process has ended and the slots are released.

    XCom: ``experiment_id, trial_id, state, metric, metrics, steps, checkpoint, hosts`` as plain JSON.

    :param config: experiment configuration: a path (relative to the DAG file), YAML text, a dict, or
        the XCom of a ``RenderConfigOperator``. A trial of a ``PlanTrialsOperator`` ignores it and runs with the
        configuration of the plan (templated)
    :param template: name of a stored template, a path, or a dict (templated)
    :param overrides: dotted path, e.g. ``hyperparameters.lr`` -> value that replaces the one in the configuration. A
        text is parsed as a YAML scalar, so that ``"{{ params.lr }}"`` becomes a number (templated)
    :param trial: an element of a ``PlanTrialsOperator``'s XCom, or ``{"number": int, "hparams": {...}}``; None = trial
        0 (or the map index) with the configuration's constants and a sample of its other hyperparameters (templated)
    :param allocation: XCom of a ``GangSensor``: the trial runs on that gang without waiting in the queue; None = it
        waits for a gang of its own (templated)
    :param needs_submission: accept only a trial that a ``PlanTrialsOperator`` of the same DAG run has planned, with the
        code that the API has granted to the DAG run
    :param deferrable: wait for the trial and follow it in the triggerer; default: ``[operators] default_deferrable``.
        The worker follows a trial that starts at once for ``[dtrain] defer_after`` seconds before it defers.
    :param retries: retries of infra and platform failures (3). Failures of the training code count
        against the configuration's ``max_restarts`` instead and fail the task at once
    :param retry_delay: delay before such a retry (30 s: a restarted host is up again by then)
    :param map_index_template: label of mapped trials; default: number, hyperparameters and result
    :param notify: event (``finished``, ``failed``, ``trial_failed``, ``waited``, ``best``) -> one of Airflow's
        notifiers, or several. Their templates find the facts as ``dtrain``
    :param notify_waiting_after: wait for slots after which the event ``waited`` occurs, a timedelta or seconds (1 h)
    """

    template_fields: Sequence[str] = ("config", "template", "overrides", "trial", "allocation")
    template_fields_renderers: ClassVar[dict[str, str]] = {"config": "yaml", "template": "yaml", "trial": "json"}
    operator_extra_links = (TrialLink(), ExperimentLink())
    ui_color = "#e6f4ea"
    ARGUMENTS: ClassVar[Mapping[str, Kind]] = {
        "config": DOCUMENT, "template": DOCUMENT, "overrides": MAP, "trial": MAP, "allocation": MAP,
        "needs_submission": FLAG, "deferrable": FLAG, "notify_waiting_after": SECONDS,
    }  # fmt: skip

    def __init__(
        self,
        *,
        config: str | Mapping[str, Any] | None = None,
        template: str | Mapping[str, Any] | None = None,
        overrides: Mapping[str, Any] | None = None,
        trial: Mapping[str, Any] | None = None,
        allocation: Mapping[str, Any] | None = None,
        needs_submission: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=30),
        map_index_template: str | None = MAP_INDEX_TEMPLATE,
        notify: Mapping[str, Given] | None = None,
        notify_waiting_after: timedelta | float = WAITING_AFTER,
        **kwargs: Any,
    ) -> None:
        # Only Airflow's mapped task needs the default; a single task would show an empty name.
        of_mapped = None if map_index_template == MAP_INDEX_TEMPLATE else map_index_template
        super().__init__(retries=retries, retry_delay=retry_delay, map_index_template=of_mapped, **kwargs)
        given = {"config": config, "template": template, "overrides": overrides, "trial": trial}
        waits = {"allocation": allocation, "deferrable": deferrable, "notify_waiting_after": notify_waiting_after}
        self.check_arguments(self.task_id, {**given, "needs_submission": needs_submission, **waits})
        self.config = text_of_path(config)
        self.template = text_of_path(template)
        self.overrides = overrides
        self.trial = trial
        self.allocation = allocation
        self.needs_submission = needs_submission
        self.deferrable = deferrable
        self.notify = notify
        self.notify_waiting_after = notify_waiting_after
        self._notifications = TrialNotifications(notify, notify_waiting_after, self.log)
        self._running: tuple[asyncio.AbstractEventLoop, Runtime] | None = None
        self._name: str | None = None
        #: Words about the end of the trial, or about what it does now.
        self._ending = ""

    @classmethod
    def documents(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
        """Yield the configuration with its overrides, and the template."""
        return configured(given)

    @property
    def map_index_name(self) -> str:
        """Number, hyperparameters and end of a mapped trial, e.g. ``3 | lr=3e-4 bs=256 -> accuracy 0.914``.

        An empty string for a trial without a name.
        """
        from airflow_provider_dtrain.core.search.names import ended_name, trial_name

        trial = self.trial if isinstance(self.trial, Mapping) else {}
        name = self._name or trial.get("name")
        if name is None and trial.get("hparams"):
            name = trial_name(trial.get("number"), trial["hparams"])
        return ended_name(str(name), self._ending) if name else ""

    def execute(self, context: Context) -> TrialResult | None:
        """Run the trial to its end, or defer to the triggerer.

        :raises AirflowFailException: the configuration or the training code is at fault
        :raises DtrainError: a host or the store is at fault; a retry resumes where this try ended
        """
        task = task_facts(context)
        with self._notifications.about(task):
            return self._execute(task)

    def _execute(self, task: TaskFacts) -> TrialResult | None:
        from airflow_provider_dtrain.engine.submission.submit import hand_over, revive
        from airflow_provider_dtrain.hooks.dtrain import DtrainHook

        hands_over = self._hands_over(task)
        with failing_at_once():
            hook = DtrainHook()
            ticket = self._submit(hook, task)
            if not ticket.is_new:
                revive(hook.store, ticket)
                if hands_over:
                    hand_over(hook.store, ticket)
        self._notifications.trial_id = ticket.trial_id
        self.log.info("Experiment %d, trial %d", ticket.experiment_id, ticket.trial_id)
        # Airflow itself stores the links at the deferral.
        context = None if hands_over else task.context
        note_pages(self, context, trial_id=ticket.trial_id, experiment_id=ticket.experiment_id)
        deadline = time.time() + self.execution_timeout.total_seconds() if self.execution_timeout else None
        outcome = None
        if not hands_over:
            outcome = self._carry(hook, ticket.trial_id, deadline, task)
        if outcome is None:
            self._defer(ticket.trial_id, deadline)
        self._learn_end(hook, ticket.trial_id)
        return self._end(outcome)

    def execute_complete(self, context: Context, event: TrialEvent | None = None) -> TrialResult | None:
        """Return the trial's result. Raises like :meth:`execute`.

        :param event: event of the trigger
        """
        from airflow_provider_dtrain.engine.attempt.outcome import Outcome

        event = event or {}
        for mark in event.get("log_marks", ()):
            self.log.warning("%s", mark)
        self._name = event.get("name")
        self._ending = event.get("ending", "")
        self._notifications.trial_id = event.get("trial_id")
        keep_pages(self)
        with self._notifications.about(task_facts(context)):
            return self._end(Outcome.from_dict(event["outcome"]))

    def on_kill(self) -> None:
        """End the gang on every host without taking a lock or opening a connection."""
        if self._running is not None:
            loop, runtime = self._running
            loop.call_soon_threadsafe(runtime.kill)

    def _hands_over(self, task: TaskFacts) -> bool:
        """Return whether the worker leaves the trial to the triggerer at once.

        A triggerer follows all trials of a search over one channel to each host.
        """
        return self.deferrable and task.key.map_index >= 0

    def _submit(self, hook: DtrainHook, task: TaskFacts) -> Ticket:
        """Write configuration, code, trial and request into the store."""
        from airflow_provider_dtrain.engine.submission.submit import config_of

        key, folder = task.key, task.folder
        if self.needs_submission:
            from airflow_provider_dtrain.engine.submission.granted import check_planned

            check_planned(hook.store, key, self.trial)
        gang = self._gang()
        held = hook.store.gangs.get(gang.allocation_id) if gang is not None else None
        config = self._configured(folder, held)
        pool = held.pool if held is not None else None
        stored = config_of(hook, config, self.template, folder, trial=self.trial, pool=pool)
        return self._store(hook, stored, task, gang=gang, folder=folder)

    def _store(
        self,
        hook: DtrainHook,
        stored: Config,
        task: TaskFacts,
        *,
        gang: HeldGang | None,
        folder: Path,
        tree: Path | None = None,
    ) -> Ticket:
        """Write code, trial and request into the store.

        :param folder: the code
        :param tree: folder whose state in git is that of the code; None: the folder of the code
        """
        from airflow_provider_dtrain.engine.submission.submit import submit

        trial, hands_over = self._planned(task.key), self._hands_over(task)
        return submit(
            hook,
            stored,
            key=task.key,
            folder=folder,
            trial=trial,
            gang=gang,
            bundle=task.bundle,
            tree=tree,
            hands_over=hands_over,
        )

    def _configured(self, folder: Path, held: GangView | None) -> str | Mapping[str, Any] | None:
        """Return the configuration with the operator's own arguments.

        :param held: the held gang that the trial uses
        """
        from airflow_provider_dtrain.engine.submission.submit import overridden

        return overridden(self.config, self.overrides, folder) if self.config is not None else None

    def _gang(self) -> HeldGang | None:
        if self.allocation is None:
            return None
        from airflow_provider_dtrain.engine.upkeep.held_gangs import HeldGang

        return HeldGang.parse(self.allocation)

    def _planned(self, key: TrialKey) -> JsonObject:
        return {"number": max(key.map_index, 0), **(self.trial or {})}

    def _carry(self, hook: DtrainHook, trial_id: int, deadline: float | None, task: TaskFacts) -> Outcome | None:
        """Run the engine in this process and return the outcome, or None to defer to the triggerer."""
        try:
            return asyncio.run(self._main(hook, trial_id, deadline, task))
        except AirflowTaskTimeout:
            asyncio.run(self._kill(hook, trial_id))
            raise

    async def _main(self, hook: DtrainHook, trial_id: int, deadline: float | None, task: TaskFacts) -> Outcome | None:
        from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
        from airflow_provider_dtrain.engine.logs.task_log import TaskLog
        from airflow_provider_dtrain.engine.operations.follower import redacting, serving
        from airflow_provider_dtrain.engine.session.runtime import take_over
        from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery

        loop = asyncio.get_running_loop()
        log = TaskLog(self.log, hook.settings.task_log_rate_bytes_per_s)
        runtime = await take_over(hook, trial_id, log, watcher=f"worker on {socket.gethostname()}")
        runtime.trace_parent = task.trace_parent
        self._running = (loop, runtime)
        try:
            if self.deferrable:
                loop.call_later(hook.settings.defer_after_s, runtime.hand_over)
            runtime.on_waiting = self._notifications.wait_limit(hook.store, trial_id, task)
            # Only a task instance with the name that this operator makes.
            is_named = task.map_index_template == MAP_INDEX_TEMPLATE
            on_state = self._show_state if is_named and not self.deferrable else None
            runner = AttemptRunner(runtime, deadline=deadline, patient=not self.deferrable, on_state=on_state)
            with serving(hook, trial_id, redacting(runtime)):
                outcome = await runner.run(BackgroundRecovery(hook))
        finally:
            self._running = None
        for mark in runtime.logs.unconfirmed:
            self.log.warning("%s", mark)
        return outcome

    async def _kill(self, hook: DtrainHook, trial_id: int) -> None:
        from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
        from airflow_provider_dtrain.engine.logs.task_log import TaskLog
        from airflow_provider_dtrain.engine.session.runtime import take_over

        log = TaskLog(self.log, hook.settings.task_log_rate_bytes_per_s)
        error = ExecutionTimeoutError("The trial was ended: the task's execution_timeout has passed.")
        await AttemptRunner(await take_over(hook, trial_id, log, watcher="time-out")).kill(error)

    def _defer(self, trial_id: int, deadline: float | None) -> None:
        from airflow_provider_dtrain.triggers.trial import TrialTrigger

        trigger = TrialTrigger(trial_id=trial_id, deadline=deadline, waiting=self._notifications.packed())
        self.defer(trigger=trigger, method_name="execute_complete")

    def _show_state(self, state: str) -> None:
        """Show in the name of the task instance whether the trial waits or trains."""
        self._ending = _STATE_TEXT.get(state, "")
        show_map_index_name(self.map_index_name)

    def _learn_end(self, hook: DtrainHook, trial_id: int) -> None:
        """Read the words about the end of the trial, and hyperparameters that were drawn after it was planned."""
        from airflow_provider_dtrain.engine.attempt.end_summary import shown_of

        self._ending = ""
        with contextlib.suppress(DtrainError):
            shown = shown_of(hook.store, trial_id)
            self._name, self._ending = shown["name"], shown["ending"]

    def _end(self, outcome: Outcome | None) -> TrialResult | None:
        if outcome is None or outcome.failure is None:
            return outcome.result if outcome else None
        failure = outcome.failure
        if "\n" in failure.message.strip():
            # Before the exception, so that the task log ends with the cause in one line.
            self.log.error("%s", failure.message.strip())
        raise as_airflow(failure.brief)


#: State of an attempt -> what the name of its task instance shows.
_STATE_TEXT = {"waiting": "waits for slots", "starting": "starts", "running": "trains", "stopping": "stops"}
