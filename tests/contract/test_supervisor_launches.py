"""Two launches of one name: a store that was set back to a backup gives tokens and trials out a second time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider_dtrain.supervisor.file_access import user_name
from airflow_provider_dtrain.supervisor.files.layout import Layout
from airflow_provider_dtrain.supervisor.machine import host as host_module
from airflow_provider_dtrain.supervisor.machine.locks import is_locked, take_lock
from airflow_provider_dtrain.supervisor.run import cgroup as cgroup_module
from airflow_provider_dtrain.supervisor.run.cgroup import Cgroup
from tests.support.supervisor_host import SLEEP, Host, Refusal, make_plan, start, until

RUN = "0123abcd-t1.1.7"


def test_a_living_run_of_another_launch_is_refused_and_not_attached_to(one_host: Host) -> None:
    channel = one_host.channel()
    start(channel, make_plan(RUN, *SLEEP, launch="first"))
    with pytest.raises(Refusal) as refused:
        channel.call("prepare", plan=make_plan(RUN, *SLEEP, launch="second"), secrets={})
    assert (refused.value.code, refused.value.answer["run"]) == ("other_launch", RUN)
    again = channel.call("prepare", plan=make_plan(RUN, *SLEEP, launch="first"), secrets={})
    assert (again["state"], again["attached"]) == ("running", True)
    assert channel.call("status")["runs"][RUN]["launch"] == "first"


def test_a_run_of_another_launch_that_has_ended_is_not_taken_for_this_one(one_host: Host) -> None:
    channel = one_host.channel()
    start(channel, make_plan(RUN, "true", launch="first"))
    channel.wait_event(RUN, "ended")
    with pytest.raises(Refusal, match="other_launch"):
        channel.call("prepare", plan=make_plan(RUN, *SLEEP, launch="second"), secrets={})
    assert channel.call("prepare", plan=make_plan(RUN, "true", launch="first"), secrets={})["state"] == "ended"


def test_a_fence_of_one_launch_leaves_the_other_alone_and_is_remembered(one_host: Host) -> None:
    channel = one_host.channel()
    start(channel, make_plan(RUN, *SLEEP, launch="first", prepare_timeout_s=5))
    assert channel.call("fence", run=RUN, token=7, launch="second")["clear"] is True
    # A rank has its mark from its exec on, shortly after the state "running".
    until(lambda: one_host.processes(RUN), "the rank of the other launch")
    status = channel.call("status")["runs"][RUN]
    assert (status["state"], status["buried"]) == ("running", False)
    with pytest.raises(Refusal, match="tombstone"):
        channel.call("prepare", plan=make_plan(RUN, *SLEEP, launch="second"), secrets={})
    assert channel.call("fence", run=RUN, token=7, launch="first")["clear"] is True
    assert one_host.processes(RUN) == []


def test_a_fence_without_a_launch_ends_whatever_bears_the_name(one_host: Host) -> None:
    channel = one_host.channel()
    start(channel, make_plan(RUN, *SLEEP, launch="first"))
    assert channel.call("fence", run=RUN, token=7)["clear"] is True
    assert one_host.processes(RUN) == []


def test_a_plan_of_an_older_version_has_no_launch_and_is_attached_to(one_host: Host) -> None:
    channel = one_host.channel()
    start(channel, make_plan(RUN, *SLEEP))
    assert channel.call("prepare", plan=make_plan(RUN, *SLEEP, launch="new"), secrets={})["attached"] is True


def test_a_lock_that_a_stranger_keeps_does_not_look_free(one_host: Host) -> None:
    channel = one_host.channel()
    start(channel, make_plan(RUN, "true"))
    channel.wait_event(RUN, "ended")
    path = Path(one_host.state_dir) / "slots" / "0.lock"
    until(lambda: not is_locked(str(path)), "the free lock")
    path.unlink()
    kept = take_lock(str(path))
    assert kept is not None
    assert channel.call("status")["slots"]["0"]["held_by"] == "unknown"


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [
        ("dtrain-t1.1.7-0123456789ab", True),
        ("dtrain-0123abcd-t1.1.7-0123456789ab", True),
        ("dtrain-0123abcd-t1.1.7", False),
        ("dtrain-training.slice", False),
        ("user.slice", False),
    ],
)
def test_the_cgroup_of_a_run_is_known_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_ours: bool
) -> None:
    monkeypatch.setattr(cgroup_module, "cgroup_mounts", lambda: [(str(tmp_path), "/")])
    (tmp_path / name).mkdir()
    assert (Cgroup.known(str(tmp_path / name)) is not None) is is_ours


@pytest.mark.parametrize(
    ("group", "lingers", "is_used"),
    [
        ("system.slice/airflow.service", False, True),
        (f"user.slice/user-{os.getuid()}.slice/user@{os.getuid()}.service/app.slice", False, False),
        (f"user.slice/user-{os.getuid()}.slice/user@{os.getuid()}.service/app.slice", True, True),
    ],
)
def test_a_cgroup_of_the_accounts_own_systemd_is_used_only_if_the_account_lingers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, lingers: bool, is_used: bool
) -> None:
    parent, linger = tmp_path / group, tmp_path / "linger"
    parent.mkdir(parents=True)
    linger.mkdir()
    if lingers:
        (linger / user_name(os.getuid())).touch()
    made: list[str] = []
    monkeypatch.delenv("DTRAIN_NO_CGROUP", raising=False)
    monkeypatch.setattr(host_module, "LINGER_DIR", str(linger))
    monkeypatch.setattr(cgroup_module, "own_cgroup", lambda: str(parent))
    monkeypatch.setattr(os, "mkdir", lambda path, mode: made.append(path))
    Cgroup.create(Layout(str(tmp_path / "remote"), str(tmp_path / "state")).run(RUN))
    assert [Path(path).parent for path in made] == [parent] * is_used
