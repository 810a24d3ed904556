"""``ray symmetric-run``, which starts Ray on each host and a command on the first one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from airflow_provider_dtrain.core.launchers.program import Gang, Options, Program

__all__ = ["RAY"]

#: Ray starts programs ``ray`` and the command by their names, so those of its interpreter must be found first.
_FILL: Final = """
import os, runpy, sys
env = os.environ
env["PATH"] = os.path.dirname(sys.executable) + os.pathsep + env.get("PATH", os.defpath)
devices = list(filter(None, env["CUDA_VISIBLE_DEVICES"].split(",")))
words = ["symmetric-run", "--address=" + env["PET_MASTER_ADDR"] + ":" + env["MASTER_PORT"]]
words += ["--min-nodes=" + env["GROUP_WORLD_SIZE"], "--num-cpus=" + env["LOCAL_WORLD_SIZE"]]
words += ["--num-gpus=" + str(len(devices))]
sys.argv[1:1] = words
runpy.run_module("ray.scripts.scripts", None, "__main__", True)
"""


def _contradictions(options: Options, gang: Gang) -> Iterator[str]:
    for name in ("address", "min_nodes", "num_gpus"):
        if name in options:
            yield f"--{name.replace('_', '-')} {options[name]}, but the trial sets it for its hosts and slots"


RAY: Final = Program(
    name="ray symmetric-run",
    commands=(("ray", "symmetric-run"),),
    module="ray.scripts.symmetric_run",
    start=lambda _: ("-c", _FILL),
    code=(_FILL,),
    contradictions=_contradictions,
    set_by_launch=(),
    separator="-",
    takes_command=True,
)
