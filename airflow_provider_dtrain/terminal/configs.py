"""Commands that check a configuration without storing it: validation, and the outlook of a request."""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dtrain.errors import UsageError
from airflow_provider_dtrain.terminal.arguments import GANG_PREFIX, gang
from airflow_provider_dtrain.terminal.input_text import read_input
from airflow_provider_dtrain.terminal.output import (
    FAILURE,
    NOT_NOW,
    hint,
    note,
    placement_text,
    show_one,
    task_name,
)

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.resources.explanations import Explanation
    from airflow_provider_dtrain.terminal.documents import Documents

_CODES: Final = {"now": 0, "later": NOT_NOW, "never": FAILURE}


def validate(args: Namespace, documents: Documents) -> None:
    """Validate a configuration or template and list all problems."""
    if args.config is None and not args.template:
        raise UsageError(
            "No file was given. Run: airflow dtrain configs validate FILE, with --template if it is a template."
        )
    # Without a value, --template says that the file is a template. The file may follow it.
    is_template = args.config is None or args.template is None
    path = args.config or args.template
    given = read_input(path, what="template" if is_template else "configuration")
    found = documents.check_template(given) if is_template else documents.check_config(given, args.template or None)
    for warning in found.warnings:
        note(f"Warning: {warning}")
    row = {"document": given.name, "kind": "template" if is_template else "configuration", "valid": True}
    show_one(args, row if is_template else {**row, "pool": found.pool})
    hint(f"airflow dtrain templates set NAME {path}" if is_template else f"airflow dtrain explain {path}")


def explain(args: Namespace, documents: Documents) -> int:
    """Explain whether a configuration fits now or ever, or why a trial waits.

    The exit code is 0 for now, 3 for later and 1 for never.
    """
    found = _explanation(args, documents)
    show_one(args, _row(found), with_empty=False)
    if found.outlook == "later":
        hint("airflow dtrain queue list")
    return _CODES[found.outlook]


def _explanation(args: Namespace, documents: Documents) -> Explanation:
    if args.request.startswith(GANG_PREFIX):
        try:
            return documents.explain_gang(gang(args.request))
        except ArgumentTypeError as error:
            raise UsageError(str(error)) from None
    if args.request.isascii() and args.request.isdigit():
        return documents.explain_trial(int(args.request))
    return documents.explain_config(read_input(args.request, what="configuration"), args.template)


def _row(found: Explanation) -> dict[str, Any]:
    task, dag_run = (None, None) if found.task is None else (task_name(found.task), found.task.run_id)
    hosts, claimed = (place and placement_text(place) for place in (found.hosts, found.claimed))
    return {**asdict(found), "task": task, "dag_run": dag_run, "hosts": hosts, "claimed": claimed}
