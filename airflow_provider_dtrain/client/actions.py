"""Commands that change trials and experiments: control requests, labels, priorities."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from airflow_provider_dtrain.client.common_answers import Message
from airflow_provider_dtrain.client.login import session_of
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.client.source import ServerSource
from airflow_provider_dtrain.errors import UsageError
from airflow_provider_dtrain.terminal.output import Function, confirm, hint, note, show_one

#: States of a trial after its end.
_ENDED = frozenset({"completed", "stopped", "errored", "killed"})


def _trial(verb: str, *, asks: bool, then: str) -> Function:
    """Return a command that sends a control request to a trial.

    :param then: command that shows its effect
    """

    def run(args: Namespace) -> int:
        session = session_of(args)
        if asks:
            trial = ServerSource(session).trial(args.trial_id)
            if trial.state in _ENDED:
                note(f"Trial {trial.trial} has ended already: {trial.state}.")
                return 0
            # A paused trial without a checkpoint begins again.
            loses = verb != "pause" or (trial.state == "running" and not trial.checkpoints)
            words = " It has no checkpoint yet." if verb == "pause" else ""
            question = f"{verb.capitalize()} trial {trial.trial} of '{trial.experiment}' ({trial.state})?{words}"
            if loses and not _agreed(args, question):
                return 0
        note(session.send("POST", f"/trials/{args.trial_id}/{verb}").record(Message).message)
        hint(f"{then} {args.trial_id}")
        return 0

    return run


def _experiment(verb: str, question: str = "") -> Function:
    """Return a command that sends a control request to an experiment.

    :param question: asked before; empty = the command asks nothing
    """

    def run(args: Namespace) -> int:
        session = session_of(args)
        if question:
            found = ServerSource(session).experiment(args.experiment_id)
            states = ", ".join(f"{number} {state}" for state, number in found.trials.items()) or "no trial yet"
            if not _agreed(args, question.format(f"{found.experiment} '{found.name}' ({states})")):
                return 0
        note(session.send("POST", f"/experiments/{args.experiment_id}/{verb}").record(Message).message)
        hint(f"dtrain experiments {'activate' if verb == 'pause' else 'describe'} {args.experiment_id}")
        return 0

    return run


def _agreed(args: Namespace, question: str) -> bool:
    agreed = confirm(question, yes=args.yes)
    if not agreed:
        note("Nothing was changed.")
    return agreed


def set_trial(args: Namespace) -> None:
    """Change labels of a trial, or the priority of its gang."""
    session = session_of(args)
    _set(session, args, f"/trials/{args.trial_id}", ServerSource(session).trial(args.trial_id).tags)
    show_one(args, {"trial": args.trial_id, **_given(args)}, with_empty=False)
    hint(f"dtrain trials describe {args.trial_id}")


def set_experiment(args: Namespace) -> None:
    """Change labels of an experiment, or priority, weight or cap of its gangs."""
    session = session_of(args)
    _set(session, args, f"/experiments/{args.experiment_id}", ServerSource(session).experiment(args.experiment_id).tags)
    show_one(args, {"experiment": args.experiment_id, **_given(args), **_share(args)}, with_empty=False)
    hint(f"dtrain experiments describe {args.experiment_id}")


def _given(args: Namespace) -> dict[str, Any]:
    names = {"display_name": args.name, "description": args.description, "priority": args.priority}
    return {name: value for name, value in names.items() if value is not None}


def _share(args: Namespace) -> dict[str, Any]:
    """Return weight and cap, which only experiments have."""
    names = ("weight", "max_slots")
    return {name: value for name in names if (value := getattr(args, name, None)) is not None}


def _set(session: Session, args: Namespace, path: str, tags: list[str]) -> None:
    labels = {"display_name": args.name, "description": args.description}
    body: dict[str, Any] = {name: value for name, value in labels.items() if value is not None}
    if args.tag or args.untag:
        body["tags"] = [*(one for one in tags if one not in (args.untag or ())), *(args.tag or ())]
        body["tags"] = list(dict.fromkeys(body["tags"]))
    share = _share(args)
    if args.priority is None and not body and not share:
        more = ", --weight, --max-slots" if hasattr(args, "max_slots") else ""
        raise UsageError(f"Nothing to set. Give --priority{more}, --name, --description, --tag or --untag.")
    if body:
        note(session.send("PATCH", path, body).record(Message).message)
    if share:
        note(session.send("POST", f"{path}/share", share).record(Message).message)
    if args.priority is not None:
        answer = session.send("POST", f"{path}/priority", {"priority": args.priority})
        note(answer.record(Message).message)


#: Target of a command -> its function.
ACTIONS: dict[str, Function] = {
    "trials.kill": _trial("kill", asks=True, then="dtrain trials describe"),
    "trials.pause": _trial("pause", asks=True, then="dtrain trials activate"),
    "trials.activate": _trial("activate", asks=False, then="dtrain trials describe"),
    "trials.set_trial": set_trial,
    "lifecycle_commands.stop_trial": _trial("stop", asks=True, then="dtrain trials describe"),
    "lifecycle_commands.pause": _experiment("pause"),
    "lifecycle_commands.activate": _experiment("activate"),
    "lifecycle_commands.stop": _experiment("stop", "Stop experiment {} and keep the best of its trials?"),
    "lifecycle_commands.kill": _experiment(
        "kill", "Kill experiment {}? Running trials lose their work since the last checkpoint."
    ),
    "experiments.set_experiment": set_experiment,
}
