"""Start of a run in a container of podman, until it is prepared, beside ``podman run``.

The image is made of this machine's own files, and is here before.
"""

from __future__ import annotations

import os
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
from bench.framework.measuring import Run
from bench.framework.rows import OURS, PEER, Bench, Goal, Row
from testbed.containers import container_argv, settings, why_no_podman
from testbed.programs import install_programs

PODMAN, INSIDE, WITHOUT, ADDED = "podman run", "in a container", "without a container", "what a container adds"


def measure(run: Run) -> None:
    os.environ |= settings()
    with tempfile.TemporaryDirectory(prefix="c") as folder:
        root = Path(folder)
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
        links = Links()
        link = links.get(address)
        # Python keeps its compiled modules there, for all runs.
        program = next(path for path in (root / ".dtrain/supervisor").iterdir() if path.is_dir())
        try:
            for number in range(run.rounds):
                _round(run, number, link, state_dir, str(program))
        finally:
            links.close_all()


def _round(run: Run, number: int, link: HostLink, state_dir: Path, program: str) -> None:
    name = f"t1.{number + 1}.{10 * number + 10}"
    alone = state_dir / "runs" / name
    alone.mkdir(parents=True, mode=0o700)
    argv = container_argv(state_dir, name, program=program)
    place = argv.index("-I")
    run.add("start", PODMAN, _timed(lambda: _run([*argv[:place], "-c", "pass"])))
    alone.rmdir()
    inside = _prepared(link, name, argv)
    without = _prepared(link, f"t2.{number + 1}.{10 * number + 15}", None)
    run.add("start", INSIDE, inside)
    run.add("start", WITHOUT, without)
    run.add("start", ADDED, inside - without)


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


BENCH = Bench(
    what="Start of a run until it is prepared",
    rows=(
        Row(
            name="start",
            what="Beside podman run, python -c pass",
            unit="s",
            sides={PODMAN: PEER, INSIDE: OURS, WITHOUT: OURS, ADDED: OURS},
            base=PODMAN,
            goals=(Goal(side=ADDED, at_most=1.5, of=PODMAN),),
        ),
    ),
    measure=measure,
    rounds=(15, 3),
    missing=why_no_podman,
)
