"""Lock files of slots: which folder may hold them, and what another user may have put in their place."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_dtrain.supervisor.checks.probe import probe
from airflow_provider_dtrain.supervisor.file_access import make_private, user_name
from airflow_provider_dtrain.supervisor.files import layout as layout_module
from airflow_provider_dtrain.supervisor.files.layout import Layout
from airflow_provider_dtrain.supervisor.machine.locks import (
    machine_holder,
    take_lock,
    take_machine_lock,
    why_no_lock_dir,
)
from airflow_provider_dtrain.supervisor.refusal import Refused

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of other users need root")
STRANGER = 54_321


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "lock"
    path.mkdir()
    path.chmod(0o1777)
    return path


def take(path: Path) -> int | None:
    return take_machine_lock(str(path), create=True)


@pytest.mark.parametrize("take_it", [take_lock, lambda path: take_machine_lock(path, create=True)])
def test_a_lock_file_that_was_replaced_before_it_was_locked_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, take_it: Callable[[str], int | None]
) -> None:
    path, flock = tmp_path / "0.lock", fcntl.flock
    path.touch(0o644)

    def flock_late(fd: int, kind: int) -> None:
        with monkeypatch.context():
            monkeypatch.setattr(fcntl, "flock", flock)
        path.rename(tmp_path / "old")
        path.touch(0o644)
        flock(fd, kind)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    fd = take_it(str(path))
    assert fd is not None
    assert os.fstat(fd).st_ino == path.stat().st_ino


def test_a_lock_file_is_made_readable_for_every_account_and_held_on_a_descriptor_that_cannot_write(
    folder: Path,
) -> None:
    path = folder / "dtrain-cpu-0.lock"
    before = os.umask(0o077)
    try:
        fd = take(path)
        assert os.umask(0o077) == 0o077, "the umask is as before"
    finally:
        os.umask(before)
    assert fd is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    assert take(path) is None
    os.close(fd)
    assert take(path) is not None


@needs_root
def test_a_lock_file_that_another_account_made_is_locked_without_making_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened, flags_seen = folder / "dtrain-cpu-0.lock", os.open, list[int]()
    path.touch()
    os.chown(path, STRANGER, STRANGER)
    path.chmod(0o444)

    def open_and_note(name: str, flags: int, *mode: int) -> int:
        flags_seen.append(flags)
        return opened(name, flags, *mode)

    monkeypatch.setattr(os, "open", open_and_note)
    assert take(path) is not None
    assert not [flags for flags in flags_seen if flags & os.O_CREAT], "fs.protected_regular refuses it there"


def symlink(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def dangling(path: Path) -> None:
    path.symlink_to("/no/such/file")


def second_name(path: Path) -> None:
    other = path.with_name("dtrain-cpu-1.lock")
    other.touch(0o444)
    path.hardlink_to(other)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (symlink, "a symbolic link"),
        (dangling, "a symbolic link"),
        (os.mkfifo, "a special file"),
        (os.mkdir, "a folder"),
        (second_name, "2 name(s)"),
    ],
    ids=["symlink", "dangling symlink", "fifo", "folder", "hard link"],
)
def test_what_is_no_lock_file_is_refused_at_once_with_its_owner_and_the_command_that_repairs_it(
    folder: Path, make: Callable[[Path], None], found: str
) -> None:
    path = folder / "dtrain-cpu-0.lock"
    make(path)
    with pytest.raises(Refused) as refused:
        take(path)
    assert refused.value.code == "slot_busy"
    assert found in refused.value.message
    assert f"of user {user_name(os.getuid())}" in refused.value.message
    assert refused.value.message.endswith(f"As root on the host: rm {path}")
    assert refused.value.message == machine_holder(str(path))


def test_the_holder_of_a_lock_is_named_by_the_kernels_list(folder: Path) -> None:
    path = folder / "dtrain-cpu-0.lock"
    assert machine_holder(str(path)) is None
    assert not path.exists(), "a look makes no file"
    fd = take(path)
    user = user_name(os.getuid())
    words = machine_holder(str(path))
    assert words is not None
    assert words.startswith(f"process {os.getpid()} (")
    assert words.endswith(f") of user {user}")
    assert fd is not None
    os.close(fd)
    assert machine_holder(str(path)) is None


@needs_root
def test_only_a_sticky_folder_of_root_holds_the_locks_of_all_accounts(tmp_path: Path, folder: Path) -> None:
    assert why_no_lock_dir(str(folder)) is None
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert "it is a symbolic link" in str(why_no_lock_dir(str(link)))
    assert "No such file" in str(why_no_lock_dir(str(tmp_path / "none")))
    folder.chmod(0o755)
    problem = why_no_lock_dir(str(folder))
    assert problem is not None
    assert "it has mode 0755 and belongs to user root" in problem
    assert problem.endswith(f"As root on the host: install -d -o root -g root -m 1777 {folder}")
    folder.chmod(0o777)
    assert "mode 0777" in str(why_no_lock_dir(str(folder)))
    folder.chmod(0o1777)
    os.chown(folder, STRANGER, STRANGER)
    assert f"belongs to user {STRANGER}" in str(why_no_lock_dir(str(folder)))


@needs_root
def test_a_lock_dir_that_was_set_must_be_usable_and_the_default_need_not(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.chmod(0o755)
    monkeypatch.setattr(layout_module, "LOCK_DIR", str(folder))
    layout = Layout(str(tmp_path / "remote"), str(tmp_path / "state")).ensure()
    assert layout.lock_dir is None
    assert layout.machine_lock(0, None) is None
    assert probe(layout)["lock_problem"] == why_no_lock_dir(str(folder))
    with pytest.raises(Refused, match="must be a folder of root"):
        Layout(str(tmp_path / "remote"), str(tmp_path / "state"), str(folder)).ensure()
    without = Layout(str(tmp_path / "remote"), str(tmp_path / "state"), "none").ensure()
    assert (without.lock_dir, without.lock_problem) == (None, "lock_dir is 'none'")


@needs_root
@pytest.mark.parametrize(
    ("device", "name"),
    [
        (None, "dtrain-cpu-3.lock"),
        ("GPU-5a2b", "dtrain-GPU-5a2b.lock"),
        ("MIG-GPU-5a2b/1/0", "dtrain-MIG-GPU-5a2b_1_0.lock"),
        ("../../etc", "dtrain-.._.._etc.lock"),
    ],
)
def test_a_lock_file_is_named_by_the_device_or_the_number_of_the_cpu_slot(
    tmp_path: Path, folder: Path, device: str | None, name: str
) -> None:
    layout = Layout(str(tmp_path), str(tmp_path / "state"), str(folder))
    assert layout.machine_lock(3, device) == f"{folder}/{name}"


@needs_root
def test_a_state_folder_that_another_user_made_first_is_refused_by_name(tmp_path: Path) -> None:
    for make, kind in ((os.mkdir, "a folder"), (Path.touch, "a file"), (symlink, "a symbolic link")):
        path = tmp_path / f"dtrain-0 {kind}"
        make(path)
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
        with pytest.raises(Refused) as refused:
            make_private(str(path))
        assert refused.value.code == "state_dir"
        assert refused.value.message == (
            f"{path} must be a folder of user root, found {kind} of user {STRANGER}. "
            f"As root on the host: rm -rf '{path}'. Or set state_dir."
        )
