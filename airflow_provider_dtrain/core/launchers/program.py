"""Facts about a launcher of ranks: its commands, its options, and how it learns its place in a gang."""

from __future__ import annotations

import argparse
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

__all__ = ["Gang", "Options", "Program", "count"]

_PYTHON: Final = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)?)?\Z")
_OPTION: Final = re.compile(r"--([A-Za-z0-9][\w-]*)")

#: Options in a command, by name with underscores; flags are True.
Options = Mapping[str, str | bool]


@dataclass(frozen=True, kw_only=True)
class Gang:
    """The slots that a launcher starts ranks for."""

    #: Number of slots of each host.
    slots: Mapping[str, int]
    #: They are CPU slots.
    has_cpu_slots: bool

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return len(self.slots)

    @property
    def ranks(self) -> int:
        """Number of slots on all hosts."""
        return sum(self.slots.values())

    def unequal(self) -> str | None:
        """Return a contradiction if the hosts have different numbers of slots."""
        if len(set(self.slots.values())) <= 1:
            return None
        counts = ", ".join(f"{slots} on '{host}'" for host, slots in self.slots.items())
        return f"the same number of ranks on each host, but the slots of the trial are {counts}. Use torchrun"


@dataclass(frozen=True, kw_only=True)
class Program:
    """A launcher of ranks."""

    name: str
    #: Words with which a command starts it; the first one may have a path.
    commands: tuple[tuple[str, ...], ...]
    module: str
    #: Return the words between the interpreter and the user's options.
    start: Callable[[Options], tuple[str, ...]]
    #: Commands for ``python -c`` that :attr:`start` may return.
    code: tuple[str, ...] = ()
    #: Return what contradicts a gang: "option, but the trial ...", with a fix after a full stop where it is
    #: another one than to remove the option.
    contradictions: Callable[[Options, Gang], Iterator[str]]
    #: Options that differ between the hosts, or are known only when the hosts have answered.
    set_by_launch: tuple[str, ...]
    #: Options with a value; None: all that are not flags.
    values: tuple[str, ...] | None = None
    flags: tuple[str, ...] = ()
    #: Short form -> name of an option.
    short: Mapping[str, str] = field(default_factory=dict)
    #: It accepts the beginning of an option's name.
    abbreviates: bool = False
    #: Between the words of its options: "-" or "_".
    separator: str = "_"
    #: It takes a whole command after ``--`` in place of a script.
    takes_command: bool = False

    def arguments(self, argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]] | None:
        """Return the interpreter of the launcher with its options, and the arguments, or None for another command."""
        if not argv:
            return None
        folder, name = posixpath.split(argv[0])
        for words in self.commands:
            if (name, *argv[1 : len(words)]) == words:
                return [posixpath.join(folder, "python")], argv[len(words) :]
        place = next((index for index, word in enumerate(argv[:-1], 1) if word in ("-m", "-c")), 0)
        if place == 0 or not _PYTHON.match(argv[0]) or not all(word.startswith("-") for word in argv[1 : place - 1]):
            return None
        known = (self.module,) if argv[place - 1] == "-m" else self.code
        return (argv[: place - 1], argv[place + 1 :]) if argv[place] in known else None

    def parsed(self, arguments: Sequence[str]) -> tuple[dict[str, str | bool], tuple[str, ...]]:
        """Return the options of its arguments, and the script or command with what follows.

        Both are empty for arguments that it would refuse: it reports better than this parser what is wrong.
        """
        rest: list[str] | None = None
        if self.takes_command:
            if "--" not in arguments:
                return {}, ()
            end = list(arguments).index("--")
            arguments, rest = arguments[:end], list(arguments[end + 1 :])
        values: Iterable[str] | None = self.values
        if values is None:
            names = [found[1].replace("_", "-") for word in arguments if (found := _OPTION.match(word))]
            values = [name for name in dict.fromkeys([*names, *self.short.values()]) if name not in self.flags]
        try:
            options = vars(self._parser(values).parse_known_args(list(arguments))[0])
        except _UnreadableError:
            return {}, ()
        words = options.pop("command", [])
        return options, tuple(words if rest is None else rest)

    def _parser(self, values: Iterable[str]) -> _Parser:
        """Return a parser that reads a command as that of the launcher does, abbreviations included."""
        parser = _Parser(add_help=False, argument_default=argparse.SUPPRESS, allow_abbrev=self.abbreviates)
        for name in (*values, *self.flags):
            other = [f"--{name.replace('-', '_')}"] if "-" in name else []
            short = [one for one, meant in self.short.items() if meant == name]
            parser.add_argument(*short, f"--{name}", *other, action="store_true" if name in self.flags else "store")
        if not self.takes_command:
            parser.add_argument("command", nargs=argparse.REMAINDER)
        return parser


def count(number: int, name: str) -> str:
    """Return a number with the name of what it counts."""
    return f"{number} {name}{'s' if number != 1 else ''}"


class _UnreadableError(Exception):
    """The launcher itself reports what is wrong with its arguments."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UnreadableError(message)
