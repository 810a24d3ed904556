"""Output of commands: rows on stdout, everything else on stderr, exit codes, questions.

Control characters become visible in :mod:`.safe_streams`. Here only what has a width is escaped: cells and names of
tables.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.core.plain_data import plain_data
from airflow_provider_dtrain.errors import DtrainError, NotNowError, UsageError
from airflow_provider_dtrain.terminal.table import table_lines

if TYPE_CHECKING:
    from argparse import Namespace


FAILURE, USAGE, NOT_NOW = 1, 2, 3
#: Of a trial that was run again: its weights differ, or there were none to compare.
DIFFERS, NOTHING_COMPARED = 4, 5
#: Output formats that print the columns for a terminal. The other formats print all fields.
TABLES = ("table", "plain")

Row = Mapping[str, Any]
#: The code of a command. It returns its exit code, None for 0.
Function = Callable[[argparse.Namespace], int | None]


class TaskKey(Protocol):
    """A task instance of Airflow."""

    @property
    def dag_id(self) -> str:
        """The DAG."""

    @property
    def task_id(self) -> str:
        """The task."""

    @property
    def map_index(self) -> int:
        """Index of a mapped task instance, else -1."""


def run(function: Function, args: Namespace) -> int:
    """Run a command and return its exit code. An error becomes one message on stderr."""
    try:
        code = function(args) or 0
        sys.stdout.flush()
        return code
    except DtrainError as error:
        return fail(str(error), FAILURE)
    except NotNowError as error:
        return fail(str(error), NOT_NOW)
    except UsageError as error:
        return fail(str(error), USAGE)
    except KeyboardInterrupt:
        return fail("Interrupted.", 130)
    except BrokenPipeError:
        # The reader, head for instance, has closed the pipe. Without this, Python reports it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def fail(message: str, code: int) -> int:
    """Write an error to stderr and return the exit code."""
    print(_PROGRAM.reword(message), file=sys.stderr)
    return code


class _Program:
    """Changes messages to the commands of the running program. Most of them come from code that both programs use."""

    def __init__(self) -> None:
        self.reword: Callable[[str], str] = str


_PROGRAM = _Program()


@contextlib.contextmanager
def using_commands(reword: Callable[[str], str]) -> Iterator[None]:
    """Change messages and hints by a function before they are printed."""
    before, _PROGRAM.reword = _PROGRAM.reword, reword
    try:
        yield
    finally:
        _PROGRAM.reword = before


def note(message: str) -> None:
    """Write a line for the user to stderr."""
    print(_PROGRAM.reword(message), file=sys.stderr)


def hint(next_command: str) -> None:
    """Print the next command on stderr if stdout is a terminal."""
    if sys.stdout.isatty():
        print(f"Next: {_PROGRAM.reword(next_command)}", file=sys.stderr)


def confirm(question: str, *, yes: bool) -> bool:
    """Return whether the user agrees.

    :param yes: the user has agreed with ``--yes``
    :raises UsageError: standard input is not a terminal
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Standard input is not a terminal, so you cannot be asked. To agree, add --yes.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def user() -> str:
    """Return the name of the user who runs this command."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"


def is_table(args: Namespace) -> bool:
    """Return whether a command prints the columns for a terminal, and not all fields."""
    return args.output in TABLES


def show(args: Namespace, rows: Sequence[Row], *, empty: str = "Nothing to show.") -> None:
    """Print rows in the requested format.

    :param empty: message in place of a table without rows: the fact, then the next step
    """
    if not is_table(args):
        dump(args.output, [dict(row) for row in rows])
    elif rows:
        _print_table(rows, is_plain=args.output == "plain")
    else:
        note(empty)


def show_one(args: Namespace, row: Row, *, with_empty: bool = True) -> None:
    """Print one record: one field per line, or one JSON or YAML object.

    :param with_empty: False: the table leaves out fields without a value
    """
    if not is_table(args):
        dump(args.output, dict(row))
        return
    row = row if with_empty else {name: value for name, value in row.items() if value not in (None, {}, [])}
    width = max(len(name) for name, _ in _lines(row)) + 2
    for name, value in _lines(row):
        first, *more = cell(value).rstrip().split("\n")
        print(f"{name:{width}}{first}")
        for line in more:
            print(f"{'':{width}}{line}")


def _lines(row: Row) -> list[tuple[str, Any]]:
    """Return names and values. A map gets one line per entry."""
    found: list[tuple[str, Any]] = []
    for name, value in row.items():
        if isinstance(value, Mapping) and value:
            found += [(f"{name.replace('_', ' ')}.{cell(part)}", item) for part, item in value.items()]
        else:
            found.append((name.replace("_", " "), value))
    return found


def dump(form: str, value: Any) -> None:
    """Print a value as JSON or YAML. Times are ISO 8601 in UTC, numbers stay numbers."""
    ready = plain_data(value)
    if form == "json":
        print(json.dumps(ready, indent=2))
        return
    try:
        import yaml
    except ModuleNotFoundError:
        raise UsageError("-o yaml needs a library. Install it: pip install pyyaml") from None

    class Dumper(yaml.SafeDumper):
        """Writes texts with control characters in double quotes, where their visible form stands for them."""

        def represent_str(self, text: str) -> Any:
            return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if escaped(text) == text else '"')

    Dumper.add_representer(str, Dumper.represent_str)
    print(yaml.dump(ready, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120), end="")


def _print_table(rows: Sequence[Row], *, is_plain: bool) -> None:
    names = [cell(column.replace("_", " ")) for column in rows[0]]
    texts = [[cell(value) for value in row.values()] for row in rows]
    width = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() and not is_plain else None
    for line in table_lines(names, texts, width=width or None, has_rule=not is_plain):
        print(line)


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{cell(key)}={cell(item)}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value) or "-"
    return escaped(_PROGRAM.reword(str(value)))


def short_time(at: datetime | None) -> str:
    """Return a time in the short form for a narrow table."""
    return "-" if at is None else at.astimezone(UTC).strftime("%m-%d %H:%MZ")


def task_name(key: TaskKey) -> str:
    """Return ``dag.task``, or ``dag.task[3]`` for an instance of a mapped task."""
    return f"{key.dag_id}.{key.task_id}" + (f"[{key.map_index}]" if key.map_index >= 0 else "")


def placement_text(placement: Mapping[str, Sequence[int]]) -> str:
    """Return ``gpu-01:0-3,gpu-02:0`` for a placement."""
    return ",".join(f"{host}:{slots_text(indices)}" if indices else host for host, indices in placement.items())


def slots_text(indices: Sequence[int]) -> str:
    """Return ``0-3+5`` for indices of slots."""
    parts: list[list[int]] = []
    for index in sorted(indices):
        if parts and index == parts[-1][-1] + 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    return "+".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
