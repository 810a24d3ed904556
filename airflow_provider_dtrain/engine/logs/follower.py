"""Follower of a trial, as far as the trial's logs know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from airflow_provider_dtrain.core.documents import JsonObject

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.redaction import Redactor
    from airflow_provider_dtrain.engine.logs.task_log import TaskLog
    from airflow_provider_dtrain.hooks.settings import Settings
    from airflow_provider_dtrain.store.store import Store

P = ParamSpec("P")
T = TypeVar("T")


class LogFollower(Protocol):
    """Follower that reads rank 0's log from hosts, and stores how much of it is in the task log."""

    store: Store
    settings: Settings
    log: TaskLog
    #: Number of this follower.
    watch: int

    async def db(self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a store method, called in a thread."""

    async def redactor(self) -> Redactor:
        """Return the mask for the trial's secrets."""

    async def call(self, host: str, command: str, /, *, timeout_s: float = ..., **arguments: Any) -> JsonObject:
        """Return a host's answer to a command."""
