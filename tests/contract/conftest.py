"""One store per test on each database, with a private PostgreSQL server if its programs are installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store, migrate
from tests.contract.gang_world import use, world  # noqa: F401 - fixtures
from tests.support.store_world import Clock, Server, server_programs
from tests.support.supervisor_host import account, contained, host, one_host  # noqa: F401 - fixtures


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    programs = server_programs()
    if programs is None:
        pytest.skip("PostgreSQL's server programs (initdb, pg_ctl) are not installed")
    pytest.importorskip("psycopg", reason="the driver psycopg is not installed")
    server = Server(programs)
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without a schema."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store/dtrain.db"
    return request.getfixturevalue("postgresql").new_database()


@pytest.fixture
def url(empty_url: str) -> str:
    """The URL of a migrated database."""
    migrate(empty_url)
    return empty_url


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[Store]:
    opened = Store.open(url, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def submit(store: Store) -> Callable[..., Ticket]:
    """Submit a trial: ``submit(task="a", slots=2)``."""
    numbers = count()

    def submit_one(
        task: str | None = None,
        *,
        to: Store | None = None,
        max_tries: int = 0,
        storage: object = None,
        **fields: object,
    ) -> Ticket:
        target = to or store
        number = next(numbers)
        document = {"entrypoint": "python train.py", **({"checkpoint_storage": storage} if storage else {})}
        config = target.put_config(document, origins={})
        key = TrialKey(dag_id="d", run_id="r", task_id=task or f"task{number}", max_tries=max_tries)
        values = {"experiment_name": "e", "pool": "gpus", "slots": 1, "number": number, **fields}
        return target.submit_trial(TrialSubmission(key=key, config_id=config.config_id, **values))

    return submit_one


@pytest.fixture
def start(store: Store) -> Callable[[Ticket], int]:
    """Bring a submitted attempt to ``running`` and return its watch."""

    def start_one(ticket: Ticket) -> int:
        watch = store.watch(ticket.attempt_id, watcher="test")
        store.schedule("gpus")
        assert store.take_up(ticket.attempt_id, watch)
        view = store.attempt(ticket.attempt_id)
        ranks = iter(range(100))
        plans = {
            name: {"ranks": [{"rank": next(ranks), "local_rank": i, "slot": s} for i, s in enumerate(slots or (-1,))]}
            for name, slots in view.placement.items()
        }
        store.set_plan(ticket.attempt_id, watch, {"plans": plans})
        store.set_running(ticket.attempt_id, watch)
        return watch

    return start_one
