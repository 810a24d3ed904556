"""Comments of users on experiments and trials."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.control import Noun
from airflow_provider_dtrain.errors import ConflictError, NotFoundError, UserError
from airflow_provider_dtrain.store.database.comment_table import comments
from airflow_provider_dtrain.store.database.tables import experiments, trials
from airflow_provider_dtrain.store.database.transactions import Database, reads, writes

#: Characters of a comment, and comments of an experiment or trial.
TEXT_CHARS: Final = 10_000
COMMENTS_MOST: Final = 500
_NAME_CHARS: Final = 250


@dataclass(frozen=True, kw_only=True)
class CommentView:
    """One comment."""

    comment_id: int
    at: datetime
    #: Airflow's id of the user, and the name that is shown.
    user_id: str
    by: str
    text: str


class CommentStore:
    """Comments of experiments and trials. A comment is never changed, and only its author removes it."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def of(self, conn: Connection, noun: Noun, number: int) -> list[CommentView]:
        """Return the comments of an object, oldest first."""
        chosen = sa.select(comments).where(comments.c.kind == noun, comments.c.object_id == number)
        rows = conn.execute(chosen.order_by(comments.c.id))
        return [
            CommentView(comment_id=row.id, at=row.at, user_id=row.user_id, by=row.by, text=row.text) for row in rows
        ]

    @writes
    def add(self, conn: Connection, noun: Noun, number: int, text: str, *, user_id: str, by: str) -> int:
        """Add a comment, and return its id.

        :raises NotFoundError: there is no such object
        :raises UserError: the text is empty or too long
        :raises ConflictError: the object has too many comments
        """
        text = text.strip()
        if not 0 < len(text) <= TEXT_CHARS or "\x00" in text:
            raise UserError(f"A comment must have 1 to {TEXT_CHARS} characters and no NUL, got {len(text)} characters.")
        table = trials if noun == "trial" else experiments
        # The lock keeps the number of comments exact.
        if conn.scalar(sa.select(table.c.id).where(table.c.id == number).with_for_update()) is None:
            raise NotFoundError(f"There is no {noun} {number}. See: airflow dtrain {noun}s list")
        own = sa.select(sa.func.count()).where(comments.c.kind == noun, comments.c.object_id == number)
        if (conn.scalar(own) or 0) >= COMMENTS_MOST:
            raise ConflictError(
                f"{noun.capitalize()} {number} has {COMMENTS_MOST} comments, which is the limit. Remove one of yours."
            )
        values = {"user_id": user_id[:_NAME_CHARS], "by": by[:_NAME_CHARS], "text": text, "at": self.db.now()}
        insert = comments.insert().values(kind=noun, object_id=number, **values)
        comment_id = int(conn.scalar(insert.returning(comments.c.id)) or 0)
        self.db.audit(conn, by, "comment added", f"{noun} {number}", f"comment {comment_id}")
        return comment_id

    @writes
    def remove(self, conn: Connection, noun: Noun, number: int, comment_id: int, *, user_id: str, by: str) -> None:
        """Remove a comment of the user.

        :raises NotFoundError: the object has no such comment of this user
        """
        chosen = (
            (comments.c.id == comment_id)
            & (comments.c.kind == noun)
            & (comments.c.object_id == number)
            & (comments.c.user_id == user_id[:_NAME_CHARS])
        )
        if not conn.execute(comments.delete().where(chosen)).rowcount:
            raise NotFoundError(f"{noun.capitalize()} {number} has no comment {comment_id} of {by}.")
        self.db.audit(conn, by, "comment removed", f"{noun} {number}", f"comment {comment_id}")
