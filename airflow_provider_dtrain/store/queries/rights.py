"""Rights of a reader. Rows and ids that a reader may not read do not exist for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider_dtrain.errors import NotFoundError

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.records.pages import Dags, ExperimentEntry, ExperimentPlan
    from airflow_provider_dtrain.store.records.trials import HostRecord, TrialView
    from airflow_provider_dtrain.store.store import Store

#: Largest id that a database can hold.
ID_MOST: Final = 2**63 - 1


class Rights(Protocol):
    """Rights of the user for whom a query returns records: of a request, or all."""

    def readable(self, store: Store) -> Dags:
        """Return the DAGs of the store that the user may read, None for all of them."""

    def may_read(self, dag_id: str) -> bool:
        """Return whether the user may read a DAG."""

    def may_read_logs(self, dag_id: str) -> bool:
        """Return whether the user may read the task logs of a DAG."""

    def may_read_code(self, dag_id: str) -> bool:
        """Return whether the user may read the code of a DAG."""

    def require_logs(self, dag_id: str) -> None:
        """Raise an error unless the user may read the task logs of a DAG."""

    def require_code(self, dag_id: str) -> None:
        """Raise an error unless the user may read the code of a DAG."""

    def may_edit(self, dag_ids: Collection[str]) -> frozenset[str]:
        """Return those of the DAGs whose runs the user may edit."""

    def may_change(self, hosts: Sequence[HostRecord]) -> set[str]:
        """Return the names of those hosts whose connections the user may edit."""


class AllRights:
    """Rights of a user with a shell on the machine of the store."""

    def readable(self, store: Store) -> Dags:
        """Return None, for all DAGs."""
        return None

    def may_read(self, dag_id: str) -> bool:
        """Return True."""
        return True

    def may_read_logs(self, dag_id: str) -> bool:
        """Return True."""
        return True

    def may_read_code(self, dag_id: str) -> bool:
        """Return True."""
        return True

    def require_logs(self, dag_id: str) -> None:
        """Do nothing."""

    def require_code(self, dag_id: str) -> None:
        """Do nothing."""

    def may_edit(self, dag_ids: Collection[str]) -> frozenset[str]:
        """Return all of the DAGs."""
        return frozenset(dag_ids)

    def may_change(self, hosts: Sequence[HostRecord]) -> set[str]:
        """Return the names of all hosts."""
        return {host.name for host in hosts}


def readable_trial(store: Store, rights: Rights, trial_id: int) -> TrialView:
    """Return a trial.

    :raises NotFoundError: there is none with this id, or the user may not read its DAG
    """
    view = store.trials.get(trial_id) if 0 < trial_id <= ID_MOST else None
    if view is None or not rights.may_read(view.key.dag_id):
        raise NotFoundError(f"There is no trial {trial_id}. See: airflow dtrain trials list")
    return view


def readable_experiment(store: Store, rights: Rights, experiment_id: int) -> ExperimentEntry:
    """Return an experiment.

    :raises NotFoundError: there is none with this id, or the user may not read its DAG
    """
    entry = store.experiment_table.get(experiment_id) if 0 < experiment_id <= ID_MOST else None
    if entry is None or not rights.may_read(entry.view.dag_id):
        raise _no_experiment(experiment_id)
    return entry


def readable_plan(store: Store, rights: Rights, experiment_id: int) -> ExperimentPlan:
    """Return DAG, plan and metric of an experiment. It costs a tenth of :func:`readable_experiment`.

    :raises NotFoundError: there is none with this id, or the user may not read its DAG
    """
    plan = store.experiment_table.plan(experiment_id) if 0 < experiment_id <= ID_MOST else None
    if plan is None or not rights.may_read(plan.dag_id):
        raise _no_experiment(experiment_id)
    return plan


def _no_experiment(experiment_id: int) -> NotFoundError:
    return NotFoundError(f"There is no experiment {experiment_id}. See: airflow dtrain experiments list")
