"""``dtrain experiments create`` and ``fork``."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from urllib.parse import quote

from airflow_provider_dtrain.client import submission
from airflow_provider_dtrain.client.login import session_of
from airflow_provider_dtrain.client.reconnection import Patience
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.client.source import ServerSource
from airflow_provider_dtrain.client.submission import CONFIG_MOST, Start
from airflow_provider_dtrain.errors import ConfigError, Problem, UsageError
from airflow_provider_dtrain.resources.reproductions import Reproduction
from airflow_provider_dtrain.terminal.following import (
    ExperimentProgress,
    cause,
    comparison_of,
    given_secrets,
    show_started,
)
from airflow_provider_dtrain.terminal.output import confirm, note

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


def reproduce(args: Namespace) -> int:
    """Run a trial again from its record. With ``--follow``, exit 0 only if the weights are equal."""
    session = session_of(args)
    started = submission.reproduce(session, args.trial_id, given_secrets(args.secret))
    return _show(args, session, started, reproduces=args.trial_id)


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


class _ServerRun:
    """A DAG run on a server. It survives a server that restarts and a login that expires."""

    def __init__(self, session: Session, started: Start) -> None:
        self.session = session
        self.dag = started.dag
        self.dag_run = started.dag_run
        self.source = ServerSource(session, keep=True)
        self.patience = Patience(session, note)

    def state(self) -> str:
        """Return the state of the DAG run."""
        return self.patience.of(lambda: submission.run_state(self.session, self.dag, self.dag_run))

    def progress(self) -> ExperimentProgress | None:
        """Return its experiment, None until it is planned."""
        found = self.patience.of(lambda: self.source.experiment_of(self.dag, self.dag_run))
        if found is None:
            return None
        return ExperimentProgress(
            experiment=found.experiment_id,
            name=found.name,
            state=found.state,
            trials=found.trials,
            to_come=found.max_trials - sum(found.trials.values()),
            metric=found.metric,
            best=found.best,
            best_trial=found.best_trial,
        )

    def cause(self, experiment: int) -> str:
        """Return why the experiment failed in a sentence."""
        return self.patience.of(lambda: cause(self.source, experiment, self.dag_run))


def _show(args: Namespace, session: Session, started: Start, *, reproduces: int | None = None) -> int:
    for warning in started.warnings:
        note(f"Warning: {warning}")
    page = f"{session.server.url}/dags/{started.dag}/runs/{quote(started.dag_run)}"
    row = {"name": started.name or None, "dag": started.dag, "dag_run": started.dag_run, "page": page}
    run = _ServerRun(session, started)
    if reproduces is None:
        return show_started(args, run, row)

    def compare(experiment: int) -> Reproduction | None:
        return run.patience.of(lambda: comparison_of(run.source, experiment))

    after = f"airflow dtrain trials describe {reproduces}"
    return show_started(args, run, {"trial": reproduces, **row}, compare=compare, after=after)
