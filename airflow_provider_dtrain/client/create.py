"""``dtrain experiments create`` and ``fork``."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from pathlib import Path
from urllib.parse import quote

from airflow_provider_dtrain.client import submission
from airflow_provider_dtrain.client.login import session_of
from airflow_provider_dtrain.client.reconnection import Patience
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.client.source import ServerSource
from airflow_provider_dtrain.client.submission import CONFIG_MOST, Start, cause
from airflow_provider_dtrain.errors import ConfigError, Problem, UsageError
from airflow_provider_dtrain.resources.experiments import ExperimentLine
from airflow_provider_dtrain.terminal.following import best_text, state_text
from airflow_provider_dtrain.terminal.output import FAILURE, confirm, hint, is_table, note, show_one

DAG = "dtrain_experiment"


def create(args: Namespace) -> int:
    """Check configuration and code, send them, and start the experiment. With ``--follow``, exit 1 if it fails."""
    if args.dag != DAG:
        raise UsageError(f"--dag must be {DAG} here, got {args.dag!r}: the server triggers only this DAG.")
    session = session_of(args)
    text = _text(args.config)
    is_stdin = args.config == "-"
    started = submission.create(
        session,
        text,
        base=Path.cwd() if is_stdin else Path(args.config).absolute().parent,
        model_dir=args.model_dir,
        template=args.template,
        name=DAG if is_stdin else Path(args.config).stem or DAG,
        source="standard input" if is_stdin else args.config,
        agree=_agreed,
        notify=note,
    )
    return _show(args, session, started)


def _agreed(folder: Path) -> bool:
    """Return whether the user agrees to send a folder. Without a terminal, the user cannot be asked."""
    return sys.stdin.isatty() and confirm(f"The template names {folder} as the code. Send this folder?", yes=False)


def fork(args: Namespace) -> int:
    """Start an experiment with configuration, code and secrets of another one."""
    session = session_of(args)
    text = None if args.config is None else _text(args.config)
    return _show(args, session, submission.fork(session, args.experiment_id, text))


def _text(path: str) -> str:
    """Return a configuration.

    :raises ConfigError: it cannot be read
    """
    try:
        if path == "-":
            return sys.stdin.buffer.read(CONFIG_MOST + 1).decode()
        with open(path, "rb") as file:
            return file.read(CONFIG_MOST + 1).decode()
    except OSError as error:
        message = f"the configuration cannot be read: {error.strerror}. Name a YAML file, or - for standard input"
    except UnicodeDecodeError as error:
        message = f"not UTF-8: {error.reason} at byte {error.start}"
    raise ConfigError([Problem(path="", message=message)], source=path)


def _show(args: Namespace, session: Session, started: Start) -> int:
    row = {
        "name": started.name or None, "dag": started.dag, "dag_run": started.dag_run,
        "page": f"{session.server.url}/dags/{started.dag}/runs/{quote(started.dag_run)}",
    }  # fmt: skip
    for warning in started.warnings:
        note(f"Warning: {warning}")
    if not args.follow:
        show_one(args, row, with_empty=False)
        hint("dtrain experiments list")
        return 0
    if is_table(args):
        show_one(args, row, with_empty=False)
    state, view = _followed(session, started)
    if not is_table(args):
        facts = ("experiment", "state", "trials", "metric", "best", "best_trial")
        # Names as those of airflow dtrain.
        found = {name: getattr(view, name, None) for name in facts}
        show_one(args, {**row, "experiment_id": found.pop("experiment"), **found})
    return _end(session, started, state, view)


def _followed(session: Session, started: Start) -> tuple[str, ExperimentLine | None]:
    """Print changes until the DAG run has ended, and return its state and its experiment."""
    note("Following the experiment. Ctrl-C ends only this command; the experiment continues.")
    last: tuple[str, ExperimentLine | None] = ("", None)
    shown = ""
    for last in submission.changes(session, started, patience=Patience(session, note)):
        # More of an experiment changes than the line shows.
        if last[1] is not None and (line := _line(last[1])) != shown:
            note(f"{time.strftime('%H:%M:%S')}  {line}")
            shown = line
    return last


def _end(session: Session, started: Start, state: str, view: ExperimentLine | None) -> int:
    if view is None:
        where = f"{started.dag}.experiment.plan"
        note(f"DAG run {started.dag_run} ended {state} before its plan. For the cause, see the log of {where}.")
        return FAILURE
    if state == "success":
        note(f"Experiment {view.experiment} succeeded{_result(view)}.")
        hint(f"dtrain trials describe {view.best_trial or ''}".rstrip())
        return 0
    found = Patience(session, note).of(lambda: cause(ServerSource(session), view.experiment, started.dag_run))
    note(f"Experiment {view.experiment} failed. {found}")
    hint(f"dtrain trials list --experiment {view.experiment}")
    return FAILURE


def _line(view: ExperimentLine) -> str:
    return state_text(view.experiment, view.name, view.trials, _result(view))


def _result(view: ExperimentLine) -> str:
    return best_text(view.metric, view.best, view.best_trial)
