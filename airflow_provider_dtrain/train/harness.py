"""Train a trial class: ``python -m airflow_provider_dtrain.train.harness module:TrialClass``.

The control side starts it as the ranks of a trial. It runs in the same way under torchrun and alone.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.durations import Length
from airflow_provider_dtrain.train.errors import (
    CheckpointError,
    InvalidHP,
    LeaderFailedError,
    NonFiniteLossError,
    NonFiniteWeightsError,
    SetupError,
    TrainError,
)
from airflow_provider_dtrain.train.initialization import init
from airflow_provider_dtrain.train.process.code_folder import add_code_folder, check_is_own
from airflow_provider_dtrain.train.process.config_file import read_config
from airflow_provider_dtrain.train.reports import failure

log = logging.getLogger("airflow_provider_dtrain.train.harness")  # run with -m, __name__ is "__main__"

#: Exit status of a trial whose code raised :class:`InvalidHP`.
EXIT_INVALID_HP = 65
#: Exit status when the library rejects the request, as for a wrong option.
EXIT_REFUSED = 2

_LIBRARY = Path(__file__).resolve().parent
#: Pattern of a message -> option that fixes it on this command line; {} stands for the first group.
_HINTS = (
    (re.compile(r"here is no hyperparameter '?(\w+)"), "--hparam {}=..."),
    (re.compile(r"^hyperparameters\.(\w+) is a range"), "--hparam {}=..."),
    (re.compile(r"^hyperparameters\.(\w+)\.\S+ is a range"), '--hparam "{}={{...}}" with the whole group'),
    (re.compile(r"^The length of training is not set"), "--max-length epochs=10"),
    (re.compile(r"fail_on_nan=False"), "--keep-going-on-nan"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Train and return the exit status."""
    options = _parser().parse_args(argv)
    add_code_folder()
    try:
        _train(options)
    except InvalidHP:
        traceback.print_exc()
        return EXIT_INVALID_HP
    except TrainError as error:
        if os.environ.get("DTRAIN_RUN"):
            raise
        if isinstance(error, (NonFiniteLossError, NonFiniteWeightsError)):
            error.args = (_with_hint(error),)
        if not _explains_itself(error):
            raise
        failure.record(error)
        rank = f"rank {os.environ.get('RANK', 0)}: " if os.environ.get("WORLD_SIZE", "1") != "1" else ""
        print(f"dtrain: {rank}{_with_hint(error)}", file=sys.stderr, flush=True)
        return EXIT_REFUSED
    return 0


def _train(options: argparse.Namespace) -> None:
    with init(
        hparams=dict(map(_hparam, options.hparam)),
        config=read_config(options.config) if options.config else None,
        seed=options.seed,
        checkpoint_dir=options.checkpoint_dir,
        device=options.device,
        fail_on_nan=not options.keep_going_on_nan,
    ) as ctx:
        from airflow_provider_dtrain.train.trial.run import train

        metrics = train(load_class(options.trial_class), ctx, max_length=options.max_length)
        if ctx.distributed.get_rank() == 0:
            log.info("Trained to step %d; last validation: %s", ctx._last_step, _shown(metrics))


def _explains_itself(error: TrainError) -> bool:
    """Return whether the library rejected the request, so that its message says more than a traceback."""
    if isinstance(error, (NonFiniteLossError, NonFiniteWeightsError, CheckpointError, LeaderFailedError)):
        return False
    *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
    return _LIBRARY in Path(frame.f_code.co_filename).resolve().parents


def _with_hint(error: TrainError) -> str:
    text = str(error)
    for pattern, hint in _HINTS:
        found = pattern.search(text)
        if found and hint.format(*found.groups()) not in text:
            return f"{text} Here: {hint.format(*found.groups())}"
    return text


def load_class(name: str) -> Any:
    """Return the class that ``module:TrialClass`` names, from the current folder or an installed package.

    :raises SetupError: the module or the class does not exist
    """
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise SetupError(f"Module {error.name!r} is neither in {os.getcwd()} nor installed.") from error
    check_is_own(module, module_name)
    found = getattr(module, class_name, None)
    if found is None:
        raise SetupError(f"{module.__file__ or module_name} does not define the class {class_name!r}.")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m airflow_provider_dtrain.train.harness",
        description="Train a PyTorchTrial class.",
        epilog="In a trial, everything except the class comes from the experiment's configuration.",
    )
    parser.add_argument("trial_class", metavar="module:TrialClass")
    parser.add_argument("--config", metavar="FILE", help="experiment configuration (YAML or JSON)")
    parser.add_argument("--hparam", metavar="NAME=VALUE", action="append", default=[], help="may be repeated")
    parser.add_argument("--max-length", metavar="UNIT=N", type=_length, help="batches=100, records=5000 or epochs=3")
    parser.add_argument("--checkpoint-dir", metavar="DIR", help="folder or URL to write checkpoints to and resume from")
    parser.add_argument("--seed", type=int, help="seed of the trial; default: 0")
    parser.add_argument("--device", help="e.g. cpu; default: a GPU when one is visible")
    parser.add_argument("--keep-going-on-nan", action="store_true", help="continue when a reported loss is NaN")
    return parser


def _length(text: str) -> Length | None:
    try:
        return Length.parse(text, "max_length")
    except SetupError:
        wrong = f"must be batches=N, records=N or epochs=N (N of 1 or more), e.g. epochs=10, got {text!r}"
        raise argparse.ArgumentTypeError(wrong) from None


def _hparam(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise SetupError(f"--hparam must be NAME=VALUE, e.g. --hparam lr=0.1, got {text!r}.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, {"true": True, "false": False}.get(value.lower(), value)


def _shown(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in metrics.items()) or "none in this attempt"


if __name__ == "__main__":
    sys.exit(main())
