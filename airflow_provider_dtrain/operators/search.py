"""Operators of a hyperparameter search: one plans its trials, one selects the best trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.sdk import BaseOperator, XComArg
from airflow.sdk.configuration import conf

from airflow_provider_dtrain.errors import SearchFailedError
from airflow_provider_dtrain.hooks.arguments import (
    DOCUMENT,
    FLAG,
    LIST,
    MAP,
    TEXT,
    CheckedArguments,
    Kind,
    configured,
    text_of_path,
)
from airflow_provider_dtrain.hooks.tasks import failing_at_once, task_facts
from airflow_provider_dtrain.links.pages import ExperimentLink, TrialLink, note_pages
from airflow_provider_dtrain.notifications.events import notifiers_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_dtrain.core.documents import JsonObject
    from airflow_provider_dtrain.engine.submission.search import BestTrial, PlannedTask, PlannedTrial, Selection
    from airflow_provider_dtrain.hooks.tasks import TaskFacts
    from airflow_provider_dtrain.notifications.events import Given


class PlanTrialsOperator(CheckedArguments, BaseOperator):
    """Plans the trials of an experiment.

    XCom: one ``{number, hparams, search_id, bracket, rungs, name}`` per trial, for a mapped ``TrialOperator``. With
    ``searcher.trials_per_task`` above 1, it is one ``{name, search_id, trials}`` per task::

        plan = PlanTrialsOperator(task_id="plan", config="search.yaml")
        trials = TrialOperator.partial(task_id="trial", deferrable=True).expand(trial=plan.output)
        trials >> SelectBestTrialOperator(task_id="best", plan=plan.output)

    This task draws the seed, unless the configuration contains one. Clearing this task plans the next generation of
    the experiment with the same seed.

    :param config: experiment configuration: a path (relative to the DAG file), YAML text, a dict, or
        the XCom of a ``RenderConfigOperator`` (templated)
    :param overrides: dotted path, e.g. ``hyperparameters.lr`` -> value that replaces the one in the configuration. A
        text is parsed as a YAML scalar, so that ``"{{ params.lr }}"`` becomes a number (templated)
    :param template: name of a stored template, a path, or a dict (templated)
    :param name: name of the experiment; None = the configuration's name, else the DAG's (templated)
    :param payload: digest of code that ``airflow dtrain experiments create`` stored; None = each trial packs
        ``model_dir`` when it starts (templated)
    :param needs_submission: True for a DAG whose configuration comes from its parameters: connections, stored code,
        stored configurations and checkpoints are used only as the API has granted them to the user who requested the
        DAG run. False: with the rights of the DAG's author
    :param retries: retries of failures of the store (3)
    """

    template_fields: Sequence[str] = ("config", "template", "overrides", "name", "payload")
    template_fields_renderers: ClassVar[dict[str, str]] = {"config": "yaml", "template": "yaml"}
    operator_extra_links = (ExperimentLink(),)
    ui_color = "#e8f0fe"
    ARGUMENTS: ClassVar[Mapping[str, Kind]] = {
        "config": DOCUMENT, "template": DOCUMENT, "overrides": MAP, "name": TEXT, "payload": TEXT,
        "needs_submission": FLAG,
    }  # fmt: skip

    def __init__(
        self,
        *,
        config: str | Mapping[str, Any],
        template: str | Mapping[str, Any] | None = None,
        overrides: Mapping[str, Any] | None = None,
        name: str | None = None,
        payload: str | None = None,
        needs_submission: bool = False,
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=30),
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        given = {"config": config, "template": template, "overrides": overrides, "name": name, "payload": payload}
        self.check_arguments(self.task_id, {**given, "needs_submission": needs_submission})
        self.config = text_of_path(config)
        self.template = text_of_path(template)
        self.overrides = overrides
        self.name = name
        self.payload = payload
        self.needs_submission = needs_submission

    @classmethod
    def documents(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
        """Yield the configuration with its overrides, and the template."""
        return configured(given)

    def execute(self, context: Context) -> list[PlannedTrial] | list[PlannedTask]:
        """Return the trials, or the groups of trials that one task runs.

        :raises AirflowFailException: the configuration is not valid; all problems are in the log
        """
        from airflow_provider_dtrain.engine.submission.search import plan_search
        from airflow_provider_dtrain.engine.submission.submit import overridden
        from airflow_provider_dtrain.hooks.dtrain import DtrainHook

        with failing_at_once():
            hook = DtrainHook()
            task = task_facts(context)
            planned = plan_search(
                hook,
                task.key,
                overridden(self.config, self.overrides, task.folder),
                self.template,
                task.folder,
                name=self.name,
                payload=self.payload,
                max_map_length=conf.getint("core", "max_map_length", fallback=1024),
                needs_submission=self.needs_submission,
                owner=task.owner,
            )
            search = hook.store.searches.get(planned[0]["search_id"])
        note_pages(self, experiment_id=search.experiment_id)
        self.log.info("Experiment %d: %d trials in %d tasks", search.experiment_id, search.max_trials, len(planned))
        return planned


class SelectBestTrialOperator(CheckedArguments, BaseOperator):
    """Returns the best trial of an experiment after all its trials have ended, in any state.

    The task succeeds if at least one trial completed or was stopped by the searcher. If the metric beats all earlier
    runs of the experiment, the asset alias ``dtrain-best-<experiment>`` gets an event. After a clear, it gets a further
    event only if the metric beats the one that this run has announced.

    XCom: ``experiment_id, search_id, trial_id, number, metric, metrics, checkpoint, hparams, rung`` and ``trials``,
    the number of trials in each state.

    :param plan: XCom of the ``PlanTrialsOperator`` (templated)
    :param name: name of the experiment, if the DAG file knows it: Airflow then shows the alias among the task's
        outlets before the first run; None = the name in the plan
    :param needs_submission: accept only the plan of the same DAG run
    :param trigger_rule: ``all_done``
    :param retries: retries of failures of the store (3)
    :param notify: ``finished`` or ``failed`` -> one of Airflow's notifiers, or several; other events are those of a
        ``TrialOperator``
    """

    template_fields: Sequence[str] = ("plan",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"plan": "json"}
    operator_extra_links = (TrialLink(), ExperimentLink())
    ui_color = "#fef7e0"
    ARGUMENTS: ClassVar[Mapping[str, Kind]] = {"plan": LIST, "name": TEXT, "needs_submission": FLAG}

    def __init__(
        self,
        *,
        plan: Sequence[Mapping[str, Any]] | XComArg,
        name: str | None = None,
        needs_submission: bool = False,
        trigger_rule: str = "all_done",
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=30),
        notify: Mapping[str, Given] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(trigger_rule=trigger_rule, retries=retries, retry_delay=retry_delay, **kwargs)
        self.check_arguments(self.task_id, {"plan": plan, "name": name, "needs_submission": needs_submission})
        self.plan = plan
        self.needs_submission = needs_submission
        self.notify = notify
        self._notifiers = notifiers_of(notify)
        if name is not None:
            self._declare(name)

    def execute(self, context: Context) -> BestTrial:
        """Return the best trial.

        :raises AirflowFailException: no trial completed or was stopped, or none reported the metric
        """
        task = task_facts(context)
        try:
            result = self._execute(task)
        except Exception as error:
            if task.is_final(error):
                self._notify(task, error)
            raise
        self._notify(task, result)
        return result

    def _notify(self, task: TaskFacts, outcome: Mapping[str, Any] | Exception) -> None:
        """Send the notification about the end of the search. A failure of it is a warning."""
        if not self._notifiers or not self.plan:
            return
        from airflow_provider_dtrain.hooks.dtrain import DtrainHook
        from airflow_provider_dtrain.notifications.search_end import notify_search

        try:
            search_id = int(self.plan[0]["search_id"])  # type: ignore[index]
            store = DtrainHook().store
            notify_search(store, self.log, search_id, task.key, outcome, self._notifiers, dict(task.context))
        except Exception as error:  # whatever happens here must not fail the task
            self.log.warning("The notifications about the end of the experiment failed: %s", error)

    def _execute(self, task: TaskFacts) -> BestTrial:
        from airflow_provider_dtrain.engine.submission.search import select_best
        from airflow_provider_dtrain.hooks.dtrain import DtrainHook

        with failing_at_once():
            if not isinstance(self.plan, Sequence) or not self.plan:
                raise SearchFailedError(
                    "plan must be the XCom of a PlanTrialsOperator with at least one trial, got none: the task that "
                    "plans the trials has not succeeded. Clear that task to run it again."
                )
            store = DtrainHook().store
            search_id = int(self.plan[0]["search_id"])
            if self.needs_submission:
                from airflow_provider_dtrain.engine.submission.granted import check_search

                check_search(store, task.key, search_id)
            note_pages(self, experiment_id=store.searches.get(search_id).experiment_id)
            selection = select_best(store, search_id, task.key)
        result = selection.result
        note_pages(self, trial_id=result["trial_id"])
        self.log.info(
            "Best trial %d (number %d): metric %s with %s",
            result["trial_id"],
            result["number"],
            result["metric"],
            result["hparams"],
        )
        if result.get("manifest"):
            self._announce_outputs(task.context, selection)
        elif selection.is_new_best:
            self._announce(task.context, selection)
        elif selection.announced is not None:
            self.log.info("This run already announced %s, so there is no new best", selection.announced)
        else:
            self.log.info(
                "An earlier run of '%s' reached %s, so there is no new best", selection.experiment, selection.before
            )
        return result

    def _announce_outputs(self, context: Context, selection: Selection) -> None:
        """Announce the results of a batch inference, which is no model."""
        from airflow_provider_dtrain.assets import announce_outputs, outputs_alias

        alias = outputs_alias(selection.experiment)
        if alias not in self.outlets:
            self.outlets = [*self.outlets, alias]
        announce_outputs(context, [alias], selection.result)

    def _declare(self, name: str) -> None:
        """Add the alias to the outlets: Airflow accepts no events of other aliases."""
        from airflow_provider_dtrain.assets import best_alias

        alias = best_alias(name)
        if alias not in self.outlets:
            self.outlets = [*self.outlets, alias]

    def _announce(self, context: Context, selection: Selection) -> None:
        from airflow_provider_dtrain.assets import best_alias, best_asset

        self._declare(selection.experiment)
        alias = best_alias(selection.experiment)
        asset = best_asset(selection.experiment)
        context["outlet_events"][alias].add(asset, extra=cast("JsonObject", selection.result))
        self.log.info(
            "New best trial of '%s' (previous best metric: %s), announced as %s",
            selection.experiment,
            selection.before,
            asset.uri,
        )
