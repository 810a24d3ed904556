"""Control requests to a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.client.common_answers import Message
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.core.lifecycle.control import Change, HostVerb, Noun, Verb


class ServerControl:
    """Control requests with the rights of the user whom the server knows."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def request(self, noun: Noun, number: int, verb: Verb) -> str:
        """Pause, activate, stop or kill a trial, or all trials of an experiment."""
        return self._send("POST", f"/{noun}s/{number}/{verb}")

    def set(self, noun: Noun, number: int, change: Change) -> str:
        """Change labels, priority and share of a trial or an experiment, all of them or none."""
        return self._send("PATCH", f"/{noun}s/{number}", change)

    def host(self, name: str, verb: HostVerb, *, slot: int | None = None) -> str:
        """Drain, enable or disable a host, or enable or disable one of its slots."""
        of = f"/hosts/{name}" if slot is None else f"/hosts/{name}/slots/{slot}"
        return self._send("POST", f"{of}/{verb}", None if verb == "enable" or slot is not None else {})

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
        return self.session.send(method, path, body).record(Message).message
