"""The API on a store, without a running Airflow: rights are given by the test instead of an auth manager."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AccessView,
    ConnectionDetails,
    DagAccessEntity,
    DagDetails,
)
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from airflow_provider_dtrain.api.airflow_facts import AirflowFacts
from airflow_provider_dtrain.api.app import VERSION, create_app, new_state
from airflow_provider_dtrain.api.init_dags import DAG_ID, OPERATIONS_DAG_ID, DagState
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.store.records.trials import TrialKey
from airflow_provider_dtrain.store.store import Store


class GivenFacts(AirflowFacts):
    """Airflow's metadata as a test gives it: it knows every DAG that is not in ``deleted``."""

    def __init__(self) -> None:
        self.deleted: set[str] = set()
        self.dag_teams: dict[str, str] = {}
        self.connection_teams: dict[str, str] = {}
        self.dags: dict[str, DagState] = {}

    def teams_of_dags(self, dag_ids: Collection[str]) -> dict[str, str | None]:
        return {one: self.dag_teams.get(one) for one in dag_ids if one not in self.deleted}

    def teams_of_connections(self, conn_ids: Collection[str]) -> dict[str, str | None]:
        return {one: self.connection_teams.get(one) for one in conn_ids}

    def teams(self) -> set[str]:
        return {*self.dag_teams.values(), *self.connection_teams.values()}

    def dag(self, dag_id: str) -> DagState:
        return self.dags.get(dag_id, DagState(exists=False))


@dataclass
class GivenRights:
    """Auth manager of Airflow for one user, whose rights a test gives. What decides on requests is the real code.

    :param readable: DAGs that the user may read; None = all
    :param editable: DAGs whose runs the user may edit; None = all that they may read
    :param hosts: the user may edit connections
    :param connections: connections that the user may read; None = those that they may edit
    :param logs: the user may read the task logs of DAGs; likewise ``code``
    :param team: of the user; None = all teams
    """

    readable: Collection[str] | None = None
    editable: Collection[str] | None = None
    hosts: bool = True
    connections: Collection[str] | None = None
    trigger: bool = True
    logs: bool = True
    code: bool = True
    plugins: bool = True
    team: str | None = None

    def _is_of_team(self, team: str | None) -> bool:
        return team is None or self.team is None or team == self.team

    def is_authorized_view(self, *, access_view: AccessView, user: Any) -> bool:
        return access_view is AccessView.PLUGINS and self.plugins

    def is_authorized_dag(
        self, *, method: str, user: Any, access_entity: DagAccessEntity | None = None, details: DagDetails
    ) -> bool:
        of = str(details.id)
        if not self._is_of_team(details.team_name):
            return False
        match method, access_entity:
            case "GET", None:
                return self.readable is None or of in self.readable
            case "GET", DagAccessEntity.TASK_LOGS:
                return self.logs
            case "GET", DagAccessEntity.CODE:
                return self.code
            case "PUT", DagAccessEntity.RUN:
                allowed = self.readable if self.editable is None else self.editable
                return allowed is None or of in allowed
            case "POST", DagAccessEntity.RUN:
                return self.trigger
        raise AssertionError((method, access_entity))

    def filter_authorized_dag_ids(
        self, *, dag_ids: set[str], user: Any, method: str, team_name: str | None
    ) -> set[str]:
        return {
            one
            for one in dag_ids
            if self.is_authorized_dag(method=method, user=user, details=DagDetails(id=one, team_name=team_name))
        }

    def is_authorized_connection(self, *, method: str, user: Any, details: ConnectionDetails) -> bool:
        if not self._is_of_team(details.team_name):
            return False
        if method == "GET" and self.connections is not None:
            return details.conn_id in self.connections
        return self.hosts

    def filter_authorized_connections(
        self, *, conn_ids: set[str], user: Any, method: str, team_name: str | None
    ) -> set[str]:
        return {
            one
            for one in conn_ids
            if self.is_authorized_connection(
                method=method, user=user, details=ConnectionDetails(conn_id=one, team_name=team_name)
            )
        }


@cache
def _application() -> FastAPI:
    return create_app()


def document_of_api() -> dict[str, Any]:
    """Return the OpenAPI document of the code."""
    return _application().openapi()


class Api:
    """Client of the API on a store. All clients of a process share one application, which takes half a second.

    :param dag: Airflow knows the DAG that starts experiments
    :param dag_file: file of this DAG; None = this machine does not have it
    :param operations: Airflow knows the DAG that reaches hosts, or its state
    :param rights: of the user, see :class:`GivenRights`
    """

    def __init__(
        self,
        store: Store,
        *,
        name: str = "ann",
        dag: bool = True,
        dag_file: str | None = None,
        operations: bool | DagState = False,
        **rights: Any,
    ) -> None:
        self.store = store
        self.name = name
        self.rights = GivenRights(**rights)
        self.facts = GivenFacts()
        self.facts.dags = {
            DAG_ID: DagState(exists=dag, file=dag_file),
            OPERATIONS_DAG_ID: operations if isinstance(operations, DagState) else DagState(exists=operations),
        }
        #: Entries of Airflow's audit log: event, user, DAG, and further values.
        self.logged: list[tuple[str, str, str | None, dict[str, Any]]] = []
        self.state = new_state(self._hook)
        self.state.log_action = self._log
        self.state.user_of = self._user_of
        self.state.auth_manager = lambda: self.rights
        self.state.facts = self.facts
        self._client = TestClient(_application(), raise_server_exceptions=False, headers={"X-Dtrain": "1"})

    async def _user_of(self, _request: Request) -> Any:
        return SimpleNamespace(get_name=lambda: self.name, get_id=lambda: f"id of {self.name}")

    @property
    def client(self) -> TestClient:
        """Client with the rights of this user, until another one is used."""
        _application().state = self.state
        return self._client

    def _log(self, event: str, user: str, key: TrialKey | None = None, **extra: Any) -> None:
        self.logged.append((event, user, None if key is None else key.dag_id, extra))

    def _hook(self) -> DtrainHook:
        hook = DtrainHook(settings())
        hook.__dict__["store"] = self.store
        return hook

    def answer(self, method: str, path: str, **options: Any) -> Any:
        """Return the answer to a request, whatever its status."""
        return self.client.request(method, VERSION + path, **options)

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the JSON of a successful read."""
        found = self.answer("GET", path, params=parameters)
        assert found.status_code == 200, found.text
        return found.json()

    def refusal(self, method: str, path: str, **options: Any) -> tuple[int, str, str]:
        """Return status, code and message of a request that is refused."""
        found = self.answer(method, path, **options)
        detail = found.json()["detail"]
        return found.status_code, detail["code"], detail["message"]


def record_triggers(monkeypatch: pytest.MonkeyPatch, routes: str) -> list[tuple[dict[str, Any], str]]:
    """Return a list that gets parameters and id of each DAG run that Airflow would have got.

    :param routes: module of the routes that trigger
    """
    found: list[tuple[dict[str, Any], str]] = []

    def trigger(conf: dict[str, Any], user: str, run_id: str) -> str:
        found.append((conf, run_id))
        return run_id

    monkeypatch.setattr(f"airflow_provider_dtrain.api.routes.{routes}.trigger", trigger)
    return found
