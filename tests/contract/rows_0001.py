"""Rows of a store of revision 0001, as of a small team. Frozen: they do not follow changes of the schema."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

BEGIN = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
STORE_ID = "0f0e0d0c-1111-4222-8333-444455556666"


def at(minutes: float) -> datetime:
    return BEGIN + timedelta(minutes=minutes)


def _host(name: str, **fields: Any) -> dict[str, Any]:
    base = {
        "name": name, "pool": "gpus", "slot_type": "cuda", "slot_count": 2, "conn_id": f"ssh_{name}", "address": None,
        "python": "python3", "remote_dir": ".dtrain", "state_dir": None, "host_key": "ssh-ed25519 AAAA",
        "state": "ready", "state_reason": "", "state_since": at(0), "facts": {"cpu_count": 8, "gpus": [{"name": "ä"}]},
        "facts_at": at(0),
        "machine_id": f"m-{name}", "boot_id": f"b-{name}", "pid_ns": "4026531836",
    }  # fmt: skip
    return {**base, **fields}


def _trial(number: int, state: str, **fields: Any) -> dict[str, Any]:
    base = {
        "id": number, "experiment_id": 1, "number": number - 1, "dag_id": "d", "run_id": "r", "task_id": f"t{number}",
        "map_index": -1, "max_tries": 0, "config_id": 1, "payload": "a" * 64, "hparams": {"lr": 0.1}, "seed": 2**40,
        "state": state, "restarts": 1, "max_restarts": 5, "excluded": [], "kill_requested_at": None,
        "kill_requested_by": None, "failure": None, "result": None, "created_at": at(number), "ended_at": None,
    }  # fmt: skip
    return {**base, **fields}


def _allocation(number: int, state: str, token: int | None, **fields: Any) -> dict[str, Any]:
    base = {
        "id": number, "trial_id": number, "pool": "gpus", "slots": 2, "priority": 42, "is_single_host": False,
        "on_unplaceable": "fail", "state": state, "sequence": number, "token": token, "reason": "",
        "unplaceable": False, "submitted_at": at(number), "renewed_at": at(9),
        "granted_at": None if token is None else at(number + 1),
        "ended_at": None,
    }  # fmt: skip
    return {**base, **fields}


def _attempt(number: int, state: str, **fields: Any) -> dict[str, Any]:
    base = {
        "id": number, "trial_id": number, "number": 1, "allocation_id": number, "state": state, "watch": 3,
        "watcher": "triggerer on a", "renewed_at": at(9), "plan": None, "master": None, "reason": "", "failure": None,
        "result": None, "created_at": at(number), "started_at": None, "ended_at": None,
    }  # fmt: skip
    return {**base, **fields}


#: Trial 1 has completed, 2 runs on host a, 3 waits, 4 was lost with its host b, whose slots are still held.
ROWS: dict[str, list[dict[str, Any]]] = {
    "meta": [{"key": "store_id", "value": STORE_ID}],
    "counters": [{"name": "token", "value": 4}],
    "audit": [{"id": 1, "at": at(0), "by": "ann", "action": "host added", "subject": "a", "details": "pool=gpus"}],
    "templates": [
        {"name": "base", "version": 1, "text": "a: 1\n", "set_by": "ann", "set_at": at(0), "removed": False},
        {"name": "base", "version": 2, "text": "", "set_by": "bob", "set_at": at(1), "removed": True},
    ],
    "configs": [
        {
            "config_id": 1, "digest": "c" * 64, "document": {"name": "e", "x": [1, None, "NaN"]},
            "origins": {"name": "config"}, "template": "base", "template_version": 1, "secrets": b"\x00\xff",
            "created_at": at(0),
        }
    ],
    "payloads": [{"digest": "a" * 64, "content": b"\x1f\x8b\x00payload", "created_at": at(0)}],
    "pools": [
        {
            "name": "gpus", "slot_type": "cuda", "fit": "worst", "allow_heterogeneous": True, "reservations": 3,
            "preemption": "slices", "defaults": {"resources": {"priority": 7}}, "version": 11, "passed_version": 10,
            "next_due_at": at(10), "waiting": 1,
        }
    ],
    "hosts": [_host("a"), _host("b", state="lost", state_reason="silent")],
    "slots": [
        {"host": host, "slot": slot, "device": f"GPU-{host}-{slot}", "device_name": "H100", "memory_bytes": 80 * 2**30,
         "enabled": slot == 0 or host == "a", "state": "ready"}
        for host in "ab" for slot in (0, 1)
    ],
    "experiments": [
        {"id": 1, "dag_id": "d", "run_id": "r", "name": "e", "state": "running", "created_at": at(0), "ended_at": None}
    ],
    "trials": [
        _trial(1, "completed", result={"value": 1.5}, ended_at=at(8)),
        _trial(2, "running", excluded=[{"host": "b", "until_s": 1.7e9}]),
        _trial(3, "queued"),
        _trial(4, "errored", failure={"kind": "infra", "message": "host b"}, ended_at=at(8)),
    ],
    "allocations": [
        _allocation(1, "released", 1, ended_at=at(8)),
        _allocation(2, "running", 2),
        _allocation(3, "waiting", None, reason="2 slots are missing"),
        _allocation(4, "expired", 4),
    ],
    "allocation_slots": [
        {"id": 2 * token + slot, "allocation_id": token, "token": token, "host": host, "slot": slot,
         "released_at": at(8) if host == "" else None, "proof": None}
        for token, host in ((2, "a"), (4, "b")) for slot in (0, 1)
    ] + [
        {"id": 20 + slot, "allocation_id": 1, "token": 1, "host": "a", "slot": slot, "released_at": at(8),
         "proof": "clear"}
        for slot in (0, 1)
    ],
    "attempts": [
        _attempt(1, "completed", plan={"plans": {"a": {}}}, result={"value": 1.5}, started_at=at(2), ended_at=at(8)),
        _attempt(2, "running", plan={"plans": {"a": {"ranks": []}}}, master={"port": 29500}, started_at=at(3)),
        _attempt(3, "waiting"),
        _attempt(4, "lost", failure={"kind": "infra"}, started_at=at(5), ended_at=at(8)),
    ],
    "streams": [
        {"attempt_id": 2, "token": 2, "host": "a", "stream": "rank0.events", "position": 2**40},
        {"attempt_id": 2, "token": 2, "host": "a", "stream": "supervisor.events", "position": 17},
    ],
    "events": [
        {"id": 1, "attempt_id": 2, "token": 2, "host": "a", "stream": "rank0.events", "seq": 1, "at": at(4),
         "kind": "report", "body": {"kind": "report", "step": 1, "metrics": {"loss": 0.5}}}
    ],
    "ranks": [
        {"attempt_id": 2, "rank": rank, "host": "a", "local_rank": rank, "slot": rank, "pid": 100 + rank,
         "exit_code": None, "exited_at": None, "error": None, "sent_signal": False, "log_tail": b"step 1\n\xff"}
        for rank in (0, 1)
    ],
    "metrics": [
        {"id": 1, "trial_id": 2, "attempt_id": 2, "metric_group": "training", "step": 1, "rank": 0, "epoch": 0.5,
         "metrics": {"loss": "NaN"}, "at": at(4)}
    ],
    "checkpoints": [
        {"id": 1, "trial_id": 2, "attempt_id": 2, "run": "0f0e0d0c-t2.1.2", "host": "a", "step": 100,
         "path": "checkpoints/100", "size_bytes": 2**33, "sha256": "d" * 64, "metrics": {"loss": 0.25}, "at": at(5),
         "copy_url": None}
    ],
}  # fmt: skip


def reflected(engine: Engine) -> sa.MetaData:
    """Return the tables of the database, as the code that created them defined them."""
    found = sa.MetaData()
    found.reflect(engine)
    return found


def fill(engine: Engine) -> None:
    """Insert the rows into an empty database of revision 0001."""
    tables = reflected(engine).tables
    with engine.begin() as connection:
        connection.execute(tables["meta"].delete())
        connection.execute(tables["counters"].delete())
        for name, rows in ROWS.items():
            connection.execute(tables[name].insert(), rows)
        if engine.dialect.name == "postgresql":
            for name in ROWS:
                if "id" in tables[name].c:
                    text = f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), (SELECT max(id) FROM {name}))"
                    connection.execute(sa.text(text))


def contents(engine: Engine, like: sa.MetaData | None = None) -> dict[str, list[dict[str, Any]]]:
    """Return all rows, in the columns of ``like``, with aware times.

    The row ``usable_from`` is left out.
    """
    tables = (like or reflected(engine)).tables
    found = {}
    with engine.connect() as connection:
        for name, table in tables.items():
            if name.startswith("dtrain_alembic"):
                continue
            rows = connection.execute(sa.select(table).order_by(*table.primary_key.columns)).mappings()
            found[name] = [_plain(row) for row in rows if row.get("key") != "usable_from"]
    return found


def _plain(row: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, datetime):
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return bytes(value) if isinstance(value, memoryview) else value

    return {name: plain(value) for name, value in row.items()}
