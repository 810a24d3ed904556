"""The API on a store behind a real HTTP server in a thread, with given rights instead of Airflow's login."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

import uvicorn
from fastapi import FastAPI
from fastapi.middleware.gzip import GZipMiddleware

from airflow_provider_dtrain.api.app import PREFIX
from testbed.standalone import wait_until
from tests.support.api_world import Api


class HttpApi:
    """A server on a free port of this machine.

    :param api: its store and the rights of its only user
    """

    def __init__(self, api: Api) -> None:
        self.api = api
        outer = FastAPI()
        #: State that Airflow's own API reports for every DAG run, or a function that returns it.
        self.run_state: str | Callable[[], str] = "running"
        outer.get("/api/v2/dags/{dag}/dagRuns/{run}")(self._dag_run)
        outer.mount(PREFIX, api.client.app)
        # As Airflow's server has it.
        outer.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)
        config = uvicorn.Config(outer, host="127.0.0.1", port=0, log_level="error", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def _dag_run(self, dag: str, run: str) -> dict[str, str]:
        state = self.run_state if isinstance(self.run_state, str) else self.run_state()
        return {"dag_id": dag, "dag_run_id": run, "state": state}

    def __enter__(self) -> HttpApi:
        self._thread.start()
        wait_until(lambda: self._server.started, timeout_s=30, what="the server", poll_s=0.01)
        return self

    @property
    def url(self) -> str:
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=30)
