"""Operations: requests of users for work on hosts, and their content on its way from the hosts to the user."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.errors import ConflictError, NotFoundError
from airflow_provider_dtrain.store.database.tables import operation_pieces, operations
from airflow_provider_dtrain.store.database.transactions import Database, reads, writes
from airflow_provider_dtrain.store.records.operations import (
    OPERATION_ENDED,
    STORE_MOST,
    USER_MOST,
    OperationKind,
    OperationState,
    StoredOperation,
    Through,
)

#: A process that is silent for this long is taken for dead. It writes every ten seconds.
SILENT = timedelta(seconds=60)
#: A reader that is silent for this long has gone. It polls every few seconds, and survives a restart of the server.
READER_LOST = timedelta(minutes=5)
#: An operation that no client reads waits for its DAG run for this long. It counts for the limits meanwhile.
UNREAD = timedelta(hours=1)
#: Operations are kept for this long, so that users see their errors.
KEPT = timedelta(days=1)
_OPEN = operations.c.state.not_in([state.value for state in OPERATION_ENDED])
_IS_CONTROL = operations.c.kind == OperationKind.CONTROL.value
_NO_PROCESS = f"the process that executed it has not answered for {SILENT.total_seconds():.0f} s"
_UNWANTED = sa.case((_IS_CONTROL, "no DAG run carried it out in time"), else_="its user no longer asked for it")


class Operations:
    """Operations with their content.

    A follower or a run of a DAG takes an operation, writes its content in pieces and ends it. The user's client reads
    the content by its offset, and each read deletes the pieces before this offset.
    """

    def __init__(self, db: Database) -> None:
        self.db = db

    @writes
    def request(
        self,
        conn: Connection,
        kind: OperationKind,
        trial_id: int | None,
        arguments: Mapping[str, Any],
        *,
        by: str,
        through: Through,
    ) -> int:
        """Store a request, and return the id of its operation.

        :param by: the user
        :raises ConflictError: the user, or all users together, have too many operations that have not ended
        """
        self._sweep(conn)
        # Control requests have limits of their own, because no client reads their results.
        same = _IS_CONTROL if kind is OperationKind.CONTROL else sa.not_(_IS_CONTROL)
        mine = conn.scalar(sa.select(sa.func.count()).where(_OPEN, same, operations.c.by == by)) or 0
        every = conn.scalar(sa.select(sa.func.count()).where(_OPEN, same)) or 0
        if mine >= USER_MOST or every >= STORE_MOST:
            found = f"You have {mine}" if mine >= USER_MOST else f"All users together have {every}"
            raise ConflictError(
                f"{found} requests to hosts that have not ended; the limit is {USER_MOST} per user and {STORE_MOST} in "
                "all. Try again when one of them has ended."
            )
        now = self.db.now()
        values = {
            "kind": kind.value,
            "trial_id": trial_id,
            "arguments": dict(arguments),
            "by": by,
            "through": through.value,
            "state": OperationState.WAITING.value,
            "requested_at": now,
            "read_at": now + UNREAD if kind is OperationKind.CONTROL else now,
            "size_bytes": 0,
            "read_bytes": 0,
        }
        return int(conn.execute(operations.insert().values(**values).returning(operations.c.id)).scalar_one())

    @reads
    def open_copy(
        self, conn: Connection, trial_id: int, arguments: Mapping[str, Any], *, by: str, through: Through
    ) -> int | None:
        """Return the id of a user's request for the same copy of a log that has not ended, None without one.

        A page that is opened again, or in several windows, waits for one copy.
        """
        where = (_OPEN, operations.c.kind == OperationKind.LOG.value, operations.c.trial_id == trial_id)
        same = (operations.c.by == by, operations.c.through == through.value)
        rows = conn.execute(sa.select(operations.c.id, operations.c.arguments).where(*where, *same))
        return next((int(row.id) for row in rows if row.arguments == dict(arguments)), None)

    def _sweep(self, conn: Connection) -> None:
        """Remove old operations, and end those whose process or reader has gone."""
        now = self.db.now()
        runs = operations.c.state == OperationState.RUNNING.value
        failed = {"state": OperationState.FAILED.value}
        silent = (runs, operations.c.alive_at < now - SILENT)
        conn.execute(operations.update().where(*silent).values(**failed, error=_NO_PROCESS))
        # The process of a control request goes on without a reader.
        is_unread = (_OPEN, operations.c.read_at < now - READER_LOST, sa.not_(sa.and_(runs, _IS_CONTROL)))
        conn.execute(operations.update().where(*is_unread).values(**failed, error=_UNWANTED))
        unread = sa.select(operations.c.id).where(sa.not_(_OPEN), operations.c.read_at < now - READER_LOST)
        conn.execute(operation_pieces.delete().where(operation_pieces.c.operation_id.in_(unread)))
        conn.execute(operations.delete().where(sa.not_(_OPEN), operations.c.read_at < now - KEPT))

    @writes
    def started(self, conn: Connection, operation_id: int, dag_run: str) -> None:
        """Store the DAG run that executes an operation."""
        conn.execute(operations.update().where(operations.c.id == operation_id).values(dag_run=dag_run))

    @reads
    def get(self, conn: Connection, operation_id: int) -> StoredOperation:
        """Return an operation.

        :raises NotFoundError: there is none with this id
        """
        row = conn.execute(sa.select(operations).where(operations.c.id == operation_id)).one_or_none()
        if row is None:
            raise _missing(operation_id)
        return _operation(row)

    @reads
    def waiting(self, conn: Connection) -> list[tuple[int, int]]:
        """Return operations that wait for followers, oldest first, each with its trial."""
        where = (operations.c.state == OperationState.WAITING.value, operations.c.through == Through.FOLLOWER.value)
        query = sa.select(operations.c.id, operations.c.trial_id).where(*where, operations.c.trial_id.is_not(None))
        return [(int(row.id), int(row.trial_id)) for row in conn.execute(query.order_by(operations.c.id))]

    @writes
    def take(self, conn: Connection, operation_id: int, through: Through) -> StoredOperation | None:
        """Return an operation that this process executes from now on, None when it does not wait for one.

        :param through: kind of this process
        """
        where = (operations.c.id == operation_id, operations.c.state == OperationState.WAITING.value)
        values = {"state": OperationState.RUNNING.value, "alive_at": self.db.now()}
        query = operations.update().where(*where, operations.c.through == through.value).values(**values)
        row = conn.execute(query.returning(*operations.c)).one_or_none()
        return None if row is None else _operation(row)

    @writes
    def beat(self, conn: Connection, operation_id: int) -> bool:
        """Show that its process is alive, and return whether the operation is still wanted."""
        now = self.db.now()
        where = (operations.c.id == operation_id, operations.c.state == OperationState.RUNNING.value)
        wanted = sa.or_(_IS_CONTROL, operations.c.read_at >= now - READER_LOST)
        return conn.execute(operations.update().where(*where, wanted).values(alive_at=now)).rowcount > 0

    @writes
    def write(self, conn: Connection, operation_id: int, start: int, content: bytes) -> int | None:
        """Append a piece of content, and return the bytes that the reader has not received.

        :param start: offset of the piece, which follows the bytes that were written
        :return: None when the operation is no longer wanted
        """
        where = (
            operations.c.id == operation_id,
            operations.c.state == OperationState.RUNNING.value,
            operations.c.size_bytes == start,
        )
        values = {"size_bytes": start + len(content), "alive_at": self.db.now()}
        row = conn.execute(
            operations.update().where(*where).values(**values).returning(operations.c.read_bytes)
        ).one_or_none()
        if row is None:
            return None
        piece = {"operation_id": operation_id, "start": start, "content": content}
        conn.execute(operation_pieces.insert().values(**piece))
        return start + len(content) - int(row.read_bytes)

    @reads
    def unread_bytes(self, conn: Connection, operation_id: int) -> int:
        """Return the bytes of content that the reader has not received."""
        query = sa.select(operations.c.size_bytes - operations.c.read_bytes).where(operations.c.id == operation_id)
        return int(conn.scalar(query) or 0)

    @writes
    def done(self, conn: Connection, operation_id: int, result: Mapping[str, Any]) -> None:
        """End an operation with its result. One that was cancelled meanwhile stays as it is."""
        _end(conn, operation_id, state=OperationState.DONE, result=dict(result))

    @writes
    def failed(self, conn: Connection, operation_id: int, error: str, code: str = "") -> None:
        """End an operation with an error. One that has ended already stays as it is.

        :param code: ``not_now`` if the same request may succeed later
        """
        _end(conn, operation_id, state=OperationState.FAILED, error=error, result={"code": code})

    @writes
    def poll(self, conn: Connection, operation_id: int) -> StoredOperation:
        """Return an operation for its reader. One whose process is silent has failed.

        :raises NotFoundError: there is none with this id
        """
        now = self.db.now()
        silent = (operations.c.state == OperationState.RUNNING.value, operations.c.alive_at < now - SILENT)
        values = {"state": OperationState.FAILED.value, "error": _NO_PROCESS}
        conn.execute(operations.update().where(operations.c.id == operation_id, *silent).values(**values))
        query = operations.update().where(operations.c.id == operation_id).values(read_at=now)
        row = conn.execute(query.returning(*operations.c)).one_or_none()
        if row is None:
            raise _missing(operation_id)
        return _operation(row)

    @writes
    def read(self, conn: Connection, operation_id: int, offset: int, most: int) -> bytes:
        """Return content behind an offset, and delete the pieces before it.

        :param offset: first byte that the reader does not have
        :param most: bytes of the answer
        :raises ConflictError: the reader has confirmed bytes behind this offset, so they are gone
        :raises NotFoundError: there is no such operation
        """
        row = conn.execute(sa.select(operations).where(operations.c.id == operation_id)).one_or_none()
        if row is None:
            raise _missing(operation_id)
        if not row.read_bytes <= offset <= row.size_bytes:
            raise ConflictError(
                f"Operation {operation_id} has bytes {row.read_bytes} to {row.size_bytes}, not byte {offset}."
            )
        of = operation_pieces.c
        ends = of.start + sa.func.length(of.content)
        conn.execute(operation_pieces.delete().where(of.operation_id == operation_id, ends <= offset))
        seen = {"read_at": self.db.now(), "read_bytes": offset}
        conn.execute(operations.update().where(operations.c.id == operation_id).values(**seen))
        query = sa.select(of.start, of.content).where(of.operation_id == operation_id, of.start < offset + most)
        content = b""
        for piece in conn.execute(query.order_by(of.start)):
            content += bytes(piece.content)[max(0, offset - piece.start) :]
        return content[:most]


def _end(conn: Connection, operation_id: int, *, state: OperationState, **values: Any) -> None:
    where = (operations.c.id == operation_id, _OPEN)
    conn.execute(operations.update().where(*where).values(state=state.value, **values))


def _missing(operation_id: int) -> NotFoundError:
    return NotFoundError(f"There is no operation {operation_id}, or it ended more than a day ago.")


def _operation(row: Row[Any]) -> StoredOperation:
    fields = dict(row._mapping)
    return StoredOperation(
        operation_id=fields.pop("id"),
        kind=OperationKind(fields.pop("kind")),
        through=Through(fields.pop("through")),
        state=OperationState(fields.pop("state")),
        **fields,
    )
