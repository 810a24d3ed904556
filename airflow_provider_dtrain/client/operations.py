"""Work on hosts through a server: requests, their content as it comes, and the commands that need them."""

from __future__ import annotations

import contextlib
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_dtrain.client.decoder import record
from airflow_provider_dtrain.client.login import session_of
from airflow_provider_dtrain.client.reconnection import Patience
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.errors import DtrainError, ServerError, UserError
from airflow_provider_dtrain.terminal import cluster
from airflow_provider_dtrain.terminal.output import FAILURE, NotNowError, UsageError, hint, note, show
from airflow_provider_dtrain.terminal.ranks import CommandResult, Stacks, show_command, show_stacks

#: Pauses between two polls: the first one, and the longest.
FIRST_S, LONGEST_S = 0.3, 2.0
#: After this time without a start, a message says what it waits for.
QUIET_S = 30.0
#: A follower polls each second. After this time, a run of the DAG is requested instead.
FOLLOWER_S = 15.0


class Operations:
    """Work on hosts, which a follower or a run of a DAG executes for the server.

    :param tell: prints a message
    :param sleep: waits for the next poll
    """

    def __init__(
        self,
        session: Session,
        patience: Patience,
        *,
        tell: Callable[[str], None] = note,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session = session
        self.patience = patience
        self.tell = tell
        self.sleep = sleep
        self.clock = clock

    def run(self, kind: str, body: Mapping[str, Any], put: Callable[[bytes], object] | None = None) -> dict[str, Any]:
        """Request an operation, wait for its end, and return its result.

        :param put: receives the content in order
        :raises NotNowError: it cannot be executed now
        :raises DtrainError: the server refused it, or it failed
        """
        found = self._begin(kind, body)
        if found["through"] == "follower" and not self._is_taken(found):
            self._cancel(found)
            found = self._begin(kind, {**body, "through": "dag"})
        try:
            return self._finish(found, put)
        except BaseException:
            # Ctrl-C ends a command beside a rank as well.
            self._cancel(found)
            raise

    def _begin(self, kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
        found = _object(self.session.send("POST", f"/operations/{kind}", dict(body)))
        if found["through"] == "dag":
            self.tell(f"Requested from the hosts by run {found['dag_run']} of the DAG {found['dag_id']}.")
        return found

    def _is_taken(self, found: Mapping[str, Any]) -> bool:
        end = self.clock() + FOLLOWER_S
        while self._poll(found)["state"] == "waiting":
            if self.clock() >= end:
                return False
            self.sleep(FIRST_S)
        return True

    def _finish(self, begun: Mapping[str, Any], put: Callable[[bytes], object] | None) -> dict[str, Any]:
        offset, pause_s = 0, FIRST_S
        quiet_until: float | None = self.clock() + QUIET_S
        while True:
            found = self._poll(begun)
            if found["state"] == "waiting" and quiet_until is not None and self.clock() >= quiet_until:
                self.tell(
                    f"Run {found['dag_run']} has not begun. Check that Airflow's scheduler runs; Ctrl-C ends this."
                )
                quiet_until = None
            before = offset
            while offset < found["size_bytes"]:
                data = self._content(begun, offset)
                if not data:
                    raise ServerError("The server has lost content of an operation. Try again.")
                if put is not None:
                    put(data)
                offset += len(data)
            if found["state"] == "failed":
                raise _failure(found)
            if found["state"] == "done" and offset == found["size_bytes"]:
                if offset:
                    # To ask for what is behind the end removes the last pieces from the store.
                    self._content(begun, offset)
                return _object(found["result"])
            pause_s = FIRST_S if offset > before else min(pause_s * 1.5, LONGEST_S)
            self.sleep(pause_s)

    def _poll(self, begun: Mapping[str, Any]) -> dict[str, Any]:
        return _object(self.patience.of(lambda: self.session.get(f"/operations/{begun['operation_id']}")))

    def _content(self, begun: Mapping[str, Any], offset: int) -> bytes:
        path = f"/operations/{begun['operation_id']}/content"
        return self.patience.of(lambda: self.session.get_bytes(path, offset=offset))

    def _cancel(self, begun: Mapping[str, Any]) -> None:
        with contextlib.suppress(DtrainError, OSError):
            self.session.send("DELETE", f"/operations/{begun['operation_id']}")


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ServerError("The server sent no operation. Is its airflow-provider-dtrain of an earlier version?")
    return value


def _failure(found: Mapping[str, Any]) -> Exception:
    words = str(found["error"])
    code = (found["result"] or {}).get("code")
    return NotNowError(words) if code == "not_now" else UserError(words)


def _operations(args: Namespace) -> Operations:
    session = session_of(args)
    return Operations(session, Patience(session, note))


def stack(args: Namespace) -> int:
    """Print the Python stacks of a trial's running ranks. Exit 3 if none runs."""
    found = _operations(args).run("stacks", {"trial_id": args.trial_id, "rank": args.rank})
    code = show_stacks(args, record(Stacks, found))
    hint(f"airflow dtrain trials logs {args.trial_id}")
    return code


def exec_in_rank(args: Namespace) -> int:
    """Run a command in the environment of a rank, and exit with its code. Exit 3 if the rank does not run."""
    body = {"trial_id": args.trial_id, "rank": args.rank, "argv": args.argv, "timeout_s": args.timeout}
    return show_command(record(CommandResult, _operations(args).run("exec", body)), args.timeout)


def probe(args: Namespace) -> int:
    """Probe hosts again. Exit 1 if a host has a problem."""
    if args.accept_host_key:
        raise UsageError("A host key is accepted on the machine of Airflow: airflow dtrain hosts probe NAME")
    rows = _operations(args).run("probe", {"hosts": args.host})["rows"]
    cluster.show_hosts(args, rows)
    return 0 if all(row["problem"] is None for row in rows) else FAILURE


def doctor(args: Namespace) -> int:
    """Run the checks of all hosts. Exit 1 if one fails."""
    operations = _operations(args)
    server = {"check": "server", "ok": True, "message": operations.session.server.url}
    lines = [server, *operations.run("doctor", {})["rows"]]
    show(args, lines)
    hint("the checks of options and store, on the machine of Airflow: airflow dtrain doctor")
    return 0 if all(line["ok"] for line in lines) else FAILURE
