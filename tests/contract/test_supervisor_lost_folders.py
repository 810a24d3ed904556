"""Hosts that lose things while runs are on them: folders, single files, disks, inodes, the program itself."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.supervisor.names import REAPER_NAME, SUPERVISOR_NAME
from testbed.programs import unpacked_supervisor
from tests.support.lock_dirs import new_lock_dir
from tests.support.supervisor_host import SLEEP, Channel, Host, Refusal, is_alive, make_plan, start, until

RUN = "t1.1.7"
#: ``PR_SET_CHILD_SUBREAPER`` of ``prctl(2)``.
SET_CHILD_SUBREAPER = 36
#: A rank and a descendant of it that has neither its environment nor its locks nor its session.
HIDING = (
    "python", "-c",
    "import os, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        print(os.getpid(), flush=True)\n"
    "        os.closerange(0, 256)\n"
    "        os.execve('/bin/sleep', ['sleep', '1000'], {})\n"
    "    os._exit(0)\n"
    "time.sleep(1000)\n",
)  # fmt: skip


@pytest.fixture(params=["lock_dir", "no lock_dir"])
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    """A host without cgroups, once with locks for all accounts and once without."""
    lock_dir = new_lock_dir(tmp_path) if request.param == "lock_dir" else "none"
    found = Host(tmp_path / "host", cgroup=False, lock_dir=lock_dir)
    yield found
    found.clean()


@pytest.fixture
def pids() -> Iterator[list[int]]:
    """Processes that a test must not leave behind."""
    found: list[int] = []
    yield found
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def heir(pids: list[int]) -> Iterator[None]:
    """Make this process inherit orphans: those of other programs of the machine are no suspects of a run then."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    libc.prctl(SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    for pid in pids:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def hide(host: Host, channel: Channel, pids: list[int]) -> int:
    """Start a run with a hiding process, and return its pid. Supervisor and reaper are the last pids."""
    start(channel, make_plan(RUN, *HIDING))
    pid = int(channel.wait(lambda: channel.stream(RUN, "rank0.log")))
    until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", "the hiding process")
    pids += [pid, *host.processes(RUN), host.supervisor_pid(RUN), host.reaper_pid(RUN)]
    return pid


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_a_removed_state_folder_ends_its_runs_and_the_same_channel_starts_new_ones(bare: Host, pids: list[int]) -> None:
    channel = bare.channel()
    hidden = hide(bare, channel, pids)
    assert [name_of(pid) for pid in pids[-2:]] == [SUPERVISOR_NAME, REAPER_NAME]
    shutil.rmtree(bare.state_dir)
    gone = channel.wait(lambda: next((one for one in channel.frames if one["t"] == "gone"), None))
    assert (gone["run"], gone["reason"]) == (RUN, "its folder was removed")
    with pytest.raises(Refusal) as refused:
        channel.call("subscribe", run=RUN, offsets={}, logs="none")
    assert refused.value.code == "unknown_run"
    assert channel.call("fence", run=RUN, token=7)["clear"] is True
    assert not is_alive(hidden), "the proof holds for what hides as well"
    assert not any(is_alive(pid) for pid in pids)
    start(channel, make_plan("t2.1.8", *SLEEP))
    assert channel.call("status")["slots"]["0"]["held_by"] == "t2.1.8"
    with pytest.raises(Refusal, match="tombstone"):
        channel.call("prepare", plan=make_plan(RUN, *SLEEP), secrets={})


def test_a_slot_of_a_run_whose_files_were_removed_is_not_taken_by_another_run(bare: Host, pids: list[int]) -> None:
    channel = bare.channel()
    start(channel, make_plan(RUN, "python", "-c", "import signal, time; signal.pause()"))
    pids += [*bare.processes(RUN), bare.supervisor_pid(RUN), bare.reaper_pid(RUN)]
    os.kill(pids[-2], signal.SIGSTOP)
    shutil.rmtree(bare.state_dir)
    with pytest.raises(Refusal, match="slot_busy"):
        channel.call("prepare", plan=make_plan("t2.1.8", *SLEEP), secrets={})
    assert channel.call("fence", run=RUN, token=7)["clear"] is True
    assert channel.call("prepare", plan=make_plan("t2.1.8", *SLEEP), secrets={})["state"] == "prepared"


