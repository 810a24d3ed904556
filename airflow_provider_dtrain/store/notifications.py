"""Marks of notifications, so that each event of a trial or a search is sent once."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.timing import NOTIFYING_FOR
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.tables import notifications
from airflow_provider_dtrain.store.database.transactions import Database, reads, writes


class Notifications:
    """Marks of the notifications that were sent, or are being sent.

    A process claims an event before it sends the notification, so that no second process sends it. The claim of a
    process that has died expires.
    """

    def __init__(self, db: Database) -> None:
        self.db = db

    @writes
    def claim(
        self, conn: Connection, event: str, *, trial_id: int | None = None, search_id: int | None = None
    ) -> int | None:
        """Return the mark of an event that this process sends now, None when it was sent or is being sent.

        :param trial_id: the trial that the event is about; else ``search_id`` names the search
        """
        of = {"trial_id": trial_id} if trial_id is not None else {"search_id": search_id}
        now = self.db.now()
        insert = self.db.insert(notifications).values(**of, event=event, claimed_at=now, error="")
        new = conn.scalar(insert.on_conflict_do_nothing(index_elements=[*of, "event"]).returning(notifications.c.id))
        if new is not None:
            return int(new)
        own = sa.and_(*(notifications.c[name] == value for name, value in of.items()), notifications.c.event == event)
        row = conn.execute(sa.select(notifications).where(own).with_for_update()).one()
        if row.done_at is not None or row.claimed_at > now - NOTIFYING_FOR:
            return None
        statements.update(conn, notifications, row.id, claimed_at=now)
        return int(row.id)

    @writes
    def done(self, conn: Connection, mark: int, error: str = "") -> None:
        """Record that all notifiers of a claimed event have run.

        :param error: reasons why some of them failed, in words
        """
        statements.update(conn, notifications, mark, done_at=self.db.now(), error=error)

    @reads
    def sent(self, conn: Connection, trial_id: int) -> dict[str, str]:
        """Return event -> reasons why notifiers failed, for the events of a trial that were sent."""
        query = sa.select(notifications.c.event, notifications.c.error)
        where = (notifications.c.trial_id == trial_id, notifications.c.done_at.is_not(None))
        return {row.event: row.error for row in conn.execute(query.where(*where).order_by(notifications.c.id))}
