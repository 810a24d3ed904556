"""The application that Airflow's API server mounts at ``/dtrain``."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import State
from starlette.middleware import Middleware

from airflow_provider_dtrain.api.garbage import Garbage

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

log = logging.getLogger(__name__)

PREFIX = "/dtrain"
VERSION = "/api/v1"
#: Version of the OpenAPI document. The second number rises with each release that adds something.
API_VERSION = "1.2"
#: The built pages. They contain code only, and are readable without a login.
WWW = Path(__file__).resolve().parents[1] / "www"


@cache
def application() -> FastAPI:
    """Return the application of this process.

    If Airflow lacks a module that the checks of authorization need, the application refuses all requests.
    """
    try:
        app = create_app()
    except ImportError as error:
        log.error("The pages of the dtrain provider are closed: this version of Airflow lacks %s", error)
        return closed_app(str(error))
    Garbage().start()
    return app


def create_app(make_hook: Callable[[], DtrainHook] | None = None) -> FastAPI:
    """Return a new application.

    :param make_hook: returns options and store; None = those of Airflow's configuration
    :raises ImportError: Airflow lacks a module that the checks of authorization need
    """
    from fastapi import Depends

    from airflow_provider_dtrain.api.admission import Admission
    from airflow_provider_dtrain.api.errors import handle_errors
    from airflow_provider_dtrain.api.routes import ROUTERS
    from airflow_provider_dtrain.api.security import signed_in

    app = FastAPI(
        title="airflow-provider-dtrain",
        description="API behind the pages of the dtrain provider. It checks authentication and rights with Airflow.",
        version=API_VERSION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(signed_in)],
        middleware=[Middleware(SecurityHeaders), Middleware(Admission, version=VERSION)],
    )
    app.state = new_state(make_hook)
    handle_errors(app)
    for router in ROUTERS:
        app.include_router(router, prefix=VERSION)
    _serve_pages(app)
    return app


def new_state(make_hook: Callable[[], DtrainHook] | None = None) -> State:
    """Return what the requests of an application share: threads, caches, and the way to the store.

    :param make_hook: returns options and store; None = those of Airflow's configuration
    """
    from airflow.api_fastapi.app import get_auth_manager

    from airflow_provider_dtrain.api.admission import OF_ALL_MOST, OF_USER_MOST, Bodies
    from airflow_provider_dtrain.api.airflow_facts import AirflowFacts
    from airflow_provider_dtrain.api.audit import log_action
    from airflow_provider_dtrain.api.code_archive import UPLOADS_MOST, UPLOADS_OF_USER
    from airflow_provider_dtrain.api.execution import COMPUTING, Workers
    from airflow_provider_dtrain.api.importances import Importances
    from airflow_provider_dtrain.api.kept import Kept
    from airflow_provider_dtrain.api.names import Names
    from airflow_provider_dtrain.api.samples import Samples
    from airflow_provider_dtrain.api.security import user_of
    from airflow_provider_dtrain.api.streams import DOWNLOADS
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    return State(
        {
            "make_hook": make_hook or DtrainHook,
            "user_of": user_of,
            "auth_manager": get_auth_manager,
            "facts": AirflowFacts(),
            "workers": Workers(),
            "computing": Workers(
                COMPUTING, "The check of configurations", "Try again when your earlier checks have ended."
            ),
            "downloads": Workers(DOWNLOADS, "The storage of the files"),
            "log_action": log_action,
            "names": Names(),
            "importances": Importances(),
            "kept": Kept(),
            "samples": Samples(),
            "bodies": Bodies(OF_ALL_MOST, OF_USER_MOST, "requests"),
            "uploads": Bodies(UPLOADS_MOST, UPLOADS_OF_USER, "archives"),
        }
    )


def closed_app(reason: str) -> FastAPI:
    """Return an application that refuses all requests.

    :param reason: what is missing
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    words = f"The pages are closed: the checks of authorization do not work with this version of Airflow ({reason})."
    detail = {"code": "closed", "message": words, "hint": "Upgrade airflow-provider-dtrain.", "problems": []}

    @app.api_route("/{path:path}", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
    async def refuse(path: str) -> JSONResponse:
        return JSONResponse({"detail": detail}, status_code=503)

    return app


def _serve_pages(app: FastAPI) -> None:
    from airflow_provider_dtrain.api.admission import STATIC

    if WWW.is_dir():
        app.mount(STATIC, StaticFiles(directory=WWW), name="static")


class SecurityHeaders:
    """Adds headers to each answer, so that no browser runs an answer as a page or guesses its type."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def with_headers(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", []))  # type: ignore[call-overload]
                message["headers"] = [*given, (b"x-content-type-options", b"nosniff")]
            await send(message)

        await self.app(scope, receive, with_headers)  # type: ignore[arg-type]
