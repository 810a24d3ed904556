"""Launchers in commands, and their contradictions with a gang."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from airflow_provider_dtrain.core.launchers.accelerate import ACCELERATE
from airflow_provider_dtrain.core.launchers.deepspeed import DEEPSPEED
from airflow_provider_dtrain.core.launchers.program import Gang, Options, Program
from airflow_provider_dtrain.core.launchers.ray import RAY
from airflow_provider_dtrain.core.launchers.torchrun import TORCHRUN
from airflow_provider_dtrain.errors import Problem

__all__ = ["Launcher", "command_problem", "launcher_of", "launcher_problems"]

_PROGRAMS: Final = (TORCHRUN, ACCELERATE, DEEPSPEED, RAY)


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A launcher of ranks in a command."""

    program: Program
    #: The command with ``python`` in front, so that the launcher belongs to the interpreter of the ranks.
    argv: tuple[str, ...]
    options: Options
    #: What it starts: a script or module with its arguments, or a whole command. Empty if its arguments are wrong.
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the launcher, as in a command."""
        return self.program.name

    @property
    def script(self) -> str | None:
        """Script or module that it starts, None if it starts a whole command or its arguments are wrong."""
        return self.command[0] if self.command and not self.program.takes_command else None


def launcher_of(argv: Sequence[str]) -> Launcher | None:
    """Return the launcher that a command starts, None if it starts none.

    :param argv: words of the entrypoint, or of the command of a launcher
    """
    for program in _PROGRAMS:
        found = program.arguments(argv)
        if found is not None:
            python, arguments = found
            options, command = program.parsed(arguments)
            words = (*python, *program.start(options), *arguments)
            return Launcher(program=program, argv=words, options=options, command=command)
    return None


def command_problem(argv: Sequence[str]) -> str | None:
    """Return why a command of a launcher cannot be an entrypoint."""
    if posixpath.basename(argv[0]) == "ray" and "start" in argv[1:2]:
        return (
            "ray start ends when Ray has started, or never; use ray symmetric-run -- python train.py, which starts Ray "
            "on each host, runs the script and stops Ray"
        )
    return None


def launcher_problems(launcher: Launcher, slots: Mapping[str, int], *, has_cpu_slots: bool) -> list[Problem]:
    """Return the contradictions between the options of a launcher and the gang.

    :param slots: number of slots of each host of the gang
    """
    program, gang = launcher.program, Gang(slots=slots, has_cpu_slots=has_cpu_slots)
    found = list(program.contradictions(launcher.options, gang))
    for name in program.set_by_launch if gang.hosts > 1 else ():
        if name in launcher.options:
            option = f"--{name.replace('_', program.separator)} {launcher.options[name]}"
            found.append(f"{option}, but the launch sets it for each of the {gang.hosts} hosts")
    messages = [one if ". " in one else f"{one}. Remove the option" for one in found]
    return [Problem(path="entrypoint", message=f"{program.name} has {one}") for one in messages]
