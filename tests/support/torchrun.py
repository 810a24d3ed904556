"""One program as the ranks of a real launcher, and as the ranks of a gang: what each rank reports is compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.core.launch.devices import shares_devices
from airflow_provider_dtrain.core.launch.plan import HostFacts, LaunchFacts, build_plans, device_views
from airflow_provider_dtrain.core.scheduling.model import Placement
from airflow_provider_dtrain.hosts.payload import library
from airflow_provider_dtrain.supervisor.machine.host_environment import passed
from tests.support.ranks import free_port
from tests.support.supervisor_host import Host

RUN = "t1.1.7"
#: Folder of the reports, in a variable of each rank.
REPORTS = "TEST_REPORTS"
CUDA_STAND_IN = Path(__file__).with_name("cuda_stand_in.py")
#: ``report(value)`` for a program, which writes the value of its rank.
REPORT = """
import json, os, sys
def report(**values):
    name = os.path.join(os.environ["TEST_REPORTS"], os.environ["RANK"])
    with open(name + ".part", "w") as file:
        json.dump(values, file)
    os.rename(name + ".part", name)
"""
TIMEOUT_S = 120.0


def files_of(program: str) -> dict[str, str]:
    """Return the code folder of a program."""
    return {"program.py": REPORT + program, "cuda_stand_in.py": CUDA_STAND_IN.read_text()}


def under_torchrun(
    folder: Path,
    program: str,
    hosts: int = 1,
    per_host: int | Sequence[int] = 2,
    *,
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    fails: bool = False,
) -> dict[int, dict[str, Any]]:
    """Run a program under the real torchrun, one agent for each host, and return the report of each rank.

    :param per_host: ranks of each host; one number for all of them, or a number for each
    """
    place = ["--standalone"]
    if hosts > 1:
        place = ["--nnodes", str(hosts), "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    commands = []
    for number, ranks in enumerate(_counts(hosts, per_host)):
        command = ["torch.distributed.run", *place, *(["--node-rank", str(number)] if hosts > 1 else [])]
        commands.append([*command, "--nproc-per-node", str(ranks), "program.py", *arguments])
    return by_hand(folder, program, commands, env=env, fails=fails)


def under_accelerate(
    folder: Path, program: str, hosts: int, per_host: int, *, env: Mapping[str, str]
) -> dict[int, dict[str, Any]]:
    """Run a program under the real ``accelerate launch``, once for each host, and return the report of each rank."""
    place = ["--num_machines", str(hosts), "--num_processes", str(hosts * per_host)]
    place += ["--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port())]
    commands = [
        ["accelerate.commands.launch", "--multi_gpu", *place, "--machine_rank", str(number), "program.py"]
        for number in range(hosts)
    ]
    return by_hand(folder, program, commands, env=env)


def under_deepspeed(
    folder: Path, program: str, hosts: int, per_host: int, *, arguments: Sequence[str] = (), env: Mapping[str, str]
) -> dict[int, dict[str, Any]]:
    """Run a program under the real ``deepspeed``, once for each host, and return the report of each rank."""
    folder.mkdir(parents=True)
    hostfile = folder / "hostfile"
    hostfile.write_text("".join(f"h{number} slots={per_host}\n" for number in range(hosts)))
    place = ["--no_ssh", "--hostfile", str(hostfile), "--master_addr", "127.0.0.1", "--master_port", str(free_port())]
    commands = [
        ["deepspeed.launcher.runner", *place, "--node_rank", str(number), "program.py", *arguments]
        for number in range(hosts)
    ]
    return by_hand(folder, program, commands, env=env)


def by_hand(
    folder: Path,
    program: str,
    commands: Sequence[Sequence[str]],
    *,
    env: Mapping[str, str] | None = None,
    fails: bool = False,
) -> dict[int, dict[str, Any]]:
    """Run a program under a launcher, and return the report of each rank.

    :param commands: module of the launcher and its arguments, for each host
    """
    code = folder / "work"
    code.mkdir(parents=True)
    for name, text in files_of(program).items():
        (code / name).write_text(text)
    reports = folder / "reports"
    reports.mkdir()
    clean = passed(os.environ)
    clean |= {REPORTS: str(reports), "GLOO_SOCKET_IFNAME": "lo", **(env or {})}
    agents = []
    for command in commands:
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        agents.append(subprocess.Popen([sys.executable, "-m", *command], cwd=code, env=clean, text=True, **pipes))
    try:
        outputs = [agent.communicate(timeout=TIMEOUT_S)[0] for agent in agents]
    finally:
        # They end their ranks when they are interrupted.
        for agent in agents:
            agent.send_signal(signal.SIGINT)
    assert any(agent.returncode for agent in agents) is fails, outputs
    return _read(reports)


def as_gang(
    folder: Path,
    program: str,
    hosts: int = 1,
    per_host: int | Sequence[int] = 2,
    *,
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    devices: Sequence[str] = (),
    fails: bool = False,
    **facts: Any,
) -> dict[int, dict[str, Any]]:
    """Run a program as a gang, each host with its own supervisor, and return the report of each rank.

    :param per_host: slots of each host; one number for all of them, or a number for each
    :param devices: of the slots of each host
    :param facts: replace fields of the launch
    """
    reports = folder / "reports"
    reports.mkdir(parents=True)
    packed = library()
    machines = {f"h{number}": Host(folder / f"h{number}") for number in range(hosts)}
    try:
        for host in machines.values():
            assert host.command("receive", "libraries", packed.digest, stdin=packed.content)[0] == 0
            payload = host.send_archive("payloads", files_of(program))
        values: dict[str, Any] = {
            "run": RUN, "store": "store-1", "token": 7, "argv": ["python", "program.py", *arguments],
            "payload": payload, "library": packed.digest, "has_cpu_slots": not devices, "grace_s": 20,
            "hosts": {name: HostFacts(devices=dict(enumerate(devices))) for name in machines},
            "variables": {REPORTS: str(reports), "GLOO_SOCKET_IFNAME": "lo", **(env or {})}, **facts,
        }  # fmt: skip
        counts = _counts(hosts, per_host)
        placement = Placement({name: tuple(range(count)) for name, count in zip(machines, counts, strict=True)})
        plans = build_plans(placement, LaunchFacts(**values))
        channels = {name: machines[name].channel() for name in plans}
        given = {name: dict(enumerate(devices)) for name in machines}
        seen = device_views(placement, given, facts.get("visible_devices", "all"))
        # Of the context, the library reads this field.
        context = {"shares_devices": shares_devices(seen)}
        prepared = {
            name: channels[name].call("prepare", plan=plan, context=context, secrets={}) for name, plan in plans.items()
        }
        port = next(answer["port"] for answer in prepared.values() if answer["port"])
        for channel in channels.values():
            channel.call("subscribe", run=RUN, offsets={}, logs="all")
        for channel in channels.values():
            channel.call("go", run=RUN, master_addr="127.0.0.1", master_port=port)
        ends = [_end(channel) for channel in channels.values()]
        logs = {str(file): file.read_text() for file in folder.glob("h*/state/runs/*/rank*/log")}
        assert any(reason != "completed" for reason in ends) is fails, (ends, logs)
    finally:
        for host in machines.values():
            host.clean()
    return _read(reports)


def _counts(hosts: int, per_host: int | Sequence[int]) -> list[int]:
    return [per_host] * hosts if isinstance(per_host, int) else list(per_host)


def _end(channel: Any) -> str:
    for _ in range(int(TIMEOUT_S / 20)):
        try:
            return str(channel.wait_event(RUN, "ended")["reason"])
        except TimeoutError:
            continue
    return "did not end"


def _read(reports: Path) -> dict[int, dict[str, Any]]:
    return {int(file.name): json.loads(file.read_text()) for file in sorted(reports.iterdir())}
