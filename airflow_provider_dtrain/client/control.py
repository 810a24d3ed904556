"""Control requests to a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_dtrain.client.common_answers import Message
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.core.lifecycle.control import Change, Deadline, HostVerb, Noun, Verb
from airflow_provider_dtrain.resources.bulk import BulkAction, BulkResult


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

    def act(
        self,
        action: BulkAction,
        experiment_ids: Sequence[int],
        *,
        project: str | None = None,
        tags: Sequence[str] = (),
        dry_run: bool = False,
    ) -> BulkResult:
        """Carry out an action for several experiments, or return what it would do."""
        body: dict[str, Any] = {"action": action, "experiment_ids": list(experiment_ids), "dry_run": dry_run}
        body |= {"project": project, "tags": list(tags)}
        return self.session.send("POST", "/experiments/actions", body).record(BulkResult)

    def drain(self, name: str, reason: str = "", *, deadline: Deadline | None = None, dry_run: bool = False) -> str:
        """Grant no new slots on a host, and with a deadline let its gangs resume elsewhere."""
        body: dict[str, Any] = {"reason": reason, "dry_run": dry_run}
        if deadline is not None:
            body |= {"by": deadline.by.isoformat(), "kill_at_deadline": deadline.kills}
        return self._send("POST", f"/hosts/{name}/drain", body)

    def host(self, name: str, verb: HostVerb, *, slot: int | None = None) -> str:
        """Enable or disable a host, or one of its slots."""
        of = f"/hosts/{name}" if slot is None else f"/hosts/{name}/slots/{slot}"
        return self._send("POST", f"{of}/{verb}", None if verb == "enable" or slot is not None else {})

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
        return self.session.send(method, path, body).record(Message).message
