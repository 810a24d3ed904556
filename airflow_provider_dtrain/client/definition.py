"""The commands of ``dtrain``: those of ``airflow dtrain`` that need no shell on Airflow's machine, and its login."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module

from airflow_provider_dtrain.client.login import login, logout, session_of
from airflow_provider_dtrain.terminal import arguments as a
from airflow_provider_dtrain.terminal.arguments import Arg, Command, Group
from airflow_provider_dtrain.terminal.definition import commands as all_commands
from airflow_provider_dtrain.terminal.output import Function

#: Arguments of every command.
SERVER = Arg(
    ("--server",),
    help="URL of Airflow's API server (default: DTRAIN_SERVER, else that of the last login)",
    metavar="URL",
)
CA = Arg(
    ("--ca",),
    help="File of certificates to trust instead of the system's (default: DTRAIN_CA, then that of the login)",
    metavar="FILE",
)
ALLOW_HTTP = Arg(
    ("--allow-http",),
    help="Reach another machine by plain HTTP, which shows the token to the network (DTRAIN_ALLOW_HTTP=1)",
    action="store_true",
)
_USERNAME = Arg(("--username",), help="Name of the user (default: asked)", metavar="NAME")
_STDIN = Arg(("--password-stdin",), help="Read the password from standard input", action="store_true")


def _later(module: str, name: str) -> Function:
    """Return a function whose module is imported when it runs: most commands need none of these."""

    def run(args: Namespace) -> int | None:
        function: Function = getattr(import_module(f"airflow_provider_dtrain.client.{module}"), name)
        return function(args)

    return run


def _shared(command: Command) -> Function:
    """Return the function of a command of both programs, with records and control requests of a server."""

    def run(args: Namespace) -> int | None:
        from airflow_provider_dtrain.client.control import ServerControl
        from airflow_provider_dtrain.client.documents import ServerDocuments
        from airflow_provider_dtrain.client.live_views import PatientSource
        from airflow_provider_dtrain.client.source import ServerSource
        from airflow_provider_dtrain.terminal.shared import run_shared

        session = session_of(args)
        source = PatientSource(session) if getattr(args, "watch", False) else ServerSource(session)
        return run_shared(command, args, source, ServerControl(session), ServerDocuments(session))

    return run


def _all_commands() -> Iterator[Command]:
    for one in all_commands():
        yield from one.commands if isinstance(one, Group) else (one,)


#: Target of a command -> its function here. The others need a shell on the machine of Airflow.
FUNCTIONS: dict[str, Function] = {
    "login.login": login,
    "login.logout": logout,
    **{one.target: _shared(one) for one in _all_commands() if one.port is not None},
    "experiments_create.create": _later("create", "create"),
    "infer.infer": _later("infer", "infer"),
    "experiments_create.fork": _later("create", "fork"),
    "experiments_create.reproduce": _later("create", "reproduce"),
    "trials_logs.logs": _later("logs", "logs"),
    "trials_stack.stack": _later("operations", "stack"),
    "trials_stack.trace": _later("operations", "trace"),
    "trials_exec.exec_in_rank": _later("operations", "exec_in_rank"),
    "hosts.probe": _later("operations", "probe"),
    "hosts.check": _later("operations", "check"),
    "doctor.doctor": _later("operations", "doctor"),
    "trials_outputs.outputs": _later("downloads", "outputs"),
    "trials_outputs.download": _later("downloads", "download"),
    "trials_media.media": _later("media", "media"),
    "trials_outputs.checkpoint": _later("downloads", "checkpoint"),
    "live_views.trial": _later("live_views", "watch_trial"),
    "live_views.experiment": _later("live_views", "watch_experiment"),
}

_FORK = a.action(
    "experiments_create",
    "fork",
    "Start an experiment with configuration, code and secrets of another one",
    a.EXPERIMENT,
    Arg(("config",), help="Changed configuration (default: that of the other experiment), - for stdin", nargs="?"),
    Arg(("-f", "--follow"), help="Follow it until it ends; exit 1 if it fails", action="store_true"),
)
_CHECKPOINT = a.action(
    "trials_outputs",
    "download-checkpoint",
    "Copy a checkpoint to a folder on this machine",
    a.TRIAL,
    Arg(("checkpoint",), help="Id of a checkpoint, best or latest (default)", nargs="?", default="latest"),
    Arg(("--to",), help="Target folder (default: ./trial-<id>-step-<step>)", metavar="DIR"),
    function="checkpoint",
)
_EXPERIMENTS = (_FORK, a.action("live_views", "watch", "Follow it and its trials", a.EXPERIMENT, function="experiment"))
_TRIALS = (_CHECKPOINT, a.action("live_views", "watch", "Follow metrics, speed and GPUs", a.TRIAL, function="trial"))
#: Commands that only this program has, by their noun.
_MORE = {"experiments": _EXPERIMENTS, "e": _EXPERIMENTS, "trials": _TRIALS, "t": _TRIALS}
_THERE = "machine of Airflow"
#: Commands that need this machine.
_OF_AIRFLOW = re.compile(r"\bairflow (?:dtrain|connections|dags|db|pools|providers|scheduler|tasks|triggerer)\b")
#: Groups of which this program has only some commands.
_HELP = {"hosts": "List and change hosts (on the machine of Airflow: airflow dtrain hosts add registers one)"}


def commands() -> tuple[Group | Command, ...]:
    """Return the commands of ``dtrain``."""
    own = (
        a.action("login", "login", "Log in to a server with name and password", _USERNAME, _STDIN),
        a.action("login", "logout", "Remove the token of a server from this machine"),
    )
    found: list[Group | Command] = list(own)
    for one in all_commands():
        if isinstance(one, Group):
            kept = tuple(command for command in one.commands if command.target in FUNCTIONS)
            kept += _MORE.get(one.name, ())
            if kept:
                found.append(replace(one, commands=kept, help=_HELP.get(one.name, one.help)))
        elif one.target in FUNCTIONS:
            found.append(one)
    return tuple(found)


def with_own_commands() -> Callable[[str], str]:
    """Return a function that names commands in texts as this program has them, and says where the others run."""
    names = "|".join(
        f"{one.name} (?:{'|'.join(command.name for command in one.commands)})" if isinstance(one, Group) else one.name
        for one in commands()
    )
    own = re.compile(rf"(?<!{_THERE}: )\bairflow dtrain (?=(?:{names})\b)")

    def words(text: str) -> str:
        text = own.sub("dtrain ", text)
        return f"{text} (on the {_THERE})" if _OF_AIRFLOW.search(text) and _THERE not in text else text

    return words
