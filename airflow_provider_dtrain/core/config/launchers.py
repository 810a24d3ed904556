"""Programs that start the ranks of a host themselves: torchrun and ``accelerate launch``."""

from __future__ import annotations

import argparse
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

from airflow_provider_dtrain.errors import Problem

__all__ = ["Launcher", "launcher_of", "launcher_problems"]

_PYTHON: Final = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)?)?\Z")
_OPTION: Final = re.compile(r"--([A-Za-z0-9][\w-]*)")
#: Options of torchrun that take a value, and flags.
#: Source: ``get_args_parser`` of ``torch/distributed/run.py`` of PyTorch 2.4 to 2.13.
_VALUES: Final = (
    *("nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts"),
    *("monitor-interval", "start-method", "event-log-handler", "role", "log-dir", "redirects", "tee"),
    *("local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters", "node-rank", "master-addr"),
    *("master-port", "local-addr", "logs-specs", "numa-binding", "signals-to-handle", "shutdown-timeout"),
)
_FLAGS: Final = ("standalone", "module", "no-python", "run-path", "virtual-local-rank")
_SHORT: Final = {"module": "-m", "redirects": "-r", "tee": "-t"}
#: Flags of ``accelerate launch``. Each of its many other options takes a value.
#: Source: ``launch_command_parser`` of ``accelerate/commands/launch.py`` of Accelerate 1.15.
_ACCELERATE_FLAGS: Final = (
    *("quiet", "cpu", "multi-gpu", "tpu", "enable-cpu-affinity", "dynamo-use-fullgraph", "dynamo-use-dynamic"),
    *("dynamo-use-regional-compilation", "use-deepspeed", "use-fsdp", "use-parallelism-config", "use-megatron-lm"),
    *("same-network", "module", "no-python", "tpu-cluster", "no-tpu-cluster", "tpu-use-sudo", "downcast-bf16"),
    *("fp8-use-autocast-during-eval", "debug"),
)
#: They tell ``accelerate launch`` how to start ranks. It starts one process per host if it finds less than two GPUs.
_KINDS: Final = ("multi_gpu", "cpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "config_file")
#: Runs ``accelerate launch`` with arguments from the environment of its host, because it has no variables for them.
#: For one slot it starts the script without the numbers of a rank, which are set here.
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


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A launcher of ranks in a command."""

    #: Its name, as in the command.
    name: str
    #: The command with ``python`` in front, so that the launcher belongs to the interpreter of the ranks.
    argv: tuple[str, ...]
    #: Options of the user, by name with underscores.
    options: Mapping[str, str | bool]
    #: Script or module that it starts; None if the command does not tell.
    script: str | None


@dataclass(frozen=True, kw_only=True)
class _Program:
    """Facts that distinguish a launcher."""

    name: str
    #: Words with which a command starts it; the first one may have a path.
    commands: tuple[tuple[str, ...], ...]
    module: str
    #: Commands for ``python -c`` that start the module.
    code: tuple[str, ...] = ()
    #: Options with a value; None: all that are not flags.
    values: tuple[str, ...] | None = None
    flags: tuple[str, ...]
    short: Mapping[str, str] = field(default_factory=dict)
    #: It accepts the beginning of an option's name.
    abbreviates: bool = False
    #: They differ between the hosts, or are known only when the hosts have answered.
    set_by_launch: tuple[str, ...]


_TORCHRUN: Final = _Program(
    name="torchrun",
    commands=(("torchrun",),),
    module="torch.distributed.run",
    values=_VALUES,
    flags=_FLAGS,
    short=_SHORT,
    abbreviates=True,
    set_by_launch=("node_rank", "master_addr", "master_port", "rdzv_endpoint"),
)
_ACCELERATE: Final = _Program(
    name="accelerate launch",
    commands=(("accelerate", "launch"), ("accelerate-launch",)),
    module="accelerate.commands.launch",
    code=(_WITH_KIND, _WITHOUT_KIND),
    flags=_ACCELERATE_FLAGS,
    short={"quiet": "-q", "tee": "-t", "module": "-m"},
    set_by_launch=("machine_rank", "main_process_ip", "main_process_port"),
)


def launcher_of(argv: Sequence[str]) -> Launcher | None:
    """Return the launcher that a command starts, None if it starts none.

    :param argv: words of the entrypoint, or of the command of a launcher
    """
    for program in (_TORCHRUN, _ACCELERATE):
        found = _started(program, argv)
        if found is not None:
            python, rest = found
            options, script = _parsed(program, rest)
            start = ("-m", program.module)
            if program is _ACCELERATE:
                start = ("-c", _WITH_KIND if any(kind in options for kind in _KINDS) else _WITHOUT_KIND)
            return Launcher(name=program.name, argv=(*python, *start, *rest), options=options, script=script)
    return None


def _started(program: _Program, argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]] | None:
    """Return the interpreter of a program with its options, and the arguments of the program."""
    if not argv:
        return None
    folder, name = posixpath.split(argv[0])
    for words in program.commands:
        if (name, *argv[1 : len(words)]) == words:
            return [posixpath.join(folder, "python")], argv[len(words) :]
    place = next((index for index, word in enumerate(argv[:-1], 1) if word in ("-m", "-c")), 0)
    if place == 0 or not _PYTHON.match(argv[0]) or not all(word.startswith("-") for word in argv[1 : place - 1]):
        return None
    known = (program.module,) if argv[place - 1] == "-m" else program.code
    return (argv[: place - 1], argv[place + 1 :]) if argv[place] in known else None


def launcher_problems(launcher: Launcher, slots: Mapping[str, int], *, has_cpu_slots: bool) -> list[Problem]:
    """Return the contradictions between the options of a launcher and the gang.

    :param slots: number of slots of each host of the gang
    """
    hosts = len(slots)
    program = _TORCHRUN if launcher.name == _TORCHRUN.name else _ACCELERATE
    if program is _TORCHRUN:
        found = _of_torchrun(launcher.options, slots, has_cpu_slots=has_cpu_slots)
    else:
        found = list(_of_accelerate(launcher.options, slots))
    for name in program.set_by_launch if hosts > 1 else ():
        if name in launcher.options:
            option = "--" + (name.replace("_", "-") if program is _TORCHRUN else name)
            found.append(f"{option} {launcher.options[name]}, but the launch sets it for each of the {hosts} hosts")
    messages = [one if ". " in one else f"{one}. Remove the option" for one in found]
    return [Problem(path="entrypoint", message=f"{launcher.name} has {one}") for one in messages]


def _of_torchrun(options: Mapping[str, str | bool], slots: Mapping[str, int], *, has_cpu_slots: bool) -> list[str]:
    hosts = len(slots)
    found = []
    nodes = str(options.get("nnodes", hosts))
    if nodes not in {str(hosts), f"{hosts}:{hosts}"}:
        found.append(f"--nnodes {nodes}, but the trial has {_count(hosts, 'host')}")
    found += _of_workers(str(options.get("nproc_per_node", "")), slots, has_cpu_slots=has_cpu_slots)
    if hosts > 1 and options.get("standalone"):
        found.append(f"--standalone is for 1 host, but the trial has {hosts} hosts")
    return found


def _of_accelerate(options: Mapping[str, str | bool], slots: Mapping[str, int]) -> Iterator[str]:
    hosts, ranks = len(slots), sum(slots.values())
    for name, count, unit in (("num_machines", hosts, "host"), ("num_processes", ranks, "slot")):
        if options.get(name, str(count)) != str(count):
            yield f"--{name} {options[name]}, but the trial has {_count(count, unit)}"
    if options.get("gpu_ids", "all") != "all":
        yield f"--gpu_ids {options['gpu_ids']}, but the devices are those of the trial's slots"
    if "mpirun_hostfile" in options:
        yield f"--mpirun_hostfile {options['mpirun_hostfile']}, but the trial starts it on each host"
    if "cpu" in options and ranks > 1:
        yield (
            f"--cpu, which starts one process per host, but the trial has {_count(ranks, 'slot')}. Remove the option "
            "and set ACCELERATE_USE_CPU: 'true' in environment.variables"
        )
    if "multi_gpu" in options and ranks == 1:
        yield "--multi_gpu, which needs 2 slots, but the trial has 1 slot"
    multinode = options.get("deepspeed_multinode_launcher")
    if hosts > 1 and "use_deepspeed" in options and multinode != "standard" and "config_file" not in options:
        yield (
            f"--use_deepspeed with the launcher {multinode or 'pdsh'}, which reads hosts from a file, but the trial "
            "chooses them. Set --deepspeed_multinode_launcher standard"
        )
    if len(set(slots.values())) > 1:
        counts = ", ".join(f"{count} on '{host}'" for host, count in slots.items())
        yield f"the same number of ranks on each host, but the slots of the trial are {counts}. Use torchrun"


def _of_workers(wanted: str, slots: Mapping[str, int], *, has_cpu_slots: bool) -> list[str]:
    if not wanted or (wanted in {"auto", "gpu"} and not has_cpu_slots):
        return []
    for host, count in slots.items():
        if wanted != str(count):
            return [f"--nproc-per-node {wanted}, but the trial has {_count(count, 'slot')} on host '{host}'"]
    return []


def _count(count: int, name: str) -> str:
    return f"{count} {name}{'s' if count != 1 else ''}"


class _UnreadableError(Exception):
    """The launcher itself reports what is wrong with its arguments."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UnreadableError(message)


def _parser(program: _Program, values: Iterable[str]) -> _Parser:
    """Return a parser that reads a command as that of the launcher does, abbreviations included."""
    parser = _Parser(add_help=False, argument_default=argparse.SUPPRESS, allow_abbrev=program.abbreviates)
    for name in (*values, *program.flags):
        other = [f"--{name.replace('-', '_')}"] if "-" in name else []
        short = [program.short[name]] if name in program.short else []
        parser.add_argument(*short, f"--{name}", *other, action="store_true" if name in program.flags else "store")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _parsed(program: _Program, arguments: Sequence[str]) -> tuple[dict[str, str | bool], str | None]:
    values: Iterable[str] | None = program.values
    if values is None:
        names = [found[1].replace("_", "-") for word in arguments if (found := _OPTION.match(word))]
        values = [name for name in dict.fromkeys([*names, *program.short]) if name not in program.flags]
    try:
        options = vars(_parser(program, values).parse_known_args(list(arguments))[0])
    except _UnreadableError:
        return {}, None
    options.pop("arguments", None)
    script = options.pop("script", None)
    return options, script
