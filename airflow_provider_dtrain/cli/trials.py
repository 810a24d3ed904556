"""``airflow dtrain trials``: list, describe, metrics, checkpoints, kill, pause, activate and set."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli import _labels
from airflow_provider_dtrain.cli._gaps import gap_table, gaps_of
from airflow_provider_dtrain.cli._output import (
    UsageError,
    cell,
    command,
    confirm,
    dump,
    hint,
    note,
    placement_words,
    plain_data,
    short_time,
    show,
    show_one,
    size,
    task_name,
    user,
)
from airflow_provider_dtrain.core.checkpoint_location import shown_path
from airflow_provider_dtrain.core.gaps import limits_hit
from airflow_provider_dtrain.core.inference_progress import InferenceProgress, inference_progress, inference_words
from airflow_provider_dtrain.core.lifecycle.follower_words import reason_words, state_words
from airflow_provider_dtrain.core.lifecycle.states import TRIAL_ENDED
from airflow_provider_dtrain.core.lifecycle.trial_words import end_words, progress_words, rung_words, units_of
from airflow_provider_dtrain.core.search.names import trial_name
from airflow_provider_dtrain.core.telemetry import current_branch
from airflow_provider_dtrain.errors import ConflictError

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.store.records.trials import CheckpointView, MetricRow, RankView, TaskView, TrialView
    from airflow_provider_dtrain.store.store import Store


@command
def list_trials(args: Namespace) -> None:
    """List trials, latest first."""
    store = _store()
    if args.experiment is not None:
        store.experiments.get(args.experiment)
    found = store.trials.list(experiment_id=args.experiment, state=args.state, tags=args.tag or (), limit=args.limit)
    trials = sorted(found, key=lambda trial: -trial.trial_id)
    gangs = {task.trial_id: task for task in store.queue_view.tasks() if task.trial_id is not None}
    progress = progress_of(store, trials)
    make = _listed if args.output != "table" else _short if args.experiment is None else _of_experiment
    rows = [make(store, trial, gangs.get(trial.trial_id)) for trial in trials]
    _add_progress(rows, progress, is_table=args.output == "table")
    show(args, rows, empty="No trials. A task with TrialOperator creates one.")
    if trials:
        hint(f"airflow dtrain trials describe {trials[0].trial_id}")


def progress_of(store: Store, trials: Sequence[TrialView]) -> dict[int, InferenceProgress]:
    """Return the progress of each trial that is a batch inference and has counted its shards."""
    counts = store.shards.counts([trial.trial_id for trial in trials])
    now_s = store.db.now().timestamp()
    return {
        trial.trial_id: inference_progress(found, now_s=now_s, is_live=trial.state == "running")
        for trial in trials
        if (found := counts.get(trial.trial_id)) is not None
    }


def _add_progress(rows: Sequence[dict[str, Any]], progress: Mapping[int, InferenceProgress], *, is_table: bool) -> None:
    """Add the progress of batch inferences to a list. A table shows it where the reason of another state would be."""
    for row in rows:
        found = progress.get(row["trial"])
        if not is_table:
            row["shards"] = asdict(found) if found is not None else None
        elif found is not None and not row["reason"]:
            row["reason"] = inference_words(found)


@command
def describe(args: Namespace) -> None:
    """Show a trial, its ranks and checkpoints."""
    store = _store()
    trial = store.trials.get(args.trial_id)
    view = store.attempts.get(trial.attempt_id)
    ranks = store.events.ranks(trial.attempt_id)
    checkpoints = store.checkpoints.of_trial(trial.trial_id)
    refused = [_refused(one) for one in store.checkpoints.refused(trial.trial_id)]
    silent = store.queue_view.silent_since(view.heard_at)
    gaps = gaps_of(store, trial.attempt_id)
    facts = {
        **_row(trial),
        **_progress(store, trial),
        "seed": trial.seed,
        "config": trial.config_id,
        "run": view.run,
        "pool": view.pool,
        "slots": view.slots,
        "priority": view.priority,
        "hosts": placement_words(view.placement) or None,
        "position": view.position if silent is None else None,
        "expected": (view.expected or None) if silent is None else None,
        "paused": view.paused or trial.state == "paused",
        "preempted_for": view.preempted_for,
        "reason": reason_words(
            view.reason, silent, waits=view.state == "waiting", paused=view.paused, trial_id=trial.trial_id
        ),
        "restarts": f"{trial.restarts} of {trial.max_restarts}",
        "watcher": view.watcher,
        "unfollowed_since": silent,
        "limits": limits_hit(gaps) or None,
        "result": dict(trial.result) if trial.result else None,
        "failure": dict(trial.failure) if trial.failure else None,
        **_labels.columns(store.labels.get("trial", trial.trial_id)),
    }
    if (progress := progress_of(store, [trial]).get(trial.trial_id)) is not None:
        facts["progress"] = inference_words(progress)
        if args.output != "table":
            facts["shards"] = asdict(progress)
    if args.output != "table":
        more = {"ranks": ranks, "checkpoints": checkpoints, "refused_checkpoints": refused, "gaps": gaps}
        dump(args.output, {**facts, **more})
        return
    if trial.result:
        # The hosts of the ranks are in a table of their own.
        facts["result"] = {name: value for name, value in trial.result.items() if name != "hosts"}
    show_one(args, facts, with_empty=False)
    if ranks:
        print()
        show(args, [_rank(rank) for rank in ranks])
    if checkpoints:
        print()
        show(args, [_checkpoint(one) for one in checkpoints])
    if refused:
        print()
        note(f"{len(refused)} checkpoint(s) were refused: their paths are outside what the configuration names.")
        show(args, refused)
    if gaps:
        print()
        note(f"{len(gaps)} part(s) of the hosts' data are not in the store:")
        show(args, gap_table(gaps))
    hint(f"airflow dtrain trials logs {trial.trial_id}")


@command
def metrics(args: Namespace) -> None:
    """Print the metrics that the trial reported.

    For steps that were repeated after a restart, the latest report is printed.
    """
    store = _store()
    rows = store.metrics.of_trial(store.trials.get(args.trial_id).trial_id)
    if not args.abandoned:
        rows = current_branch(rows)
    rows = [row for row in rows if args.group in (None, row.group)]
    names = sorted({name for row in rows for name in row.metrics})
    table = [_metric(row, names) for row in rows]
    if args.csv:
        _csv(table, list(table[0]) if table else [])
    else:
        show(args, table, empty=f"Trial {args.trial_id} has reported nothing yet.")


@command
def checkpoints(args: Namespace) -> None:
    """List a trial's checkpoints with their locations, oldest first."""
    store = _store()
    found = store.checkpoints.of_trial(store.trials.get(args.trial_id).trial_id, removed=args.removed)
    rows = [{**_checkpoint(one), **({"removed": one.removed_at} if args.removed else {})} for one in found]
    show(args, rows, empty=f"Trial {args.trial_id} has no checkpoint.")


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


