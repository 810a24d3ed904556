"""Installation of the supervisor: complete or not usable, whatever interrupts it, and runnable from any folder."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from airflow_provider_dtrain.hosts.install import _BOOTSTRAP, install
from airflow_provider_dtrain.hosts.payload import Payload, supervisor
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from tests.support.supervisor_host import interpreters
from tests.support.supervisors import program

#: Runs the bootstrap once for each folder that standard input names with a number. A process dies, as if killed, before
#: the line with its number. Prints the exit status of each, until one has run to its end. A kill loses no written data,
#: so nothing waits for the disk.
INTERRUPTED = """
import hashlib, io, os, shutil, sys, tarfile
os.fsync = lambda fd: None
code, digest, archive = compile(sys.argv[1], "bootstrap", "exec"), sys.argv[2], open(sys.argv[3], "rb").read()
def run(home, last):
    count = [0]
    def trace(frame, event, argument):
        if frame.f_code.co_filename != "bootstrap":
            return None
        count[0] += event == "line"
        if event == "line" and count[0] == last:
            os._exit(9)
        return trace
    sys.argv, sys.stdin = ["-c", home, digest], io.TextIOWrapper(io.BytesIO(archive))
    sys.stdout = io.StringIO()
    sys.settrace(trace)
    exec(code, {"__name__": "__main__"})
for line in list(sys.stdin):
    home, last = line.split()
    pid = os.fork()
    if pid == 0:
        try:
            run(home, int(last))
        except SystemExit:
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(status, flush=True)
    if status == 0 and last != "0":
        break
"""


def two_files(main: bytes = b"print('ready')\n") -> Payload:
    return program(main, other=b"x = 1\n")


def put(home: Path, archive: Payload, python: str = sys.executable) -> Path:
    """Install an archive below a home folder and return its folder."""
    home.mkdir(exist_ok=True)
    install(LocalTransport(home=home), python=python, remote_dir="remote", archive=archive, timeout_s=60)
    return home / "remote" / "supervisor" / archive.digest


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def interrupted(tmp_path: Path, archive: Payload, homes: dict[Path, int]) -> list[int]:
    """Return the exit status of an installation into each of some folders, killed before the line of that number.

    The first one that runs to its end is the last one. Number 0 interrupts nothing.
    """
    (tmp_path / "archive").write_bytes(archive.content)
    argv = [sys.executable, "-S", "-c", INTERRUPTED, _BOOTSTRAP, archive.digest, str(tmp_path / "archive")]
    lines = "".join(f"{home} {line}\n" for home, line in homes.items())
    return [int(word) for word in subprocess.check_output(argv, input=lines, text=True).split()]


@pytest.mark.parametrize("is_damaged", [False, True], ids=["missing", "damaged"])
def test_an_installation_killed_at_any_line_leaves_no_part_in_use(tmp_path: Path, is_damaged: bool) -> None:
    archive, homes = two_files(), {tmp_path / str(line): line for line in range(1, 400)}
    complete = files_of(put(tmp_path / "whole", archive))
    targets = [home / "supervisor" / archive.digest for home in homes]
    for target in targets if is_damaged else []:
        target.mkdir(parents=True)
        (target / "__main__.py").write_bytes(b"")
    statuses = interrupted(tmp_path, archive, homes)
    assert statuses == [9] * (len(statuses) - 1) + [0]
    assert len(statuses) > 50
    found = [files_of(target) for target in targets if target.exists()]
    if is_damaged:
        # A repair replaces one whole file after the other.
        assert all(files["__main__.py"] in (b"", complete["__main__.py"]) for files in found)
        assert all(files.items() - {("__main__.py", b"")} <= complete.items() for files in found)
    else:
        assert all(files == complete for files in found)
    assert set(interrupted(tmp_path, archive, dict.fromkeys([*homes][: len(statuses)], 0))) == {0}
    assert all(files_of(target) == complete for target in targets[: len(statuses)])


def test_installers_at_once_leave_one_complete_folder(tmp_path: Path) -> None:
    archive = two_files()
    argv = [sys.executable, "-c", _BOOTSTRAP, str(tmp_path), archive.digest]
    for is_damaged in (False, True):
        target = tmp_path / "supervisor" / archive.digest
        if is_damaged:
            (target / "__main__.py").write_bytes(b"")
        running = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(6)]
        for one in running:
            assert one.stdin
            one.stdin.write(archive.content)
            one.stdin.close()
        said = [one.stdout.read() for one in running if one.stdout]
        assert [one.wait() for one in running] == [0] * 6
        assert all(words.endswith(b"ok\n") for words in said), said
        assert files_of(target) == files_of(put(tmp_path / "whole", archive))
        assert list((tmp_path / "supervisor").iterdir()) == [target]


def test_a_damaged_folder_is_never_missing_while_it_is_repaired(tmp_path: Path) -> None:
    folder = put(tmp_path, two_files())
    before = folder.stat().st_ino
    (folder / "__main__.py").write_bytes(b"")
    (folder / "part" / "other.py").unlink()
    put(tmp_path, two_files())
    assert folder.stat().st_ino == before
    assert files_of(folder) == files_of(put(tmp_path / "whole", two_files()))


def test_a_folder_in_the_place_of_a_file_is_replaced(tmp_path: Path) -> None:
    folder = put(tmp_path, two_files())
    (folder / "__main__.py").unlink()
    (folder / "__main__.py" / "inner").mkdir(parents=True)
    put(tmp_path, two_files())
    assert files_of(folder) == files_of(put(tmp_path / "whole", two_files()))
    assert list(folder.parent.iterdir()) == [folder]


def test_a_complete_folder_stays_and_loses_only_its_bytecode(tmp_path: Path) -> None:
    folder = put(tmp_path, two_files())
    before = (folder / "__main__.py").stat()
    (folder / "part" / "__pycache__").mkdir()
    (folder / "part" / "__pycache__" / "other.cpython-39.pyc").write_bytes(b"damaged")
    put(tmp_path, two_files())
    assert (folder / "__main__.py").stat().st_ino == before.st_ino
    assert sorted(files_of(folder)) == ["__main__.py", "part/other.py"]


def test_another_version_stays(tmp_path: Path) -> None:
    folder = put(tmp_path, two_files())
    other = put(tmp_path, two_files(b"print('other')\n"))
    assert sorted(folder.parent.iterdir()) == sorted([folder, other])


def test_the_archive_has_the_supervisor_and_pynvml_and_nothing_of_the_control_side() -> None:
    with tarfile.open(fileobj=io.BytesIO(supervisor().content)) as archive:
        names = archive.getnames()
        assert {(member.mtime, member.uid, member.uname) for member in archive} == {(0, 0, "")}
    rest = {name for name in names if not name.startswith("airflow_provider_dtrain/supervisor/")}
    assert rest == {"__main__.py", "pynvml.py", "airflow_provider_dtrain/__init__.py"}
    assert supervisor().digest == hashlib.sha256(supervisor().content).hexdigest()


@pytest.mark.parametrize("python", interpreters())
def test_the_supervisor_runs_from_a_relative_folder_and_caches_its_bytecode(tmp_path: Path, python: str) -> None:
    folder = put(tmp_path, supervisor(), python)
    argv = [python, f"remote/supervisor/{folder.name}", "probe", "--state-dir", str(tmp_path), "--lock-dir", "none"]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, check=True)
    assert json.loads(done.stdout)["ok"] is True
    assert list(folder.glob("airflow_provider_dtrain/supervisor/checks/__pycache__/probe.*.pyc"))
