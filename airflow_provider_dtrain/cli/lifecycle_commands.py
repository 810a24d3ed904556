"""Control requests for all trials of an experiment, or for one: pause, activate, stop, kill."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.core.lifecycle.states import EXPERIMENT_LIVE, TRIAL_LIVE
from airflow_provider_dtrain.terminal.output import confirm, hint, note, user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.searches import ExperimentView


@command
def pause(args: Namespace) -> None:
    """Pause an experiment: its trials release their slots until it is activated."""
    from airflow_provider_dtrain.engine.upkeep.orphaned_trials import pause_unfollowed

    hook = _hook()
    number = args.experiment_id
    lose = _without_checkpoint(hook, number)
    if lose and not _agreed(
        args, f"Trials {lose} have no checkpoint and may start from the beginning. Pause experiment {number}?"
    ):
        return
    asked = hook.store.experiments.pause(number, user())
    note(
        f"Experiment {number}: {_trials(asked)} paused or asked to release slots, and none starts. Running trials "
        "are asked for a checkpoint first."
    )
    _instead_of_the_dead(hook, number, pause_unfollowed)
    hint(f"airflow dtrain experiments activate {number}")


@command
def activate(args: Namespace) -> None:
    """Resume the paused trials of an experiment."""
    number = args.experiment_id
    found = _hook().store.experiments.activate(number, user())
    note(f"Experiment {number} is resumed: {_trials(found)} back in the queue.")
    hint(f"airflow dtrain experiments describe {number}")


@command
def stop(args: Namespace) -> None:
    """End an experiment with its best trial so far."""
    from airflow_provider_dtrain.engine.upkeep.orphaned_trials import stop_unfollowed

    hook = _hook()
    view = hook.store.experiments.get(args.experiment_id)
    if _is_over(view) or not _agreed(args, f"Stop experiment {_named(view)} and keep the best of its trials?"):
        return
    asked = hook.store.experiments.stop(view.experiment_id, user())
    note(f"Experiment {view.experiment_id}: {_trials(asked)} asked to end. Running trials write a checkpoint first.")
    _instead_of_the_dead(hook, view.experiment_id, stop_unfollowed)
    hint(f"airflow dtrain experiments describe {view.experiment_id}")


@command
def kill(args: Namespace) -> None:
    """Kill all trials of an experiment, on every host and in the queue."""
    from airflow_provider_dtrain.engine.upkeep.orphaned_trials import kill_unfollowed

    hook = _hook()
    view = hook.store.experiments.get(args.experiment_id)
    if _is_over(view) or not _agreed(
        args, f"Kill experiment {_named(view)}? Running trials lose their work since the last checkpoint."
    ):
        return
    asked = hook.store.experiments.kill(view.experiment_id, user())
    note(f"Experiment {view.experiment_id}: {_trials(asked)} killed within seconds.")
    _instead_of_the_dead(hook, view.experiment_id, kill_unfollowed)
    hint(f"airflow dtrain experiments describe {view.experiment_id}")


@command
def stop_trial(args: Namespace) -> None:
    """End a trial with its result so far."""
    from airflow_provider_dtrain.engine.upkeep.orphaned_trials import stop_unfollowed

    hook = _hook()
    trial = hook.store.trials.get(args.trial_id)
    if trial.state not in TRIAL_LIVE:
        note(f"Trial {trial.trial_id} has ended already: {trial.state}.")
        return
    if not _agreed(args, f"Stop trial {trial.trial_id} of '{trial.experiment}' ({trial.state})?"):
        return
    hook.store.control.stop(trial.trial_id, user())
    note(f"Trial {trial.trial_id} was asked to end with its result so far. If it runs, it writes a checkpoint first.")
    if stop_unfollowed(hook, trial.trial_id):
        note("It was ended by this command, because the process that followed it is gone.")
    hint(f"airflow dtrain trials describe {trial.trial_id}")


def _without_checkpoint(hook: DtrainHook, experiment_id: int) -> list[int]:
    """Return the trials that would lose their work in a pause, as far as the store knows."""
    from airflow_provider_dtrain.cli.trials import at_a_stop

    live = [one for one in hook.store.trials.list(experiment_id=experiment_id, limit=None) if one.state == "running"]
    return sorted(one.trial_id for one in live if not at_a_stop(hook.store, one)[0])


def _hook() -> DtrainHook:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    return DtrainHook()


def _is_over(view: ExperimentView) -> bool:
    live = sum(view.trials.get(state, 0) for state in TRIAL_LIVE)
    if view.state not in EXPERIMENT_LIVE and not live:
        note(f"Experiment {view.experiment_id} has ended already: {view.state}.")
        return True
    return False


def _agreed(args: Namespace, question: str) -> bool:
    agreed = confirm(question, yes=args.yes)
    if not agreed:
        note("Nothing was changed.")
    return agreed


def _named(view: ExperimentView) -> str:
    states = ", ".join(f"{number} {state}" for state, number in sorted(view.trials.items()))
    return f"{view.experiment_id} '{view.name}' ({states or 'no trial yet'})"


def _trials(number: int) -> str:
    return "1 trial" if number == 1 else f"{number} trials"


def _instead_of_the_dead(hook: DtrainHook, experiment_id: int, act: Callable[[DtrainHook, int], bool]) -> None:
    live = [one for one in hook.store.trials.list(experiment_id=experiment_id, limit=None) if one.state in TRIAL_LIVE]
    done = [one.trial_id for one in live if act(hook, one.trial_id)]
    if done:
        note(f"Done by this command, because the processes that followed them are gone: trials {done}.")
