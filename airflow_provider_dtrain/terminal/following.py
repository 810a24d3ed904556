"""Commands that follow an experiment which they have started."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from airflow_provider_dtrain.core.lifecycle.inference_progress import inference_text, result_text
from airflow_provider_dtrain.core.lifecycle.states import TrialState
from airflow_provider_dtrain.errors import UsageError
from airflow_provider_dtrain.resources.reproductions import Verdict
from airflow_provider_dtrain.terminal.output import DIFFERS, FAILURE, NOTHING_COMPARED, hint, is_table, note, show_one

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.resources.reproductions import Reproduction
    from airflow_provider_dtrain.terminal.source import Source

#: Exit code of a command that has compared a trial with the one that it runs again.
COMPARED: Final[Mapping[Verdict, int]] = {
    Verdict.EQUAL: 0,
    Verdict.DIFFERS: DIFFERS,
    Verdict.NOTHING: NOTHING_COMPARED,
    Verdict.PENDING: FAILURE,
}
POLL_S: Final = 1.0
#: Most failed trials of which one is named as the cause.
_TRIALS_MOST: Final = 1000
#: State of a DAG run without an experiment -> what it waits for.
_WAITS: Final = {
    "queued": "it waits for Airflow's scheduler. If it stays queued, check that the scheduler runs and that the DAG is "
    "not paused.",
    "running": "its task experiment.plan has to write the plan of the experiment.",
}


@dataclass(frozen=True, kw_only=True)
class ExperimentProgress:
    """An experiment that a command follows."""

    experiment: int
    name: str
    state: str
    #: State -> number of trials.
    trials: Mapping[str, int]
    metric: str | None
    best: object
    best_trial: int | None
    #: Number of planned trials that have not begun.
    to_come: int = 0
    #: Whole percents of a batch inference, its progress, and what it has computed, in words.
    percent: int | None = None
    inference: str = ""
    computed: str = ""

    @property
    def result(self) -> str:
        """The best trial as the end of a line, empty without one."""
        value = f"{self.best:.6g}" if isinstance(self.best, float | int) else self.best
        return "" if self.best is None else f"; best {self.metric} {value} (trial {self.best_trial})"

    @property
    def line(self) -> str:
        """States of the trials in a line.

        ::

            experiment 3 'mnist': 2 completed, 1 running, 4 to come; best loss 0.1 (trial 7)
        """
        parts = [f"{number} {state}" for state, number in sorted(self.trials.items())]
        parts += [f"{self.to_come} to come"] if self.to_come > 0 else []
        progress = f"; {self.inference}" if self.inference else ""
        return f"experiment {self.experiment} '{self.name}': {', '.join(parts) or 'planned'}{self.result}{progress}"


class Run(Protocol):
    """A DAG run that a command has started."""

    dag: str
    dag_run: str

    def state(self) -> str:
        """Return the state of the DAG run."""

    def progress(self) -> ExperimentProgress | None:
        """Return its experiment, None until it is planned."""

    def page(self, experiment: int) -> str:
        """Return the address of the page of its experiment."""

    def cause(self, experiment: int) -> str:
        """Return why the experiment failed in a sentence."""


def show_started(
    args: Namespace,
    run: Run,
    row: Mapping[str, Any],
    *,
    compare: Callable[[int], Reproduction | None] | None = None,
    after: str = "airflow dtrain experiments list",
) -> int:
    """Print a started experiment, follow it if ``args`` says so, and return the exit code.

    :param row: the DAG run
    :param compare: returns the comparison of an experiment that runs a trial again
    :param after: command that shows the experiment, when it is not followed
    """
    if not args.follow or is_table(args):
        show_one(args, row, with_empty=False)
    if not args.follow:
        hint(after)
        return 0
    state, found = _followed(run)
    compared = compare(found.experiment) if compare is not None and found is not None else None
    if not is_table(args):
        facts = ("state", "trials", "metric", "best", "best_trial")
        experiment = None if found is None else found.experiment
        more = {} if compared is None else {"reproduction": asdict(compared)}
        of_run = {name: getattr(found, name, None) for name in facts}
        page = row["page"] if experiment is None else run.page(experiment)
        show_one(args, {**row, "page": page, "experiment_id": experiment, **of_run, **more})
    # A completed trial that does not report the metric fails its DAG run, at the choice of the best trial.
    is_counted = compared is None or compared.state is not TrialState.COMPLETED or state == "success"
    code = _end(run, state, found) if is_counted else 0
    if compared is None:
        return code
    note(compared.text)
    if compared.verdict is Verdict.DIFFERS:
        hint(f"airflow dtrain trials diff {compared.original_id} {compared.trial_id}")
    return code or COMPARED[compared.verdict]


def _followed(run: Run) -> tuple[str, ExperimentProgress | None]:
    """Print changes until the DAG run has ended, and return its state and its experiment."""
    note("Following the experiment. Ctrl-C ends only this command; the experiment continues.")
    shown: object = None
    is_planned = False
    while True:
        state, found = run.state(), run.progress()
        # The rate of a batch inference changes all the time: a line is printed for each percent.
        now = state if found is None else replace(found, inference="", computed="").line + str(found.percent)
        if found is not None and not is_planned:
            note(f"The page of experiment {found.experiment} is {run.page(found.experiment)}")
        is_planned = found is not None
        if now != shown and (found is not None or state in _WAITS):
            line = f"DAG run {run.dag_run} is {state}: {_WAITS[state]}" if found is None else found.line
            note(f"{time.strftime('%H:%M:%S')}  {line}")
        shown = now
        if state in ("success", "failed"):
            return state, found
        time.sleep(POLL_S)


def _end(run: Run, state: str, found: ExperimentProgress | None) -> int:
    if found is None:
        where = f"{run.dag}.experiment.plan"
        note(f"DAG run {run.dag_run} ended {state} before its plan. For the cause, see the log of {where}.")
        return FAILURE
    if state == "success":
        note(f"Experiment {found.experiment} succeeded{found.computed or found.result}.")
        hint(f"airflow dtrain trials describe {found.best_trial or ''}".rstrip())
        return 0
    note(f"Experiment {found.experiment} failed. {run.cause(found.experiment)}")
    hint(f"airflow dtrain trials list --experiment {found.experiment}")
    return FAILURE


def cause(source: Source, experiment: int, dag_run: str) -> str:
    """Return why an experiment failed in a sentence."""
    first = None
    for state in ("errored", "killed"):
        found = source.trials(experiment=experiment, state=state, tags=(), limit=_TRIALS_MOST)
        # The latest trial is first. The reason of a replaced one is that it was replaced.
        first = first or next((one for one in reversed(found) if one.is_current and one.reason), None)
    if first is None:
        return f"For the cause, see the log of the task experiment.best of DAG run {dag_run}."
    return f"Trial {first.trial_id}: {first.reason}"


def inference_of(source: Source, experiment: int) -> dict[str, Any]:
    """Return the progress of a batch inference for :class:`ExperimentProgress`, nothing of any other experiment."""
    found = source.trials(experiment=experiment, state=None, tags=(), limit=1)
    if not found or (progress := found[0].shards) is None:
        return {}
    return {
        "percent": int(progress.share * 100),
        "inference": inference_text(progress),
        "computed": f": {result_text(progress)}",
    }


def comparison_of(source: Source, experiment: int) -> Reproduction | None:
    """Return the comparison of an experiment that runs a trial again, None while it has no trial."""
    found = source.trials(experiment=experiment, state=None, tags=(), limit=1)
    return source.reproductions(found[0].trial_id).of if found else None


def given_secrets(values: Sequence[str] | None) -> dict[str, str]:
    """Return the values of ``--secret`` by their names.

    :raises UsageError: the environment of this command has no such variable
    """
    found = {}
    for value in values or ():
        name, equals, text = value.partition("=")
        if not equals and name not in os.environ:
            raise UsageError(f"--secret {name} needs a variable {name} in the environment of this command, or =VALUE.")
        found[name] = text if equals else os.environ[name]
    return found
