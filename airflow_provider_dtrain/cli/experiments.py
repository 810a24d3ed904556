"""``airflow dtrain experiment``: the share of the queue that an experiment has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli.console import UsageError, command, hint, show_one, user

if TYPE_CHECKING:
    from argparse import Namespace


@command
def set_experiment(args: Namespace) -> None:
    """Change priority, weight or cap of an experiment, for its waiting and running gangs."""
    if args.priority is None and args.weight is None and args.max_slots is None:
        raise UsageError("Nothing to set. Give --priority, --weight or --max-slots.")
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    store = DtrainHook().store
    store.set_experiment(
        args.experiment_id, weight=args.weight, max_slots=args.max_slots, priority=args.priority, by=user()
    )
    given = {"priority": args.priority, "weight": args.weight, "max_slots": args.max_slots}
    show_one(args, {"experiment": args.experiment_id, **{k: v for k, v in given.items() if v is not None}})
    hint("airflow dtrain task list")
