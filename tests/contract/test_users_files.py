"""Files of the user with the names of Python's modules: no program of this package imports one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_dtrain.errors import HostProtocolError
from airflow_provider_dtrain.hosts.channel.link import HostLink
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from airflow_provider_dtrain.supervisor.run.plan import check_context
from airflow_provider_dtrain.supervisor.run.rank_environment import rank_environment
from airflow_provider_dtrain.supervisor.run.ranks import rank_argv
from tests.support.lock_dirs import new_lock_dir
from tests.support.supervisor_host import archive, interpreters, make_plan, until

ROOT = Path(__file__).parents[2]
#: Whatever imports such a file ends with a status of its own.
POISON = "import os\nos.write(2, ('a file of the user was imported: ' + __file__).encode())\nos._exit(77)\n"
NAMES = sorted({name for name in sys.stdlib_module_names if "." not in name} | {"airflow_provider_dtrain", "pynvml"})


def poison(folder: Path, names: list[str] = NAMES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.py").write_text(POISON)
    return folder


def user_site(base: Path, python: str) -> Path:
    code = "import site, sys; sys.stdout.write(site.getusersitepackages())"
    done = subprocess.run([python, "-c", code], env={"PYTHONUSERBASE": str(base)}, capture_output=True, check=True)
    return Path(done.stdout.decode())


@pytest.mark.parametrize("python", interpreters(), ids=lambda path: Path(path).parents[1].name)
def test_a_host_works_with_such_files_at_home_on_the_path_and_in_the_users_packages(
    tmp_path: Path, python: str
) -> None:
    home = poison(tmp_path / "home")
    path, base = poison(tmp_path / "path"), tmp_path / "base"
    poison(user_site(base, python), [*NAMES, "sitecustomize", "usercustomize"])
    (path / "mine-2.5.dist-info").mkdir()
    (path / "mine-2.5.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 2.5\n")
    (path / "mine.py").write_text(POISON)
    transport = LocalTransport(home=home, env={"PYTHONPATH": str(path), "PYTHONUSERBASE": str(base)})
    link = HostLink.connect(
        transport, remote_dir="~/.dtrain", state_dir=str(tmp_path / "state"), python=python,
        lock_dir=new_lock_dir(tmp_path),
    )  # fmt: skip
    try:
        assert link.call("probe").result(60)["executable"]
        run = make_plan("t1.1.7", "/bin/sh", "-c", "echo here; exec sleep 1000")
        link.call("prepare", plan=run, secrets={}).result(60)
        link.call("go", run="t1.1.7", master_addr="127.0.0.1", master_port=1).result(60)
        assert link.call("exec", run="t1.1.7", rank=0, argv=["echo", "beside"], limit_s=20).result(60)["killed"] == 0
        until(lambda: link.call("match", run="t1.1.7", patterns=["here"]).result(60)["matches"], "the line")
        with link.putting("t2.1.8", "checkpoints") as outgoing:
            outgoing.write(archive({"step-1/model.bin": "weights"}))
        with link.fetching("t2.1.8", "checkpoints/step-1") as incoming:
            assert incoming.read()
        assert link.call("fence", run="t1.1.7", token=7, wait_s=10).result(60)["clear"]
    finally:
        link.close()


@pytest.mark.nightly
@pytest.mark.parametrize("python", interpreters(), ids=lambda path: Path(path).parents[1].name)
def test_the_check_before_a_launch_finds_modules_on_the_users_path_without_importing_from_it(
    tmp_path: Path, python: str
) -> None:
    path = poison(tmp_path / "path")
    (path / "mine-2.5.dist-info").mkdir()
    (path / "mine-2.5.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 2.5\n")
    (path / "mine.py").write_text(POISON)
    transport = LocalTransport(home=tmp_path, env={"PYTHONPATH": str(path)})
    link = HostLink.connect(
        transport,
        remote_dir=".dtrain",
        state_dir=str(tmp_path / "state"),
        python=python,
        lock_dir=new_lock_dir(tmp_path),
    )
    try:
        found = link.call("preflight", python=python, modules=["mine", "json", "no_such"]).result(60)
    finally:
        link.close()
    assert found["problems"] == []
    assert (found["modules"]["mine"], found["modules"]["no_such"]) == ("2.5", None)
    assert found["modules"]["json"]


@pytest.mark.parametrize("python", interpreters(), ids=lambda path: Path(path).parents[1].name)
def test_a_program_of_the_library_imports_none_from_the_code_of_the_user(tmp_path: Path, python: str) -> None:
    work = poison(tmp_path / "runs" / "t1.1.7" / "work")
    folder = work / "dtrain_function"
    folder.mkdir()
    (folder / "call.json").write_text(json.dumps({"name": "train", "args": [3], "kwargs": {}, "defaults": {}}))
    (folder / "mine.py").write_text("def train(number):\n    import own\n    print(own.NAME, number, flush=True)\n")
    (work / "own.py").write_text("NAME = 'own'\n")

    class Folder:
        name, path = "t1.1.7", str(tmp_path / "runs" / "t1.1.7")

        class layout:
            @staticmethod
            def library(digest: str) -> str:
                return str(ROOT)

        @staticmethod
        def file(*parts: str) -> str:
            return str(tmp_path.joinpath("runs", "t1.1.7", *parts))

    argv = ["python", "-m", "airflow_provider_dtrain.train.function", "dtrain_function/mine.py"]
    plan = make_plan("t1.1.7", *argv, python=python, library="abc")
    go = {"master_addr": "a", "master_port": 1}
    env = rank_environment(plan, check_context({}), plan["ranks"][0], Folder(), go, {})  # type: ignore[arg-type]
    (tmp_path / "runs" / "t1.1.7" / "rank0").mkdir()
    done = subprocess.run(rank_argv(plan), cwd=work, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "own 3\n"), done.stderr


def test_a_broken_interpreter_is_named_with_the_file_in_which_it_stopped(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    code = f'import sys; sys.path.insert(0, "{tmp_path}"); import tarfile'
    broken.write_text(f"#!/bin/sh\nexec {sys.executable} -S -c '{code}'\n")
    broken.chmod(0o755)
    (tmp_path / "bz2.py").write_text("raise ValueError('not what you expect')\n")
    (tmp_path / "home").mkdir()
    with pytest.raises(HostProtocolError, match=rf"(?s)Python stopped in {tmp_path}/bz2\.py\. .*not what you expect"):
        HostLink.connect(
            LocalTransport(home=tmp_path / "home"), remote_dir=".dtrain", state_dir=None, python=str(broken)
        )


@pytest.mark.parametrize("says", ["", "echo welcome\n"])
def test_a_login_script_that_ends_the_session_is_named(tmp_path: Path, says: str) -> None:
    shell = tmp_path / "python"
    shell.write_text(f"#!/bin/sh\n{says}exit 0\n")
    shell.chmod(0o755)
    with pytest.raises(HostProtocolError, match="A login script of the account ends it"):
        HostLink.connect(LocalTransport(home=tmp_path), remote_dir=".dtrain", state_dir=None, python=str(shell))