def _row(trial: TrialView) -> dict[str, Any]:
    return {
        "trial": trial.trial_id,
        "experiment_id": trial.experiment_id,
        "experiment": trial.experiment,
        "number": trial.number,
        "task": task_name(trial.key),
        "dag_run": trial.key.run_id,
        "hyperparameters": trial.hparams,
        "state": trial.state,
        "replaced": _replaced(trial),
        "metric": (trial.result or {}).get("metric"),
        "rung": trial.rung,
        "attempts": trial.attempts,
        "created": trial.created_at,
        "ended": trial.ended_at,
    }


def _progress(store: Store, trial: TrialView) -> dict[str, Any]:
    """Return the progress of a running trial and its expected end."""
    found = store.trial_table.some([trial.trial_id])
    progress = found[0].progress if found else None
    if progress is None:
        return {"progress": None, "expected_end": None}
    return {"progress": progress_words(progress), "expected_end": progress.expected_end}


def _replaced(trial: TrialView) -> str | None:
    """Return why a trial of a search no longer counts."""
    if trial.is_of_older_plan:
        return "its experiment was planned anew"
    return "its task was cleared" if trial.is_cleared else None


def _end_words(store: Store, trial: TrialView) -> str | None:
    at_rung = ""
    if trial.state == "stopped" and trial.search_id is not None and trial.rung is not None:
        lengths = store.searches.get(trial.search_id).rungs.get(trial.bracket, ())
        searcher = store.configs.get(trial.config_id).document.get("searcher")
        at_rung = rung_words(trial.rung, lengths, units_of(searcher))
    return end_words(trial.state, trial.stop_requested_by, trial.failure, at_rung)


