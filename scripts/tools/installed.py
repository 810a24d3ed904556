"""Checks what users get: `installed.py [--airflow VERSION] [--python FILE] [--dist FOLDER]`.

It builds both distributions, or takes those in FOLDER, installs the provider's wheel with Airflow in an empty
environment, and checks it there as a user would see it. Then it installs the client's wheel beside it. Nothing comes
from the working tree.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from installers import find_uv, pip_settings, uv_environment, uv_options

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "scripts" / "constraints.txt"
PACKAGE = "airflow-provider-dtrain"
#: Python and Airflow between which users choose: the oldest versions and the newest ones.
SUPPORTED = (("3.11", "3.3.0"), ("3.12", "3.3.2"), ("3.13", "3.3.2"))
START_S, COMMAND_S, INSTALL_S = 300.0, 300.0, 900.0
#: Prints the options of the section that the provider declares.
OPTIONS = """
from airflow_provider_dtrain.get_provider_info import get_provider_info
print(*get_provider_info()["config"]["dtrain"]["options"])
"""
#: Imports every name that a module of the package imports from Airflow, also inside of functions: most commands and
#: routes import late. Prints those that this version of Airflow lacks.
NAMES = """
import ast, importlib, pathlib, airflow_provider_dtrain
def imports(node):
    is_guarded = isinstance(node, ast.Try) and any("ImportError" in ast.dump(one) for one in node.handlers)
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "airflow":
        yield from ((node.module, one.name) for one in node.names)
    if not is_guarded:
        for child in ast.iter_child_nodes(node):
            yield from imports(child)
found = set()
for path in pathlib.Path(airflow_provider_dtrain.__file__).parent.rglob("*.py"):
    found |= set(imports(ast.parse(path.read_text())))
for module, name in sorted(found):
    try:
        if not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")
    except ImportError as error:
        print(f"LACKS {module}.{name}: {error}")
