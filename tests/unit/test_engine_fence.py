"""Consequences of a fence's answer: the state of slots, their notes, and lines of the task log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.engine.attempt.reconciliation import free_slots
from airflow_provider_dtrain.engine.attempt.teardown import SHOWN_CHARS, fence, fence_arguments, survivors_text
from airflow_provider_dtrain.engine.operations.probe_report import lock_problem, warnings
from airflow_provider_dtrain.errors import HostRefusedError
from airflow_provider_dtrain.store.queries.hosts import cluster_details
from airflow_provider_dtrain.store.queries.rights import AllRights
from airflow_provider_dtrain.store.records.trials import HostRecord, SlotRecord
from airflow_provider_dtrain.store.store import Store
from testbed.stores import new_sqlite
from tests.support.log_world import no_secrets

VIEW: Any = SimpleNamespace(
    run="t1.1.7", token=7, held_hosts=("gpu-01",), placement={"gpu-01": (1,)}, plan={}, label="trial 1, attempt 1",
    started_at=None, backend="hosts", is_held_gang=False,
)  # fmt: skip
SURVIVOR = {"pid": 4711, "state": "R", "command": "python train.py"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(new_sqlite(tmp_path / "s.db"))
    slots = tuple(SlotRecord(index=i, device=f"GPU-{i}", device_name="A100", memory_bytes=1) for i in range(2))
    opened.hosts.add(HostRecord(name="gpu-01", pool="gpus", slot_type="cuda", slots=slots, lock_dir="/run/locks"))
    yield opened
    opened.close()


def runtime(store: Store, **answers: Any) -> Any:
    """Return a runtime whose hosts give these answers. ``asked`` records the calls."""

    async def nothing() -> None:
        return

    async def in_place(function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        return function(*args, **more)

    async def call(host: str, cmd: str, *, timeout_s: float = 1.0, **args: Any) -> Any:
        rt.asked.append((cmd, args))
        return answers[cmd]

    async def record(host: str) -> Any:
        return SimpleNamespace(is_node=False)

    rt = SimpleNamespace(
        record=record, prove_watch=nothing, redactor=no_secrets, db=in_place, call=call, store=store,
        log=logging.getLogger("test"), asked=[], silence_logged_at={},
    )  # fmt: skip
    return rt


def shown(store: Store) -> tuple[str, str]:
    slot = store.hosts.slots()[1]
    return slot.state, slot.note


async def test_a_slot_with_a_survivor_is_stuck_with_its_pid_and_command_until_the_host_finds_it_free(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    assert await fence(runtime(store, fence={"clear": False, "survivors": [SURVIVOR], "busy_slots": []}), VIEW) == []
    assert shown(store) == ("stuck", "process 4711 (python train.py)")
    assert "process 4711 (python train.py)" in caplog.text
    (host,) = cluster_details(store, AllRights()).hosts
    assert host.slots[1].note == "process 4711 (python train.py)"
    await free_slots(runtime(store, status={"slots": {"1": {"held_by": "t1.1.7"}}}), "gpu-01")
    assert shown(store)[0] == "stuck"
    rt = runtime(store, status={"slots": {"1": {"held_by": None}}})
    await free_slots(rt, "gpu-01")
    assert rt.asked == [("status", {"slots": [{"slot": 1, "device": "GPU-1"}]})]
    assert shown(store) == ("ready", "")


async def test_a_slot_whose_device_another_account_uses_is_busy_elsewhere_although_the_run_is_gone(
    store: Store,
) -> None:
    foreign = [{"slot": 1, "pid": 9, "user": "alice", "name": "jupyter", "device": "GPU-1", "memory_bytes": 5}, "x"]
    assert await fence(runtime(store, fence={"clear": True, "foreign": foreign}), VIEW) == ["gpu-01"]
    assert shown(store) == ("busy_elsewhere", "process 9 (jupyter) of user alice")


async def test_a_host_with_a_fault_gets_no_new_gangs_and_reasons_for_doubt_are_shown(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    rt, notes = runtime(store), list[tuple[str, str, str]]()

    async def note_host(host: str, state: str, reason: str) -> None:
        notes.append((host, state, reason))

    async def refuse(*_: Any, **__: Any) -> Any:
        raise HostRefusedError("gpu-01", "Host 'gpu-01' refused 'fence' (read_only): no", code="read_only")

    rt.note_host, rt.call = note_host, refuse
    assert await fence(rt, VIEW) == []
    assert notes == [("gpu-01", "unreachable", "Host 'gpu-01' refused 'fence' (read_only): no")]
    doubtful = {"clear": False, "survivors": [], "busy_slots": [], "doubts": ["slot 1 is locked by process 9"]}
    assert await fence(runtime(store, fence=doubtful), VIEW) == []
    assert "Still there: slot 1 is locked by process 9" in caplog.text


def test_a_host_that_lost_a_run_is_sent_what_its_launch_was_but_not_for_a_run_that_never_started() -> None:
    ranks = [{"rank": 0, "slot": 4, "device": "GPU-4"}, {"rank": 1, "slot": -1, "device": None}]
    plan = {
        "plans": {"gpu-01": {"launch": "abc", "ranks": ranks}},
        "boots": {"gpu-01": "b"},
        "state_dirs": {"gpu-01": "/s"},
    }
    view = SimpleNamespace(**{**vars(VIEW), "plan": plan})
    common = {"run": "t1.1.7", "token": 7, "wait_s": 10.0, "launch": "abc"}
    assert fence_arguments(view, "gpu-01") == common  # type: ignore[arg-type]
    view.started_at = "now"
    launched = {"boot_id": "b", "state_dir": "/s", "slots": [{"slot": 4, "device": "GPU-4"}]}
    assert fence_arguments(view, "gpu-01") == {**common, "launched": launched}  # type: ignore[arg-type]
    assert "launched" not in fence_arguments(view, "gpu-02")  # type: ignore[arg-type]


async def test_a_host_marks_only_the_slots_of_the_run_and_each_of_them_once(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    slots: list[Any] = [0, 77, 9999999999999999999, -1, "1", True, None, [1], *[1] * 1000]
    foreign = [{"slot": slot, "pid": number, "name": "x", "user": "y"} for number, slot in enumerate(slots)]
    assert await fence(runtime(store, fence={"clear": True, "foreign": foreign}), VIEW) == ["gpu-01"]
    assert [slot.state for slot in store.hosts.slots()] == ["ready", "busy_elsewhere"]
    assert caplog.text.count("is in use by") == 1
    assert "process 8 (x) of user y" in caplog.text, "the first one of the slot"


async def test_an_unexpected_error_of_one_host_leaves_the_slots_of_the_others_to_be_released(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    rt, answers = runtime(store), {"gpu-01": {"clear": True}, "gpu-02": RuntimeError("a defect")}

    async def call(host: str, cmd: str, **_: Any) -> Any:
        if isinstance(found := answers[host], Exception):
            raise found
        return found

    rt.call = call
    view = SimpleNamespace(**{**vars(VIEW), "held_hosts": ("gpu-01", "gpu-02")})
    assert await fence(rt, view) == ["gpu-01"]  # type: ignore[arg-type]
    assert "gpu-02" in caplog.text
    assert "a defect" in caplog.text


def test_a_slot_whose_lock_an_unknown_process_keeps_is_named() -> None:
    assert survivors_text({"survivors": [], "busy_slots": [{"slot": 3, "run": None}]}) == "lock of slot 3"
    words = "GPU-1: the driver no longer lists its processes."
    assert survivors_text({"survivors": [], "busy_slots": [], "unlisted": [words, 5]}) == words


def test_nonsense_of_a_host_is_harmless_and_short() -> None:
    assert survivors_text({"survivors": "all", "busy_slots": [1]}) == "nothing that it can name"
    words = survivors_text({"survivors": [{"pid": i, "command": "\x1b[31m" + "x" * 10_000} for i in range(10_000)]})
    assert "\x1b" not in words
    assert len(words) <= SHOWN_CHARS * 4


def test_hosts_whose_locks_protect_one_account_only_are_named_with_the_command_for_root() -> None:
    faults = {"torch": "2", "problems": ["/ has no space left"], "doubts": ["the fence is not clear"]}
    assert warnings("a", faults) == [
        "Host 'a': no run can start there: / has no space left.", "Host 'a': the fence is not clear.",
    ]  # fmt: skip
    problem = "lock_dir /run/lock must be ... As root on the host: install -d -o root -g root -m 1777 /run/lock"
    facts = {"torch": "2", "lock_dir": None, "lock_problem": problem}
    (found,) = warnings("gpu-01", facts)
    assert found.startswith("Host 'gpu-01': locks protect this account only")
    assert found.endswith("install -d -o root -g root -m 1777 /run/lock")
    assert lock_problem({"lock_dir": "/run/lock", "lock_problem": None}) is None
    assert lock_problem({}) is None, "an older supervisor says nothing of it"


def test_gpus_of_amd_are_named_as_not_supported() -> None:
    (found,) = warnings("gpu-01", {"torch": "2", "lock_dir": "/run/lock", "has_amd_gpus": True})
    assert found == "Host 'gpu-01': its AMD GPUs are not used, because ROCm is not supported. Its slots are CPU slots."
    assert warnings("gpu-01", {"torch": "2", "lock_dir": "/run/lock", "has_amd_gpus": False}) == []


def test_the_folder_for_locks_is_kept_with_the_host(store: Store) -> None:
    assert store.hosts.get("gpu-01").lock_dir == "/run/locks"
