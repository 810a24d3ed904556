"""Conditions on texts that users type, on tags, and on states of trials."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import sqlalchemy as sa

from airflow_provider_dtrain.core.lifecycle.states import TRIAL_LIVE
from airflow_provider_dtrain.store.database.tables import tags, trials

_ESCAPE = "\\"
#: Most characters of a text to look for.
TEXT_MAX = 200


def contains(
    text: str, *columns: sa.ColumnElement[Any], number: sa.ColumnElement[int] | None = None
) -> sa.ColumnElement[bool]:
    """Return the condition that a column contains a text, in any case of its letters.

    ``%`` and ``_`` have no special meaning.

    :param number: column that matches as well if the text is its value
    """
    text = text[:TEXT_MAX].replace("\x00", "")
    pattern = "%" + "".join(f"{_ESCAPE}{c}" if c in f"%_{_ESCAPE}" else c for c in text) + "%"
    found: list[sa.ColumnElement[bool]] = [column.ilike(pattern, escape=_ESCAPE) for column in columns]
    if number is not None and text.isascii() and text.isdigit() and len(text) < 18:
        found.append(number == int(text))
    return sa.or_(*found)


def in_states(states: Collection[str]) -> sa.ColumnElement[bool]:
    """Return the condition that a trial is in one of some states."""
    found = trials.c.state.in_(sorted(states))
    # Names the index of the trials of the present, which the states alone do not.
    return sa.and_(trials.c.ended_at.is_(None), found) if set(states) <= set(TRIAL_LIVE) else found


def has_tags(
    kind: Literal["experiment", "trial"], object_id: sa.ColumnElement[int], given: Collection[str]
) -> list[sa.ColumnElement[bool]]:
    """Return the condition that an experiment or trial has all of some tags, no condition without tags.

    It is one query of the index whatever the number of tags: one query per tag takes the planner of PostgreSQL seconds.
    """
    chosen = sorted(set(given))
    if not chosen:
        return []
    of = sa.select(tags.c.object_id).where(tags.c.kind == kind, tags.c.tag.in_(chosen))
    return [object_id.in_(of.group_by(tags.c.object_id).having(sa.func.count() == len(chosen)))]
