"""``airflow dtrain infer``: a batch inference without writing a DAG."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._inputs import InputDocument, read
from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.cli.experiments_create import start

if TYPE_CHECKING:
    from argparse import Namespace


@command
def infer(args: Namespace) -> int:
    """Check and store configuration and code, and trigger the DAG of experiments.

    With ``--follow``, exit 1 if the DAG run fails.
    """
    from airflow_provider_dtrain.engine.submission.inference import with_inference
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    source = read(args.config, what="configuration") if args.config is not None else _nothing()
    fields = {
        "processor": args.processor,
        "inputs": args.input,
        "outputs": args.to,
        "weights": args.weights,
        "batch_size": args.batch_size,
        "on_bad_shard": args.on_bad_shard,
        "on_bad_row": args.on_bad_row,
    }
    document = with_inference(source.document, fields, slots=args.slots, host_pool=args.pool)
    return start(args, DtrainHook(), replace(source, document=document))


def _nothing() -> InputDocument:
    """Return the document of a command line whose options say everything."""
    return InputDocument(name="the command line", folder=Path.cwd(), text="", document={})
