"""Programs that start the ranks of a host themselves: torchrun."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from airflow_provider_dtrain.errors import Problem

__all__ = ["Launcher", "launcher_of", "launcher_problems"]

_PYTHON: Final = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)?)?\Z")
_TORCHRUN: Final = re.compile(r"(?:.*/)?torchrun\Z")
_MODULE: Final = "torch.distributed.run"
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
#: They differ between the hosts, or are known only when the hosts have answered.
_SET_BY_LAUNCH: Final = ("node_rank", "master_addr", "master_port", "rdzv_endpoint")


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


def launcher_of(argv: Sequence[str]) -> Launcher | None:
    """Return the launcher that a command starts, None if it starts none.

    :param argv: words of the entrypoint
    """
    if not argv:
        return None
    head: tuple[str, ...]
    if _TORCHRUN.match(argv[0]):
        python, rest = "python" if argv[0] == "torchrun" else argv[0][: -len("torchrun")] + "python", argv[1:]
        head = (python, "-m", _MODULE)
    else:
        place = next((index for index, word in enumerate(argv[:-1], 1) if word == "-m"), 0)
        before = argv[1 : place - 1]
        is_module = place > 0 and argv[place] == _MODULE and all(word.startswith("-") for word in before)
        if not is_module or not _PYTHON.match(argv[0]):
            return None
        head, rest = tuple(argv[: place + 1]), argv[place + 1 :]
    options, script = _parsed(rest)
    return Launcher(name="torchrun", argv=(*head, *rest), options=options, script=script)


def launcher_problems(launcher: Launcher, slots: Mapping[str, int], *, has_cpu_slots: bool) -> list[Problem]:
    """Return the contradictions between the options of a launcher and the gang.

    :param slots: number of slots of each host of the gang
    """
    hosts = len(slots)
    options = launcher.options
    found = []
    nodes = str(options.get("nnodes", hosts))
    if nodes not in {str(hosts), f"{hosts}:{hosts}"}:
        found.append(f"--nnodes {nodes}, but the trial has {_count(hosts, 'host')}")
    found += _of_workers(str(options.get("nproc_per_node", "")), slots, has_cpu_slots=has_cpu_slots)
    if hosts > 1 and options.get("standalone"):
        found.append(f"--standalone is for 1 host, but the trial has {hosts} hosts")
    for name in _SET_BY_LAUNCH if hosts > 1 else ():
        if name in options:
            option = "--" + name.replace("_", "-")
            found.append(f"{option} {options[name]}, but the launch sets it for each of the {hosts} hosts")
    return [Problem(path="entrypoint", message=f"{launcher.name} has {one}. Remove the option") for one in found]


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
    """torchrun itself reports what is wrong with its arguments."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UnreadableError(message)


def _parser() -> _Parser:
    """Return a parser that reads a command as that of torchrun does, abbreviations included."""
    parser = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    for name in (*_VALUES, *_FLAGS):
        other = [f"--{name.replace('-', '_')}"] if "-" in name else []
        short = [_SHORT[name]] if name in _SHORT else []
        parser.add_argument(*short, f"--{name}", *other, action="store_true" if name in _FLAGS else "store")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _parsed(arguments: Sequence[str]) -> tuple[dict[str, str | bool], str | None]:
    try:
        options = vars(_parser().parse_known_args(list(arguments))[0])
    except _UnreadableError:
        return {}, None
    options.pop("arguments", None)
    script = options.pop("script", None)
    return options, script
