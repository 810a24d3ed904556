"""The table of runs on both databases, compared with the meaning of its expressions over plain values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_dtrain.core.expressions.names import FACTS, Kind, Name
from airflow_provider_dtrain.core.expressions.parser import parse_expression, parse_name
from airflow_provider_dtrain.core.expressions.tree import And, Comparison, Expression, Not, Or
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.store.records.runs import GroupPageQuery, RunPageQuery
from testbed.stores import host
from tests.support import run_rows
from tests.support.budgets import budget
from tests.support.run_oracle import matches, value_of
from tests.support.search_world import Search

NAMES = [
    *(Name("fact", (one,)) for one in FACTS if one not in ("rung", "bracket", "pool", "slots", "started", "duration")),
    *(Name("params", (one,)) for one in run_rows.PARAMS),
    *(Name("params", ("nested", one)) for one in ("lr", "1")),
    *(Name("params", one) for one in (("lr", "deeper"), ("absent",), ("opt", "0"))),
    *(Name("metrics", (one,)) for one in (*run_rows.METRICS, "absent")),
]
NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 0.1, 0.25, 0.5, 2.5, 1e-4, 1e25, 1e300, 5.0, 1e200])
TEXTS = st.sampled_from(
    ["adam", "Adam W", "ÄDAM", "0.1", "true", "a'b%_", "%", "_", "paper", "DRAFT", "Draft", "x_y", "completed",
     "errored", "d", "experiment 1", "Best of all", "ünnamed", "OutOfMemoryError", "trial", "NaN"]
)  # fmt: skip
TIMES = st.sampled_from([run_rows.AT, run_rows.AT.replace(day=2, hour=3)])
OF_KIND = {Kind.NUMBER: NUMBERS, Kind.TEXT: TEXTS, Kind.TEXTS: TEXTS, Kind.TIME: TIMES, Kind.FLAG: st.booleans()}


@st.composite
def comparisons(draw: st.DrawFn) -> Comparison:
    """Return a comparison that the parser can make."""
    name = draw(st.sampled_from(NAMES))
    operators = ["=", "!=", "in", "not in"]
    operators += ["~", "!~"] if name.kind in (Kind.TEXT, Kind.TEXTS, Kind.ANY) else []
    operators += ["<", "<=", ">", ">="] if name.kind in (Kind.NUMBER, Kind.TIME, Kind.ANY) else []
    operator = draw(st.sampled_from(operators))
    values = OF_KIND.get(name.kind, NUMBERS | TEXTS | st.booleans())
    if operator in ("~", "!~"):
        values = TEXTS
    elif operator in ("<", "<=", ">", ">=") and name.kind is Kind.ANY:
        values = NUMBERS
    if operator in ("in", "not in"):
        return Comparison(name, operator, tuple(draw(st.lists(values, min_size=1, max_size=4))))
    return Comparison(name, operator, (draw(values if operator not in ("=", "!=") else values | st.none()),))


EXPRESSIONS = st.recursive(
    comparisons(),
    lambda part: (
        st.builds(Not, part) | st.builds(And, st.tuples(part, part)) | st.builds(Or, st.tuples(part, part, part))
    ),
    max_leaves=5,
)


@pytest.fixture
def rows(store) -> list[Mapping[str, Any]]:
    return run_rows.fill(store, 80)


def found(store, expression: Expression, **more: Any) -> list[int]:
    entries, total = store.run_table.page(
        RunPageQuery(where=expression, with_replaced=True, limit=1000, **{"sort": Name("fact", ("trial",)), **more})
    )
    assert total == len(entries)
    return [one.trial_id for one in entries]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=budget(60))
@given(expression=EXPRESSIONS)
def test_both_databases_find_the_trials_that_an_expression_means(store, rows, expression: Expression) -> None:
    assert found(store, expression) == [row["trial"] for row in rows if matches(row, expression)]


def test_each_comparison_agrees_at_the_values_that_occur(store, rows) -> None:
    for written in ("params.lr", "metrics.loss", "created", "name"):
        check_values(store, rows, parse_name(written))


def check_values(store, rows: list[Mapping[str, Any]], name: Name) -> None:
    known = {str(value): value for row in rows if not isinstance(value := value_of(row, name), dict | list)}
    for value in list(known.values())[:12]:
        kept = float(value) if isinstance(value, int) and not isinstance(value, bool) else value
        operators = ["=", "!="] if kept is None or isinstance(kept, str | bool) else ["=", "!=", "<", "<=", ">", ">="]
        for operator in operators:
            one = Comparison(name, operator, (kept,))
            assert found(store, one) == [row["trial"] for row in rows if matches(row, one)], one


def test_a_trial_has_the_values_that_its_columns_name(store, rows) -> None:
    entries, total = store.run_table.page(RunPageQuery(columns=NAMES, with_replaced=True, limit=1000))
    assert total == len(rows) == len({one.trial_id for one in entries})
    for entry, row in zip(entries, rows, strict=True):
        for name, value in zip(NAMES, entry.values, strict=True):
            own = row["metrics"].get(name.path[0]) if name.space == "metrics" else value_of(row, name)
            assert value == own, name
        assert (entry.state, entry.experiment, entry.name) == (row["state"], row["experiment"], row["name"])


def test_rows_are_ordered_and_trials_without_a_value_come_last(store, rows) -> None:
    for name in map(parse_name, ("metrics.loss", "params.lr", "best", "created", "experiment")):
        for descending in (False, True):
            query = RunPageQuery(sort=name, descending=descending, with_replaced=True, limit=1000)
            order = [one.trial_id for one in store.run_table.page(query)[0]]
            by_id = {row["trial"]: value_of(row, name) for row in rows}
            values = [by_id[trial_id] for trial_id in order]
            numbers = [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
            assert numbers == sorted(numbers, reverse=descending)
            missing = [one is None for one in values]
            assert missing == sorted(missing)


def test_pages_follow_each_other_and_a_page_behind_the_last_one_knows_the_total(store, rows) -> None:
    whole = found(store, parse_expression("metrics.loss < 10 or params.lr != null"))
    pages = [
        store.run_table.page(
            RunPageQuery(
                where=parse_expression("metrics.loss < 10 or params.lr != null"), with_replaced=True, limit=7, offset=at
            )
        )
        for at in (0, 7, 14, 1000)
    ]
    assert [one.trial_id for page, _ in pages for one in page] == whole[:21]
    assert {total for _, total in pages} == {len(whole)}


def test_groups_have_mean_spread_least_and_most_of_their_numbers(store, rows) -> None:
    for by in ("state", "params.lr", "params.opt", "experiment", "params.nested.lr", "replaced"):
        check_groups(store, rows, parse_name(by))


def check_groups(store, rows: list[Mapping[str, Any]], key: Name) -> None:
    column = Name("metrics", ("loss",))
    query = GroupPageQuery(by=[key], columns=[column, Name("fact", ("restarts",))], with_replaced=True, limit=1000)
    groups, total = store.run_table.groups(query)
    wanted: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        value = value_of(row, key)
        same = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
        wanted.setdefault(repr(same), []).append(row)
    assert total == len(groups) == len(wanted)
    for group in groups:
        (value,) = group.keys
        same = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
        members = wanted[repr(same)]
        assert group.count == len(members)
        numbers = [float(one) for row in members if (one := value_of(row, column)) is not None and abs(one) <= 1e150]
        figures = group.figures[0]
        assert figures.count == len(numbers)
        assert (figures.min, figures.max) == (min(numbers, default=None), max(numbers, default=None))
        if numbers:
            assert figures.mean == pytest.approx(statistics.mean(numbers), abs=1e-12)
        spread = statistics.stdev(numbers) if len(numbers) > 1 else None
        assert figures.std == (None if spread is None else pytest.approx(spread, abs=1e-9))


def test_groups_are_ordered_by_any_figure_and_paged(store, rows) -> None:
    by, column = [Name("params", ("lr",)), Name("fact", ("state",))], Name("metrics", ("loss",))
    for measure in ("count", "mean", "std", "min", "max", None):
        sort = None if measure == "count" else by[0] if measure is None else column
        query = GroupPageQuery(by=by, columns=[column], measure=measure, sort=sort, descending=True, limit=1000)
        groups, total = store.run_table.groups(query)
        figures = [one.count if measure == "count" else getattr(one.figures[0], measure or "count") for one in groups]
        known = [one for one in figures if one is not None]
        if measure is not None:
            assert figures[: len(known)] == known == sorted(known, reverse=True), measure
        limited = GroupPageQuery(
            by=by, columns=[column], measure=measure, sort=sort, descending=True, limit=5, offset=5
        )
        assert store.run_table.groups(limited) == (groups[5:10], total)


def test_trials_with_the_same_hyperparameters_are_one_group(store, rows) -> None:
    groups, _ = store.run_table.groups(GroupPageQuery(by=[None], with_replaced=True, limit=1000))
    assert sum(one.count for one in groups) == len(rows)
    assert {str(one.keys[0] or {}) for one in groups} == {str(row["params"]) for row in rows}


def test_a_column_with_several_values_is_neither_ordered_nor_grouped_by_and_texts_have_no_mean(store, rows) -> None:
    tag = Name("fact", ("tag",))
    with pytest.raises(UserError, match="cannot be ordered or grouped by tag"):
        store.run_table.page(RunPageQuery(sort=tag))
    with pytest.raises(UserError, match="cannot be ordered or grouped by tag"):
        store.run_table.groups(GroupPageQuery(by=[tag]))
    with pytest.raises(UserError, match="state has no mean"):
        store.run_table.groups(GroupPageQuery(by=[None], columns=[Name("fact", ("state",))]))


def test_names_in_use_are_listed_as_they_are_written(store, rows) -> None:
    names = store.run_table.names(None)
    assert "params.nested.lr" in map(str, names.params)
    assert 'params."weight decay"' in map(str, names.params)
    assert [str(one) for one in names.metrics] == ["metrics.loss", 'metrics."top 5"', "metrics.val/acc"]
    assert store.run_table.names(frozenset()).params == []


def test_rows_of_other_dags_do_not_exist(store) -> None:
    rows = run_rows.fill(store, 40, dags=("d", "other"))
    query = RunPageQuery(dags=frozenset({"d"}), with_replaced=True, limit=1000)
    own = [row["trial"] for row in rows if row["dag"] == "d"]
    assert [one.trial_id for one in store.run_table.page(query)[0]] == own
    groups, _ = store.run_table.groups(GroupPageQuery(by=[None], dags=frozenset({"d"}), with_replaced=True, limit=1000))
    assert sum(one.count for one in groups) == len(own)


def test_replaced_trials_are_left_out_unless_they_are_requested(store, rows) -> None:
    entries, _ = store.run_table.page(RunPageQuery(limit=1000))
    assert [one.trial_id for one in entries] == [row["trial"] for row in rows if not row["replaced"]]


def test_the_value_of_a_metric_is_the_latest_validated_one_else_the_latest_of_the_training(store) -> None:
    store.hosts.add(host("a", slots=4))
    search = Search(store)
    search.plan(max_trials=4)
    ticket = search.start(0, slots=1)

    def metrics() -> list[Any]:
        names = [Name("metrics", (one,)) for one in ("loss", "acc", "speed")]
        (entry,) = store.run_table.page(RunPageQuery(columns=names))[0]
        return list(entry.values)

    assert metrics() == [None, None, None]
    search.commit(ticket, {"kind": "report", "step": 1, "metrics": {"loss": 3.0, "speed": 10}})
    assert metrics() == [3.0, None, 10]
    search.validate(ticket, loss=2.0, acc=0.5)
    search.commit(ticket, {"kind": "report", "step": 9, "metrics": {"loss": 1.0}})
    assert metrics() == [2.0, 0.5, 10]
    search.validate(ticket, loss=math.nan, text="x", flag=True)
    assert metrics() == ["NaN", 0.5, 10]
    assert found(store, parse_expression("metrics.loss = null and metrics.text = null")) == [ticket.trial_id]
    search.commit(ticket, {"kind": "report", "step": 10, "metrics": {"speed": 99.0}}, stream="rank1.events")
    assert metrics() == ["NaN", 0.5, 10]


def test_facts_of_attempts_are_those_of_the_latest_one(store, clock) -> None:
    store.hosts.add(host("a", slots=4))
    search = Search(store)
    search.plan(max_trials=4)
    ticket = search.start(0, slots=2)
    clock.advance(90)
    assert found(store, parse_expression('pool = "gpus" and slots = 2 and started != null')) == [ticket.trial_id]
    assert found(store, parse_expression("duration > 89.5 and duration < 90.5")) == [ticket.trial_id]
    assert found(store, parse_expression("duration > 91")) == []
