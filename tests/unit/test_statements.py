"""Statements of the store's hot path, as they reach the driver."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.store.database import statements

TABLE = sa.Table("things", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("name", sa.Text))


@pytest.mark.parametrize("names", [["one"], ["one", "two", "three"]])
def test_rows_whose_ids_are_not_needed_are_added_without_returning(names: list[str]) -> None:
    engine = sa.create_engine("sqlite://")
    sent: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
    with engine.begin() as conn:
        TABLE.create(conn)
        sent.clear()
        # From Python 3.12 on, sqlite3 refuses executemany for a statement with RETURNING.
        statements.add(conn, TABLE, *({"name": name} for name in names))
        assert [text for text in sent if "RETURNING" in text] == []
        assert conn.scalars(sa.select(TABLE.c.name)).all() == names


def test_an_inserted_row_has_an_id() -> None:
    engine = sa.create_engine("sqlite://")
    with engine.begin() as conn:
        TABLE.create(conn)
        assert [statements.insert(conn, TABLE, name=name) for name in ("one", "two")] == [1, 2]
