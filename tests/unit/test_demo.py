"""The tools of scripts/demo and scripts/test: choice of Python, environment and port, and slow answers."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
BASE = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS / "tools"))
    monkeypatch.delenv("PYTHON", raising=False)


# -- which Python ----------------------------------------------------------------------------------
def found_by(path: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Return what ``find_python.sh`` prints as its choice with a PATH."""
    command = f". {SCRIPTS / 'find_python.sh'}; echo $python"
    environment = {"PATH": path, "HOME": "/", **more}
    return subprocess.run(["/bin/bash", "-c", command], env=environment, capture_output=True, text=True, check=False)


def test_the_python_below_an_active_environment_is_chosen(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    done = found_by(f"{tmp_path}/venv/bin:/usr/bin:/bin")
    assert os.path.realpath(done.stdout.strip()) == BASE
    assert not Path(done.stdout.strip()).is_relative_to(tmp_path)


def test_a_candidate_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "python3.11").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "python3.11").chmod(0o755)
    (tmp_path / "python3.12").symlink_to(BASE)
    done = found_by(f"{tmp_path}:/bin")
    assert os.path.realpath(done.stdout.strip()) == BASE


# -- which environment -----------------------------------------------------------------------------
@pytest.fixture
def wanted(tmp_path: Path) -> Any:
    """An environment that was created from the current inputs and whose interpreter has torch and Airflow."""
    import environment

    wanted = environment.Wanted(folder=tmp_path / "venv", extras=("examples",))
    (wanted.folder / "bin").mkdir(parents=True)
    (wanted.folder / "pyvenv.cfg").touch()
    wanted.python.write_text("#!/bin/sh\nexit 0\n")
    wanted.python.chmod(0o755)
    wanted.mark.write_text(json.dumps(wanted.inputs(Path(BASE))))
    return wanted


def reason(wanted: Any, **changes: str) -> str | None:
    import environment

    found: str | None = environment.why_again(wanted, {**wanted.inputs(Path(BASE)), **changes})
    return found


def test_an_environment_is_used_again_while_its_inputs_stay(wanted: Any) -> None:
    assert reason(wanted) is None
    assert reason(wanted, python="3.13.0 /other/python") is None, "no PYTHON names another one"


