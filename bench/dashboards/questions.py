"""Twenty questions about trainings, and the ways to their answers on our pages and in other programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.dashboards import mlflow_pages, optuna_pages, ours
from bench.dashboards.hand import Hand
from bench.dashboards.truth import Truth

Way = Callable[[Hand, Truth], None]


@dataclass(frozen=True)
class Question:
    """A question.

    :param mlflow: way in MLflow, or the reason why there is none
    :param optuna: the same in Optuna Dashboard
    """

    text: str
    ours: Way
    mlflow: Way | str
    optuna: Way | str


_NO_RANKS = "no data of processes"
_NO_QUEUE = "no queue"
_ONE_STUDY = "one study at a time"
QUESTIONS: tuple[Question, ...] = (
    Question("Which trials failed?", ours.failed, mlflow_pages.failed, _ONE_STUDY),
    Question(
        "Why did this training fail, and at which line of my code?", ours.cause, mlflow_pages.cause, optuna_pages.cause
    ),
    Question(
        "What did the process that failed print last?",
        ours.last_lines,
        mlflow_pages.last_lines,
        "text files are downloaded, not shown",
    ),
    Question(
        "Do the failures of this search have one cause?", ours.one_cause, mlflow_pages.one_cause, optuna_pages.one_cause
    ),
    Question("What has changed since the last good run?", ours.changed, mlflow_pages.changed, optuna_pages.changed),
    Question("Which trial is best, and with which hyperparameters?", ours.best, mlflow_pages.best, optuna_pages.best),
    Question(
        "Which learning rate is best on average over the seeds?",
        ours.seed_average,
        mlflow_pages.seed_average,
        "no groups",
    ),
    Question("Which hyperparameter matters most?", ours.importance, "no importance", optuna_pages.importance),
    Question(
        "How do learning rate and dropout act together?", ours.together, mlflow_pages.together, optuna_pages.together
    ),
    Question(
        "Why was a trial stopped, and how close was it?",
        ours.stopped,
        "no rungs",
        "marked as pruned, without a cut-off",
    ),
    Question("In what do the two best trials differ?", ours.difference, mlflow_pages.difference, "no order by value"),
    Question(
        'Which runs are tagged "paper", with lr < 0.01 and an accuracy above 0.85?',
        ours.filtered,
        "parameters are texts, which have no <",
        _ONE_STUDY,
    ),
    Question("Which process of 16 is slow?", ours.slow_rank, _NO_RANKS, _NO_RANKS),
    Question("How busy are the GPUs of this training?", ours.load, mlflow_pages.load, "no system metrics"),
    Question("Why does this training not start?", ours.waits, _NO_QUEUE, _NO_QUEUE),
    Question(
        "Which commit and which PyTorch did this run use?", ours.made_of, mlflow_pages.made_of, optuna_pages.made_of
    ),
    Question("What did the model draw at step 200?", ours.picture, mlflow_pages.picture, optuna_pages.picture),
    Question(
        "Which lines of code differ between two experiments?",
        ours.code,
        "no difference of files",
        "no difference of files",
    ),
    Question(
        "Where in the log did the upload fail?",
        ours.log_line,
        mlflow_pages.log_line,
        "text files are downloaded, not shown",
    ),
    Question("Which user has used most GPU hours?", ours.hours, "no slots", "no slots"),
)
