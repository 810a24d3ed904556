"""Control requests to a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.client.common_answers import Message
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.core.lifecycle.control import Noun, Verb


class ServerControl:
    """Control requests with the rights of the user whom the server knows."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def request(self, noun: Noun, number: int, verb: Verb) -> str:
        """Pause, activate, stop or kill a trial, or all trials of an experiment."""
        return self._send("POST", f"/{noun}s/{number}/{verb}")

    def set_priority(self, noun: Noun, number: int, priority: int) -> str:
        """Change the priority of a trial's gang, or of all gangs of an experiment."""
        return self._send("POST", f"/{noun}s/{number}/priority", {"priority": priority})

    def set_share(self, experiment_id: int, share: Mapping[str, float]) -> str:
        """Change ``weight`` and ``max_slots`` of an experiment."""
        return self._send("POST", f"/experiments/{experiment_id}/share", share)

    def set_labels(self, noun: Noun, number: int, labels: Mapping[str, Any]) -> str:
        """Change ``display_name``, ``description`` and tags."""
        return self._send("PATCH", f"/{noun}s/{number}", labels)

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
        return self.session.send(method, path, body).record(Message).message
