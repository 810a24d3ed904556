"""Saved views of the table of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.errors import ConflictError, NotFoundError, UserError
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.run_tables import run_views
from airflow_provider_dtrain.store.database.transactions import Database, reads, writes
from airflow_provider_dtrain.store.records.runs import StoredView

#: Characters of a name, and views of one user.
NAME_CHARS: Final = 100
VIEWS_MOST: Final = 200


class RunViews:
    """Saved views. A user changes their own views only, and reads these and shared ones."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def visible(self, conn: Connection, user_id: str) -> list[StoredView]:
        """Return the views of a user and the shared ones, by name."""
        query = sa.select(run_views).where(_is_visible(user_id)).order_by(run_views.c.name, run_views.c.id)
        return [_view(row) for row in conn.execute(query)]

    @writes
    def save(
        self,
        conn: Connection,
        user_id: str,
        user: str,
        name: str,
        definition: Mapping[str, Any],
        *,
        is_shared: bool,
        view_id: int | None = None,
    ) -> StoredView:
        """Store a view, and return it.

        :param user: name of the user, for the audit and for other users
        :param definition: filter, columns, grouping, order and charts, which the caller has checked
        :param view_id: the view that is replaced; None: a new one
        :raises NotFoundError: the user has no view with this id
        :raises ConflictError: the user has another view with this name
        :raises UserError: the name cannot be used, or the user has too many views
        """
        chosen = _checked(name)
        own = run_views.c.owner_id == user_id
        same = conn.scalar(sa.select(run_views.c.id).where(own, run_views.c.name == chosen))
        if same is not None and same != view_id:
            raise ConflictError(f"You have a view named {chosen!r} already. Choose another name, or change that view.")
        values = {
            "name": chosen,
            "owner": user,
            "is_shared": is_shared,
            "definition": dict(definition),
            "changed_at": self.db.now(),
        }
        if view_id is None:
            count = conn.scalar(sa.select(sa.func.count()).select_from(run_views).where(own)) or 0
            if count >= VIEWS_MOST:
                raise UserError(f"You have {count} views, at most {VIEWS_MOST} are kept. Remove one.")
            view_id = statements.insert(conn, run_views, owner_id=user_id, **values)
        elif not conn.execute(run_views.update().where(own, run_views.c.id == view_id).values(values)).rowcount:
            raise _no_view(view_id)
        self.db.audit(conn, user, "view saved", f"view {view_id}", f"name={chosen!r} shared={is_shared}")
        return _view(conn.execute(sa.select(run_views).where(run_views.c.id == view_id)).one())

    @writes
    def remove(self, conn: Connection, user_id: str, user: str, view_id: int) -> None:
        """Remove a view of a user.

        :raises NotFoundError: the user has no view with this id
        """
        own = (run_views.c.owner_id == user_id, run_views.c.id == view_id)
        if not conn.execute(run_views.delete().where(*own)).rowcount:
            raise _no_view(view_id)
        self.db.audit(conn, user, "view removed", f"view {view_id}")


def _is_visible(user_id: str) -> sa.ColumnElement[bool]:
    return sa.or_(run_views.c.owner_id == user_id, run_views.c.is_shared)


def _view(row: Row[Any]) -> StoredView:
    own = {name: getattr(row, name) for name in ("name", "owner_id", "owner", "is_shared", "definition", "changed_at")}
    return StoredView(view_id=row.id, **own)


def _checked(name: str) -> str:
    found = name.strip()
    if not found or len(found) > NAME_CHARS or not found.isprintable():
        raise UserError(f"The name of a view must be 1 to {NAME_CHARS} printable characters, got {found[:100]!r}.")
    return found


def _no_view(view_id: int) -> NotFoundError:
    return NotFoundError(f"You have no view {view_id}. A shared view is changed by its owner only.")
