"""Names, descriptions and tags that users give to experiments and trials."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.control import Change, Noun
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.store.database.tables import experiments, labels, tags
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.records.pages import Dags, Labels

NAME_CHARS = 250
DESCRIPTION_CHARS = 10_000
TAG_CHARS = 63
TAGS_MAX = 20


class LabelStore:
    """Names, descriptions and tags of experiments and trials."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def get(self, conn: Connection, kind: Noun, object_id: int) -> Labels:
        """Return the labels of an object, empty ones if it has none or does not exist."""
        return labels_of(conn, kind, [object_id]).get(object_id, Labels())

    @reads
    def tags_in_use(self, conn: Connection, dags: Dags = None) -> list[str]:
        """Return the tags of experiments, sorted.

        :param dags: only of experiments of these DAGs
        """
        query = sa.select(tags.c.tag).where(tags.c.kind == "experiment").distinct()
        if dags is not None:
            own = sa.select(experiments.c.id).where(experiments.c.dag_id.in_(sorted(dags)))
            query = query.where(tags.c.object_id.in_(own))
        return sorted(conn.scalars(query))


def set_labels(db: Database, conn: Connection, noun: Noun, object_id: int, change: Change, by: str) -> None:
    """Change the labels of an object, whose row is locked.

    :raises UserError: a text is too long, or a tag is not usable
    """
    before = labels_of(conn, noun, [object_id]).get(object_id, Labels())
    removed = {tag.strip() for tag in change.get("remove_tags", ())}
    kept = [tag for tag in change.get("tags", before.tags) if tag not in removed]
    chosen = check_tags([*kept, *change.get("add_tags", ())])
    name = _text("display_name", change.get("display_name", before.display_name or ""), NAME_CHARS) or None
    values = {
        "display_name": name,
        "description": _text("description", change.get("description", before.description), DESCRIPTION_CHARS),
    }
    insert = db.insert(labels).values(kind=noun, object_id=object_id, **values)
    conn.execute(insert.on_conflict_do_update(index_elements=["kind", "object_id"], set_=values))
    if chosen != before.tags:
        _replace_tags(conn, noun, object_id, chosen)
    db.audit(conn, by, "labels set", f"{noun} {object_id}", f"name={name!r} tags={', '.join(chosen)}")


def labels_of(conn: Connection, kind: Noun, ids: Collection[int]) -> dict[int, Labels]:
    """Return the labels of objects that have any."""
    chosen = list(ids)
    own_tags: dict[int, list[str]] = {}
    of_tags = sa.select(tags.c.object_id, tags.c.tag).where(tags.c.kind == kind, tags.c.object_id.in_(chosen))
    for object_id, tag in conn.execute(of_tags.order_by(tags.c.tag)):
        own_tags.setdefault(object_id, []).append(tag)
    texts = conn.execute(sa.select(labels).where(labels.c.kind == kind, labels.c.object_id.in_(chosen)))
    return {
        row.object_id: Labels(
            display_name=row.display_name,
            description=row.description,
            tags=tuple(own_tags.get(row.object_id, ())),
        )
        for row in texts
    }


def _replace_tags(conn: Connection, kind: Noun, object_id: int, chosen: Sequence[str]) -> None:
    conn.execute(tags.delete().where(tags.c.kind == kind, tags.c.object_id == object_id))
    if chosen:
        conn.execute(tags.insert(), [{"kind": kind, "object_id": object_id, "tag": tag} for tag in chosen])


def _text(name: str, text: str, limit: int) -> str:
    found = text.strip()
    if len(found) > limit or "\x00" in found:
        raise UserError(f"{name} must have at most {limit} characters and no NUL, got {len(found)} characters.")
    return found


def check_tags(given: Sequence[str]) -> tuple[str, ...]:
    """Return tags sorted and without duplicates.

    :raises UserError: there are too many, or one is empty, too long, or has a comma or an unprintable character
    """
    chosen = sorted({tag.strip() for tag in given})
    wrong = [tag for tag in chosen if not 0 < len(tag) <= TAG_CHARS or "," in tag or not tag.isprintable()]
    if wrong:
        raise UserError(f"A tag must be 1 to {TAG_CHARS} printable characters without a comma, got {wrong[0][:100]!r}.")
    if len(chosen) > TAGS_MAX:
        raise UserError(f"An experiment or trial has at most {TAGS_MAX} tags, got {len(chosen)}.")
    return tuple(chosen)
