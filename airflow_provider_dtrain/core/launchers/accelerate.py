"""``accelerate launch``, which gets arguments in front of those of the user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from airflow_provider_dtrain.core.launchers.program import Gang, Options, Program, count

__all__ = ["ACCELERATE"]

#: Flags. Each of the many other options takes a value.
#: Source: ``launch_command_parser`` of ``accelerate/commands/launch.py`` of Accelerate 1.15.
_FLAGS: Final = (
    *("quiet", "cpu", "multi-gpu", "tpu", "enable-cpu-affinity", "dynamo-use-fullgraph", "dynamo-use-dynamic"),
    *("dynamo-use-regional-compilation", "use-deepspeed", "use-fsdp", "use-parallelism-config", "use-megatron-lm"),
    *("same-network", "module", "no-python", "tpu-cluster", "no-tpu-cluster", "tpu-use-sudo", "downcast-bf16"),
    *("fp8-use-autocast-during-eval", "debug"),
)
#: They tell how to start ranks. Without them, one process per host starts if it finds less than two GPUs.
_KINDS: Final = ("multi_gpu", "cpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "config_file")
#: Takes the arguments from the environment of the host, because there are no variables for them.
#: For one slot, Accelerate starts the script without the numbers of a rank, which are set here.
_FILL: Final = """
import os, runpy, sys
env = os.environ
words = ["--gpu_ids=all", "--num_machines=" + env["GROUP_WORLD_SIZE"], "--machine_rank=" + env["GROUP_RANK"]]
words += ["--num_processes=" + env["DTRAIN_WORLD_SIZE"], "--main_process_port=" + env["MASTER_PORT"]]
words += ["--main_process_ip=" + env["PET_MASTER_ADDR"]]
if env["DTRAIN_WORLD_SIZE"] == "1":
    env.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
else:
    words += {kind}
sys.argv[1:1] = words
runpy.run_module("accelerate.commands.launch", None, "__main__", True)
"""
_WITH_KIND: Final = _FILL.replace("{kind}", "[]")
_WITHOUT_KIND: Final = _FILL.replace("{kind}", '["--multi_gpu"]')


def _start(options: Options) -> tuple[str, ...]:
    return "-c", _WITH_KIND if any(kind in options for kind in _KINDS) else _WITHOUT_KIND


def _contradictions(options: Options, gang: Gang) -> Iterator[str]:
    for name, number, unit in (("num_machines", gang.hosts, "host"), ("num_processes", gang.ranks, "slot")):
        if options.get(name, str(number)) != str(number):
            yield f"--{name} {options[name]}, but the trial has {count(number, unit)}"
    if options.get("gpu_ids", "all") != "all":
        yield f"--gpu_ids {options['gpu_ids']}, but the devices are those of the trial's slots"
    if "mpirun_hostfile" in options:
        yield f"--mpirun_hostfile {options['mpirun_hostfile']}, but the trial starts it on each host"
    if "cpu" in options and gang.ranks > 1:
        yield (
            f"--cpu, which starts one process per host, but the trial has {count(gang.ranks, 'slot')}. Remove the "
            "option and set ACCELERATE_USE_CPU: 'true' in environment.variables"
        )
    if "multi_gpu" in options and gang.ranks == 1:
        yield "--multi_gpu, which needs 2 slots, but the trial has 1 slot"
    multinode = options.get("deepspeed_multinode_launcher")
    if gang.hosts > 1 and "use_deepspeed" in options and multinode != "standard" and "config_file" not in options:
        yield (
            f"--use_deepspeed with the launcher {multinode or 'pdsh'}, which reads hosts from a file, but the trial "
            "chooses them. Set --deepspeed_multinode_launcher standard"
        )
    if unequal := gang.unequal():
        yield unequal


ACCELERATE: Final = Program(
    name="accelerate launch",
    commands=(("accelerate", "launch"), ("accelerate-launch",)),
    module="accelerate.commands.launch",
    start=_start,
    code=(_WITH_KIND, _WITHOUT_KIND),
    contradictions=_contradictions,
    set_by_launch=("machine_rank", "main_process_ip", "main_process_port"),
    flags=_FLAGS,
    short={"-q": "quiet", "-t": "tee", "-m": "module"},
)
