"""The types of rows agree with the tables."""

from __future__ import annotations

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