"""
DAG = '''
"""Uses every operator that needs no connection."""
from airflow.sdk import DAG

from airflow_provider_dtrain.operators.trial import TrialOperator
from airflow_provider_dtrain.task_groups import experiment

with DAG("installed", schedule=None):
    TrialOperator(task_id="train", config={"name": "{{ ds }}", "entrypoint": "python train.py"})
    experiment({"name": "search", "entrypoint": "python train.py", "searcher": {"name": "random", "metric": "loss",
        "max_trials": 2}, "hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1}}})
'''


class CheckError(Exception):
    """Something that a user would miss."""


class Installation:
    """An environment with the wheel, and an AIRFLOW_HOME of its own.

    :param folder: empty
    :param base: interpreter of the environment
    """

    def __init__(self, folder: Path, base: str) -> None:
        self.folder, self.base = folder, base
        self.bin = folder / "venv" / "bin"
        self.python = self.bin / "python"
        self.home = folder / "home"
        (self.home / "airflow" / "dags").mkdir(parents=True)
        self.port = free_port()
        self.environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "AIRFLOW_HOME": str(self.home / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{self.port}",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        }

    def create(self) -> None:
        """Create the environment, which has nothing but Python."""
        self._uv("venv", "-q", "--python", self.base, self.folder / "venv")

    def install(self, *what: object, constraints: Path | None = None) -> None:
        """Install packages with uv, from the sources of packages that pip uses."""
        options = uv_options(pip_settings([sys.executable, "-m", "pip"]), os.environ)
        limits = ["-c", constraints] if constraints else []
        self._uv("pip", "install", "-q", "--python", self.python, *options, *limits, *what)

    def _uv(self, *arguments: object) -> str:
        settings = pip_settings([sys.executable, "-m", "pip"])
        return run([uv(), *arguments], uv_environment(settings, os.environ), self.folder, INSTALL_S)

    def packages(self) -> dict[str, str]:
        """Return name -> version of the installed distributions."""
        found = json.loads(self._uv("pip", "list", "-q", "--format", "json", "--python", self.python))
        return {one["name"]: one["version"] for one in found}

    def check_requirements(self) -> None:
        """Check that the requirements of all distributions are met."""
        self._uv("pip", "check", "-q", "--python", self.python)

    def __call__(self, *command: object) -> str:
        """Return the output of a program of the environment. It does not see the working tree."""
        return run([self.bin / str(command[0]), *command[1:]], self.environment, self.home, COMMAND_S)

    def files_of(self, name: str) -> set[str]:
        """Return the files of a distribution, relative to the folder of packages."""
        (record,) = (self.folder / "venv").glob(
            f"lib/python*/site-packages/{name.replace('-', '_')}-*.dist-info/RECORD"
        )
        return {row[0] for row in csv.reader(record.read_text().splitlines())}


def run(command: Sequence[object], environment: dict[str, str], folder: Path, timeout_s: float) -> str:
    """Return the output of a program.

    :raises CheckError: it fails
    """
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env=environment, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        raise CheckError(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def json_in(text: str) -> Any:
    """Return the JSON of a command of Airflow, which may log lines to standard output before it."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith(("[", "{")):
            with contextlib.suppress(ValueError):
                return json.loads("\n".join(lines[number:]))
    raise CheckError(f"no JSON in: {text[-2000:]}")


def uv() -> str:
    """Return the path of uv, which the provider requires, so that the environment of the tests has it."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else find_uv()
    if found is None:
        raise CheckError("uv is not on PATH: pip install uv")
    return found


def free_port() -> int:
    """Return a TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def build(folder: Path) -> None:
    """Build both wheels from a source distribution, as an index would get them."""
    run([sys.executable, "-m", "hatchling", "build", "-d", folder], dict(os.environ), ROOT, INSTALL_S)
    run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        dict(os.environ),
        ROOT / "client",
        300,
    )


def constraints_for(airflow: str) -> Path | None:
    """Return the tested versions, None for another Airflow, whose own requirements exclude some of them."""
    return CONSTRAINTS if f"apache-airflow=={airflow}" in CONSTRAINTS.read_text().splitlines() else None


# -- checks --------------------------------------------------------------------------------------
def check_names(on: Installation) -> None:
    """Airflow has every name that the package imports."""
    # Airflow logs to standard output.
    if missing := [line for line in on("python", "-c", NAMES).splitlines() if line.startswith("LACKS ")]:
        raise CheckError(f"This version of Airflow {missing}")


def check_provider(on: Installation) -> None:
    """Airflow lists the provider."""
    rows = json_in(on("airflow", "providers", "list", "-o", "json"))
    found = {row["package_name"]: row["version"] for row in rows}
    if found.get(PACKAGE) != on.packages()[PACKAGE]:
        raise CheckError(f"airflow providers list: {found}")
    if PACKAGE not in on("airflow", "providers", "get", PACKAGE, "-o", "json"):
        raise CheckError("airflow providers get does not know the provider")
    if PACKAGE not in on("airflow", "info"):
        raise CheckError("airflow info does not list the provider")


def check_options(on: Installation) -> None:
    """Airflow lists the section with every option."""
    shown = on("airflow", "config", "list", "--section", "dtrain", "--defaults")
    missing = [name for name in on("python", "-c", OPTIONS).split() if f"{name} = " not in shown]
    if missing or "[dtrain]" not in shown:
        raise CheckError(f"airflow config list --section dtrain lacks {missing}: {shown[-2000:]}")


def check_commands(on: Installation) -> None:
    """Both programs show their commands, and a store can be made."""
    for command in (("airflow", "dtrain"), ("dtrain",)):
        if "trials" not in on(*command, "--help"):
            raise CheckError(f"{' '.join(command)} --help lists no trials")
    on("airflow", "db", "migrate")
    on("airflow", "dtrain", "db", "migrate")
    on("airflow", "dtrain", "hosts", "add", "local", "--slots", "cpu:1")
    rows = json_in(on("airflow", "dtrain", "hosts", "list", "-o", "json"))
    if [row["name"] for row in rows] != ["local"]:
        raise CheckError(f"hosts list: {rows}")


def check_doctor(on: Installation) -> None:
    """The doctor finds nothing that the distribution lacks."""
    command = [on.bin / "airflow", "dtrain", "doctor", "-o", "json"]
    done = subprocess.run(
        command, env=on.environment, cwd=on.home, capture_output=True, text=True, timeout=COMMAND_S, check=False
    )
    wrong = {row["check"]: row["message"] for row in json_in(done.stdout) if not row["ok"]}
    # No PyTorch was installed, and SQLite keeps no runs from one machine to another.
    other = {check: text for check, text in wrong.items() if "PyTorch" not in text and "retention_days" not in text}
    if other or done.returncode not in {0, 1}:
        raise CheckError(f"airflow dtrain doctor: exit code {done.returncode}, {other}\n{done.stderr[-2000:]}")


def check_dag(on: Installation) -> None:
    """A DAG file with operators is read, and a task is rendered."""
    (on.home / "airflow" / "dags" / "installed.py").write_text(DAG)
    if errors := json_in(on("airflow", "dags", "list-import-errors", "--local", "-o", "json")):
        raise CheckError(f"import errors: {errors}")
    if "2026-01-02" not in on("airflow", "tasks", "render", "installed", "train", "2026-01-02"):
        raise CheckError("airflow tasks render does not render the configuration")


def check_pages(on: Installation) -> None:
    """An API server has the plugin, and serves the pages' files of the wheel."""
    with served(on) as get:
        token = json.loads(get("/auth/token"))["access_token"]
        plugins = json.loads(get("/api/v2/plugins", token))["plugins"]
        if "dtrain" not in [plugin["name"] for plugin in plugins]:
            raise CheckError(f"the plugin is not loaded: {[plugin['name'] for plugin in plugins]}")
        if errors := json.loads(get("/api/v2/plugins/importErrors", token))["import_errors"]:
            raise CheckError(f"plugins with errors: {errors}")
        (bundle,) = (on.folder / "venv").glob("lib/python*/site-packages/airflow_provider_dtrain/www/main.js")
        if get("/dtrain/static/main.js") != bundle.read_bytes():
            raise CheckError("/dtrain/static/main.js is not the file of the wheel")
        cluster = json.loads(get("/dtrain/api/v1/cluster", token))
        if "local" not in json.dumps(cluster):
            raise CheckError(f"/dtrain/api/v1/cluster: {cluster}")


@contextlib.contextmanager
def served(on: Installation) -> Iterator[Callable[..., bytes]]:
    """Yield a function that gets a path from an API server."""

    def get(path: str, token: str = "") -> bytes:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"http://127.0.0.1:{on.port}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())

    with (on.folder / "api-server.log").open("wb") as log:
        server = subprocess.Popen(
            [on.bin / "airflow", "api-server"],
            env=on.environment,
            cwd=on.home,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + START_S
        while True:
            try:
                get("/api/v2/version")
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > until:
                    raise CheckError((on.folder / "api-server.log").read_text()[-3000:]) from None
                time.sleep(0.5)
        yield get
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def check_both(on: Installation, client: Path) -> None:
    """The client beside the provider changes none of its files, and can be removed again."""
    before = on.packages()
    on.install(client)
    added = set(on.packages()) - set(before)
    if added != {"dtrain-client"}:
        raise CheckError(f"The client brought {added}.")
    # Both have the program, whose text is the same.
    shared = {name for name in on.files_of(PACKAGE) & on.files_of("dtrain-client") if not name.endswith("/bin/dtrain")}
    if shared:
        raise CheckError(f"Both distributions have {sorted(shared)[:5]}.")
    where = "import airflow_provider_dtrain; print(airflow_provider_dtrain.__file__)"
    if "dtrain_client" in on("python", "-c", where):
        raise CheckError("The client's modules hide those of the provider.")
    on._uv("pip", "uninstall", "-q", "--python", on.python, "dtrain-client")
    on("airflow", "dtrain", "--help")


def check_client(on: Installation, client: Path) -> None:
    """The client alone brings nothing, and its program starts."""
    on.create()
    on.install(client)
    if set(on.packages()) != {"dtrain-client"}:
        raise CheckError(f"The client brought {on.packages()}.")
    if "trials" not in on("dtrain", "--help"):
        raise CheckError("dtrain --help lists no trials")
    on("python", "-c", "from airflow_provider_dtrain.client import Client; Client('http://127.0.0.1:9')")


def check_all(folder: Path, dist: Path, airflow: str, base: str) -> None:
    """Install and check everything, and print the seconds of each part.

    :raises CheckError: something is missing
    """
    (wheel,), (client,) = dist.glob("airflow_provider_dtrain-*.whl"), dist.glob("dtrain_client-*.whl")
    for name in ("provider", "client"):
        (folder / name).mkdir()
    on, alone = Installation(folder / "provider", base), Installation(folder / "client", base)
    with timed("install"):
        on.create()
        on.install(wheel, f"apache-airflow=={airflow}", constraints=constraints_for(airflow))
        on.check_requirements()
    if on.packages()["apache-airflow"] != airflow:
        raise CheckError(f"Airflow {on.packages()['apache-airflow']} was installed, not {airflow}.")
    names = {"airflow_provider_dtrain/py.typed", "airflow_provider_dtrain/www/main.js"}
    if not names <= set(zipfile.ZipFile(wheel).namelist()):
        raise CheckError(f"The wheel lacks {names}.")
    for check in (check_names, check_provider, check_options, check_commands, check_dag, check_doctor, check_pages):
        with timed(check.__doc__ or ""):
            check(on)
    with timed("the client beside it, and alone"):
        check_both(on, client)
        check_client(alone, client)


@contextlib.contextmanager
def timed(name: str) -> Iterator[None]:
    """Print a name, and the seconds of what happens inside."""
    begun = time.monotonic()
    yield
    print(f"{time.monotonic() - begun:6.1f} s  {name}", flush=True)


def main() -> int:
    """Check an installation, or print what is wrong."""
    parser = argparse.ArgumentParser(description="Checks the distributions in an empty environment.")
    parser.add_argument("--airflow", default=SUPPORTED[-1][1], help="version of Airflow")
    parser.add_argument("--python", default=sys.executable, help="interpreter, or a version that uv finds")
    parser.add_argument("--dist", type=Path, help="folder with the wheels (default: they are built)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        try:
            dist = args.dist or Path(name, "dist")
            if args.dist is None:
                build(dist)
            Path(name, "work").mkdir()
            check_all(Path(name, "work"), dist.resolve(), args.airflow, args.python)
        except CheckError as error:
            print(error, file=sys.stderr)
            return 1
    print(f"The distributions work with Airflow {args.airflow} on {args.python}.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
