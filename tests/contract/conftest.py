"""Fixtures: one store per test on each database, a world for gangs, and hosts with a real supervisor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_dtrain.store.records.gangs import GangView
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store
from testbed import stores
from testbed.stores import Server, server_programs
from tests.support.accounts import PYTHON, need_accounts, open_folder, uids
from tests.support.nvml import build_library
from tests.support.store_world import Clock
from tests.support.supervisor_host import Host, interpreters

if TYPE_CHECKING:
    from tests.support.api_world import Api
    from tests.support.search_world import Search


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


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a migrated database."""
    if request.param == "sqlite":
        yield stores.new_sqlite(tmp_path / "store" / "dtrain.db")
        return
    with request.getfixturevalue("postgresql").new_store() as found:
        yield found


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
        config = target.configs.put(document, origins={})
        key = TrialKey(dag_id="d", run_id="r", task_id=task or f"task{number}", max_tries=max_tries)
        values = {"experiment_name": "e", "pool": "gpus", "slots": 1, "number": number, **fields}
        return target.trials.submit(TrialSubmission(key=key, config_id=config.config_id, **values))

    return submit_one


@pytest.fixture
def start(store: Store) -> Callable[[Ticket], int]:
    """Bring a submitted attempt to ``running`` and return its watch."""

    def start_one(ticket: Ticket) -> int:
        watch = store.attempts.watch(ticket.attempt_id, watcher="test")
        store.queue.schedule("gpus")
        assert store.queue.take_up(ticket.attempt_id, watch)
        view = store.attempts.get(ticket.attempt_id)
        ranks = iter(range(100))
        plans = {
            name: {"ranks": [{"rank": next(ranks), "local_rank": i, "slot": s} for i, s in enumerate(slots or (-1,))]}
            for name, slots in view.placement.items()
        }
        store.attempts.set_plan(ticket.attempt_id, watch, {"plans": plans})
        store.attempts.set_running(ticket.attempt_id, watch)
        return watch

    return start_one


@pytest.fixture
def world(store: Store) -> Store:
    store.hosts.add(stores.host("gpu-01", slots=2))
    return store


@pytest.fixture
def use(world: Store) -> Callable[..., Ticket]:
    """Submit a trial to a held gang: ``use(gang, task="a")``."""

    def submit_one(gang: GangView, *, task: str = "train", token: int | None = None, slots: int = 2) -> Ticket:
        config = world.configs.put({"entrypoint": "python train.py"}, origins={})
        key = TrialKey(dag_id="d", run_id="r", task_id=task)
        submission = TrialSubmission(
            key=key, experiment_name="e", config_id=config.config_id, pool="gpus", slots=slots,
            allocation_id=gang.allocation_id,
        )  # fmt: skip
        return world.gangs.submit_trial(submission, int(gang.token or 0) if token is None else token)

    return submit_one


def _python_params() -> list[Any]:
    """Return the interpreters of hosts: for each change the oldest one here, in the nightly tier all."""
    *others, oldest = interpreters()
    names = {path: Path(path).parents[1].name for path in (*others, oldest)}
    nightly = [pytest.param(path, id=names[path], marks=pytest.mark.nightly) for path in others]
    return [*nightly, pytest.param(oldest, id=names[oldest])]


@pytest.fixture(params=_python_params())
def host(request: Any, tmp_path: Path) -> Iterator[Host]:
    """A host, with this interpreter or the oldest one that hosts may have."""
    found = Host(tmp_path / "host", request.param)
    yield found
    found.clean()


@pytest.fixture(params=[True, False], ids=["cgroup", "walk"])
def contained(request: Any, tmp_path: Path) -> Iterator[Host]:
    """A host, once with its own cgroup if the machine allows it, and once with the walk over descendants."""
    found = Host(tmp_path / "host", cgroup=request.param)
    yield found
    found.clean()


@pytest.fixture
def one_host(tmp_path: Path) -> Iterator[Host]:
    """A host, once, for tests that do not depend on the interpreter."""
    found = Host(tmp_path / "host")
    yield found
    found.clean()


@pytest.fixture
def account() -> Iterator[Callable[..., Host]]:
    """Factory of hosts without cgroups. The first host's account has only processes of this test."""
    need_accounts()
    made: list[Host] = []
    with open_folder() as folder:

        def make(name: str = "host", *, uid: int = uids()[0], lock_dir: str | None = None) -> Host:
            made.append(Host(folder / name, PYTHON, cgroup=False, uid=uid, lock_dir=lock_dir))
            return made[-1]

        yield make
        for host in made:
            host.clean()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a library that answers like NVIDIA's."""
    folder = tmp_path_factory.mktemp("nvml")
    build_library(folder)
    return folder


@pytest.fixture
def api(search: Search) -> Api:
    """The API on the store of the module's search, for a user with all rights."""
    from tests.support.api_world import Api

    return Api(search.store)
