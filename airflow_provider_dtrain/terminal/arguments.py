"""Types and shared arguments of commands, for Airflow's parser and for the one of ``dtrain``.

A value that a type refuses is a usage error (exit 2).
"""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any, Literal

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}=?\Z")
#: Prefix of the id of a gang, because a gang may have no trial.
GANG_PREFIX = "gang:"
MAX_ID = 2**53


def name(text: str) -> str:
    """Return the text if it is a valid name of a host, pool or template."""
    if not _NAME.match(text) or ".." in text:
        raise argparse.ArgumentTypeError(
            f"a name must have 1 to 63 letters, digits, '_', '.' or '-', begin with a letter or digit and contain no "
            f"'..', got {text!r}"
        )
    return text


def connection_id(text: str) -> str:
    """Return the text if Airflow accepts it as the id of a connection."""
    if not re.match(r"[\w.-]{1,200}\Z", text, re.ASCII):
        raise argparse.ArgumentTypeError(
            f"a connection id must have letters, digits, '_', '.' and '-' only, got {text!r}"
        )
    return text


def slots(text: str) -> str:
    """Return the text if it is ``auto``, ``N`` or ``cpu:N``."""
    number = text.removeprefix("cpu:")
    is_count = number.isascii() and number.isdigit() and len(number) <= 4 and 1 <= int(number) <= 4096
    if text != "auto" and not is_count:
        raise argparse.ArgumentTypeError(f"slots must be 'auto', N or 'cpu:N' (N from 1 to 4096), got {text!r}")
    return text


def fingerprint(text: str) -> str:
    """Return a key fingerprint as ``ssh-keygen -l`` prints it, without padding."""
    if not _FINGERPRINT.match(text):
        raise argparse.ArgumentTypeError(
            f"a fingerprint must be SHA256: and 43 characters, got {text!r}. To print it, run on the host: "
            "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"
        )
    return text.rstrip("=")


def digest(text: str) -> str:
    """Return the start of a digest, of at least 4 hexadecimal digits."""
    if not re.match(r"[0-9a-f]{4,64}\Z", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"a digest must begin with 4 to 64 digits 0-9 and a-f, got {text[:80]!r}")
    return text


def count(text: str) -> int:
    """Return an id or index, >= 0."""
    if not text.isascii() or not text.isdigit() or len(text) > 16 or int(text) > MAX_ID:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 2**53, got {text[:40]!r}")
    return int(text)


def gang(text: str) -> int:
    """Return the id of a gang from its form in lists, ``gang:ID``."""
    number = text.removeprefix(GANG_PREFIX)
    if number == text or not number.isascii() or not number.isdigit() or len(number) > 16 or int(number) > MAX_ID:
        raise argparse.ArgumentTypeError(
            f"a gang must be {GANG_PREFIX}ID, as 'airflow dtrain queue list' shows it, got {text[:40]!r}"
        )
    return int(number)


def path(text: str) -> str:
    """Return a path for a host or this machine, without control characters and ``..``."""
    if not text or any(ord(c) < 32 or ord(c) == 127 for c in text) or ".." in text.split("/"):
        raise argparse.ArgumentTypeError(f"a path must not be empty or have '..' or control characters, got {text!r}")
    return text


def roots(text: str) -> tuple[str, ...]:
    """Return absolute paths between commas, none for an empty text."""
    found = tuple(path(part) for part in text.split(",") if text)
    if not all(part.startswith("/") for part in found):
        raise argparse.ArgumentTypeError(f"absolute paths between commas are accepted, got {text!r}")
    return found


def capabilities(text: str) -> tuple[str, ...]:
    """Return names of capabilities between commas without their prefix ``CAP_``, none for an empty text."""
    found = tuple(part.strip().upper().removeprefix("CAP_") for part in text.split(",") if text)
    if not all(re.fullmatch(r"[A-Z][A-Z_]{1,30}", part) for part in found):
        raise argparse.ArgumentTypeError(f"names of capabilities such as SYS_PTRACE are accepted, got {text!r}")
    return found


def variable(text: str) -> tuple[str, str]:
    """Return name and value of an environment variable."""
    key, equals, value = text.partition("=")
    if not equals or not re.match(r"[A-Za-z_][A-Za-z0-9_]{0,255}\Z", key, re.ASCII):
        raise argparse.ArgumentTypeError(f"a variable must be NAME=VALUE, e.g. HF_HOME=/data/hf, got {text[:40]!r}")
    return key, value


