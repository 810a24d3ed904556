"""``airflow dtrain explain``: whether and when a request fits, and what it waits for."""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.cli._schedulers import refresh_facts
from airflow_provider_dtrain.engine.submission.explanation import explain_config, explain_gang, explain_trial
from airflow_provider_dtrain.errors import UsageError
from airflow_provider_dtrain.terminal.arguments import GANG_PREFIX, gang
from airflow_provider_dtrain.terminal.output import FAILURE, NOT_NOW, hint, placement_text, show_one, task_name

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.resources.explanations import Explanation

_CODES = {"now": 0, "later": NOT_NOW, "never": FAILURE}


@command
def explain(args: Namespace) -> int:
    """Explain whether a configuration fits now or ever, or why a trial waits.

    The exit code is 0 for now, 3 for later and 1 for never.
    """
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    hook = DtrainHook()
    if args.request.startswith(GANG_PREFIX):
        try:
            number = gang(args.request)
        except ArgumentTypeError as error:
            raise UsageError(str(error)) from None
        found = explain_gang(hook.store, number, f"{GANG_PREFIX}{number}")
    elif args.request.isascii() and args.request.isdigit():
        found = explain_trial(hook.store, int(args.request))
    else:
        found = _config(hook, args.request, args.template)
    show_one(args, _row(found), with_empty=False)
    if found.outlook == "later":
        hint("airflow dtrain queue list")
    return _CODES[found.outlook]


def _row(found: Explanation) -> dict[str, Any]:
    task, dag_run = (None, None) if found.task is None else (task_name(found.task), found.task.run_id)
    hosts, claimed = (place and placement_text(place) for place in (found.hosts, found.claimed))
    return {**asdict(found), "task": task, "dag_run": dag_run, "hosts": hosts, "claimed": claimed}


def _config(hook: DtrainHook, path: str, template: str | None) -> Explanation:
    from airflow_provider_dtrain.cli._inputs import assemble, read
    from airflow_provider_dtrain.core.config import refuse_unsupported

    source = read(path, what="configuration")
    found = assemble(hook, source, template)
    effective, pool = found.effective, found.pool
    refuse_unsupported(effective.config, effective.origins)
    hook.ensure_local()
    refresh_facts(hook, pool)
    return explain_config(hook.store, pool, effective.config, source.name)
