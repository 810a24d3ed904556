"""Maintenance window: a time until which all leases are extended, and the user who set it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.store.database.tables import gangs, meta
from airflow_provider_dtrain.store.database.transactions import Database, reads, writes

#: Keys in ``meta``: the window that a user has set, and the latest end of a lease that any host may have.
HOLD_UNTIL, LEASES_UNTIL = "hold_until", "leases_until"


@dataclass(frozen=True, kw_only=True)
class Hold:
    """A maintenance window: no run ends for lack of a renewal before ``until``."""

    until: datetime
    by: str
    reason: str
    #: Hosts that were drained for it, and get gangs again at its end.
    hosts: tuple[str, ...] = ()


class MaintenanceWindow:
    """Extension of leases over a time in which no follower renews them."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @writes
    def set(self, conn: Connection, until: datetime, *, by: str, reason: str = "", hosts: Sequence[str] = ()) -> Hold:
        """Extend all leases, and the hold time of held gangs, until a time.

        This does not notify the hosts. A later call replaces an earlier one, whose drained hosts it takes over.

        :param until: aware, in the future
        :param hosts: hosts that the caller drains for it
        """
        earlier = self._stored(conn)
        drained = tuple(sorted({*hosts, *(earlier.hosts if earlier is not None else ())}))
        hold = Hold(until=until, by=by, reason=reason, hosts=drained)
        document = {"until": until.isoformat(), "by": by, "reason": reason, "hosts": drained}
        self._put(conn, HOLD_UNTIL, json.dumps(document))
        latest = max(filter(None, [until, self._time(conn, LEASES_UNTIL)]))
        self._put(conn, LEASES_UNTIL, latest.isoformat())
        held = (gangs.c.ended_because.is_(None), gangs.c.held_until.is_not(None), gangs.c.held_until < until)
        conn.execute(gangs.update().where(*held).values(held_until=until))
        self.db.audit(conn, by, "hold", "leases", f"until={until.isoformat(timespec='seconds')} {reason}".strip())
        return hold

    @writes
    def end(self, conn: Connection, *, by: str) -> bool:
        """End the hold, so that leases have their usual length again, and return whether there was one."""
        ended = conn.execute(meta.delete().where(meta.c.key == HOLD_UNTIL)).rowcount > 0
        if ended:
            self.db.audit(conn, by, "hold ended", "leases")
        return ended

    @writes
    def leases_shortened(self, conn: Connection) -> None:
        """Record that every host with a live run uses the usual length again."""
        conn.execute(meta.delete().where(meta.c.key == LEASES_UNTIL))

    @reads
    def get(self, conn: Connection) -> Hold | None:
        """Return the current hold, None when there is none or it is over."""
        hold = self._stored(conn)
        return hold if hold is not None and hold.until > self.db.now() else None

    @reads
    def get_or_over(self, conn: Connection) -> Hold | None:
        """Return the hold that was set last and not ended, also if its time is over."""
        return self._stored(conn)

    def left_s(self) -> float:
        """Return the seconds for which leases must last at least, 0.0 without a hold.

        This is one indexed read.
        """
        found = self.get()
        return max(0.0, (found.until - self.db.now()).total_seconds()) if found else 0.0

    @reads
    def leases_left_s(self, conn: Connection, margin_s: float = 0.0) -> float:
        """Return the seconds for which a silent host may keep a run because of a hold.

        A hold that a user has ended counts as well, until all hosts have shortened their leases.

        :param margin_s: seconds that a host may take to end a run whose lease is over
        """
        until = self._time(conn, LEASES_UNTIL)
        return 0.0 if until is None else max(0.0, (until - self.db.now()).total_seconds() + margin_s)

    @staticmethod
    def _stored(conn: Connection) -> Hold | None:
        """Return the hold that was set last and not ended, also if it is over."""
        found = conn.scalar(sa.select(meta.c.value).where(meta.c.key == HOLD_UNTIL))
        if found is None:
            return None
        document = json.loads(found)
        until = datetime.fromisoformat(document["until"])
        return Hold(until=until, by=document["by"], reason=document["reason"], hosts=tuple(document["hosts"]))

    def _put(self, conn: Connection, key: str, value: str) -> None:
        insert = self.db.insert(meta).values(key=key, value=value)
        conn.execute(insert.on_conflict_do_update(index_elements=["key"], set_={"value": value}))

    @staticmethod
    def _time(conn: Connection, key: str) -> datetime | None:
        found = conn.scalar(sa.select(meta.c.value).where(meta.c.key == key))
        return None if found is None else datetime.fromisoformat(found)
