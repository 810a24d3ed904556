"""``airflow dtrain trials``: list, describe, metrics, checkpoints, kill, pause, activate and set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli import _labels
from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.core.lifecycle.states import TRIAL_ENDED
from airflow_provider_dtrain.errors import ConflictError, UsageError
from airflow_provider_dtrain.listings.source import StoreSource
from airflow_provider_dtrain.terminal import trials as terminal
from airflow_provider_dtrain.terminal.output import confirm, hint, note, show_one, user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.store.records.trials import TrialView
    from airflow_provider_dtrain.store.store import Store


@command
def list_trials(args: Namespace) -> None:
    """List trials, latest first."""
    terminal.list_trials(args, StoreSource(_store()))


@command
def describe(args: Namespace) -> None:
    """Show a trial, its ranks and checkpoints."""
    terminal.describe(args, StoreSource(_store()))


@command
def metrics(args: Namespace) -> None:
    """Print the metrics that the trial reported."""
    terminal.metrics(args, StoreSource(_store()))


@command
def timeline(args: Namespace) -> None:
    """Show everything that happened to a trial, oldest first."""
    terminal.timeline(args, StoreSource(_store()))


@command
def checkpoints(args: Namespace) -> None:
    """List a trial's checkpoints with their locations, oldest first."""
    terminal.checkpoints(args, StoreSource(_store()))


@command
def kill(args: Namespace) -> None:
    """Kill a trial, on every host or in the queue."""
    from airflow_provider_dtrain.engine.upkeep.orphaned_trials import kill_unfollowed
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    store = _store()
    trial = store.trials.get(args.trial_id)
    if trial.state in TRIAL_ENDED:
        note(f"Trial {trial.trial_id} has ended already: {trial.state}.")
        return
    if not confirm(f"Kill trial {trial.trial_id} of '{trial.experiment}' ({trial.state})?", yes=args.yes):
        note("Nothing was changed.")
        return
    waits = store.attempts.get(trial.attempt_id).state == "waiting"
    store.control.kill(trial.trial_id, user())
    if kill_unfollowed(DtrainHook(), trial.trial_id):
        note(f"Trial {trial.trial_id} was killed by this command, because the process that followed it is gone.")
        return
    if waits:
        note(f"Trial {trial.trial_id} holds no slots. The process that waits for it ends it within seconds.")
    else:
        note(f"Trial {trial.trial_id} will be stopped on every host by the process that follows it, within seconds.")
    hint(f"airflow dtrain explain {trial.trial_id}")


@command
def pause(args: Namespace) -> None:
    """Pause a trial: it releases its slots until it is activated."""
    from airflow_provider_dtrain.engine.upkeep.orphaned_trials import pause_unfollowed
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    store = _store()
    trial = store.trials.get(args.trial_id)
    saves, words = at_a_stop(store, trial)
    if not saves and not confirm(f"Trial {trial.trial_id} {words}. Pause it?", yes=args.yes):
        note("Nothing was changed.")
        return
    store.control.pause(trial.trial_id, user())
    if store.trials.get(trial.trial_id).state == "paused":
        note(f"Trial {trial.trial_id} is paused. It keeps its place in the queue.")
    else:
        note(f"Trial {trial.trial_id} was asked to release its slots. It {words}.")
        if pause_unfollowed(DtrainHook(), trial.trial_id):
            note("It has released them. This command waited for it, because the process that followed it is gone.")
    hint(f"airflow dtrain trials activate {trial.trial_id}")


def at_a_stop(store: Store, trial: TrialView) -> tuple[bool, str]:
    """Return whether a trial keeps its work when it is asked to stop, and a text that says how it resumes."""
    if store.attempts.get(trial.attempt_id).state not in ("starting", "running"):
        return True, "resumes where it was"
    joined = bool(store.events.of_attempt(trial.attempt_id, kinds=("init", "first_step")))
    found = store.checkpoints.of_trial(trial.trial_id)
    if found:
        last = f"the checkpoint of step {max(found, key=lambda one: one.checkpoint_id).step}"
        return True, f"writes a checkpoint, and resumes from it or from {last}" if joined else f"resumes from {last}"
    if joined:
        return False, "has written no checkpoint yet: unless its program writes one now, it resumes from the beginning"
    return (
        False,
        "has no checkpoint, and its program does not use the library: it resumes with the files that it has written",
    )


@command
def activate(args: Namespace) -> None:
    """Resume a paused trial at its place in the queue."""
    store = _store()
    number = args.trial_id
    if not store.control.activate(number, user()):
        note(f"Trial {number} is not paused: {store.trials.get(number).state}.")
    elif (state := store.attempts.get(store.trials.get(number).attempt_id).state) == "waiting":
        note(f"Trial {number} is resumed: it waits for slots at its place in the queue.")
    elif state == "stopping":
        note(f"Trial {number} is still stopping. Then it waits at its place in the queue and resumes.")
    else:
        note(
            f"The pause of trial {number} is cancelled: it keeps running. If its ranks have just been asked to stop, "
            "it resumes from there automatically."
        )
    hint(f"airflow dtrain explain {args.trial_id}")


@command
def set_trial(args: Namespace) -> None:
    """Change labels of a trial, or the priority of its gang, waiting or running."""
    if args.priority is None and not _labels.are_given(args):
        raise UsageError(f"Nothing to set. Give --priority, {_labels.OPTIONS}.")
    store = _store()
    trial = store.trials.get(args.trial_id)
    if args.priority is not None and trial.state in TRIAL_ENDED:
        raise ConflictError(f"Trial {trial.trial_id} has ended ({trial.state}), so its priority cannot be changed.")
    row: dict[str, Any] = {"trial": trial.trial_id}
    if _labels.are_given(args):
        row |= _labels.set_labels(store, "trial", trial.trial_id, args)
    if args.priority is not None:
        store.control.set_priority(trial.trial_id, args.priority, user())
        row["priority"] = args.priority
    show_one(args, row, with_empty=False)
    hint(f"airflow dtrain {'explain' if args.priority is not None else 'trials describe'} {trial.trial_id}")


def _store() -> Store:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    return DtrainHook().store
