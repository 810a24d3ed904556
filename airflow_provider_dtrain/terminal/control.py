"""Commands that change trials, experiments and hosts: control requests, labels, priorities."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, cast

from airflow_provider_dtrain.core.lifecycle.control import Deadline
from airflow_provider_dtrain.core.lifecycle.states import TRIAL_ENDED
from airflow_provider_dtrain.errors import UsageError
from airflow_provider_dtrain.terminal.cluster import gangs_of, host_row, show_hosts
from airflow_provider_dtrain.terminal.output import confirm, hint, note, show_one

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.core.lifecycle.control import Change, HostVerb, Noun, Verb
    from airflow_provider_dtrain.resources.bulk import BulkAction, BulkResult
    from airflow_provider_dtrain.terminal.source import Source

#: Seconds between two readings of a host that is to be empty.
WAIT_POLL_S = 2.0
_LABELS = "--name, --description, --tag or --untag"
#: Command that shows the effect of a request to a trial.
_NEXT = {"pause": "trials activate", "activate": "explain", "stop": "trials describe", "kill": "explain"}


class Control(Protocol):
    """Requests of a user. Each method returns what happens. An id that does not exist raises NotFoundError."""

    def request(self, noun: Noun, number: int, verb: Verb) -> str:
        """Pause, activate, stop or kill a trial, or all trials of an experiment."""

    def set(self, noun: Noun, number: int, change: Change) -> str:
        """Change labels, priority and share of a trial or an experiment, all of them or none."""

    def act(
        self,
        action: BulkAction,
        experiment_ids: Sequence[int],
        *,
        project: str | None = None,
        tags: Sequence[str] = (),
        dry_run: bool = False,
    ) -> BulkResult:
        """Carry out an action for several experiments, or return what it would do."""

    def drain(self, name: str, reason: str = "", *, deadline: Deadline | None = None, dry_run: bool = False) -> str:
        """Grant no new slots on a host, and with a deadline let its gangs resume elsewhere."""

    def host(self, name: str, verb: HostVerb, *, slot: int | None = None) -> str:
        """Enable or disable a host, or one of its slots."""


def _trial(verb: Verb) -> Callable[[Namespace, Source, Control], None]:
    def run(args: Namespace, source: Source, control: Control) -> None:
        if verb != "activate" and not _agreed_for_trial(args, source, verb):
            return
        note(control.request("trial", args.trial_id, verb))
        hint(f"airflow dtrain {_NEXT[verb]} {args.trial_id}")

    return run


def _agreed_for_trial(args: Namespace, source: Source, verb: Verb) -> bool:
    trial = source.trial(args.trial_id)
    head = f"{verb.capitalize()} trial {trial.trial_id} of '{trial.experiment}' ({trial.state})?"
    if verb == "pause":
        # It would begin again.
        loses = trial.state == "running" and trial.best_checkpoint is None
        warning = (
            "It has no checkpoint yet: unless its program writes one now, it resumes from the beginning, or, without "
            "the library, with the files that it has written."
        )
        return not loses or _agreed(args, f"{head} {warning}")
    if trial.state in TRIAL_ENDED:
        note(f"Trial {trial.trial_id} has ended already: {trial.state}.")
        return False
    return _agreed(args, head)


def _experiment(verb: Verb, question: str = "") -> Callable[[Namespace, Source, Control], None]:
    """Return the command for a request to an experiment.

    :param question: asked before, with the experiment in place of ``{}``; empty: none
    """

    def run(args: Namespace, source: Source, control: Control) -> None:
        if question and not _agreed_for_experiment(args, source, question, pauses=verb == "pause"):
            return
        note(control.request("experiment", args.experiment_id, verb))
        hint(f"airflow dtrain experiments {'activate' if verb == 'pause' else 'describe'} {args.experiment_id}")

    return run


def _agreed_for_experiment(args: Namespace, source: Source, question: str, *, pauses: bool) -> bool:
    found = source.experiment(args.experiment_id)
    if pauses:
        lose = ", ".join(map(str, found.without_checkpoint))
        return not lose or _agreed(args, f"Trials {lose} {question.format(found.experiment_id)}")
    if found.state in TRIAL_ENDED:
        note(f"Experiment {found.experiment_id} has ended already: {found.state}.")
        return False
    states = ", ".join(f"{number} {state}" for state, number in found.trials.items()) or "no trial yet"
    return _agreed(args, question.format(f"{found.experiment_id} '{found.name}' ({states})"))


def _agreed(args: Namespace, question: str) -> bool:
    agreed = confirm(question, yes=args.yes)
    if not agreed:
        note("Nothing was changed.")
    return agreed


pause_trial = _trial("pause")
activate_trial = _trial("activate")
stop_trial = _trial("stop")
kill_trial = _trial("kill")
pause_experiment = _experiment("pause", "have no checkpoint and may start from the beginning. Pause experiment {}?")
activate_experiment = _experiment("activate")
stop_experiment = _experiment("stop", "Stop experiment {} and keep the best of its trials?")
kill_experiment = _experiment("kill", "Kill experiment {}? Running trials lose their work since the last checkpoint.")


def _host(verb: HostVerb) -> Callable[[Namespace, Source, Control], None]:
    def run(args: Namespace, source: Source, control: Control) -> None:
        slot = args.slot
        if verb == "disable" and slot is None and not _agreed_for_host(args, source):
            return
        note(control.host(args.host, verb, slot=slot))
        if slot is not None:
            return
        rows = [one for one in source.cluster(None).hosts if one.name == args.host]
        show_hosts(args, [host_row(one) for one in rows])
        if verb != "enable":
            hint(f"airflow dtrain hosts enable {args.host}")

    return run


def _agreed_for_host(args: Namespace, source: Source) -> bool:
    held: dict[str, list[str]] = {}
    cluster = source.cluster(None)
    for host in (one for one in cluster.hosts if one.name == args.host):
        for index, slot in enumerate(host.slots):
            if (holder := cluster.holders.get(str(slot.allocation_id))) is None:
                continue
            of = f"trial {holder.trial_id} of '{holder.experiment}'"
            if holder.is_hidden:
                of = f"gang {holder.allocation_id} of a DAG that you may not read"
            elif holder.trial_id is None:
                of = f"held gang {holder.allocation_id}, which no trial uses now,"
            held.setdefault(of, []).append(str(index))
    for of, slots in held.items():
        note(f"Host '{args.host}': {of} holds slots {', '.join(slots)}.")
    return not held or _agreed(args, f"Disable host '{args.host}' and kill its trials?")


def drain_host(args: Namespace, source: Source, control: Control) -> None:
    """Drain hosts, with a deadline or without one, and wait until they are empty if the user wants to."""
    deadline = deadline_of(args)
    names = list(dict.fromkeys(args.host))
    for name in names:
        note(control.drain(name, args.reason or "", deadline=deadline, dry_run=args.dry_run))
    if args.dry_run:
        note("Nothing was changed.")
        return
    if args.wait:
        _until_empty(source, names)
    rows = [one for one in source.cluster(None).hosts if one.name in names]
    show_hosts(args, [host_row(one) for one in rows])
    ends = any(one.state == "draining" for one in rows)
    hint("airflow dtrain queue list" if ends else f"airflow dtrain hosts enable {names[0]}")


def deadline_of(args: Namespace) -> Deadline | None:
    """Return the deadline of ``--now`` or ``--by``, None without one.

    :raises UsageError: both are given, or an option that belongs to a deadline without one
    """
    if args.now and args.by is not None:
        raise UsageError("--now and --by are two deadlines: give one of them.")
    by = datetime.now(UTC) if args.now else args.by
    if by is None and args.kill_at_deadline:
        raise UsageError("--kill-at-deadline belongs to a deadline: give --now or --by TIME.")
    return None if by is None else Deadline(by=by, kills=args.kill_at_deadline)


def _until_empty(source: Source, names: Sequence[str]) -> None:
    """Print which gangs hold slots on hosts whenever that changes, and return when none does."""
    shown: dict[str, set[int]] = {}
    while True:
        left = {one.name: gangs_of(one) for one in source.cluster(None).hosts if one.name in names}
        for name, gangs in left.items():
            if gangs != shown.get(name):
                text = f"gangs {', '.join(map(str, sorted(gangs)))} hold slots" if gangs else "is empty"
                note(f"Host '{name}': {text}.")
        shown = left
        if not any(left.values()):
            return
        time.sleep(WAIT_POLL_S)


enable_host = _host("enable")
disable_host = _host("disable")


def set_trial(args: Namespace, source: Source, control: Control) -> None:
    """Change labels of a trial, or the priority of its gang, waiting or running."""
    _set(args, source, control, "trial", args.trial_id, {"priority": args.priority})


def set_experiment(args: Namespace, source: Source, control: Control) -> None:
    """Change labels of an experiment, or priority, weight or cap of its waiting and running gangs."""
    share = {"priority": args.priority, "weight": args.weight, "max_slots": args.max_slots}
    _set(args, source, control, "experiment", args.experiment_id, share)


def _set(
    args: Namespace, source: Source, control: Control, noun: Noun, number: int, share: Mapping[str, float | None]
) -> None:
    labels = {"display_name": args.name, "description": args.description}
    lists = {"add_tags": args.tag or None, "remove_tags": args.untag or None}
    given = {name: value for name, value in {**share, **labels, **lists}.items() if value is not None}
    if not given:
        more = ", --weight, --max-slots" if noun == "experiment" else ""
        raise UsageError(f"Nothing to set. Give --priority{more}, {_LABELS}.")
    note(control.set(noun, number, cast("Change", given)))
    row: dict[str, Any] = {f"{noun}_id": number, **{name: value for name, value in given.items() if name in share}}
    has_labels = bool(given.keys() - share.keys())
    if has_labels:
        now = source.trial(number) if noun == "trial" else source.experiment(number)
        row |= {"display_name": now.display_name, "description": now.description or None, "tags": now.tags}
    show_one(args, row, with_empty=False)
    hint(f"airflow dtrain {noun}s describe {number}" if has_labels else "airflow dtrain queue list")