def test_a_folder_that_was_renamed_is_gone_as_well(bare: Host, pids: list[int]) -> None:
    """Files that are open do not count as removed then, and the supervisor cannot notice it."""
    channel = bare.channel()
    hide(bare, channel, pids)
    os.kill(pids[-2], signal.SIGSTOP)
    bare.state_dir.rename(f"{bare.state_dir}.old")
    assert channel.call("fence", run=RUN, token=7)["clear"] is True
    assert not any(is_alive(pid) for pid in pids)


def test_a_slot_whose_lock_for_all_accounts_was_removed_too_is_not_taken_by_another_run(
    tmp_path: Path, pids: list[int]
) -> None:
    host = Host(tmp_path / "host", cgroup=False, lock_dir=new_lock_dir(tmp_path))
    if host.lock_dir == "none":
        pytest.skip("a lock_dir needs root")
    try:
        channel = host.channel()
        hide(host, channel, pids)
        os.kill(pids[-2], signal.SIGSTOP)
        for file in Path(str(host.lock_dir)).iterdir():
            file.unlink()
        shutil.rmtree(host.state_dir)
        with pytest.raises(Refusal, match="whose files were removed"):
            channel.call("prepare", plan=make_plan("t2.1.8", *SLEEP), secrets={})
        assert channel.call("fence", run=RUN, token=7, launched=launched(host))["clear"] is True
        start(channel, make_plan("t2.1.8", *SLEEP))
    finally:
        host.clean()


def test_a_run_without_folder_ends_itself_although_no_fence_comes(bare: Host, pids: list[int]) -> None:
    hide(bare, bare.channel(), pids)
    shutil.rmtree(bare.run_dir(RUN))
    until(lambda: not any(is_alive(pid) for pid in pids), "the end of supervisor, ranks and reaper")


def test_a_reaper_at_work_for_a_run_without_folder_is_no_proof(bare: Host, pids: list[int]) -> None:
    channel = bare.channel()
    hidden = hide(bare, channel, pids)
    reaper, supervisor = pids[-1], pids[-2]
    # A channel would continue the reaper.
    channel.close()
    os.kill(reaper, signal.SIGSTOP)
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: not is_alive(supervisor), "the death of the supervisor")
    shutil.rmtree(bare.state_dir)
    assert is_alive(hidden), "its supervisor is dead, and the reaper stopped"
    channel = bare.channel()
    other = channel.call("fence", run="t9.9.9", token=9, wait_s=0)
    assert other["clear"] is False, "it might be that run's"
    assert reaper in [one["pid"] for one in other["survivors"]]
    # The fence continues a reaper that was stopped.
    assert channel.call("fence", run=RUN, token=7)["clear"] is True
    assert not is_alive(hidden)
    assert channel.call("fence", run="t9.9.9", token=9)["clear"] is True


def test_a_process_that_keeps_only_the_removed_lock_of_its_slot_is_found(bare: Host, pids: list[int]) -> None:
    """All else is gone: the folders, the supervisor and the reaper, and the process has no environment."""
    channel = bare.channel()
    keeping = tuple(word.replace("        os.closerange(0, 256)\n", "") for word in HIDING)
    start(channel, make_plan(RUN, *keeping))
    pid = int(channel.wait(lambda: channel.stream(RUN, "rank0.log")))
    until(lambda: name_of(pid) == "sleep", "the hiding process")
    pids += [pid, *bare.processes(RUN), bare.supervisor_pid(RUN), bare.reaper_pid(RUN)]
    channel.close()
    reaper, supervisor = pids[-1], pids[-2]
    os.kill(reaper, signal.SIGSTOP)
    for other in (supervisor, reaper):
        os.kill(other, signal.SIGKILL)
    until(lambda: not is_alive(reaper), "the death of the reaper")
    shutil.rmtree(bare.state_dir)
    assert is_alive(pid)
    channel = bare.channel()
    assert channel.call("fence", run=RUN, token=7)["clear"] is True
    assert not is_alive(pid)


def test_a_reaper_of_another_run_is_no_obstacle(bare: Host, pids: list[int]) -> None:
    channel = bare.channel()
    start(channel, make_plan("t2.1.8", *SLEEP))
    os.kill(bare.reaper_pid("t2.1.8"), signal.SIGSTOP)
    assert channel.call("fence", run=RUN, token=7, wait_s=0)["clear"] is True
    os.kill(bare.reaper_pid("t2.1.8"), signal.SIGCONT)
    shutil.rmtree(bare.run_dir("t2.1.8"))
    assert channel.call("fence", run=RUN, token=7, wait_s=0)["clear"] is True, "its supervisor has the lock of that run"


