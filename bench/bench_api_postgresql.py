"""The benchmark ``api`` with the store on PostgreSQL."""

from __future__ import annotations

from bench.bench_api import POSTGRESQL, bench, on_postgresql
from testbed.stores import server_programs


def missing() -> str | None:
    """Return the reason why this machine cannot run it."""
    return None if server_programs() else "PostgreSQL's server programs (initdb, pg_ctl) are not installed"


BENCH = bench(POSTGRESQL, on_postgresql, missing)
