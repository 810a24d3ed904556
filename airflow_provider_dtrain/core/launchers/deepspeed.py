"""``deepspeed``, whose program for one host is started with the places of all hosts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from airflow_provider_dtrain.core.launchers.program import Gang, Options, Program, count

__all__ = ["DEEPSPEED"]

#: Source: ``parse_args`` of ``deepspeed/launcher/runner.py`` of DeepSpeed 0.19.
_VALUES: Final = (
    *("hostfile", "include", "exclude", "num-nodes", "num-gpus", "num-accelerators", "master-port", "master-addr"),
    *("node-rank", "launcher", "launcher-args", "enable-each-rank-log", "autotuning", "bind-core-list", "ssh-port"),
    *("venv-script", "log-level"),
)
_FLAGS: Final = (
    *("module", "no-python", "no-local-rank", "no-ssh", "no-ssh-check", "force-multi", "save-pid"),
    *("bind-cores-to-rank", "quiet"),
)
#: ``deepspeed`` connects to hosts, or starts its program for one host with numbers of devices. It passes neither
#: signals nor the exit code of a process that a signal has ended. So its options are read by its own parser here,
#: and the program for one host replaces it, with the ids of the devices: it sets CUDA_VISIBLE_DEVICES from them.
#: The invalid id -1 hides all devices.
_FILL: Final = """
import base64, json, os, runpy, sys
from deepspeed.launcher.runner import parse_args
env, options = os.environ, parse_args()
devices = list(filter(None, env["CUDA_VISIBLE_DEVICES"].split(","))) or ["-1"] * int(env["LOCAL_WORLD_SIZE"])
world = {str(host): devices for host in range(int(env["GROUP_WORLD_SIZE"]))}
words = ["--world_info=" + base64.urlsafe_b64encode(json.dumps(world).encode()).decode()]
words += ["--node_rank=" + env["GROUP_RANK"], "--master_addr=" + env["MASTER_ADDR"]]
words += ["--master_port=" + env["MASTER_PORT"]]
for name in ("module", "no_python", "no_local_rank", "bind_cores_to_rank", "quiet"):
    words += ["--" + name] if getattr(options, name, False) else []
for name in ("enable_each_rank_log", "bind_core_list", "log_level"):
    value = getattr(options, name, None)
    words += [] if value is None else ["--" + name + "=" + value]
sys.argv[1:] = [*words, options.user_script, *options.user_args]
runpy.run_module("deepspeed.launcher.launch", None, "__main__", True)
"""


def _contradictions(options: Options, gang: Gang) -> Iterator[str]:
    if options.get("num_nodes", str(gang.hosts)) != str(gang.hosts):
        yield f"--num_nodes {options['num_nodes']}, but the trial has {count(gang.hosts, 'host')}"
    for name in ("num_gpus", "num_accelerators"):
        other = next(((host, slots) for host, slots in gang.slots.items() if str(slots) != options.get(name)), None)
        if name in options and other is not None:
            yield f"--{name} {options[name]}, but the trial has {count(other[1], 'slot')} on host '{other[0]}'"
    for name in ("hostfile", "include", "exclude"):
        if name in options:
            yield f"--{name} {options[name]}, but the hosts and devices are those of the trial's slots"
    if "autotuning" in options:
        yield f"--autotuning {options['autotuning']}, which starts trials itself. Use a searcher"
    if "save_pid" in options:
        yield "--save_pid, but the processes of a trial are found by its number"
    if "venv_script" in options:
        yield f"--venv_script {options['venv_script']}. Set environment.setup or environment.python"
    if unequal := gang.unequal():
        yield unequal


DEEPSPEED: Final = Program(
    name="deepspeed",
    commands=(("deepspeed",), ("ds",), ("deepspeed.pt",)),
    module="deepspeed.launcher.runner",
    start=lambda _: ("-c", _FILL),
    code=(_FILL,),
    contradictions=_contradictions,
    set_by_launch=("node_rank", "master_addr", "master_port"),
    values=_VALUES,
    flags=_FLAGS,
    short={"-H": "hostfile", "-i": "include", "-e": "exclude", "-q": "quiet"},
    abbreviates=True,
)
