"""The user, and the server."""

from __future__ import annotations

from airflow_provider_dtrain.api.models.common import Model


class Starting(Model):
    """The DAG that starts experiments."""

    dag_id: str
    #: Airflow knows the DAG, and it was made by ``experiment_dag()``.
    exists: bool
    #: The user may trigger it, and it can run now.
    may_trigger: bool
    #: The reason why the user cannot start experiments, with the command that changes it; empty: the user can.
    hint: str


class Me(Model):
    """The user of the request and their rights."""

    user: str
    #: An experiment that is not archived has the user as its owner. False without a login.
    owns_experiments: bool
    #: The user may change hosts, slots and priorities: with teams, those of a team at least.
    may_change_hosts: bool
    starting: Starting
    #: Version of the provider.
    version: str
