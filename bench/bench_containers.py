"""Start of a run in a container of podman, until it is prepared, beside ``podman run``.

The image is made of this machine's own files, and is here before.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.hosts.channel.link import HostLink
from airflow_provider_dtrain.hosts.channel.link_pool import HostAddress, Links
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from testbed.containers import container_argv, settings, why_no_podman
from testbed.programs import install_programs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=15, help="starts of each kind")
    args = parser.parse_args()
    if (reason := why_no_podman()) is not None:
        sys.exit(reason)
    os.environ |= settings()
    with tempfile.TemporaryDirectory(prefix="bench-containers-") as root:
        _measure(Path(root), args.starts)


def _measure(root: Path, starts: int) -> None:
    install_programs(root)
    state_dir = root / "state"
    address = HostAddress(
        name="local",
        remote_dir=str(root / ".dtrain"),
        state_dir=str(state_dir),
        lock_dir="none",
        python=sys.executable,
        make_transport=lambda: LocalTransport("local"),
    )
    link = Links().get(address)
    # Python keeps its compiled modules there, for all runs.
    program = next(path for path in (root / ".dtrain/supervisor").iterdir() if path.is_dir())
    times: dict[str, list[float]] = {}
    for number in range(starts):
        run = f"t1.{number + 1}.{10 * number + 10}"
        alone = state_dir / "runs" / run
        alone.mkdir(parents=True, mode=0o700)
        argv = container_argv(state_dir, run, program=str(program))
        place = argv.index("-I")
        times.setdefault("podman run, python -c pass", []).append(_timed(lambda: _run([*argv[:place], "-c", "pass"])))  # noqa: B023
        alone.rmdir()
        times.setdefault("prepared in a container", []).append(_prepared(link, run, argv))
        times.setdefault("prepared without", []).append(_prepared(link, f"t2.{number + 1}.{10 * number + 15}", None))
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, found in times.items():
        print(f"{name:28} {1000 * medians[name]:8,.0f} ms   slowest {1000 * max(found):8,.0f} ms")
    more = medians["prepared in a container"] - medians["prepared without"]
    print(f"{'a container, beside podman':28} {more / medians['podman run, python -c pass']:8.2f}")


def _timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _run(argv: list[str]) -> None:
    subprocess.run(argv, check=True, capture_output=True)


def _prepared(link: HostLink, run: str, argv: list[str] | None) -> float:
    plan: dict[str, Any] = {
        "protocol": 1, "run": run, "store": "bench", "token": int(run.rpartition(".")[2]), "host": "local",
        "group_rank": 0, "group_world_size": 1, "world_size": 1, "argv": ["true"], "per_host": False,
        "ranks": [{"rank": 0, "local_rank": 0, "slot": 0, "device": None, "visible_devices": []}],
        "python": None, "environment": None, "setup": None, "env": {}, "payload": None, "library": None,
        "port_range": None, "grace_s": 1, "orphan_timeout_s": 60, "prepare_timeout_s": 60, "timeout_s": None,
        "log_limit_bytes": 1 << 20, "cpu_slots": True,
    }  # fmt: skip
    if argv is not None:
        plan["container"] = {"runtime": "podman", "argv": argv, "modules": []}
    took = _timed(lambda: link.call("prepare", plan=plan, context={}, secrets={}).result(60))
    assert link.call("fence", run=run, token=plan["token"], wait_s=30).result(60)["clear"]
    return took


if __name__ == "__main__":
    main()
