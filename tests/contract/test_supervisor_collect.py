"""Garbage collection of old runs and archives on a host, and the account in a probe's report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.supervisor.checks import probe as probe_module
from airflow_provider_dtrain.supervisor.checks.probe import kills_user_processes
from airflow_provider_dtrain.supervisor.limits import TOMBSTONE_DAYS
from airflow_provider_dtrain.supervisor.machine.host import mount_of
from airflow_provider_dtrain.supervisor.machine.locks import is_locked
from tests.support.supervisor_host import SLEEP, Channel, Host, Refusal, make_plan, start, until

OLD_S = 30 * 86400


def age(path: Path, seconds: float = 2 * OLD_S) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)


def ended(host: Host, channel: Channel, run: str, **changes: Any) -> Path:
    """Run a program to its end, make the run old, and return its folder."""
    start(channel, make_plan(run, "true", **changes))
    channel.wait_event(run, "ended")
    folder = host.run_dir(run)
    until(lambda: (folder / "ended").exists() and not is_locked(str(folder / "lock")), "the end")
    age(folder / "ended")
    return folder


def test_a_dry_run_says_what_would_go_and_touches_nothing(one_host: Host) -> None:
    channel = one_host.channel()
    folder = ended(one_host, channel, "t1.1.7")
    (folder / "checkpoints" / "big").write_bytes(b"x" * 100_000)
    digest = one_host.send_archive("payloads", {"train.py": "print(1)"})
    archive = Path(one_host.remote_dir) / "payloads" / f"{digest}.tar.gz"
    age(archive)
    found = channel.call("collect", older_than_s=OLD_S, dry_run=True)
    assert found["removed"] == ["t1.1.7"]
    assert found["sizes"]["t1.1.7"] >= 100_000
    assert found["archives"] == {f"payloads/{digest}": archive.stat().st_blocks * 512}
    assert folder.exists()
    assert archive.exists()
    assert channel.call("status")["runs"]["t1.1.7"]["buried"] is False


def test_only_what_is_named_and_old_goes_and_the_run_never_comes_back(one_host: Host) -> None:
    channel = one_host.channel()
    folders = {run: ended(one_host, channel, run) for run in ("t1.1.7", "t2.1.8", "t3.1.9")}
    age(folders["t3.1.9"] / "ended", 60)
    found = channel.call("collect", older_than_s=OLD_S, runs=["t1.1.7", "t3.1.9"])
    assert list(found["sizes"]) == ["t1.1.7"]
    assert [folder.exists() for folder in folders.values()] == [False, True, True]
    with pytest.raises(Refusal, match="tombstone"):
        channel.call("prepare", plan=make_plan("t1.1.7", *SLEEP), secrets={})


def test_archives_that_a_living_run_uses_or_somebody_asked_for_stay(one_host: Host) -> None:
    channel = one_host.channel()
    digests = [one_host.send_archive("payloads", {"train.py": f"print({n})"}) for n in range(3)]
    paths = [Path(one_host.remote_dir) / "payloads" / f"{digest}.tar.gz" for digest in digests]
    start(channel, make_plan("t1.1.7", *SLEEP, payload=digests[0]))
    for path in paths:
        age(path)
    assert channel.call("have", kind="payloads", digests=[digests[1]])["missing"] == []
    named = [f"payloads/{digest}" for digest in digests]
    found = channel.call("collect", older_than_s=OLD_S, runs=[], archives=named)
    assert list(found["archives"]) == [f"payloads/{digests[2]}"]
    assert [path.exists() for path in paths] == [True, True, False]
    assert channel.call("have", kind="payloads", digests=[digests[2]])["missing"] == [digests[2]]


@pytest.mark.parametrize("names", [{"runs": ["../t1.1.7"]}, {"archives": ["payloads/../../etc"]}, {"runs": [1]}])
def test_names_that_lead_elsewhere_are_refused(one_host: Host, names: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match="bad_plan"):
        one_host.channel().call("collect", older_than_s=0, **names)


def test_a_folder_without_write_access_is_removed_like_any_other(account: Callable[..., Host]) -> None:
    host = account()
    channel = host.channel()
    script = "mkdir -p ro/inner; echo x | tee ro/file ro/inner/file; chmod 0 ro/inner; chmod 500 ro"
    start(channel, make_plan("t1.1.7", "sh", "-c", script))
    channel.wait_event("t1.1.7", "ended")
    folder = host.run_dir("t1.1.7")
    until(lambda: (folder / "ended").exists() and not is_locked(str(folder / "lock")), "the end")
    assert channel.call("collect", older_than_s=0)["removed"] == ["t1.1.7"]
    assert os.listdir(host.state_dir / "runs") == []


def test_tombstones_are_forgotten_when_nobody_can_want_the_run_any_more(one_host: Host) -> None:
    channel = one_host.channel()
    channel.call("fence", run="t1.1.7", token=7)
    channel.call("fence", run="t2.1.8", token=8)
    stones = Path(one_host.state_dir) / "tombstones"
    age(stones / "t1.1.7", (TOMBSTONE_DAYS + 1) * 86400)
    channel.call("collect", older_than_s=OLD_S)
    assert sorted(os.listdir(stones)) == ["t2.1.8"]


def test_a_probe_tells_what_recovery_and_the_doctor_ask_for(one_host: Host) -> None:
    channel = one_host.channel()
    start(channel, make_plan("t1.1.7", *SLEEP))
    facts = channel.call("probe")
    assert facts["stores"] == {"store-1": 7}
    assert facts["state_dir_fs"] == mount_of(str(one_host.state_dir))[1]
    assert facts["pid1_start_time"] == channel.hello["pid1_start_time"]
    assert 0 <= facts["boottime_s"] - channel.hello["boottime_s"] < 600
    assert {"linger", "kill_user_processes"} <= facts.keys()


YES, NO = "KillUserProcesses = yes", "KillUserProcesses=no"
MAIN, DROP_IN = "/etc/systemd/logind.conf", "{}/systemd/logind.conf.d/{}.conf"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({MAIN: "[Login]\n#KillUserProcesses=yes\n"}, None),
        ({MAIN: YES}, True),
        ({MAIN: YES, DROP_IN.format("/run", "a"): NO}, False),
        ({DROP_IN.format("/usr/lib", "b"): YES, DROP_IN.format("/etc", "a"): NO}, True),
        ({DROP_IN.format("/usr/lib", "a"): YES, DROP_IN.format("/etc", "a"): ""}, None),
    ],
)
def test_the_files_of_logind_count_in_its_own_order(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: bool | None
) -> None:
    monkeypatch.setattr(probe_module, "read_text", files.get)
    folders = {os.path.dirname(path) for path in files}
    names = {one: [os.path.basename(path) for path in files if os.path.dirname(path) == one] for one in folders}
    monkeypatch.setattr(probe_module, "names_in", lambda folder: names.get(folder, []))
    assert kills_user_processes() is expected
