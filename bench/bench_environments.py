"""Time to a ready environment on a host: built, found, and built for several gangs at once. uv alone is beside it.

The packages are 40 wheels with 25 modules each, from an index on this machine.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.core.config import ExperimentConfig, assemble
from airflow_provider_dtrain.core.config.environment_source import EnvironmentSource
from airflow_provider_dtrain.engine.submission.entry import environment_in
from airflow_provider_dtrain.hosts.channel.link import HostLink
from airflow_provider_dtrain.hosts.channel.link_pool import HostAddress, Links
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from bench.framework.measuring import Run
from bench.framework.rows import LIMIT, OURS, Bench, Goal, Row
from testbed.programs import install_programs
from testbed.wheels import IndexServer, index_server, locked, make_wheel, uv_program

PACKAGES, MODULES = 40, 25


UV, BUILT, FOUND, GANGS = "uv alone, no cache", "built on a host", "found", "built for 8 gangs at once"
GANGS_AT_ONCE = 8


def measure(run: Run) -> None:
    with tempfile.TemporaryDirectory(prefix="e") as folder:
        root = Path(folder)
        wheels = root / "index"
        packages = run.size(40, 10)
        names = [f"package-{number}" for number in range(packages)]
        lock = locked(*(make_wheel(wheels, name, files=_modules(name)) for name in names))
        install_programs(root)
        with index_server(wheels) as server:
            for number in range(run.rounds):
                _round(run, root / str(number), f"# {number}\n{lock}", server, packages)


def _round(run: Run, root: Path, lock: str, server: IndexServer, packages: int) -> None:
    root.mkdir()
    run.add("ready", UV, _uv_alone(root, lock, server))
    source = _source(root / "one", lock)
    link = _link(root)
    run.add("ready", BUILT, _timed(lambda: _ready([link], source, server)))
    run.add("ready", FOUND, *(_timed(lambda: _ask(link, source)) for _ in range(run.size(20, 5))))
    before = server.downloads()
    links = [_link(root, f"host-{gang}") for gang in range(GANGS_AT_ONCE)]
    other = _source(root / "two", "# for several gangs\n" + lock)
    run.add("ready", GANGS, _timed(lambda: _ready(links, other, server)))
    run.add("builds", GANGS, (server.downloads() - before) / packages)


def _modules(name: str) -> dict[str, str]:
    folder = name.replace("-", "_") + "_parts"
    body = "\n".join(f"def function_{number}(value):\n    return value + {number}" for number in range(100))
    return {f"{folder}/part_{number}.py": body for number in range(MODULES)}


def _source(folder: Path, lock: str) -> EnvironmentSource:
    folder.mkdir()
    (folder / "requirements.lock").write_text(lock)
    document: dict[str, Any] = {"entrypoint": "python a.py", "environment": {"requirements": "requirements.lock"}}
    config: ExperimentConfig = assemble(None, document).config
    found, problems = environment_in(config, folder)
    assert found is not None, problems
    return found


def _link(root: Path, name: str = "local") -> HostLink:
    address = HostAddress(
        name=name,
        remote_dir=str(root / ".dtrain"),
        state_dir=str(root / name),
        lock_dir="none",
        python=sys.executable,
        make_transport=lambda: LocalTransport(name),
    )
    return Links().get(address)


def _ask(link: HostLink, source: EnvironmentSource, **more: Any) -> Any:
    return link.call("environment", environment=source.description, **more).result(60)


def _ready(links: list[HostLink], source: EnvironmentSource, server: IndexServer) -> None:
    """Ask all hosts for an environment as their followers do, until it is ready everywhere."""
    builds = {}
    for link in links:
        found = _ask(link, source)
        if found["state"] == "absent":
            builds[link.host] = secrets.token_hex(8)
            packages, tags = source.packages(found["facts"])
            request = {"id": builds[link.host], "packages": packages, "tags": tags, "timeout_s": 600, "stall_s": 30}
            _ask(link, source, build={**request, "index": {"urls": [server.url]}}, waits_for=builds[link.host])
    for link in links:
        while (found := _ask(link, source, waits_for=builds.get(link.host), wait_s=5))["state"] == "building":
            pass
        assert found["state"] == "ready", found


def _uv_alone(root: Path, lock: str, server: IndexServer) -> float:
    uv = uv_program()
    if uv is None:
        return float("nan")
    (root / "lock.txt").write_text(lock)
    target = root / "alone"

    def install() -> None:
        subprocess.run([uv, "venv", "-q", "--python", sys.executable, target], check=True)
        options = ["--no-deps", "--no-cache", "--compile-bytecode", "--default-index", server.url]
        argv = [uv, "pip", "install", "-q", "--python", target / "bin" / "python", *options, "-r", root / "lock.txt"]
        subprocess.run(argv, check=True)

    return _timed(install)


def _timed(work: Any) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


BENCH = Bench(
    what="An environment from a lock file",
    rows=(
        Row(
            name="ready",
            what="Until it can be used",
            unit="s",
            sides={UV: LIMIT, BUILT: OURS, FOUND: OURS, GANGS: OURS},
            base=UV,
            goals=(Goal(side=FOUND, at_most=0.05),),
        ),
        Row(
            name="builds",
            what="Builds for all gangs",
            unit="builds",
            sides={GANGS: OURS},
            goals=(Goal(side=GANGS, at_most=1),),
        ),
    ),
    measure=measure,
    rounds=(3, 1),
)