def weight(text: str) -> float:
    """Return a weight relative to other weights, > 0."""
    if not re.match(r"\d{1,6}(\.\d{1,6})?\Z", text, re.ASCII) or not float(text):
        raise argparse.ArgumentTypeError(f"a weight must be a number above 0 (1 is usual), got {text[:40]!r}")
    return float(text)


def priority(text: str) -> int:
    """Return a priority from 1 to 99."""
    if not re.match(r"\d{1,2}\Z", text, re.ASCII) or not int(text):
        raise argparse.ArgumentTypeError(
            f"a priority must be from 1 (most urgent) to 99 (42 is usual), got {text[:40]!r}"
        )
    return int(text)


def on_off(text: str) -> bool:
    """Return True for ``on`` and False for ``off``."""
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"must be 'on' or 'off', got {text!r}")
    return text == "on"


def seconds(text: str) -> float:
    """Return the seconds that ``90``, ``90s``, ``30m``, ``36h`` or ``2d`` means."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    number, factor = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    if not re.match(r"\d{1,12}(\.\d{1,6})?\Z", number, re.ASCII):
        raise argparse.ArgumentTypeError(
            f"a time must be seconds, or a number with s, m, h or d (36h), got {text[:40]!r}"
        )
    return float(number) * factor


def deadline(text: str) -> datetime:
    """Return the time that ``2026-01-31T22:00``, ``22:00`` (the next one) or ``2h`` (from now on) means.

    A time without a zone is in the zone of this machine.
    """
    now = datetime.now().astimezone()
    if re.match(r"\d{1,2}:\d{2}\Z", text, re.ASCII):
        hour, minute = map(int, text.split(":"))
        if hour < 24 and minute < 60:
            today = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            return today if today > now else today + timedelta(days=1)
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(text).astimezone()
    with contextlib.suppress(argparse.ArgumentTypeError, OverflowError):
        return now + timedelta(seconds=seconds(text))
    raise argparse.ArgumentTypeError(
        f"a deadline must be a time (22:00, 2026-01-31T22:00) or a length (90m, 2h), got {text[:40]!r}"
    )


def day(text: str) -> str:
    """Return the text if it is a day, 2026-01-31."""
    with contextlib.suppress(ValueError):
        if re.match(r"\d{4}-\d{2}-\d{2}\Z", text, re.ASCII):
            date.fromisoformat(text)
            return text
    raise argparse.ArgumentTypeError(f"a day must be YYYY-MM-DD, e.g. 2026-01-31, got {text[:40]!r}")


def moment(text: str) -> datetime:
    """Return the time that ``2026-01-31T22:00``, ``22:00`` (the last one) or ``2h`` (before now) means.

    A time without a zone is in the zone of this machine.
    """
    now = datetime.now().astimezone()
    if re.match(r"\d{1,2}:\d{2}(:\d{2})?\Z", text, re.ASCII):
        hour, minute, second = (*map(int, text.split(":")), 0)[:3]
        if hour < 24 and minute < 60 and second < 60:
            today = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
            return today if today <= now else today - timedelta(days=1)
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(text).astimezone()
    with contextlib.suppress(argparse.ArgumentTypeError, OverflowError):
        return now - timedelta(seconds=seconds(text))
    raise argparse.ArgumentTypeError(
        f"a time must be a time (22:00, 2026-01-31T22:00) or a length before now (90m, 2h), got {text[:40]!r}"
    )


def share(text: str) -> float:
    """Return a share from 0 to 1. ``25%`` is 0.25."""
    number = text.removesuffix("%")
    value = float(number) if re.match(r"\d{1,3}(\.\d{1,9})?\Z", number, re.ASCII) else -1.0
    value = value / 100 if text.endswith("%") else value
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"a share must be from 0 to 1, or from 0% to 100%, got {text[:40]!r}")
    return value


def cluster(text: str) -> list[tuple[int, int]]:
    """Return groups of (hosts, slots of each) for ``80x8,4x4``.

    The limits are 100,000 hosts in all and 4,096 slots per host.
    """
    groups = [re.match(r"(\d{1,6})x(\d{1,4})\Z", part.strip(), re.ASCII) for part in text.split(",")]
    found = [(int(group[1]), int(group[2])) for group in groups if group]
    if len(found) < len(groups) or any(not 0 < slots <= 4096 or not number for number, slots in found):
        raise argparse.ArgumentTypeError(
            f"hosts must be HOSTSxSLOTS, e.g. 100x8 or 80x8,4x4, with 1 to 4096 slots, got {text[:40]!r}"
        )
    if sum(number for number, _ in found) > 100_000:
        raise argparse.ArgumentTypeError(f"hosts must be at most 100,000 in all, got {text[:40]!r}")
    return found


class Arg:
    """One argument of a command. Airflow's parser needs only these attributes and this method.

    :param flags: its name, or its options
    :param kwargs: further arguments of ``ArgumentParser.add_argument``
    """

    def __init__(self, flags: Sequence[str], **kwargs: Any) -> None:
        self.flags = tuple(flags)
        self.kwargs = kwargs

    def add_to_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add it to a parser."""
        parser.add_argument(*self.flags, **self.kwargs)


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command."""

    name: str
    help: str
    #: Module and function of its code, ``trials.list_trials``.
    target: str
    args: tuple[Arg, ...]
    #: What a command that both programs have needs from them, besides records; None: each program has its own code.
    port: Literal["source", "control", "documents"] | None = None


@dataclass(frozen=True, kw_only=True)
class Group:
    """Commands for one noun."""

    name: str
    help: str
    commands: tuple[Command, ...]


class InOrder(Arg):
    """Arguments under headings, in the given order. Airflow sorts all other arguments by name.

    :param groups: heading and arguments
    """

    def __init__(self, *groups: tuple[str, tuple[Arg, ...]]) -> None:
        self.groups = groups
        super().__init__(flags=groups[0][1][0].flags)

    def add_to_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add all arguments to a parser."""
        for heading, args in self.groups:
            group: Any = parser.add_argument_group(heading)
            for arg in args:
                arg.add_to_parser(group)


