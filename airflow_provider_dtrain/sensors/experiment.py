"""Sensor that waits for an experiment or a trial that was started elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_dtrain.engine.observation import (
    ENDED,
    SUCCEEDED,
    Observation,
    Target,
    observe,
    states_of,
)
from airflow_provider_dtrain.errors import StoreError
from airflow_provider_dtrain.hooks.arguments import COUNT, FLAG, TEXT, CheckedArguments, Kind, of
from airflow_provider_dtrain.hooks.tasks import as_airflow, failing_at_once
from airflow_provider_dtrain.links.pages import ExperimentLink, TrialLink, note_pages

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_dtrain.triggers.experiment import ExperimentEvent


class ExperimentSensor(CheckedArguments, BaseSensorOperator):
    """Waits until an experiment or a trial has reached a state.

    Another DAG or the command line has started it. The sensor changes nothing. It fails at once when there is no such
    experiment or trial, and when it is in one of ``failed_states``. While the store is not available, it waits.

    XCom of an experiment: ``{"experiment_id", "state", "best", "best_trial", "trials": {state: number}}``; of a trial:
    ``{"experiment_id", "trial_id", "state", "result"}`` with the XCom of its ``TrialOperator`` as ``result``.

    :param experiment: id or name of an experiment; of several with one name, each poll takes the newest (templated)
    :param trial_id: id of a trial, instead of ``experiment`` (templated)
    :param external_dag_id: DAG of a named experiment; None: any (templated)
    :param external_run_id: DAG run of a named experiment; None: any (templated)
    :param target_states: states to wait for. Default: ``completed``, and ``stopped`` of a trial
    :param failed_states: states that fail the sensor. Default: the end states that are not in ``target_states``
    :param deferrable: wait in the triggerer; default: ``[operators] default_deferrable``
    :param poke_interval: seconds or timedelta between two polls, as for every sensor (60 s), also in the triggerer
    """

    template_fields: Sequence[str] = ("experiment", "trial_id", "external_dag_id", "external_run_id")
    operator_extra_links = (TrialLink(), ExperimentLink())
    ui_color = "#fef7e0"
    ARGUMENTS: ClassVar[Mapping[str, Kind]] = {
        "experiment": of("an id or a name", int, str), "trial_id": COUNT, "external_dag_id": TEXT,
        "external_run_id": TEXT, "deferrable": FLAG,
        **dict.fromkeys(("target_states", "failed_states"), of("a state or several", str, list, tuple, set, frozenset)),
    }  # fmt: skip

    def __init__(
        self,
        *,
        experiment: int | str | None = None,
        trial_id: int | str | None = None,
        external_dag_id: str | None = None,
        external_run_id: str | None = None,
        target_states: str | Collection[str] | None = None,
        failed_states: str | Collection[str] | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (experiment is None) == (trial_id is None):
            raise ValueError("ExperimentSensor expects exactly one of experiment and trial_id, got both or neither.")
        given = {
            "experiment": experiment,
            "trial_id": trial_id,
            "external_dag_id": external_dag_id,
            "external_run_id": external_run_id,
            "deferrable": deferrable,
            "target_states": target_states,
            "failed_states": failed_states,
        }
        self.check_arguments(self.task_id, given)
        kind = "trial" if experiment is None else "experiment"
        self.experiment = experiment
        self.trial_id = trial_id
        self.external_dag_id = external_dag_id
        self.external_run_id = external_run_id
        self.target_states = states_of(kind, target_states, "target_states", SUCCEEDED)
        self.failed_states = states_of(kind, failed_states, "failed_states", ENDED - set(self.target_states))
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        """Return the XCom once a target state is reached, or defer to the triggerer after the first poll.

        :raises AirflowFailException: there is no such experiment or trial, or it is in one of ``failed_states``
        :raises AirflowSkipException: the same with ``soft_fail``
        """
        if not self.deferrable:
            return super().execute(context)
        if found := self.poke(context):
            return found.xcom_value
        from airflow_provider_dtrain.triggers.experiment import ExperimentTrigger

        self.defer(
            trigger=ExperimentTrigger(target=self._target().to_dict(), poke_interval=self.poke_interval),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )
        return None

    def execute_complete(self, context: Context, event: ExperimentEvent | None = None) -> Any:
        """Return the XCom that the trigger found. Raises like :meth:`execute`.

        :param event: event of the trigger
        """
        from airflow_provider_dtrain.engine.attempt.outcome import Failure

        found = event or {}
        if "failure" in found:
            raise self._failure(as_airflow(Failure(**found["failure"]).exception()))
        return self._judged(Observation(**found["observation"])).xcom_value

    def poke(self, context: Context) -> PokeReturnValue:
        """Return whether a target state is reached, with the XCom. Raises like :meth:`execute`."""
        from airflow_provider_dtrain.hooks.dtrain import DtrainHook

        try:
            with failing_at_once():
                found = observe(DtrainHook().store, self._target())
        except StoreError as error:
            self.log.warning("The store is not available. The next poll is in %g s: %s", self.poke_interval, error)
            return PokeReturnValue(is_done=False)
        except AirflowFailException as error:
            raise self._failure(error) from error
        return self._judged(found)

    def _target(self) -> Target:
        return Target(
            experiment=None if self.experiment is None else str(self.experiment),
            trial_id=None if self.trial_id is None else str(self.trial_id),
            dag_id=self.external_dag_id,
            run_id=self.external_run_id,
            target_states=self.target_states,
            failed_states=self.failed_states,
        )

    def _judged(self, found: Observation) -> PokeReturnValue:
        ids = found.result or {}
        note_pages(self, trial_id=ids.get("trial_id"), experiment_id=ids.get("experiment_id"))
        if found.verdict == "failed":
            raise self._failure(AirflowFailException(found.message))
        self.log.info("%s", found.message)
        return PokeReturnValue(is_done=found.verdict == "reached", xcom_value=found.result)

    def _failure(self, error: Exception) -> Exception:
        """Return the exception of the task. Airflow's own conversion for ``soft_fail`` would hide the reason."""
        is_skipped = isinstance(error, AirflowFailException) and (self.soft_fail or self.never_fail)
        return AirflowSkipException(str(error)) if is_skipped else error
