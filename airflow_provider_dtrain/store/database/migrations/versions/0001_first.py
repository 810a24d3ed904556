"""The schema of the first release.

Its statements are files of SQL, because a later change of the tables in the code must not change them.
"""

from __future__ import annotations

import re
from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None


def _statements() -> list[str]:
    path = Path(__file__).with_name(f"0001_first.{op.get_bind().dialect.name}.sql")
    return [one for one in path.read_text("utf-8").split(";\n") if one.strip()]


def upgrade() -> None:
    for one in _statements():
        op.get_bind().exec_driver_sql(one)


def downgrade() -> None:
    tables = [found[1] for one in _statements() if (found := re.match(r"\s*CREATE TABLE (\w+)", one))]
    for name in reversed(tables):
        op.drop_table(name)
