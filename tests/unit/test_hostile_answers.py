"""Answers of a host that contradict the protocol: they harm neither the store nor other hosts, and no reader raises."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.cli.trials_logs import _Tail
from airflow_provider_dtrain.core.external_jobs import OWN_BACKEND
from airflow_provider_dtrain.engine.attempt import launch, teardown
from airflow_provider_dtrain.engine.attempt.reconciliation import reconcile_host
from airflow_provider_dtrain.engine.attempt.restarts import Restarts
from airflow_provider_dtrain.engine.attempt.stream import HostFollower
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import Runtime
from airflow_provider_dtrain.engine.upkeep.recovery import RecoveryPass
from airflow_provider_dtrain.errors import (
    DtrainError,
    EnvironmentMissingError,
    HostProtocolError,
    HostRefusedError,
    HostUnreachableError,
    NotFoundError,
    StaleWatchError,
)
from airflow_provider_dtrain.hosts.channel.answers import PACKAGES_MOST, check_answer, piece_of
from airflow_provider_dtrain.hosts.wire import WireError
from airflow_provider_dtrain.store.store import Store
from testbed.stores import new_sqlite
from tests.support.log_world import no_secrets

#: Errors of the connection to a host that are the user's, during a launch.
ERRORS = [
    EnvironmentMissingError("Host 'b': interpreter 'python3' does not exist there."),
    NotFoundError("Host 'b' needs Airflow connection 'ssh_b', which cannot be fetched."),
]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StaleWatchError("Attempt 9 is followed under watch 3 (worker on vm): this process still holds watch 2."), []),
        (HostUnreachableError("b", "Host 'b' cannot be reached."), []),
        (KeyError("odd"), ["Background recovery of another trial or a host failed, and is retried: KeyError: 'odd'"]),
    ],
    ids=["stale", "host", "defect"],
)
async def test_recovery_for_other_trials_is_not_in_the_log_of_a_task(
    error: Exception, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def claim(*_: Any) -> bool:
        raise error

    view = SimpleNamespace(held_hosts=("b",), allocation_id=1, attempt_id=9, watch=2, renewed_at=None)
    recovery = SimpleNamespace(recoverable=lambda: [view], claim=claim, hosts_to_probe=list)
    jobs = SimpleNamespace(unfinished_pools=list, remove_hosts=int)
    store = SimpleNamespace(recovery=recovery, hosts=SimpleNamespace(with_blocked_slots=list), external_jobs=jobs)
    caplog.set_level(logging.INFO)
    look = RecoveryPass(SimpleNamespace(store=store))
    for _ in range(3):
        assert await look.run() == []
    assert [record.getMessage() for record in caplog.records] == said
    assert "Traceback" not in caplog.text


class Hosts:
    """Hook whose hosts give these answers to every command. A host with an error has no connection.

    :param answers: host -> command -> answer, or the error of its connection
    """

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers, self.calls = answers, list[str]()
        self.settings = SimpleNamespace(orphan_timeout_s=900.0, kill_grace_s=20.0)
        hosts = SimpleNamespace(get=lambda name: SimpleNamespace(name=name, is_node=False, slots=()))
        self.store: Any = SimpleNamespace(hosts=hosts)

    async def aaddress(self, record: Any) -> Any:
        return None

    def open_link(self, record: Any) -> Any:
        return None

    def link(self, record: Any, address: Any = None, timeout_s: float = 1.0) -> Any:
        if isinstance(found := self.answers[record.name], Exception):
            raise found

        def call(cmd: str, **_: Any) -> Future[Any]:
            self.calls.append(cmd)
            future: Future[Any] = Future()
            future.set_result(found[cmd])
            return future

        return SimpleNamespace(call=call, host=record.name)


def runtime(answers: dict[str, Any], **store: Any) -> Runtime:
    """Return a runtime whose hosts answer so.

    :param store: component of the store -> its methods by name, or an attribute of the store
    """
    hook: Any = Hosts(answers)
    for name, methods in store.items():
        if not isinstance(methods, dict):
            setattr(hook.store, name, methods)
            continue
        part = vars(hook.store).setdefault(name, SimpleNamespace())
        vars(part).update(methods)
    rt = Runtime(hook, hook.store, 1, 1, TaskLog(logging.getLogger("test"), None), watcher="test")
    rt.redactor = no_secrets  # type: ignore[method-assign]
    return rt


def gang(*hosts: str) -> Any:
    return SimpleNamespace(
        run="t1.1.7", token=7, held_hosts=hosts, placement=dict.fromkeys(hosts, (0,)), plan={"plans": {}},
        label="attempt 1", attempt_id=1, trial_id=1, watch=1, renewed_at=None, started_at=None, is_held_gang=False,
        restarts=0, max_restarts=0, backend=OWN_BACKEND,
    )  # fmt: skip


# -- tokens --------------------------------------------------------------------------------------
@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(new_sqlite(tmp_path / "s.db"))
    yield opened
    opened.close()


async def test_a_token_that_no_backup_explains_is_reported_and_not_taken(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.queue.raise_token(500)
    rt = runtime(
        {"a": {"status": {"stores": {store.store_id: 2**63 - 1}, "runs": {}}}}, store_id=store.store_id,
        queue={"raise_token": store.queue.raise_token}, hosts={"unknown_runs": store.hosts.unknown_runs},
    )  # fmt: skip
    assert await reconcile_host(rt, "a") == []
    assert store.queue.raise_token(0) == 500
    assert f"Host 'a' recorded token {2**63 - 1} of this store" in caplog.text
    assert "remove store.json" in caplog.text


@pytest.mark.parametrize(
    ("recorded", "excluded"), [(8, None), (2**61, "a"), ("9", "a"), (-1, "a")], ids=["later", "far", "text", "below"]
)
async def test_a_host_whose_recorded_token_no_grant_will_reach_is_excluded(
    store: Store, monkeypatch: pytest.MonkeyPatch, recorded: Any, excluded: str | None
) -> None:
    moved: list[Any] = []

    def move_on(attempt_id: int, watch: int, *, exclude_host: str | None, **_: Any) -> Any:
        moved.append(exclude_host)
        return SimpleNamespace(attempt_id=1)

    async def nothing(*_: Any, **__: Any) -> list[str]:
        return []

    monkeypatch.setattr(Restarts, "_check_host", nothing)
    monkeypatch.setattr(Restarts, "_until_ended", nothing)
    attempts_ = {"move_on": move_on, "of_trial": lambda trial_id: []}
    rt = runtime({}, attempts=attempts_, queue={"raise_token": store.queue.raise_token})
    refused = HostRefusedError("a", "Its grant is over.", code="stale_token", details={"recorded": recorded})
    await Restarts(rt).attempt_failed(gang("a"), refused)
    assert moved == [excluded]


# -- connections ---------------------------------------------------------------------------------
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_host_without_an_interpreter_or_connection_keeps_no_other_hosts_slots(
    error: DtrainError, caplog: pytest.LogCaptureFixture
) -> None:
    released: list[Any] = []
    rt = runtime(
        {"a": {"fence": {"clear": True}}, "b": error},
        attempts={"check_watch": lambda *_, **__: None, "get": lambda attempt_id: SimpleNamespace(pool="gpus")},
        queue={"release": lambda attempt_id, watch, hosts, **_: released.append(hosts), "schedule": lambda pool: None},
    )  # fmt: skip
    assert await teardown.release(rt, gang("a", "b")) == ["a"]
    assert released == [["a"]]
    assert f"{error} Its slots stay taken" in caplog.text
    for _ in range(3):
        await teardown.release(rt, gang("a", "b"))
    assert caplog.text.count("Its slots stay taken") == 1, "a host that stays silent is named once a minute"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_host_without_an_interpreter_or_connection_is_silent_for_recovery_and_followers(
    error: DtrainError,
) -> None:
    hook: Any = Hosts({"b": error})
    assert isinstance(await RecoveryPass(hook)._state_of(hook.store, gang("b"), "b"), HostUnreachableError)
    follower: Any = object.__new__(HostFollower)
    follower.rt, follower.host, follower.log, follower.is_linked = runtime({"b": error}), "b", None, False
    follower.gang = SimpleNamespace(end=SimpleNamespace(ended={}))

    async def back_off(found: Exception) -> None:
        assert isinstance(found, HostUnreachableError)
        follower.gang.end.ended["b"] = "enough"

    follower._back_off = back_off
    await follower.run()
    assert follower.gang.end.ended == {"b": "enough"}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_launch_names_the_missing_interpreter_or_connection(error: DtrainError) -> None:
    with pytest.raises(type(error), match="Host 'b'"):
        await runtime({"b": error}).link("b", to_launch=True)


# -- answers -------------------------------------------------------------------------------------
PREFLIGHT: dict[str, Any] = {
    "python": "3.9.1", "executable": "python3", "modules": {}, "foreign": [], "problems": [], "shared": {},
    "mounts": [],
}  # fmt: skip
IMAGE = {"python": "3.12.1", "executable": "/usr/bin/python3", "modules": {}}
PROCESS = {"device": "GPU-1", "pid": 1, "name": "x", "user": "y", "memory_bytes": 5}

ENVIRONMENT = {
    "digest": "a" * 64, "is_complete": True, "use": "free", "runs": [], "bytes": 1, "used_at": 1.0, "package_count": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("cmd", "answer"),
    [
        ("read", {"bytes": 0, "size": 9, "offset": 0}),
        ("preflight", PREFLIGHT),
        ("preflight", {**PREFLIGHT, "python": None, "executable": None, "modules": {"torch": None}}),
        ("preflight", {**PREFLIGHT, "shared": {"/s": {"writable": True, "self": "m", "seen": ["m"]}}}),
        ("preflight", {**PREFLIGHT, "foreign": [PROCESS]}),
        ("preflight", {**PREFLIGHT, "packages": {"torch": "2.13.0", "mine": None}, "cuda": "12.8", "driver": "570.1"}),
        ("prepare", {"state": "prepared", "port": None}),
        ("prepare", {"state": "prepared", "port": None, "image": {**IMAGE, "packages": {}, "cuda": None}}),
        ("prepare", {"state": "prepared", "port": 29500, "attached": False}),
        ("fence", {"clear": True}),
        ("fence", {"clear": True, "foreign": [{**PROCESS, "slot": 0}]}),
        ("environments", {"environments": [ENVIRONMENT, {**ENVIRONMENT, "packages": ["a==1"], "built_at": 1.5}]}),
        ("remove_environment", {"use": "run", "size": 0, "runs": ["t1.1.7"]}),
    ],
)
def test_an_answer_with_the_fields_of_its_command_is_accepted(cmd: str, answer: dict[str, Any]) -> None:
    check_answer(cmd, answer)


def without(answer: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key != name}


@pytest.mark.parametrize(
    ("cmd", "answer"),
    [
        ("read", {"bytes": 0, "size": None, "offset": 0}),
        ("read", {"size": 9, "offset": 0, "data": "text"}),
        ("read", {"bytes": 0, "size": 9}),
        *[("read", {"bytes": 0, "size": size, "offset": 0}) for size in ("9", 9.0, True, -1, 2**63, [9])],
        ("fence", {"clear": 1}),
        ("clock", {"boottime_s": "1", "wall_s": 1}),
        ("clock", {"boottime_s": 1, "wall_s": 1e12}),
        ("have", {"missing": ["x"] * 100_001}),
        ("match", {"matches": {}, "unfinished": [], "refused": {str(number): "x" for number in range(100_001)}}),
        ("status", {"runs": {"r": {"state": "x" * 65_537}}}),
        *[("preflight", without(PREFLIGHT, name)) for name in PREFLIGHT],
        ("preflight", {**PREFLIGHT, "foreign": None}),
        ("preflight", {**PREFLIGHT, "problems": None}),
        ("preflight", {**PREFLIGHT, "mounts": [5]}),
        ("preflight", {**PREFLIGHT, "foreign": [without(PROCESS, "pid")]}),
        ("preflight", {**PREFLIGHT, "shared": {"/s": {"writable": True}}}),
        ("prepare", {"state": "prepared"}),
        ("prepare", {"port": 29500}),
        ("probe", {"stores": {}}),
        ("probe", {"boottime_s": 1, "cpu_count": True}),
        ("probe", {"boottime_s": 1, "torch": 2}),
        ("probe", {"boottime_s": 1, "gpus": [{"uuid": "G", "memory_bytes": 1}]}),
        ("probe", {"boottime_s": 1, "gpus": [{"uuid": "G", "name": "x", "memory_bytes": -1}]}),
        ("probe", {"boottime_s": 1, "interfaces": [{"name": "e"}] * 4097}),
        ("probe", {"boottime_s": 1, "withheld_variables": "A"}),
        ("net_listen", {"port": 5, "addresses": None}),
        ("net_connect", {"results": [{"ok": True}]}),
        *(
            ("preflight", {**PREFLIGHT, **facts})
            for facts in (
                {"packages": ["torch"]},
                {"packages": {"torch": 2}},
                {"packages": {"a" * 257: "1"}},
                {"packages": {"torch": "1" * 257}},
                {"packages": {f"p{n}": "1" for n in range(PACKAGES_MOST + 1)}},
                {"driver": ["570"]},
                {"cuda": "1" * 257},
            )
        ),
        ("prepare", {"state": "prepared", "port": 1, "image": {**IMAGE, "packages": {"torch": {}}}}),
        ("fence", {"clear": True, "foreign": [{"slot": 9999999999999999999}]}),
        ("fence", {"clear": True, "foreign": [{"pid": 1}]}),
        *[("environments", {"environments": [without(ENVIRONMENT, name)]}) for name in ENVIRONMENT],
        ("environments", {"environments": [{**ENVIRONMENT, "digest": "../../etc"}]}),
        ("environments", {"environments": [{**ENVIRONMENT, "digest": f"{'a' * 64}\n"}]}),
        ("environments", {"environments": [{**ENVIRONMENT, "use": "much"}]}),
        ("environments", {"environments": [{**ENVIRONMENT, "bytes": -1}]}),
        ("environments", {"environments": [{**ENVIRONMENT, "used_at": float("inf")}]}),
        ("environments", {"environments": [{**ENVIRONMENT, "packages": "a"}]}),
        ("environments", {"environments": [ENVIRONMENT] * 100_001}),
        ("remove_environment", {"use": "gone", "size": 0, "runs": []}),
        ("remove_environment", {"use": "free", "size": 0}),
    ],
)
def test_an_answer_without_a_field_that_is_read_is_refused(cmd: str, answer: dict[str, Any]) -> None:
    with pytest.raises(WireError, match=f"an answer to '{cmd}' with wrong fields"):
        check_answer(cmd, answer)


@pytest.mark.parametrize(
    ("offset", "length", "answer"),
    [
        (0, 5, {"offset": 0, "data": b"123456", "size": 9}),
        (4, 5, {"offset": 3, "data": b"", "size": 9}),
        (4, 5, {"offset": 10, "data": b"", "size": 9}),
        (4, 5, {"offset": 2**62, "data": b"", "size": 9}),
        (-4, 5, {"offset": 4, "data": b"", "size": 9}),
    ],
)
def test_a_part_of_a_file_that_was_not_requested_is_refused(offset: int, length: int, answer: dict[str, Any]) -> None:
    with pytest.raises(HostProtocolError, match="Host 'h' broke the protocol"):
        piece_of("h", answer, offset=offset, length=length)


@pytest.mark.parametrize(
    ("offset", "answer"),
    [
        (0, {"offset": 0, "data": b"12345", "size": 9}),
        (4, {"offset": 9, "data": b"", "size": 9}),
        (20, {"offset": 20, "data": b"", "size": 9}),
        (-4, {"offset": 5, "data": b"6789", "size": 9}),
        (-40, {"offset": 0, "data": b"12345", "size": 9}),
        (4, {"offset": 4, "data": b"56789", "size": 6}),
    ],
    ids=["start", "freed", "beyond the end", "tail", "whole", "it grew"],
)
def test_a_requested_part_of_a_file_is_accepted(offset: int, answer: dict[str, Any]) -> None:
    piece = piece_of("h", answer, offset=offset, length=5)
    assert (piece.offset, piece.data, piece.size) == (answer["offset"], answer["data"], answer["size"])


async def test_a_host_that_reports_on_another_path_is_refused_by_name() -> None:
    hosts = Hosts({"h": {"preflight": PREFLIGHT}})
    link = hosts.link(hosts.store.hosts.get("h"))
    with pytest.raises(HostProtocolError, match="Host 'h' broke the protocol: 'preflight' did not report on /s"):
        await launch._check_shared({"h": link}, "/s", "nonce")


def test_a_log_that_a_host_sends_from_nowhere_is_a_note_and_the_end_that_the_store_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hook: Any = Hosts({"h": {"read": {"offset": 2**62, "size": 9, "data": b""}}})
    rank: Any = SimpleNamespace(rank=0, host="h", log_tail="last words")
    args: Any = SimpleNamespace(all=False, tail=None, start=None, end=None, follow=False)
    view: Any = SimpleNamespace(attempt_id=1, run="t1.1.1", ended_at=datetime.now(UTC), is_external=False)
    hook.store.log_copies = SimpleNamespace(get=lambda *_: None)
    _Tail(hook, rank, args).pump(view, rank)
    found = capsys.readouterr()
    assert "Host 'h' broke the protocol" in found.err
    assert found.out == "last words"
