"""``dtrain experiments create`` and ``fork``."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from airflow_provider_dtrain.client import submission
from airflow_provider_dtrain.client.login import session_of
from airflow_provider_dtrain.client.reconnection import Patience
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.client.source import ServerSource
from airflow_provider_dtrain.client.submission import Start
from airflow_provider_dtrain.core.page_paths import experiment_page, run_page
from airflow_provider_dtrain.errors import UsageError
from airflow_provider_dtrain.resources.reproductions import Reproduction
from airflow_provider_dtrain.terminal.following import (
    ExperimentProgress,
    cause,
    comparison_of,
    given_secrets,
    inference_of,
    show_started,
)
from airflow_provider_dtrain.terminal.input_text import read_input
from airflow_provider_dtrain.terminal.output import confirm, note

DAG = "dtrain_experiment"


def require_dag(dag: str) -> None:
    """Raise an error if the server does not trigger a DAG.

    :raises UsageError: it is another one than that which ``airflow dtrain init`` writes
    """
    if dag != DAG:
        raise UsageError(f"--dag must be {DAG} here, got {dag!r}: the server triggers only this DAG.")


def create(args: Namespace) -> int:
    """Check configuration and code, send them, and start the experiment. With ``--follow``, exit 1 if it fails."""
    require_dag(args.dag)
    session = session_of(args)
    given = read_input(args.config, what="configuration")
    is_stdin = args.config == "-"
    started = submission.create(
        session,
        given.text,
        base=given.folder,
        model_dir=args.model_dir,
        template=args.template,
        name=DAG if is_stdin else Path(args.config).stem or DAG,
        source=given.name,
        agree=agreed,
        notify=note,
    )
    return show_start(args, session, started)


def agreed(folder: Path) -> bool:
    """Return whether the user agrees to send a folder. Without a terminal, the user cannot be asked."""
    return sys.stdin.isatty() and confirm(f"The template names {folder} as the code. Send this folder?", yes=False)


def fork(args: Namespace) -> int:
    """Start an experiment with configuration, code and secrets of another one."""
    session = session_of(args)
    text = None if args.config is None else read_input(args.config, what="configuration").text
    return show_start(args, session, submission.fork(session, args.experiment_id, text))


def reproduce(args: Namespace) -> int:
    """Run a trial again from its record. With ``--follow``, exit 0 only if the weights are equal."""
    session = session_of(args)
    started = submission.reproduce(session, args.trial_id, given_secrets(args.secret))
    return show_start(args, session, started, reproduces=args.trial_id)


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
            **(
                self.patience.of(lambda: inference_of(self.source, found.experiment_id))
                if found.max_trials <= 1
                else {}
            ),
        )

    def page(self, experiment: int) -> str:
        """Return the address of the page of its experiment."""
        return f"{self.session.server.url}/{experiment_page(experiment)}"

    def cause(self, experiment: int) -> str:
        """Return why the experiment failed in a sentence."""
        return self.patience.of(lambda: cause(self.source, experiment, self.dag_run))


def show_start(args: Namespace, session: Session, started: Start, *, reproduces: int | None = None) -> int:
    """Print a started experiment, follow it if ``args`` says so, and return the exit code.

    :param reproduces: the trial that it runs again
    """
    for warning in started.warnings:
        note(f"Warning: {warning}")
    page = f"{session.server.url}/{run_page(started.dag, started.dag_run)}"
    row = {"name": started.name or None, "dag": started.dag, "dag_run": started.dag_run, "page": page}
    run = _ServerRun(session, started)
    if reproduces is None:
        return show_started(args, run, row)

    def compare(experiment: int) -> Reproduction | None:
        return run.patience.of(lambda: comparison_of(run.source, experiment))

    after = f"airflow dtrain trials describe {reproduces}"
    return show_started(args, run, {"trial": reproduces, **row}, compare=compare, after=after)
