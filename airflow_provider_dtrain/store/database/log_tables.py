"""Tables of complete logs that operations have copied from hosts."""

from __future__ import annotations

import sqlalchemy as sa

from airflow_provider_dtrain.store.database.connections import UtcDateTime
from airflow_provider_dtrain.store.database.tables import Id, Json, metadata

#: A copy of the log of a rank, up to an offset.
log_copies = sa.Table(
    "log_copies",
    metadata,
    sa.Column("attempt_id", Id, sa.ForeignKey("attempts.id"), primary_key=True, autoincrement=False),
    sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
    # Offset behind the last byte.
    sa.Column("end", sa.BigInteger, nullable=False),
    sa.Column("lines", sa.BigInteger, nullable=False),
    # Bytes of its chunks in the store.
    sa.Column("stored_bytes", sa.BigInteger, nullable=False),
    # The rank had ended when the end was read.
    sa.Column("is_complete", sa.Boolean, nullable=False),
    sa.Column("read_at", UtcDateTime(), nullable=False),
)

log_chunks = sa.Table(
    "log_chunks",
    metadata,
    sa.Column("attempt_id", Id, sa.ForeignKey("attempts.id"), primary_key=True, autoincrement=False),
    sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
    # Offset of the first byte, and the one behind the last byte.
    sa.Column("start", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("end", sa.BigInteger, nullable=False),
    # Number of the first line in the log, and number of lines.
    sa.Column("first_line", sa.BigInteger, nullable=False),
    sa.Column("lines", sa.Integer, nullable=False),
    # Compressed by zlib.
    sa.Column("content", sa.LargeBinary, nullable=False),
    # Sizes of the log at known times, for the bytes of the chunk.
    sa.Column("samples", Json, nullable=False),
)
