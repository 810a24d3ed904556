"""Compute a batch inference: ``python -m airflow_provider_dtrain.train.inference``.

The control side starts it as the ranks of a trial whose configuration has a section ``inference``. It runs in the same
way under torchrun and alone, with ``--config``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from airflow_provider_dtrain.train.errors import BadShardError, SetupError, TrainError
from airflow_provider_dtrain.train.initialization import init
from airflow_provider_dtrain.train.process.code_folder import add_code_folder
from airflow_provider_dtrain.train.process.config_file import read_config
from airflow_provider_dtrain.train.reports import failure

#: Exit status of a rank that gave up a shard: a restart would fail again.
EXIT_BAD_SHARD = 66
#: Exit status when the library rejects the request.
EXIT_REFUSED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Compute and return the exit status."""
    options = _parser().parse_args(argv)
    add_code_folder()
    try:
        _infer(options)
    except BadShardError as error:
        failure.record(error)
        print(f"dtrain: {error}", file=sys.stderr, flush=True)
        return EXIT_BAD_SHARD
    except TrainError as error:
        if os.environ.get("DTRAIN_RUN"):
            raise
        failure.record(error)
        print(f"dtrain: {error}", file=sys.stderr, flush=True)
        return EXIT_REFUSED
    return 0


def _infer(options: argparse.Namespace) -> None:
    config = read_config(options.config) if options.config else None
    # Each rank computes on its own, so small messages between the hosts are all that is needed.
    # A metric that is no number is a result, and no reason to discard the others.
    with init(config=config, device=options.device, backend="gloo", fail_on_nan=False) as ctx:
        from airflow_provider_dtrain.train.inference.early_exit import without_early_success
        from airflow_provider_dtrain.train.inference.program import infer

        section = ctx.config.get("inference")
        if not section:
            raise SetupError("The configuration has no section 'inference'. Off-cluster, pass --config FILE.")
        with without_early_success():
            infer(ctx, section)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m airflow_provider_dtrain.train.inference",
        description="Compute a batch inference.",
        epilog="In a trial, everything comes from the experiment's configuration.",
    )
    parser.add_argument("--config", metavar="FILE", help="experiment configuration (YAML or JSON)")
    parser.add_argument("--device", help="e.g. cpu; default: a GPU when one is visible")
    return parser


if __name__ == "__main__":
    sys.exit(main())