def test_the_next_holder_of_a_slot_that_has_not_written_its_name_is_nobodys_leftover(
    bare: Host, pids: list[int]
) -> None:
    """A supervisor takes the lock of a slot first and writes its run into it then."""
    channel = bare.channel()
    start(channel, make_plan("t2.1.8", *SLEEP))
    pids += [*bare.processes("t2.1.8"), bare.supervisor_pid("t2.1.8"), bare.reaper_pid("t2.1.8")]
    label = bare.state_dir / "slots" / "0.lock"
    label.write_text(label.read_text().replace("t2.1.8", RUN))
    assert RUN in label.read_text()
    assert channel.call("fence", run=RUN, token=7, wait_s=0)["clear"] is True
    assert all(is_alive(pid) for pid in pids)


def paths_of_a_run() -> list[str]:
    return [
        ".", "slots", "slots/0.lock", "slots/0.token", "tombstones", "runs", "store.json", "store.lock",
        *(f"runs/{RUN}{name}" for name in (
            "", "/lock", "/plan.json", "/context.json", "/supervisor.json", "/started", "/state.json", "/control",
            "/go.json", "/renewed", "/events.supervisor", "/rank0", "/rank0/log", "/rank0/gaps.json", "/work",
            "/checkpoints", "/baseline.json", "/reserve",
        )),
    ]  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("fence", [True, False], ids=["fenced", "left alone"])
@pytest.mark.parametrize("path", paths_of_a_run())
def test_without_any_file_a_run_can_be_ended_and_its_slot_used_again(
    tmp_path: Path, pids: list[int], path: str, fence: bool
) -> None:
    host = Host(tmp_path / "host", cgroup=False)
    try:
        channel = host.channel()
        hidden = hide(host, channel, pids)
        target = host.state_dir / path
        assert target.exists()
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        if not fence:
            os.kill(pids[-2], signal.SIGTERM)
            until(lambda: not is_alive(pids[-2]), "the end of the supervisor")
        assert channel.call("fence", run=RUN, token=7)["clear"] is True
        assert not is_alive(hidden)
        start(channel, make_plan("t2.1.8", "true"), logs="none")
        channel.wait_event("t2.1.8", "ended")
        until(lambda: channel.call("status")["slots"]["0"]["held_by"] is None, "the free slot")
    finally:
        host.clean()


