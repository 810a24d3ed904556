"""Operator for one trial: it acquires a gang of slots, runs the ranks on it and returns their result."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_provider_dtrain.core.lifecycle.states import STARTED, TRIAL_SUCCEEDED
from airflow_provider_dtrain.errors import ConfigError, DtrainError, Problem
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
from airflow_provider_dtrain.links.pages import ExperimentLink, TrialLink, keep_pages, note_pages, store_pages
from airflow_provider_dtrain.operators._notifications import WAITING_AFTER, TrialNotifications
from airflow_provider_dtrain.operators._several_trials import (
    FinishedTrial,
    SeveralResults,
    counts_text,
    ended_trials,
    failure_of,
    log_begins,
    log_ends,
    results_of,
    trials_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import Context

    from airflow_provider_dtrain.core.documents import JsonObject
    from airflow_provider_dtrain.engine.attempt.outcome import Outcome
    from airflow_provider_dtrain.engine.attempt.xcom_result import TrialResult
    from airflow_provider_dtrain.engine.logs.task_log import TaskLog
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.engine.upkeep.held_gangs import HeldGang
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.hooks.tasks import TaskFacts
    from airflow_provider_dtrain.notifications.events import Given
    from airflow_provider_dtrain.store.records.gangs import GangView
    from airflow_provider_dtrain.store.records.trials import Config, HandOver, Ticket, TrialKey
    from airflow_provider_dtrain.triggers._followed_trial import TrialEvent
    from airflow_provider_dtrain.triggers.trial import TrialsEvent


#: Airflow renders it before and after the task, so the UI shows the name while the trial waits and runs.
#: The word ``trial`` keeps it a text: a DAG that renders native objects would render a number alone as an integer,
#: which Airflow does not accept.
MAP_INDEX_TEMPLATE = "{{ task.map_index_name or 'trial ' ~ ti.map_index }}"


class TrialOperator(CheckedArguments, BaseOperator):
    """Trains one trial on a gang of slots.

    The operator waits in the pool's queue, starts one rank per slot over SSH (or on this machine) and streams the log
    of rank 0 into the task log. It returns when every process has ended and the slots are released.

    XCom: ``experiment_id, trial_id, state, metric, metrics, steps, checkpoint, hosts`` as plain JSON. A task of a
    search with ``searcher.trials_per_task`` above 1 runs several trials at the same time. Its XCom is
    ``experiment_id`` and ``trials``, a list of such results.

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
        #: Event loop, and trial -> runtime of its follower.
        self._running: tuple[asyncio.AbstractEventLoop, dict[int, Runtime]] | None = None
        #: Requests that store the links.
        self._storing: asyncio.Future[None] | None = None
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

    def execute(self, context: Context) -> TrialResult | SeveralResults | None:
        """Run the trial to its end, or defer to the triggerer.

        :raises AirflowFailException: the configuration or the training code is at fault
        :raises DtrainError: a host or the store is at fault; a retry resumes where this try ended
        """
        task = task_facts(context)
        with self._notifications.about(task):
            return self._execute(task)

    def _execute(self, task: TaskFacts) -> TrialResult | SeveralResults | None:
        from airflow_provider_dtrain.engine.submission.submit import hand_over, revive
        from airflow_provider_dtrain.hooks.dtrain import DtrainHook
        from airflow_provider_dtrain.triggers._followed_trial import stored_end

        with failing_at_once():
            hook = DtrainHook()
            tickets = self._submit(hook, task)
            is_left = self._leaves_to_triggerer(task, tickets)
            for ticket in tickets:
                if not ticket.is_new:
                    revive(hook.store, ticket)
                    if is_left:
                        hand_over(hook.store, ticket)
        self._note(tickets)
        if not self.deferrable:
            store_pages(self, task.context)
        deadline = time.time() + self.execution_timeout.total_seconds() if self.execution_timeout else None
        trial_ids = [ticket.trial_id for ticket in tickets]
        with_results = self._with_results(hook, tickets)
        followed = [trial_id for trial_id in trial_ids if trial_id not in with_results]
        ends: dict[int, TrialEvent] = {trial_id: stored_end(hook.store, trial_id) for trial_id in with_results}
        outcomes = self._carry(hook, followed, deadline, task) if followed and not is_left else []
        for trial_id, outcome in zip(followed, outcomes, strict=False):
            if outcome is not None:
                ends[trial_id] = self._shown(hook, trial_id, outcome)
        if len(ends) < len(trial_ids):
            self._defer(trial_ids, with_results, deadline)
        return self._end_task(task, [ends[trial_id] for trial_id in trial_ids])

    def execute_complete(
        self, context: Context, event: TrialsEvent | None = None
    ) -> TrialResult | SeveralResults | None:
        """Return the trial's result. Raises like :meth:`execute`.

        :param event: event of the trigger
        """
        task, ends = task_facts(context), (event or {}).get("trials", [])
        if not self._has_several:
            self._notifications.trial_id = ends[0].get("trial_id")
        keep_pages(self)
        with self._notifications.about(task):
            return self._end_task(task, ends)

    def on_kill(self) -> None:
        """End the gang on every host without taking a lock or opening a connection."""
        if self._running is not None:
            loop, runtimes = self._running
            for runtime in runtimes.values():
                loop.call_soon_threadsafe(runtime.kill)

    @property
    def _has_several(self) -> bool:
        """True if the task was planned for several trials, or for the last ones of such a plan."""
        return isinstance(self.trial, Mapping) and "trials" in self.trial

    def _hand_over_rule(self, task: TaskFacts) -> HandOver:
        """Return whether the worker leaves a new trial to the triggerer at once.

        A triggerer follows all trials of a search over one channel to each host. It takes a trial over a second or two
        after the task began, so the first one starts in its worker.
        """
        from airflow_provider_dtrain.store.records.trials import HandOver

        if not self.deferrable:
            return HandOver.NO
        if self._has_several:
            return HandOver.YES
        return HandOver.NO if task.key.map_index < 0 else HandOver.ALL_BUT_FIRST

    def _leaves_to_triggerer(self, task: TaskFacts, tickets: Sequence[Ticket]) -> bool:
        """Return whether the worker leaves the trials to the triggerer at once, as it does with those of a retry."""
        if all(ticket.is_new for ticket in tickets):
            return any(ticket.is_handed_over for ticket in tickets)
        return self.deferrable and (task.key.map_index >= 0 or self._has_several)

    def _note(self, tickets: Sequence[Ticket]) -> None:
        """Log the trials, and note the links."""
        first, experiment_id = tickets[0].trial_id, tickets[0].experiment_id
        if not self._has_several:
            self._notifications.trial_id = first
            self.log.info("Experiment %d, trial %d", experiment_id, first)
            note_pages(self, trial_id=first, experiment_id=experiment_id)
            return
        log_begins(self.log, self.trial or {}, tickets)
        note_pages(self, experiment_id=experiment_id, has_several=True)

    def _with_results(self, hook: DtrainHook, tickets: Sequence[Ticket]) -> list[int]:
        """Return the trials that have a result from before a clear or retry of this task."""
        if not self._has_several:
            return []
        known = [ticket.trial_id for ticket in tickets if not ticket.is_new]
        return [trial_id for trial_id in known if hook.store.trials.get(trial_id).state in TRIAL_SUCCEEDED]

    def _submit(self, hook: DtrainHook, task: TaskFacts) -> list[Ticket]:
        """Write configuration, code, trials and requests into the store."""
        from airflow_provider_dtrain.engine.submission.submit import config_of, submit_several

        key, folder, several = task.key, task.folder, trials_of(self.trial)
        if self.needs_submission:
            from airflow_provider_dtrain.engine.submission.granted import check_planned

            for trial in [self.trial] if several is None else several:
                check_planned(hook.store, key, trial)
        gang = self._gang()
        if several is not None:
            if gang is not None:
                raise ConfigError([Problem(path="searcher.trials_per_task", message=_NO_HELD_GANG)])
            stored = config_of(hook, None, None, folder, trial=several[0])
            return submit_several(
                hook,
                stored,
                several,
                key=key,
                folder=folder,
                bundle=task.bundle,
                hand_over=self._hand_over_rule(task),
                owner=task.owner,
            )
        held = hook.store.gangs.get(gang.allocation_id) if gang is not None else None
        config = self._configured(folder, held)
        pool = held.pool if held is not None else None
        stored = config_of(hook, config, self.template, folder, trial=self.trial, pool=pool)
        return [self._store(hook, stored, task, gang=gang, folder=folder)]

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

        return submit(
            hook,
            stored,
            key=task.key,
            folder=folder,
            trial=self._planned(task.key),
            gang=gang,
            bundle=task.bundle,
            tree=tree,
            hand_over=self._hand_over_rule(task),
            owner=task.owner,
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
        if self._has_several:
            message = "has several trials, which only a TrialOperator runs. Set searcher.trials_per_task to 1"
            raise ConfigError([Problem(path="trial", message=message)])
        return {"number": max(key.map_index, 0), **(self.trial or {})}

    def _carry(
        self, hook: DtrainHook, trial_ids: Sequence[int], deadline: float | None, task: TaskFacts
    ) -> list[Outcome | None]:
        """Run the engine in this process and return each outcome, or None to defer to the triggerer."""
        try:
            return asyncio.run(self._main(hook, trial_ids, deadline, task))
        except AirflowTaskTimeout:
            asyncio.run(self._kill(hook, trial_ids))
            raise

    async def _main(
        self, hook: DtrainHook, trial_ids: Sequence[int], deadline: float | None, task: TaskFacts
    ) -> list[Outcome | None]:
        from airflow_provider_dtrain.engine.attempt.siblings import follow_all

        self._running = (asyncio.get_running_loop(), {})
        followers = {one: functools.partial(self._follow, hook, one, deadline, task) for one in trial_ids}
        try:
            outcomes = await follow_all(followers, {one: self._trial_log(None, one) for one in trial_ids})
        finally:
            self._running = None
        if self._storing is not None:
            await asyncio.wait([self._storing])
        return outcomes

    async def _follow(self, hook: DtrainHook, trial_id: int, deadline: float | None, task: TaskFacts) -> Outcome | None:
        from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
        from airflow_provider_dtrain.engine.operations.follower import redacting, serving
        from airflow_provider_dtrain.engine.session.runtime import take_over
        from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery

        log = self._trial_log(hook, trial_id)
        runtime = await take_over(hook, trial_id, log, watcher=f"worker on {socket.gethostname()}")
        runtime.trace_parent = task.trace_parent
        assert self._running is not None
        self._running[1][trial_id] = runtime
        if self.deferrable:
            asyncio.get_running_loop().call_later(hook.settings.defer_after_s, runtime.hand_over)
        runtime.on_waiting = self._notifications.wait_limit(hook.store, trial_id, task)
        runtime.on_straggler = self._notifications.straggler(hook.store, trial_id, task)
        on_state = functools.partial(self._on_state, task)
        runner = AttemptRunner(runtime, deadline=deadline, patient=not self.deferrable, on_state=on_state)
        with serving(hook, trial_id, redacting(runtime)):
            outcome = await runner.run(BackgroundRecovery(hook))
        for mark in runtime.logs.unconfirmed:
            self.log.warning("%s", mark)
        return outcome

    async def _kill(self, hook: DtrainHook, trial_ids: Sequence[int]) -> None:
        from airflow_provider_dtrain.engine.attempt.end_place import ended_by_time_limit
        from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
        from airflow_provider_dtrain.engine.session.runtime import take_over

        async def kill(trial_id: int) -> None:
            runtime = await take_over(hook, trial_id, self._trial_log(hook, trial_id), watcher="time-out")
            await AttemptRunner(runtime).kill(ended_by_time_limit(await runtime.view()))

        # All are ended first, also when the end of one fails.
        for error in await asyncio.gather(*map(kill, trial_ids), return_exceptions=True):
            if error is not None:
                raise error

    def _trial_log(self, hook: DtrainHook | None, trial_id: int) -> TaskLog:
        """Return the part of the task log for a trial.

        :param hook: None: without lines of ranks
        """
        from airflow_provider_dtrain.engine.logs.task_log import TaskLog

        rate = None if hook is None else hook.settings.task_log_rate_bytes_per_s
        return TaskLog(self.log, rate, section=trial_id if self._has_several else None)

    def _defer(self, trial_ids: Sequence[int], with_results: Sequence[int], deadline: float | None) -> None:
        from airflow_provider_dtrain.triggers.trial import TrialTrigger

        trigger = TrialTrigger(
            trial_ids,
            deadline=deadline,
            notifications=self._notifications.packed(),
            with_results=with_results,
            has_sections=self._has_several,
        )
        self.defer(trigger=trigger, method_name="execute_complete")

    def _on_state(self, task: TaskFacts, state: str) -> None:
        """Show what the trial does: in the name of the task instance, or by links while a deferrable task runs here."""
        from airflow_provider_dtrain.engine.session.background import in_background
        from airflow_provider_dtrain.engine.session.threads import in_thread

        if self.deferrable:
            if state in STARTED and self._storing is None:
                # Before the start, these requests would delay it. If the task defers first, Airflow stores the links.
                self._storing = in_background(in_thread(store_pages, self, task.context))
        elif task.map_index_template == MAP_INDEX_TEMPLATE and not self._has_several:
            # Only a task instance with the name that this operator makes.
            self._ending = _STATE_TEXT.get(state, "")
            show_map_index_name(self.map_index_name)

    def _shown(self, hook: DtrainHook, trial_id: int, outcome: Outcome) -> TrialEvent:
        """Return the end of a trial that this process has followed, as the event of a trigger has it."""
        from airflow_provider_dtrain.engine.attempt.end_summary import ShownFacts, shown_of

        shown: ShownFacts = {"trial_id": trial_id}
        with contextlib.suppress(DtrainError):
            shown = shown_of(hook.store, trial_id)
        return {**shown, "outcome": outcome.to_dict(), "log_marks": []}

    def _end_task(self, task: TaskFacts, ends: Sequence[TrialEvent]) -> TrialResult | SeveralResults | None:
        """Return the result of the task, or raise why it failed."""
        from airflow_provider_dtrain.engine.attempt.outcome import Outcome

        for end in ends:
            for mark in end.get("log_marks", ()):
                self.log.warning("%s", mark)
        if self._has_several:
            return self._end_several(task, ended_trials(self.trial or {}, ends))
        self._name = ends[0].get("name")
        self._ending = ends[0].get("ending", "")
        return self._end(Outcome.from_dict(ends[0]["outcome"]))

    def _end_several(self, task: TaskFacts, ends: Sequence[FinishedTrial]) -> SeveralResults:
        """Return the results of several trials, or raise which of them failed and why."""
        log_ends(self.log, ends)
        self._ending = counts_text(ends)
        failures = {end.trial_id: end.outcome.failure for end in ends}
        briefs = {one: failure.brief if failure is not None else None for one, failure in failures.items()}
        self._notifications.several_ended(task, briefs)
        if (error := failure_of(ends)) is not None:
            raise as_airflow(error)
        return results_of(ends)

    def _end(self, outcome: Outcome | None) -> TrialResult | None:
        if outcome is None or outcome.failure is None:
            return outcome.result if outcome else None
        failure = outcome.failure
        if "\n" in failure.message.strip():
            # Before the exception, so that the task log ends with the cause in one line.
            self.log.error("%s", failure.message.strip())
        raise as_airflow(failure.brief)


_NO_HELD_GANG = (
    "must be 1 for trials on a held gang, which one trial uses at a time. Remove allocation from the options of the "
    "trials, or set searcher.trials_per_task to 1"
)
#: State of an attempt -> what the name of its task instance shows.
_STATE_TEXT = {"waiting": "waits for slots", "starting": "starts", "running": "trains", "stopping": "stops"}
