"""``airflow dtrain trials stack`` and ``trace``: stacks and traces of running ranks, requested from their hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.terminal.output import hint
from airflow_provider_dtrain.terminal.ranks import show_profile, show_stacks

if TYPE_CHECKING:
    from argparse import Namespace


@command
def stack(args: Namespace) -> int:
    """Print the Python stacks of a trial's running ranks. Exit 3 if none runs."""
    from airflow_provider_dtrain.engine.operations.ranks import stacks
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    code = show_stacks(args, stacks(DtrainHook(), args.trial_id, args.rank))
    hint(f"airflow dtrain trials logs {args.trial_id}")
    return code


@command
def trace(args: Namespace) -> int:
    """Let running ranks record their next batches. Exit 3 if none runs."""
    from airflow_provider_dtrain.engine.operations.ranks import profile
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    found = profile(DtrainHook(), args.trial_id, args.rank or [0], args.batches, with_stack=args.with_stack)
    code = show_profile(args, found)
    hint(f"airflow dtrain trials outputs {args.trial_id}")
    return code
