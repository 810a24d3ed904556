"""The table of runs, and its saved views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from airflow_provider_dtrain.core.expressions.names import ALL_PARAMS, FACTS, Kind, Name
from airflow_provider_dtrain.core.expressions.parser import parse_expression, parse_group, parse_name, similar
from airflow_provider_dtrain.core.expressions.tree import Expression, names_of
from airflow_provider_dtrain.core.plain_data import plain_data
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.resources.runs import (
    Run,
    RunChart,
    RunFact,
    RunFigures,
    RunGroup,
    RunGroupPage,
    RunNames,
    RunPage,
    RunView,
)
from airflow_provider_dtrain.store.queries.config_facts import config_facts
from airflow_provider_dtrain.store.records.runs import GroupPageQuery, Measure, RunPageQuery

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.records.runs import RunQuery, StoredView
    from airflow_provider_dtrain.store.store import Store

#: Most columns of a table, and names by which trials are grouped.
COLUMNS_MOST: Final = 40
GROUPED_MOST: Final = 8
#: Configurations of the matching experiments from which the directions of metrics follow; with more they are unknown.
CONFIGS_MOST: Final = 500
_BEST: Final = Name("fact", ("best",))


@dataclass(frozen=True, kw_only=True)
class RunSelection:
    """Trials of a table, and what is shown of them."""

    #: Filter expression; empty: all.
    where: str = ""
    #: Names as they are written in expressions. Those without numbers have no figures over groups.
    columns: Sequence[str] = ()
    #: A name; of groups one of their names, or ``mean:NAME``, ``std:NAME``, ``min:NAME`` or ``max:NAME`` with one of
    #: ``columns``. Empty: the time of the submission, of groups the number of trials.
    sort: str = ""
    descending: bool = True
    #: Also trials of cleared tasks and older plans.
    with_replaced: bool = False


def condition(where: str) -> Expression | None:
    """Return the parsed form of a filter, None for an empty one.

    :raises ExpressionError: it cannot be read
    """
    return parse_expression(where) if where.strip() else None


def run_page(store: Store, rights: Rights, selected: RunSelection, *, limit: int = 100, offset: int = 0) -> RunPage:
    """Return one page of the trials that the user may read.

    :raises ExpressionError: an expression or a name cannot be read
    :raises UserError: the trials cannot be ordered by the name
    """
    names = [parse_name(one) for one in selected.columns]
    query = RunPageQuery(
        where=condition(selected.where),
        dags=rights.readable(store),
        with_replaced=selected.with_replaced,
        columns=names,
        sort=parse_name(selected.sort) if selected.sort else None,
        descending=selected.descending,
        limit=limit,
        offset=offset,
    )
    entries, total = store.run_table.page(query)
    rows = [
        Run(
            trial_id=one.trial_id,
            name=one.name,
            number=one.number,
            experiment_id=one.experiment_id,
            experiment=one.experiment,
            state=one.state,
            never_fits=one.never_fits,
            values=[plain_data(value) for value in one.values],
        )
        for one in entries
    ]
    hint = None if total or query.where is None else _hint(store, query)
    return RunPage(
        rows=rows,
        total=total,
        columns=[str(one) for one in names],
        smaller_is_better=_directions(store, query, names),
        hint=hint,
    )


def _directions(store: Store, query: RunQuery, names: Sequence[Name]) -> list[bool | None]:
    """Return for each column whether smaller values are better, None if it is unknown or differs."""
    goals: dict[Name, set[bool]] = {_BEST: set()}
    if any(name == _BEST or name.space == "metrics" for name in names):
        ids = store.run_table.configs(query, CONFIGS_MOST + 1)
        for facts in config_facts(store, ids if len(ids) <= CONFIGS_MOST else []).values():
            if facts.metric is not None:
                for name in (_BEST, Name("metrics", (facts.metric,))):
                    goals.setdefault(name, set()).add(facts.smaller_is_better)
    found = [goals.get(name, set()) for name in names]
    return [next(iter(one)) if len(one) == 1 else None for one in found]


def _hint(store: Store, query: RunPageQuery) -> str | None:
    """Return a sentence about the first name of a filter that no trial has."""
    assert query.where is not None
    used = store.run_table.names(query.dags)
    known: Mapping[str, Sequence[Name]] = {"params": used.params, "metrics": used.metrics}
    for name in names_of(query.where):
        if name.space != "fact" and name not in known[name.space]:
            # Without the namespace, which makes all of them similar.
            written = {".".join(one.path): one for one in (*used.params, *used.metrics)}
            close = similar(".".join(name.path), list(written))
            return f"No trial has {name}." + (f" Did you mean {written[close]}?" if close else "")
    return None


def group_page(
    store: Store, rights: Rights, selected: RunSelection, *, by: Sequence[str], limit: int = 100, offset: int = 0
) -> RunGroupPage:
    """Return one page of groups of the trials that the user may read, with figures of the columns.

    :param by: names with equal values in a group; ``params``: all hyperparameters
    :raises ExpressionError: an expression or a name cannot be read
    :raises UserError: the trials cannot be grouped or ordered by a name
    """
    groups = [parse_group(one) for one in by]
    numbers = [one for one in map(parse_name, selected.columns) if one.kind in (Kind.NUMBER, Kind.ANY)]
    measure, name = _order(selected.sort)
    query = GroupPageQuery(
        where=condition(selected.where),
        dags=rights.readable(store),
        with_replaced=selected.with_replaced,
        by=groups,
        columns=numbers,
        sort=name,
        measure=measure,
        descending=selected.descending,
        limit=limit,
        offset=offset,
    )
    entries, total = store.run_table.groups(query)
    rows = [
        RunGroup(
            keys=[plain_data(value) for value in one.keys],
            trials=one.count,
            figures=[RunFigures(**vars(figures)) for figures in one.figures],
        )
        for one in entries
    ]
    written = [ALL_PARAMS if one is None else str(one) for one in groups]
    return RunGroupPage(
        rows=rows,
        total=total,
        by=written,
        columns=[str(one) for one in numbers],
        smaller_is_better=_directions(store, query, numbers),
    )


def _order(sort: str) -> tuple[Measure | None, Name | None]:
    if not sort:
        return "count", None
    measure, colon, name = sort.partition(":")
    if colon and measure in get_args(Measure):
        return cast("Measure", measure), parse_name(name)
    return None, parse_group(sort)


def run_names(store: Store, rights: Rights) -> RunNames:
    """Return the names that expressions over the trials of the user may have."""
    used = store.run_table.names(rights.readable(store))
    facts = [
        RunFact(name=name, kind=one.kind, meaning=one.meaning, choices=list(one.choices)) for name, one in FACTS.items()
    ]
    return RunNames(facts=facts, params=[str(one) for one in used.params], metrics=[str(one) for one in used.metrics])


def check_view(where: str, columns: Sequence[str], by: Sequence[str], sort: str, charts: Sequence[RunChart]) -> None:
    """Check that a view can be shown.

    :raises ExpressionError: an expression or a name cannot be read
    :raises UserError: a chart lacks the name of an axis
    """
    condition(where)
    for name in columns:
        parse_name(name)
    for name in by:
        parse_group(name)
    if sort:
        _order(sort.removeprefix("-"))
    for chart in charts:
        if parse_name(chart.y).space != "metrics" and chart.kind == "curves":
            raise UserError(f"A chart of curves shows a metric, got {chart.y}.")
        if chart.kind == "scatter":
            parse_name(chart.x)


def run_view(view: StoredView, user_id: str) -> RunView:
    """Return a saved view as a user sees it."""
    own: Mapping[str, Any] = view.definition
    return RunView(
        view_id=view.view_id,
        name=view.name,
        owner=view.owner,
        is_own=view.owner_id == user_id,
        is_shared=view.is_shared,
        where=own["where"],
        columns=own["columns"],
        by=own["by"],
        sort=own["sort"],
        charts=[RunChart(**one) for one in own["charts"]],
        changed_at=view.changed_at,
    )
