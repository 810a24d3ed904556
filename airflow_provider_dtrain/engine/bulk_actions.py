"""Actions of a user on several experiments: each one is checked, and each has an outcome of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.lifecycle.control import Change, Noun, Verb
from airflow_provider_dtrain.core.lifecycle.states import EXPERIMENT_LIVE
from airflow_provider_dtrain.core.projects import check_project
from airflow_provider_dtrain.errors import ConflictError, IllegalTransitionError, UserError
from airflow_provider_dtrain.resources.bulk import BulkAction, BulkOutcome, BulkResult, Freed
from airflow_provider_dtrain.store.labels import check_tags

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.records.searches import ExperimentView
    from airflow_provider_dtrain.store.store import Store

#: Most experiments of one action.
EXPERIMENTS_MOST: Final = 200
_DONE: Final[dict[BulkAction, str]] = {
    "archive": "archived: lists leave them out until they are unarchived or run again",
    "unarchive": "back in the lists",
    "move": "moved",
    "tag": "tagged",
    "stop": "asked to end with their results so far: running trials write a checkpoint first",
    "kill": "killed: running trials lose what they trained since their latest checkpoints",
    "delete": "deleted for good",
}


class Requests(Protocol):
    """Requests of one user to single experiments."""

    store: Store
    by: str
    #: Removes files and rows of experiments that are marked for deletion, and returns what happens.
    remove: Callable[[Sequence[int]], str]

    def request(self, noun: Noun, number: int, verb: Verb) -> str:
        """Stop or kill an experiment."""

    def set(self, noun: Noun, number: int, change: Change) -> str:
        """Change tags, project or archive of an experiment."""


def bulk_action(
    control: Requests,
    action: BulkAction,
    experiment_ids: Sequence[int],
    *,
    project: str | None = None,
    tags: Sequence[str] = (),
    dry_run: bool = False,
) -> BulkResult:
    """Carry out an action for experiments, or return what it would do.

    A refusal of one experiment does not concern the other ones.

    :param project: of ``move``
    :param tags: which ``tag`` adds
    :param dry_run: True: change nothing
    :raises UserError: the project or a tag is missing or not usable, or there are too many experiments
    """
    ids = list(dict.fromkeys(experiment_ids))
    _check(action, ids, project, tags)
    outcomes: list[BulkOutcome] = []
    freed = Freed() if action == "delete" else None
    begun: list[int] = []
    for one in ids:
        name = ""
        try:
            view = control.store.experiments.get(one)
            name = view.name
            if freed is not None:
                _require_deletable(control, one)
                freed += control.store.deletions.freed(one)
            message = _planned(action, view) if dry_run else _done(control, action, view, project, tags)
            begun.append(one)
            outcomes.append(BulkOutcome(experiment_id=one, name=name, is_refused=False, message=message))
        except (UserError, IllegalTransitionError) as error:
            outcomes.append(BulkOutcome(experiment_id=one, name=name, is_refused=True, message=str(error)))
    message = _summary(action, len(begun), project, tags, freed)
    if action == "delete" and begun and not dry_run:
        message = f"{message} {control.remove(begun)}"
    return BulkResult(
        outcomes=outcomes, done_count=len(begun), refused_count=len(outcomes) - len(begun), freed=freed, message=message
    )


def _check(action: BulkAction, ids: Sequence[int], project: str | None, tags: Sequence[str]) -> None:
    if not 0 < len(ids) <= EXPERIMENTS_MOST:
        raise UserError(f"An action needs 1 to {EXPERIMENTS_MOST} experiments, got {len(ids)}.")
    if action == "move":
        check_project(project or "")
    if action == "tag" and not check_tags(tags):
        raise UserError("The action 'tag' needs at least one tag.")


def _require_deletable(control: Requests, experiment_id: int) -> None:
    if why := control.store.deletions.refusal(experiment_id):
        raise ConflictError(why)


def _planned(action: BulkAction, view: ExperimentView) -> str:
    """Return what an action would do to an experiment.

    :raises ConflictError: its state does not allow it
    """
    is_live = view.state in EXPERIMENT_LIVE
    if action == "archive" and is_live:
        raise ConflictError(
            f"Experiment {view.experiment_id} has not ended, so it cannot be archived. Stop or kill it first."
        )
    if action in ("stop", "kill") and not is_live:
        raise ConflictError(f"Experiment {view.experiment_id} has ended already: {view.state}.")
    states = ", ".join(f"{number} {state}" for state, number in view.trials.items()) or "no trial"
    return f"{view.state}, {states}"


def _done(control: Requests, action: BulkAction, view: ExperimentView, project: str | None, tags: Sequence[str]) -> str:
    number = view.experiment_id
    if action == "stop" or action == "kill":
        return control.request("experiment", number, action)
    if action == "delete":
        control.store.deletions.begin(number, control.by)
        return f"Experiment {number} is deleted."
    if action == "tag":
        return control.set("experiment", number, {"add_tags": list(tags)})
    if action == "move":
        return control.set("experiment", number, {"project": project or ""})
    return control.set("experiment", number, {"archived": action == "archive"})


def _summary(action: BulkAction, count: int, project: str | None, tags: Sequence[str], freed: Freed | None) -> str:
    subject = "1 experiment" if count == 1 else f"{count} experiments"
    if not count:
        return "No experiment."
    text = f"{subject}: {_DONE[action]}"
    if action == "move":
        text += f" to project '{project}'"
    if action == "tag":
        text += f" with {', '.join(tags)}"
    if freed is not None:
        text += f". {freed_text(freed)}"
    return f"{text}."


def freed_text(freed: Freed) -> str:
    """Return what a deletion removes, in words."""
    hosts = "1 host" if freed.hosts == 1 else f"{freed.hosts} hosts"
    return (
        f"Removed with them: {_count(freed.trials, 'trial')}, {_count(freed.checkpoints, 'checkpoint')} "
        f"({byte_size(freed.checkpoint_bytes)}), logs and outputs on {hosts}, {_count(freed.rows, 'row')} of the store"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
