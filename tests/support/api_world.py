"""The API on a store, without a running Airflow: rights are given by the test instead of an auth manager."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient

from airflow_provider_dtrain.api.app import VERSION, create_app, new_state
from airflow_provider_dtrain.api.init_dags import DagState, starting
from airflow_provider_dtrain.api.security import EVERY_ROUTE, Access, access_of
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.store.records.trials import TrialKey
from airflow_provider_dtrain.store.store import Store


class GivenAccess(Access):
    """Rights that a test gives to its user.

    :param readable: DAGs that the user may read; None = all
    :param editable: DAGs whose runs the user may edit; None = all that they may read
    :param operations: Airflow knows the DAG that reaches hosts, or its state
    :param dag_file: file of the DAG that starts experiments; None = Airflow knows none
    """

    def __init__(
        self,
        name: str = "ann",
        *,
        readable: Collection[str] | None = None,
        editable: Collection[str] | None = None,
        hosts: bool = True,
        trigger: bool = True,
        dag: bool = True,
        dag_file: str | None = None,
        logs: bool = True,
        operations: bool | DagState = False,
    ) -> None:
        super().__init__(SimpleNamespace(get_name=lambda: name))
        self.given, self.edits, self.trigger, self.logs = readable, editable, trigger, logs
        self.may_change_hosts = hosts
        self.starter = DagState(exists=dag, file=dag_file)
        self.operations_dag = operations if isinstance(operations, DagState) else DagState(exists=operations)
        self.starting = starting(self.starter, may_trigger=trigger)

    def _readable(self, dag_ids: Collection[str]) -> frozenset[str]:
        return frozenset(one for one in dag_ids if self.given is None or one in self.given)

    def may_edit(self, dag_ids: Collection[str]) -> frozenset[str]:
        return frozenset(one for one in self._readable(dag_ids) if self.edits is None or one in self.edits)

    def may_trigger(self, dag_id: str) -> bool:
        return self.trigger

    def may_read_logs(self, dag_id: str) -> bool:
        return self.logs


@cache
def _application() -> FastAPI:
    return create_app()


class Api:
    """Client of the API on a store. All clients of a process share one application, which takes half a second."""

    def __init__(self, store: Store, **rights: Any) -> None:
        self.store = store
        self.access = GivenAccess(**rights)
        #: Entries of Airflow's audit log: event, user, DAG, and further values.
        self.logged: list[tuple[str, str, str | None, dict[str, Any]]] = []
        self.state = new_state(self._hook)
        self.state.log_action = self._log
        self._client = TestClient(_application(), raise_server_exceptions=False, headers={"X-Dtrain": "1"})

    @property
    def client(self) -> TestClient:
        """Client with the rights of this user, until another one is used."""
        app, (user, view, _) = _application(), EVERY_ROUTE
        app.state = self.state
        app.dependency_overrides = {
            user: lambda: self.access.user, view: lambda: self.access.user, access_of: lambda: self.access,
        }  # fmt: skip
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