def _listed(store: Store, trial: TrialView, task: TaskView | None) -> dict[str, Any]:
    """Return a trial with the place of its gang in the queue, or why it waits."""
    if task is None:
        return {**_row(trial), "position": None, "expected": None, "unfollowed_since": None, "reason": None}
    silent = store.queue_view.silent_since(task.heard_at)
    waits = task.position is not None
    return {
        **_row(trial),
        "position": task.position if silent is None else None,
        "expected": (task.expected or None) if waits and silent is None else None,
        "unfollowed_since": silent,
        "reason": reason_words(task.reason, silent, waits=waits, paused=task.paused, trial_id=trial.trial_id),
    }


def _of_experiment(store: Store, trial: TrialView, task: TaskView | None) -> dict[str, Any]:
    """Return the columns that compare the trials of one experiment."""
    row = _short(store, trial, task)
    result = trial.result or {}
    space = store.configs.get(trial.config_id).document.get("hyperparameters")
    return {
        "trial": trial.trial_id,
        "number": trial.number,
        "hyperparameters": trial_name(None, trial.hparams, space),
        "state": row["state"],
        "metric": result.get("metric", trial.best_metric),
        "steps": result.get("steps"),
        "ended": row["ended"],
        "reason": row["reason"],
    }


def _short(store: Store, trial: TrialView, task: TaskView | None) -> dict[str, Any]:
    """Return the columns that fit a terminal."""
    row = _listed(store, trial, task)
    paused = task is not None and task.paused
    state = state_words(trial.state, row["position"], paused=paused, silent_since=row["unfollowed_since"])
    return {
        "trial": trial.trial_id,
        "experiment": f"{trial.experiment_id} {trial.experiment}",
        "task": row["task"],
        "state": state,
        "created": short_time(trial.created_at),
        "ended": short_time(trial.ended_at),
        "reason": row["reason"] or row["replaced"] or _end_words(store, trial),
    }


def _rank(rank: RankView) -> dict[str, Any]:
    error = (rank.error or {}).get("message")
    return {
        "rank": rank.rank,
        "host": rank.host,
        "slot": rank.slot if rank.slot >= 0 else None,
        "pid": rank.pid,
        "exit_code": rank.exit_code,
        "exited": rank.exited_at,
        "error": str(error).splitlines()[0][:200] if error else None,
    }


def _checkpoint(checkpoint: CheckpointView) -> dict[str, Any]:
    return {
        "checkpoint": checkpoint.checkpoint_id,
        "step": checkpoint.step,
        "host": checkpoint.host,
        "path": checkpoint.path,
        "size": size(checkpoint.size_bytes),
        "metrics": dict(checkpoint.metrics),
        "copy": checkpoint.copy_url,
    }


def _refused(checkpoint: CheckpointView) -> dict[str, Any]:
    return {
        "step": checkpoint.step,
        "host": checkpoint.host,
        "reported": shown_path(checkpoint.path),
        "refused": checkpoint.refused,
    }


def _metric(row: MetricRow, names: list[str]) -> dict[str, Any]:
    fixed = {
        "attempt": row.attempt,
        "group": row.group,
        "step": row.step,
        "epoch": row.epoch,
        "rank": row.rank,
        "at": row.at,
    }
    return {**fixed, **{name if name not in fixed else f"metrics.{name}": row.metrics.get(name) for name in names}}


def _csv(rows: list[dict[str, Any]], columns: list[str]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if columns:
        writer.writerow([_csv_cell(column) for column in columns])
    for row in rows:
        writer.writerow(["" if row.get(name) is None else _csv_cell(row.get(name)) for name in columns])


def _csv_cell(value: Any) -> Any:
    ready = plain_data(value)
    if not isinstance(ready, str):
        return ready if isinstance(ready, int | float) else cell(ready)
    # A spreadsheet would run such a cell as a formula, and ranks choose the texts that they report.
    return f"'{ready}" if ready.startswith(("=", "+", "@")) else ready
