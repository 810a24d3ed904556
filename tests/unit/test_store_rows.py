"""The types of rows agree with the tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.store.database import rows, tables
from airflow_provider_dtrain.store.queue import pass_snapshot

ROWS = {
    rows.PoolRow: tables.pools, rows.ExperimentRow: tables.experiments, rows.TrialRow: tables.trials,
    rows.AttemptRow: tables.attempts, rows.AllocationRow: tables.allocations, rows.GangRow: tables.gangs,
}  # fmt: skip
#: Types of some columns of a table.
PARTS = {
    rows.TaskKeyRow: tables.trials,
    rows.CounterRow: tables.allocations,
    rows.RequestRow: tables.allocations,
    rows.PassVersionRow: tables.pools,
    rows.HostRow: tables.hosts,
    rows.SlotRow: tables.slots,
    rows.AllocationSlotRow: tables.allocation_slots,
    rows.SearchRow: tables.searches,
}
#: The launch plan, which :func:`guard` leaves out.
LEFT_OUT = {rows.AttemptRow: {"plan", "master"}}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_a_row_has_the_columns_of_its_table(row: type) -> None:
    assert set(get_type_hints(row)) == set(ROWS[row].c.keys()) - LEFT_OUT.get(row, set())


@pytest.mark.parametrize("row", PARTS, ids=lambda row: row.__name__)
def test_a_part_of_a_row_has_columns_of_its_table(row: type) -> None:
    assert set(get_type_hints(row)) <= set(PARTS[row].c.keys())


@pytest.mark.parametrize("row", ROWS | PARTS, ids=lambda row: row.__name__)
def test_the_type_of_a_column_allows_none_where_the_table_allows_null(row: type) -> None:
    hints = {name: hint for name, hint in get_type_hints(row).items() if hint is not Any}
    assert {name for name, hint in hints.items() if type(None) in get_args(hint)} == {
        name for name in hints if (ROWS | PARTS)[row].c[name].nullable
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_only_json_columns_are_of_any_type(row: type) -> None:
    hints = get_type_hints(row)
    json = {name for name in hints if isinstance(ROWS[row].c[name].type, sa.JSON)}
    assert {name for name, hint in hints.items() if hint is Any} == json


def test_an_entry_of_a_pass_has_the_columns_of_its_query() -> None:
    assert set(get_type_hints(pass_snapshot.EntryRow)) == set(pass_snapshot.ENTRIES.exported_columns.keys())


@dataclass(frozen=True, kw_only=True)
class _Pool:
    """A part of a row of ``pools`` whose ``fit`` is given, and a field that is no column."""

    name: str
    fit: str = "best"
    count: int = 0


def _row(*columns: sa.Label[Any]) -> sa.Row[Any]:
    with sa.create_engine("sqlite://").connect() as conn:
        return conn.execute(sa.select(*columns)).one()


def test_a_record_has_the_columns_of_its_row_by_name() -> None:
    row = _row(*(sa.literal(value).label(name) for name, value in {"fit": "worst", "name": "a", "count": 3}.items()))
    assert rows.record_of(_Pool, row, fit="first") == _Pool(name="a", fit="first", count=3)


def test_a_field_without_a_column_is_an_error_even_with_a_default_or_a_method_of_its_name() -> None:
    with pytest.raises(KeyError, match="count"):
        rows.record_of(_Pool, _row(sa.literal("a").label("name"), sa.literal("best").label("fit")))


def test_the_columns_of_a_record_are_its_fields_that_the_table_has() -> None:
    assert rows.columns_of(_Pool(name="a"), tables.pools) == {"name": "a", "fit": "best"}