def test_a_channel_whose_program_was_removed_ends_and_says_why(tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    copy = tmp_path / "supervisor" / ("0" * 64)
    shutil.copytree(unpacked_supervisor(), copy)
    argv = host.argv("follow")
    argv[2] = str(copy)
    channel = Channel(host, argv)
    try:
        assert channel.call("status")["runs"] == {}
        shutil.rmtree(copy)
        with pytest.raises(EOFError, match="The folder of the supervisor was removed"):
            channel.wait(lambda: False)
    finally:
        channel.close()


def test_folders_that_cannot_be_made_again_end_the_channel_and_are_named(one_host: Host) -> None:
    channel = one_host.channel()
    shutil.rmtree(one_host.state_dir)
    one_host.state_dir.write_text("a file in the way")
    with pytest.raises(Refusal, match="must be a folder of user"):
        channel.call("fence", run=RUN, token=7)
    with pytest.raises(EOFError, match="cannot be made again: .* must be a folder of user"):
        channel.wait(lambda: False)
    one_host.state_dir.unlink()
    one_host.state_dir.mkdir()


# -- disks ------------------------------------------------------------------------------------------------------


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Host]]:
    """Factory of a host whose state folder is a small file system with these options."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made: list[Host] = []

    def make(options: str) -> Host:
        if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o {options} none {folder}"):
            pytest.skip("mounting a file system needs root")
        host = Host(tmp_path / "host", cgroup=False)
        host.state_dir = folder / "state"
        made.append(host)
        return host

    yield make
    for host in made:
        os.system(f"mount -o remount,rw {folder}")
        host.clean()
        os.system(f"umount -l {folder}")


def read_only(host: Host) -> None:
    """Make the file system of a host read-only for every later open, as after a fault of the disk."""
    folder = host.state_dir.parent
    assert os.system(f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}") == 0


def writable(host: Host) -> None:
    assert os.system(f"umount -l {host.state_dir.parent}") == 0


@pytest.mark.nightly
@pytest.mark.usefixtures("heir")
def test_a_run_on_a_disk_that_became_read_only_is_ended_and_proved_gone(
    mounted: Callable[[str], Host], pids: list[int]
) -> None:
    host = mounted("size=16m")
    channel = host.channel()
    hidden = hide(host, channel, pids)
    read_only(host)
    try:
        other = host.channel()
        found = other.call("fence", run=RUN, token=7)
        assert found["clear"] is True, found
        assert not is_alive(hidden)
        with pytest.raises(Refusal, match="read_only"):
            other.call("fence", run="t9.9.9", token=9)
        with pytest.raises(Refusal, match="read_only"):
            other.call("prepare", plan=make_plan("t2.1.8", *SLEEP), secrets={})
    finally:
        writable(host)
    assert host.channel().call("prepare", plan=make_plan("t2.1.8", *SLEEP), secrets={})["state"] == "prepared"


def test_the_end_of_a_run_that_a_read_only_disk_cannot_record_is_told(
    mounted: Callable[[str], Host], pids: list[int]
) -> None:
    host = mounted("size=16m")
    hide(host, host.channel(), pids)
    read_only(host)
    try:
        channel = host.channel()
        channel.call("subscribe", run=RUN, offsets={}, logs="none")
        for pid in pids[-1:-3:-1]:
            os.kill(pid, signal.SIGKILL)
        gone = channel.wait(lambda: next((one for one in channel.frames if one["t"] == "gone"), None))
        assert gone["reason"].startswith("its end cannot be recorded: Not writable: Read-only file system")
    finally:
        writable(host)


def test_a_disk_without_inodes_lets_a_run_be_asked_stopped_and_fenced(
    mounted: Callable[[str], Host], pids: list[int]
) -> None:
    host = mounted("size=64m,nr_inodes=200")
    channel = host.channel()
    script = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); print(1, flush=True); time.sleep(1000)"
    )
    for run, slot in ((RUN, 0), ("t2.1.8", 1), ("t3.1.9", 2)):
        plan = make_plan(run, "python", "-c", script)
        plan["ranks"][0]["slot"] = slot
        start(channel, plan)
        channel.wait(lambda run=run: channel.stream(run, "rank0.log"))
    disk = host.state_dir.parent
    with suppress(OSError):
        for number in range(1000):
            (disk / f"filler-{number}").touch()
    assert channel.call("probe")["problems"] == [
        f"{disk} has no inodes left (df -i {disk}): remove files there, or set state_dir or remote_dir"
    ]
    channel.call("request_stop", run=RUN, by_signal=True)
    assert channel.wait_event(RUN, "ended")["reason"] == "stopped"
    channel.call("stop", run="t2.1.8", grace_s=0)
    assert channel.wait_event("t2.1.8", "ended")["reason"] == "stopped"
    assert channel.call("fence", run="t3.1.9", token=9)["clear"] is True


def test_a_probe_names_each_fault_that_prevents_a_launch_and_what_helps(mounted: Callable[[str], Host]) -> None:
    host = mounted("size=1m")
    channel = host.channel()
    assert (channel.call("probe")["problems"], channel.call("probe")["doubts"]) == ([], [])
    folder = host.state_dir.parent
    with suppress(OSError), (folder / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    assert channel.call("probe")["problems"] == [
        f"{folder} has no space left (df {folder}): free some there, or set state_dir or remote_dir"
    ]
    (folder / "ballast").unlink()
    read_only(host)
    try:
        (problem,) = host.channel().call("probe")["problems"]
        assert problem.startswith(f"{folder} (tmpfs) is mounted read-only: check dmesg")
        assert problem.endswith(f"mount -o remount,rw {folder}")
    finally:
        writable(host)
    assert sorted(one.name for one in host.state_dir.rglob("*") if "test" in one.name) == []
    assert list((host.state_dir / "tombstones").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [("#!/bin/sh\nexit 3\n", "ends with exit status 3"), ("#!/no/such/thing\n", "cannot be started: No such file")],
)
def test_a_probe_names_an_interpreter_that_broke_after_the_channel_began(tmp_path: Path, text: str, words: str) -> None:
    host = Host(tmp_path / "host")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    code = f"import sys, runpy; sys.executable = {str(python)!r}; sys.argv = sys.argv[1:]; " \
        "runpy.run_path(sys.argv[0], run_name='__main__')"  # fmt: skip
    argv = host.argv("follow")
    channel = Channel(host, [sys.executable, "-c", code, *argv[2:]])
    try:
        assert channel.call("probe")["problems"] == []
        python.write_text(text)
        (problem,) = channel.call("probe")["problems"]
        assert problem.startswith(f"{python} {words}")
    finally:
        channel.close()


# -- changed identities ---------------------------------------------------------------------------------------------


def launched(host: Host, **changes: Any) -> dict[str, Any]:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"boot_id": boot_id, "state_dir": str(host.state_dir), "slots": [{"slot": 0, "device": None}], **changes}


def test_a_run_that_was_started_with_another_state_folder_is_found_by_the_lock_of_its_slot(
    tmp_path: Path, pids: list[int]
) -> None:
    host = Host(tmp_path / "host", cgroup=False, lock_dir=new_lock_dir(tmp_path))
    try:
        if host.lock_dir == "none":
            pytest.skip("a lock_dir needs root")
        hidden = hide(host, host.channel(), pids)
        before = str(host.state_dir)
        # As after a change of the machine id or of the account's number, which are parts of the default.
        host.state_dir = host.root / "state-of-another-id"
        channel = host.channel()
        known = launched(host, state_dir=before)
        assert channel.call("fence", run=RUN, token=7, launched=known)["clear"] is True
        assert not is_alive(hidden)
        assert not any(is_alive(pid) for pid in pids)
    finally:
        host.state_dir = host.root / "state"
        host.clean()


def test_the_lock_of_a_slot_that_another_process_holds_is_a_doubt(tmp_path: Path, pids: list[int]) -> None:
    lock_dir = new_lock_dir(tmp_path)
    if lock_dir == "none":
        pytest.skip("a lock_dir needs root")
    host = Host(tmp_path / "host", cgroup=False, lock_dir=lock_dir)
    other = Host(tmp_path / "other", cgroup=False, lock_dir=lock_dir)
    try:
        channel = host.channel()
        holder = subprocess.Popen(["flock", f"{lock_dir}/dtrain-cpu-0.lock", "sleep", "1000"])
        pids.append(holder.pid)
        until(lambda: channel.call("status", slots=[{"slot": 0, "device": None}])["slots"]["0"]["held_by"], "the lock")
        found = channel.call("fence", run=RUN, token=7, wait_s=0, launched=launched(host))
        assert (found["clear"], "sleep 1000" in str(found["survivors"])) == (False, True)
        assert holder.poll() is None, "it is named and not killed"
        assert channel.call("fence", run=RUN, token=7, wait_s=0)["clear"] is True, "a run that was never launched"
        booted = launched(host, boot_id="another")
        assert channel.call("fence", run=RUN, token=7, wait_s=0, launched=booted)["clear"] is True
        subprocess.run(["pkill", "-P", str(holder.pid)], check=True)
        holder.wait(20)
        start(other.channel(), make_plan("t2.1.8", *SLEEP))
        assert channel.call("fence", run=RUN, token=7, launched=launched(host))["clear"] is True, "of another run"
    finally:
        host.clean()
        other.clean()


def test_without_a_lock_folder_another_state_folder_proves_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path / "host", lock_dir="none")
    try:
        channel = host.channel()
        found = channel.call("fence", run=RUN, token=7, wait_s=0, launched=launched(host, state_dir="/var/tmp/before"))
        assert found["clear"] is False
        assert "was started with state_dir /var/tmp/before" in found["doubts"][0]
        assert channel.call("fence", run=RUN, token=7, launched=launched(host))["clear"] is True
    finally:
        host.clean()


# -- cleaners of temporary files ------------------------------------------------------------------------------------


def test_systemd_tmpfiles_spares_the_files_of_a_living_run_and_of_a_channel(tmp_path: Path) -> None:
    program = shutil.which("systemd-tmpfiles")
    if program is None:
        pytest.skip("systemd-tmpfiles is not installed")
    host = Host(tmp_path / "var" / "host")
    try:
        channel = host.channel()
        start(channel, make_plan(RUN, *SLEEP))
        unlocked = tmp_path / "var" / "unlocked" / "file"
        unlocked.parent.mkdir()
        unlocked.touch()
        before = {path for path in host.state_dir.rglob("*") if "progress" not in str(path)}
        conf = tmp_path / "clean.conf"
        conf.write_text(f"q {tmp_path}/var 0755 - - 1s\n")

        def clean() -> None:
            subprocess.run([program, "--clean", str(conf)], check=True, timeout=60)

        until(lambda: [clean(), not unlocked.exists()][1], "the age of the files")
        assert {path for path in before if not path.exists()} == set()
        channel.close()
        clean()
        assert {path for path in before if not path.exists()} == set(), "the supervisor keeps them as well"
        assert json.loads((host.run_dir(RUN) / "state.json").read_text())["state"] == "running"
    finally:
        host.clean()