OUTPUT = Arg(
    ("-o", "--output"),
    help="Output format: table (default), plain (no lines, for scripts), json or yaml",
    choices=("table", "plain", "json", "yaml"),
    default="table",
)
YES = Arg(("-y", "--yes"), help="Do not ask for confirmation", action="store_true")
VERBOSE = Arg(("-v", "--verbose"), help="Show log messages on stderr", action="store_true")
HOST = Arg(("host",), help="Name of the host", type=name)
POOL = Arg(("pool",), help="Name of the pool", type=name)
TEMPLATE = Arg(("name",), help="Name of the template", type=name)
GANG = Arg(("gang",), help="Gang, as 'queue list' shows it: gang:ID", type=gang)
TRIAL = Arg(("trial_id",), help="Id of the trial, not its number in the experiment", type=count)
CONFIG = Arg(("config",), help="Configuration file (YAML), - for standard input")
WITH_TEMPLATE = Arg(
    ("--template",),
    help="Template to merge under the configuration: a stored one, or a .yaml file",
)
EXPERIMENT = Arg(("experiment_id",), help="Id of the experiment, as 'experiments list' shows it", type=count)
PRIORITY = Arg(("--priority",), help="Priority from 1 (most urgent) to 99", type=priority, metavar="N")
ONLY_POOL = Arg(("--pool",), help="Only this pool", type=name)
COMMON = (OUTPUT, VERBOSE)


def action(noun: str, verb: str, help: str, *args: Arg, function: str | None = None) -> Command:
    """Return a command. Its function is imported when it runs.

    :param noun: module of the function
    :param function: default: the verb
    """
    return Command(name=verb, help=help, target=f"{noun}.{function or verb}", args=(*args, *COMMON))


def reads(noun: str, verb: str, help: str, *args: Arg, function: str | None = None) -> Command:
    """Return a command of both programs that only reads. Its function is in this package."""
    return replace(action(noun, verb, help, *args, function=function), port="source")


def checks(module: str, verb: str, help: str, *args: Arg, function: str | None = None) -> Command:
    """Return a command of both programs for templates and configurations. Its function is in this package."""
    return replace(action(module, verb, help, *args, function=function), port="documents")


def controls(noun: str, verb: str, help: str, *args: Arg) -> Command:
    """Return a command of both programs that changes trials, experiments or hosts. Its function is in this package."""
    return replace(action("control", verb, help, *args, function=f"{verb}_{noun}"), port="control")


#: Options that change the labels of an experiment or a trial.
LABELS = (
    Arg(("--name",), help="Name that lists and pages show; empty: the name from the configuration", metavar="TEXT"),
    Arg(("--description",), help="Description; empty: none", metavar="TEXT"),
    Arg(("--tag",), help="Add a tag; repeatable", action="append", metavar="TAG"),
    Arg(("--untag",), help="Remove a tag; repeatable", action="append", metavar="TAG"),
)
WITH_TAGS = Arg(
    ("--tag",), help="Only those with this tag; repeatable: with all of them", action="append", metavar="TAG"
)
