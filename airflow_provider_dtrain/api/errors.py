"""Answers to requests that fail: one form for all of them, with the next step."""

from __future__ import annotations

import logging

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException

from airflow_provider_dtrain.api.models.common import ErrorAnswer, ErrorDetail, Problem
from airflow_provider_dtrain.errors import (
    ConfigError,
    ConflictError,
    DtrainError,
    IllegalTransitionError,
    NotFoundError,
    StoreError,
    StoreNotMigratedError,
    StoreUnavailableError,
    UserError,
)

log = logging.getLogger(__name__)

#: Problems of one answer.
PROBLEMS_MOST = 200
_CODES = {401: "unauthenticated", 403: "forbidden", 404: "not_found", 405: "invalid", 409: "conflict", 422: "invalid"}
_LOG_IN = "Log in to Airflow, or send a token of POST /auth/token."
_PLUGINS = "The pages need the permission to read the view Plugins. An administrator of Airflow can grant it."
_SEE_LOG = "The cause is in the log of the API server. Check the store with: airflow dtrain doctor"


class ApiError(Exception):
    """A refusal of the API itself.

    :param status: HTTP status
    :param code: see :class:`ErrorDetail`
    """

    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        self.status = status
        self.code = code
        self.hint = hint
        super().__init__(message)


def forbidden(action: str, hint: str) -> ApiError:
    """Return the refusal of an action that the user may not take."""
    return ApiError(403, "forbidden", f"You may not {action}.", hint)


def answer(status: int, code: str, message: str, hint: str = "", problems: list[Problem] | None = None) -> JSONResponse:
    """Return the answer to a request that fails."""
    detail = ErrorDetail(code=code, message=message, hint=hint, problems=problems or [])
    headers = {"Cache-Control": "no-store"}
    if status in (429, 503):
        headers["Retry-After"] = "5"
    return JSONResponse(ErrorAnswer(detail=detail).model_dump(), status_code=status, headers=headers)


def of_refusal(error: ApiError) -> JSONResponse:
    """Return the answer to a refusal of the API."""
    return answer(error.status, error.code, str(error), error.hint)


def of_http(error: HTTPException) -> JSONResponse:
    """Return the answer to an error of Airflow's own checks, or of the framework."""
    code = _CODES.get(error.status_code, "invalid" if error.status_code < 500 else "internal")
    found = answer(error.status_code, code, str(error.detail), _hint_of_airflow(error))
    found.headers.update(error.headers or {})
    return found


def of_error(error: DtrainError) -> JSONResponse:
    """Return the answer to an error of the provider."""
    message, _, hint = str(error).partition(" See: ")
    if isinstance(error, ConfigError):
        problems = [Problem(path=one.path, message=one.message) for one in error.problems[:PROBLEMS_MOST]]
        return answer(422, "invalid", str(error), problems=problems)
    if isinstance(error, NotFoundError):
        return answer(404, "not_found", message, hint)
    if isinstance(error, ConflictError | IllegalTransitionError):
        return answer(409, "conflict", message, hint)
    if isinstance(error, UserError):
        return answer(422, "invalid", message, hint)
    log.warning("A request of a page failed", exc_info=error)
    if isinstance(error, StoreNotMigratedError):
        return answer(503, "store_unavailable", message, "airflow dtrain db migrate")
    if isinstance(error, StoreUnavailableError | StoreError):
        return answer(503, "store_unavailable", "The provider's store does not answer.", _SEE_LOG)
    return answer(503, "internal", message, hint)


def handle_errors(app: FastAPI) -> None:
    """Give every error of an application the same form."""

    @app.exception_handler(ApiError)
    async def refusal(_request: Request, error: ApiError) -> Response:
        return of_refusal(error)

    @app.exception_handler(DtrainError)
    async def of_provider(_request: Request, error: DtrainError) -> Response:
        return of_error(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        problems = [
            Problem(path=".".join(str(part) for part in one["loc"]), message=str(one["msg"])) for one in error.errors()
        ]
        words = "; ".join(f"{one.path}: {one.message}" for one in problems[:5])
        return answer(422, "invalid", f"The request is not valid: {words}.", problems=problems[:PROBLEMS_MOST])

    @app.exception_handler(StarletteHTTPException)
    async def of_airflow(_request: Request, error: HTTPException) -> Response:
        return of_http(error)

    @app.exception_handler(Exception)
    async def unexpected(_request: Request, error: Exception) -> Response:
        log.error("A request of a page failed", exc_info=error)
        return answer(500, "internal", f"The request failed: {type(error).__name__}.", _SEE_LOG)


def _hint_of_airflow(error: HTTPException) -> str:
    """Return the next step after a refusal of Airflow's own checks. It answers a forged token with 403."""
    if error.status_code == 401 or (error.status_code == 403 and "token" in str(error.detail).lower()):
        return _LOG_IN
    return _PLUGINS if error.status_code == 403 else ""