def test_an_environment_is_made_again_for_a_reason_that_is_said(wanted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reason(wanted, pyproject="other") == "pyproject.toml changed"
    assert reason(wanted, constraints="other") == "scripts/constraints.txt changed"
    monkeypatch.setenv("PYTHON", "/other/python")
    assert reason(wanted, python="3.13.0 /other/python") == "another Python was requested"
    wanted.python.unlink()
    assert reason(wanted) == "its interpreter does not start, or lacks torch or Airflow"
    wanted.mark.unlink()
    assert reason(wanted) == "its set-up did not finish"


def test_settings_of_linters_are_no_input(wanted: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import environment

    before = wanted.inputs(Path(BASE))
    for name in ("pyproject.toml", "scripts/constraints.txt", "airflow_provider_dtrain/__init__.py"):
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text((environment.ROOT / name).read_text())
    monkeypatch.setattr(environment, "ROOT", tmp_path / "root")
    with (tmp_path / "root" / "pyproject.toml").open("a") as file:
        file.write("\n[tool.something]\nline-length = 3\n")
    assert wanted.inputs(Path(BASE)) == before
    (tmp_path / "root/airflow_provider_dtrain/__init__.py").write_text('__version__ = "9.9.9"')
    after = wanted.inputs(Path(BASE))
    assert {name for name, value in after.items() if value != before[name]} == {"version"}


def test_the_interpreter_in_use_is_never_removed(wanted: Any) -> None:
    import environment

    with pytest.raises(environment.SetupError, match="PYTHON=/path/to/python"):
        environment.clear(wanted, wanted.python)
    assert wanted.python.exists()
    environment.clear(wanted, Path(BASE))
    assert not wanted.folder.exists()


def test_a_folder_that_is_no_environment_stays(wanted: Any) -> None:
    import environment

    (wanted.folder / "pyvenv.cfg").unlink()
    with pytest.raises(environment.SetupError, match="must be absent or a virtual environment"):
        environment.clear(wanted, Path(BASE))
    assert wanted.python.exists()


def test_uv_looks_where_pip_looks() -> None:
    import installers

    settings = {
        "find-links": "/a /b",
        "index-url": "https://one/simple",
        "extra-index-url": "https://two https://three",
    }
    assert installers.uv_options(settings, {}) == [
        *("--find-links", "/a", "--find-links", "/b", "--default-index", "https://one/simple"),
        *("--index-strategy", "unsafe-best-match", "--index", "https://two", "--index", "https://three"),
    ]
    assert installers.uv_options(settings, {"UV_INDEX_URL": "https://own"})[-2:] == ["--find-links", "/b"]
    assert installers.uv_options({"no-index": "true", "find-links": "/a"}, {}) == ["--find-links", "/a", "--no-index"]


def test_a_torch_that_was_replaced_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import installers

    versions = iter(["2.13.0+cpu", "2.13.0"])
    monkeypatch.setattr(installers, "installed_version", lambda *_: next(versions))
    installer = installers.Installer(Path("/bin/true"), tmp_path / "constraints", tmp_path / "log")
    installer.uv, installer.pip = None, ["/bin/true"]
    with pytest.raises(installers.SetupError, match=r"torch 2\.13\.0\+cpu was replaced by 2\.13\.0"):
        installer.install("installing", "x")


@pytest.mark.parametrize("pip", ["true", "false"])
def test_uv_comes_from_the_index_if_it_is_not_there_and_is_not_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pip: str
) -> None:
    import installers

    monkeypatch.setenv("PATH", str(tmp_path))
    installer = installers.Installer(tmp_path / "bin" / "python", tmp_path / "constraints", tmp_path / "log")
    installer.pip = [f"/bin/{pip}"]
    assert installer.uv == (str(tmp_path / "bin" / "uv") if pip == "true" else None)
    assert ("pip installs everything instead" in capsys.readouterr().out) == (pip == "false")


@pytest.mark.parametrize(
    ("script", "option"), [("test", "--torch-from"), ("docs", "--serve"), ("release", "--to"), ("demo", "--keep")]
)
def test_help_needs_no_environment(tmp_path: Path, script: str, option: str) -> None:
    shutil.copytree(SCRIPTS, tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SCRIPTS.parent / "pyproject.toml", tmp_path)
    command = [tmp_path / "scripts" / script, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, option in done.stdout) == (0, True), done.stderr
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


# -- which port ------------------------------------------------------------------------------------
#: The ports behind a busy one may be in use as well.
IN_USE = r"Ports? {}\b.* (?:is|are) in use by another program"


@pytest.fixture
def busy() -> Iterator[int]:
    """A port in use, for the first of the demo."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_busy_port_is_replaced_by_a_free_one(
    busy: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import demo

    monkeypatch.setattr(demo, "PORT", busy)
    chosen = demo.choose_port(None)
    assert chosen >= busy + 10
    assert re.search(IN_USE.format(busy) + f": Airflow gets {chosen}", capsys.readouterr().out)


def test_a_busy_port_that_the_user_named_is_an_error(busy: int) -> None:
    import demo

    with pytest.raises(demo.DemoError, match=IN_USE.format(busy)):
        demo.choose_port(busy)


def test_a_port_that_was_taken_during_the_set_up_is_not_used(busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import demo

    class Seen(Exception):  # noqa: N818
        """Airflow would start now."""

    def start(**chosen: Any) -> None:
        assert chosen["port"] != busy
        raise Seen

    def set_up(_: Any) -> Path:
        monkeypatch.setattr(demo, "PORT", busy)
        return Path(BASE)

    monkeypatch.setattr(demo, "PORT", demo.free_ports(busy + 20))
    monkeypatch.setattr(demo, "stop_leftover", lambda: False)
    monkeypatch.setattr(demo.environment, "ensure", set_up)
    monkeypatch.setattr(demo, "Standalone", start)
    with pytest.raises(Seen):
        demo.demo(SimpleNamespace(stop=False, port=None, fresh=False, torch_from=None, keep=False))


# -- slow answers ----------------------------------------------------------------------------------
class Slow(BaseHTTPRequestHandler):
    """Answers 503 as often as the server is configured to, then with the server's status."""

    def do_GET(self) -> None:  # noqa: N802
        server: Any = self.server
        server.asked += 1
        body = json.dumps({"state": "success"}).encode()
        self.send_response(503 if server.asked <= server.failures else server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    import standalone

    monkeypatch.setattr(standalone.time, "sleep", lambda _: None)
    server: Any = HTTPServer(("127.0.0.1", 0), Slow)
    server.asked, server.status, server.failures = 0, 200, 0
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def start(failures: int, status: int = 200) -> Any:
        server.failures, server.status = failures, status
        airflow = standalone.Standalone(
            folder=Path("/nowhere"), python=Path(sys.executable), port=server.server_port, pid=os.getpid()
        )
        return SimpleNamespace(airflow=airflow, server=server)

    yield start
    server.shutdown()
    server.server_close()


def test_a_call_without_an_answer_is_repeated_until_the_deadline(serve: Callable[..., Any]) -> None:
    import standalone

    one = serve(failures=3)
    assert one.airflow.ask("GET", "/x", deadline=time.monotonic() + 60) == {"state": "success"}
    assert one.server.asked == 4
    one.server.failures = 10**6
    with pytest.raises(standalone.NoAnswerError, match="HTTP 503"):
        one.airflow.ask("GET", "/x", deadline=time.monotonic() - 1)


def test_a_refused_call_is_not_repeated(serve: Callable[..., Any]) -> None:
    import standalone

    one = serve(failures=0, status=404)
    with pytest.raises(standalone.AirflowError, match="HTTP 404"):
        one.airflow.ask("GET", "/x", deadline=time.monotonic() + 60)
    assert one.server.asked == 1


def test_the_progress_is_that_of_the_last_line_of_an_entry() -> None:
    """The task log holds many lines of a rank in one entry."""
    import follow

    entry = "[rank 0] Validation at step 23: accuracy 0.85\n[rank 0] Validation at step 46: accuracy 0.91"
    assert follow.last_progress(iter([entry, "[rank 0] nothing"])) == "step 46, accuracy 0.91"


def test_the_step_is_that_of_the_accuracy_beside_it() -> None:
    import follow

    entries = ["Validation at step 23: loss=0.4, accuracy=0.85", "Checkpoint at step 00046: checkpoints/step-46"]
    assert follow.last_progress(iter(entries)) == "step 23, accuracy 0.85"
    assert follow.last_progress(iter(entries[1:])) == "step 46"


def test_the_demo_has_the_dag_that_starts_experiments_in_a_folder_of_its_own(tmp_path: Path) -> None:
    import standalone

    from airflow_provider_dtrain.cli.experiments_create import DAG_FILE

    airflow = standalone.Standalone(folder=tmp_path, python=Path(sys.executable), port=1)
    airflow.write_dags()
    airflow.write_dags()
    assert (airflow.dags / "dtrain_experiment.py").read_text() == DAG_FILE
    assert (airflow.dags / "digits" / "train.py").is_file()
    options = airflow.environment({})
    assert options["AIRFLOW__CORE__DAGS_FOLDER"] == str(tmp_path / "dags")
    bundles = {
        one["name"]: one["kwargs"] for one in json.loads(options["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"])
    }
    assert bundles == {"dags-folder": {}, "examples": {"path": str(SCRIPTS.parent / "dags")}}
    written = airflow.write_environment().read_text()
    assert "DAG_BUNDLE_CONFIG_LIST" in written


# -- the screen ------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", ["success", "failed"])
def test_the_line_that_is_rewritten_ends_with_the_run(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    import follow

    task = {"task_id": "train", "state": state, "start_date": "1", "try_number": 1, "map_index": -1}

    def answer(method: str, path: str, body: object = None, *, deadline: float) -> dict[str, Any]:
        return {"task_instances": [task]} if "taskInstances" in path else {"state": state}

    airflow: Any = SimpleNamespace(ask=answer, call=lambda *_: {"content": []}, log=Path("airflow.log"))
    screen = follow.Screen()
    screen.live = True
    run = follow.Run(airflow=airflow, screen=screen, run_id="r")
    if state == "success":
        run.follow()
    else:
        with pytest.raises(follow.RunFailed, match=r"Airflow could not begin the task; see airflow\.log"):
            run.follow()
    assert capsys.readouterr().out.endswith("train\n")
