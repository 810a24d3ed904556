"""``dtrain infer``: a batch inference."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from airflow_provider_dtrain.client import submission
from airflow_provider_dtrain.client.create import DAG, agreed, require_dag, show_start
from airflow_provider_dtrain.client.login import session_of
from airflow_provider_dtrain.terminal.input_text import InputText, read_input
from airflow_provider_dtrain.terminal.output import note

#: Options of the command that are fields of the request, under the names there.
_FIELDS = {
    "processor": "processor",
    "input": "inputs",
    "to": "outputs",
    "weights": "weights",
    "batch_size": "batch_size",
    "on_bad_shard": "on_bad_shard",
    "on_bad_row": "on_bad_row",
    "slots": "slots",
    "pool": "pool",
}


def infer(args: Namespace) -> int:
    """Check configuration and code, send them, and start the batch inference. With ``--follow``, exit 1 if it fails."""
    require_dag(args.dag)
    session = session_of(args)
    if args.config is None:
        given = InputText(name="the command line", folder=Path.cwd(), text="{}")
    else:
        given = read_input(args.config, what="configuration")
    options = {name: getattr(args, option) for option, name in _FIELDS.items() if getattr(args, option) is not None}
    started = submission.create(
        session,
        given.text,
        base=given.folder,
        model_dir=args.model_dir,
        template=args.template,
        name=_default_name(args),
        source=given.name,
        agree=agreed,
        notify=note,
        inference=options,
    )
    return show_start(args, session, started)


def _default_name(args: Namespace) -> str:
    """Return the name of an experiment whose configuration has none, as ``airflow dtrain infer`` has it."""
    if args.config not in (None, "-"):
        return Path(args.config).stem or DAG
    return (args.processor or "").partition(":")[0] or DAG
