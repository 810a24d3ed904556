"""Secrets that ranks show, and what of them the store and the task log have."""

from __future__ import annotations

import json
import logging
import sqlite3
from pathlib import Path

import pytest

from airflow_provider_dtrain.engine.operations.execution import serve
from airflow_provider_dtrain.store.records.operations import OperationKind, Through
from tests.support.engines import Engine, config

SECRETS = {
    "data": {"secrets": {"token": "hf-9f8e7d6c", "nested": {"pin": 987654321}}},
    "environment": {
        "variables": {
            "HARMLESS": 'quiet\\ly-"4711-deep"',
            "DATABASE": "postgres://u:sesame-1@h/d",
            "NAME": "public-name",
        },
        "public_variables": ["NAME", "SEEN"],
    },
    "checkpoint_storage": {"type": "s3", "bucket": "b", "conn_id": "bucket"},
    "checkpoint_policy": "none",
}
SHOWN = ("hf-9f8e7d6c", "987654321", "4711-deep", "sesame-1", "wJalrXUtnFEMI")


def stored(path: Path) -> str:
    """Return everything in a store as text."""
    with sqlite3.connect(path) as conn:
        tables = [name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = [row for table in tables for row in conn.execute(f'SELECT * FROM "{table}"')]  # noqa: S608
    return "\n".join(
        one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one) for row in rows for one in row
    )


@pytest.mark.nightly("", "0 raise", "1 raise")
@pytest.mark.parametrize("way", ["", "0 raise", "1 raise", "1 exit"])
async def test_what_ranks_show_of_secrets_is_masked_before_it_is_stored_or_logged(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_BUCKET", "aws://AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI@")
    caplog.set_level(logging.DEBUG)
    document = config("", **SECRETS)
    document["entrypoint"] = f"python leaky.py {way}"
    document["environment"]["variables"]["SEEN"] = str(tmp_path / "seen")
    ticket = engine.submit(document)
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == ("errored" if way else "completed")
    for rank in (0, 1):
        values = json.loads((tmp_path / f"seen-{rank}").read_text())
        assert all(any(part in value for value in values) for part in SHOWN)
    asked = {"attempt": None, "rank": 0, "start": 0, "end": None}
    operations = engine.hook.store.operations
    number = operations.request(OperationKind.LOG, ticket.trial_id, asked, by="ann", through=Through.DAG)
    taken = operations.take(number, Through.DAG)
    assert taken is not None
    serve(engine.hook, taken)
    kept = stored(tmp_path / "dtrain.db")
    assert "public-name" in kept
    assert "a secret: ****" in kept
    assert "a secret: ****" in caplog.text
    for part in SHOWN:
        assert part not in kept
        assert part not in caplog.text
        assert part not in str(outcome)
