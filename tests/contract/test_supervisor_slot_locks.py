"""Two accounts on one machine: one slot, one holder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.accounts import uids
from tests.support.supervisor_host import SLEEP, Host, Refusal, is_alive, make_plan, start, until

FIRST, SECOND = uids()


@pytest.fixture
def pair(account: Callable[..., Host]) -> tuple[Host, Host]:
    first = account("first")
    return first, account("second", uid=SECOND, lock_dir=first.lock_dir)


def locks(host: Host) -> list[Path]:
    return sorted(Path(host.lock_dir).iterdir())


@pytest.mark.parametrize("device", [None, "GPU-fake"], ids=["cpu slot", "device"])
def test_a_slot_that_one_account_uses_is_refused_to_another_which_learns_who_has_it(
    pair: tuple[Host, Host], device: str | None
) -> None:
    first, second = pair
    one, other = first.channel(), second.channel()
    plan = make_plan("t1.1.7", *SLEEP, cpu_slots=device is None, devices=[device] if device else [])
    start(one, plan)
    holder = first.supervisor_pid("t1.1.7")
    with pytest.raises(Refusal) as refused:
        other.call("prepare", plan={**plan, "run": "t2.1.8", "token": 8}, secrets={})
    answer = refused.value.answer
    assert (answer["code"], answer["slot"], answer["run"]) == ("slot_busy", 0, None)
    assert f"Slot 0 is held by process {holder} (" in answer["message"]
    assert f"of user {FIRST}, outside this account's runs ({locks(first)[0]})" in answer["message"]
    asked = [{"slot": 0, "device": device}]
    assert other.call("status", slots=asked)["slots"]["0"]["held_by"].startswith(f"process {holder} (")
    one.call("stop", run="t1.1.7", grace_s=0)
    one.wait_event("t1.1.7", "ended")
    until(lambda: other.call("status", slots=asked)["slots"]["0"]["held_by"] is None, "the free slot")
    start(other, {**plan, "run": "t2.1.8", "token": 8})
    assert [path.stat().st_uid for path in locks(first)] == [FIRST], "one file serves both accounts"


def test_a_slot_stays_taken_for_other_accounts_while_a_child_of_its_rank_lives(pair: tuple[Host, Host]) -> None:
    first, second = pair
    one, other = first.channel(), second.channel()
    start(one, make_plan("t1.1.7", "sh", "-c", "sleep 1000 & exec sleep 1001"))
    until(lambda: len(first.processes("t1.1.7")) == 2, "rank and child")
    one.process.kill()
    first.kill_parents("t1.1.7")
    until(lambda: len(first.processes("t1.1.7")) == 1, "the death of the rank")
    with pytest.raises(Refusal, match="slot_busy"):
        other.call("prepare", plan=make_plan("t2.1.8", *SLEEP), secrets={})
    assert all(is_alive(pid) for pid in first.processes("t1.1.7"))


def test_different_slots_of_two_accounts_do_not_disturb_each_other(pair: tuple[Host, Host]) -> None:
    first, second = pair
    plan = make_plan("t2.1.8", *SLEEP)
    plan["ranks"][0]["slot"] = 1
    start(first.channel(), make_plan("t1.1.7", *SLEEP))
    start(second.channel(), plan)
    assert [path.name for path in locks(first)] == ["dtrain-cpu-0.lock", "dtrain-cpu-1.lock"]


def test_a_lock_file_that_others_may_not_read_is_named_with_its_owner_and_its_repair(pair: tuple[Host, Host]) -> None:
    first, second = pair
    path = Path(first.lock_dir) / "dtrain-cpu-0.lock"
    path.touch()
    path.chmod(0)
    os.chown(path, FIRST, FIRST)
    channel = second.channel()
    with pytest.raises(Refusal) as refused:
        channel.call("prepare", plan=make_plan("t2.1.8", *SLEEP), secrets={})
    assert refused.value.answer["slot"] == 0
    assert f"found a file with mode 0000 and 1 name(s) of user {FIRST}" in refused.value.answer["message"]
    assert refused.value.answer["message"].endswith(f"As root on the host: rm {path}")
    path.unlink()
    assert channel.call("prepare", plan=make_plan("t2.1.8", *SLEEP), secrets={})["state"] == "prepared"
