"""Work on hosts through a server: requests, their content as it comes, and the commands that need them."""

from __future__ import annotations

import contextlib
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from airflow_provider_dtrain.client.answers import Checks, Probes, ServerOperation
from airflow_provider_dtrain.client.decoder import Record, record
from airflow_provider_dtrain.client.login import session_of
from airflow_provider_dtrain.client.reconnection import Patience
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.core.rank_results import CommandResult, ProfileRequest, Stacks
from airflow_provider_dtrain.errors import DtrainError, NotNowError, ServerError, UsageError, UserError
from airflow_provider_dtrain.resources.host_checks import HostCheck
from airflow_provider_dtrain.terminal import cluster
from airflow_provider_dtrain.terminal.output import FAILURE, hint, note, show
from airflow_provider_dtrain.terminal.ranks import show_command, show_profile, show_stacks

#: Pauses between two polls: the first one, and the longest.
FIRST_S, LONGEST_S = 0.3, 2.0
#: After this time without a start, a message says what it waits for.
QUIET_S = 30.0
#: A follower polls each second. After this time, a run of the DAG is requested instead.
FOLLOWER_S = 15.0


class ServerOperations:
    """Work on hosts, which a follower or a run of a DAG executes for the server.

    :param notify: prints a message
    :param sleep: waits for the next poll
    """

    def __init__(
        self,
        session: Session,
        patience: Patience,
        *,
        notify: Callable[[str], None] = note,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session = session
        self.patience = patience
        self.notify = notify
        self.sleep = sleep
        self.clock = clock

    def run(
        self, result: type[Record], kind: str, body: Mapping[str, Any], put: Callable[[bytes], object] | None = None
    ) -> Record:
        """Request an operation, wait for its end, and return its result.

        :param result: type of the result
        :param put: receives the content in order
        :raises NotNowError: it cannot be executed now
        :raises DtrainError: the server refused it, or it failed
        """
        found = self._begin(kind, body)
        if found.through == "follower" and not self._is_taken(found):
            self._cancel(found)
            found = self._begin(kind, {**body, "through": "dag"})
        try:
            return record(result, self._finish(found, put))
        except BaseException:
            # Ctrl-C ends a command beside a rank as well.
            self._cancel(found)
            raise

    def _begin(self, kind: str, body: Mapping[str, Any]) -> ServerOperation:
        found = self.session.send("POST", f"/operations/{kind}", dict(body)).record(ServerOperation)
        if found.through == "dag":
            self.notify(f"Requested from the hosts by run {found.dag_run} of the DAG {found.dag_id}.")
        return found

    def _is_taken(self, found: ServerOperation) -> bool:
        end = self.clock() + FOLLOWER_S
        while self._poll(found).state == "waiting":
            if self.clock() >= end:
                return False
            self.sleep(FIRST_S)
        return True

    def _finish(self, begun: ServerOperation, put: Callable[[bytes], object] | None) -> Mapping[str, Any] | None:
        offset, pause_s = 0, FIRST_S
        quiet_until: float | None = self.clock() + QUIET_S
        while True:
            found = self._poll(begun)
            if found.state == "waiting" and quiet_until is not None and self.clock() >= quiet_until:
                run = f"Run {found.dag_run}"
                self.notify(f"{run} has not begun. Check that Airflow's scheduler runs; Ctrl-C ends this.")
                quiet_until = None
            before = offset
            while offset < found.size_bytes:
                data = self._content(begun, offset)
                if not data:
                    raise ServerError("The server has lost content of an operation. Try again.")
                if put is not None:
                    put(data)
                offset += len(data)
            if found.state == "failed":
                raise self._failure(found)
            if found.state == "done":
                if offset > found.size_bytes:
                    raise ServerError("The server sent more content of an operation than it has. Try again.")
                if offset:
                    # To ask for what is behind the end removes the last pieces from the store.
                    self._content(begun, offset)
                return found.result
            pause_s = FIRST_S if offset > before else min(pause_s * 1.5, LONGEST_S)
            self.sleep(pause_s)

    def _failure(self, found: ServerOperation) -> Exception:
        words = self.session.reword(escaped(found.error or "The server names no cause."))
        return NotNowError(words) if (found.result or {}).get("code") == "not_now" else UserError(words)

    def _poll(self, begun: ServerOperation) -> ServerOperation:
        def read() -> ServerOperation:
            return self.session.get(f"/operations/{begun.operation_id}").record(ServerOperation)

        return self.patience.of(read)

    def _content(self, begun: ServerOperation, offset: int) -> bytes:
        path = f"/operations/{begun.operation_id}/content"
        return self.patience.of(lambda: self.session.get_bytes(path, offset=offset))

    def _cancel(self, begun: ServerOperation) -> None:
        with contextlib.suppress(DtrainError, OSError):
            self.session.send("DELETE", f"/operations/{begun.operation_id}")


def _operations(args: Namespace) -> ServerOperations:
    session = session_of(args)
    return ServerOperations(session, Patience(session, note))


def stack(args: Namespace) -> int:
    """Print the Python stacks of a trial's running ranks. Exit 3 if none runs."""
    found = _operations(args).run(Stacks, "stacks", {"trial_id": args.trial_id, "rank": args.rank})
    code = show_stacks(args, found)
    hint(f"dtrain trials logs {args.trial_id}")
    return code


def trace(args: Namespace) -> int:
    """Let running ranks record their next batches. Exit 3 if none runs."""
    body = {"trial_id": args.trial_id, "ranks": args.rank or [0], "batches": args.batches}
    found = _operations(args).run(ProfileRequest, "profile", {**body, "with_stack": args.with_stack})
    code = show_profile(args, found)
    hint(f"dtrain trials outputs {args.trial_id}")
    return code


def exec_in_rank(args: Namespace) -> int:
    """Run a command in the environment of a rank, and exit with its code. Exit 3 if the rank does not run."""
    body = {"trial_id": args.trial_id, "rank": args.rank, "argv": args.argv, "timeout_s": args.timeout}
    return show_command(_operations(args).run(CommandResult, "exec", body), args.timeout)


def probe(args: Namespace) -> int:
    """Probe hosts again. Exit 1 if a host has a problem."""
    if args.accept_host_key:
        raise UsageError("A host key is accepted on the machine of Airflow: airflow dtrain hosts probe NAME")
    rows = _operations(args).run(Probes, "probe", {"hosts": args.host}).rows
    cluster.show_hosts(args, [asdict(row) for row in rows])
    return 0 if all(row.problem is None for row in rows) else FAILURE


def check(args: Namespace) -> int:
    """Measure devices, disks and links of hosts. Exit 1 if a host is slow or cannot be measured."""
    from airflow_provider_dtrain.terminal.hosts import show_check

    if args.python:
        raise UsageError("--python names a program on hosts: airflow dtrain hosts check --python FILE")
    body = {"hosts": args.host, "pool": args.pool, "wait_s": args.wait, "tolerance": args.tolerance}
    body["evacuate"] = args.evacuate
    return show_check(args, _operations(args).run(HostCheck, "check", body))


def doctor(args: Namespace) -> int:
    """Run the checks of all hosts. Exit 1 if one fails."""
    operations = _operations(args)
    server = {"check": "server", "ok": True, "message": operations.session.server.url}
    lines = [server, *(asdict(one) for one in operations.run(Checks, "doctor", {}).rows)]
    show(args, lines)
    hint("the checks of options and store, on the machine of Airflow: airflow dtrain doctor")
    return 0 if all(line["ok"] for line in lines) else FAILURE
