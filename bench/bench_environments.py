"""Time to a ready environment on a host: built, found, and built for several gangs at once. uv alone is beside it.

The packages are 40 wheels with 25 modules each, from an index on this machine.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
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
from testbed.programs import install_programs
from testbed.wheels import IndexServer, index_server, locked, make_wheel, uv_program

PACKAGES, MODULES = 40, 25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gangs", type=int, default=8, help="gangs that want the environment at once")
    parser.add_argument("--warm", type=int, default=50, help="number of times that a ready environment is asked for")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-environments-") as root:
        _measure(Path(root), args.gangs, args.warm)


def _measure(root: Path, gangs: int, warm: int) -> None:
    wheels = root / "index"
    names = [f"package-{number}" for number in range(PACKAGES)]
    lock = locked(*(make_wheel(wheels, name, files=_modules(name)) for name in names))
    install_programs(root)
    with index_server(wheels) as server:
        rows = [("uv alone, no cache", _uv_alone(root, lock, server))]
        source = _source(root / "one", lock)
        link = _link(root)
        rows.append(("built on a host", _timed(lambda: _ready([link], source, server))))
        found = [_timed(lambda: _ask(link, source)) for _ in range(warm)]
        rows.append((f"found, median of {warm}", statistics.median(found)))
        rows.append((f"found, slowest of {warm}", max(found)))
        before = server.downloads()
        links = [_link(root, f"host-{number}") for number in range(gangs)]
        other = _source(root / "two", "# for several gangs\n" + lock)
        rows.append((f"built for {gangs} gangs at once", _timed(lambda: _ready(links, other, server))))
        builds = (server.downloads() - before) / PACKAGES
    for name, seconds in rows:
        print(f"{name:32} {1000 * seconds:10,.0f} ms")
    print(f"{'builds for all gangs':32} {builds:10.0f}")


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


if __name__ == "__main__":
    main()
