"""Train a trial class: ``python -m airflow_provider_dtrain.train.harness module:TrialClass``.

The control side starts it as the ranks of a trial; it runs the same under torchrun and alone.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_dtrain.train.errors import InvalidHP, SetupError
from airflow_provider_dtrain.train.startup import init

log = logging.getLogger("airflow_provider_dtrain.train.harness")  # run with -m, __name__ is "__main__"

#: Exit status of a trial whose own verdict is that its hyperparameters cannot be trained.
EXIT_INVALID_HP = 65


def main(argv: Sequence[str] | None = None) -> int:
    """Train; return the exit status."""
    options = _parser().parse_args(argv)
    sys.path.insert(0, os.getcwd())
    try:
        with init(
            hparams=dict(map(_hparam, options.hparam)), config=_read(options.config) if options.config else None,
            seed=options.seed, checkpoint_dir=options.checkpoint_dir, device=options.device,
        ) as ctx:  # fmt: skip
            from airflow_provider_dtrain.train.running import train

            metrics = train(load_class(options.trial_class), ctx, max_length=options.max_length)
            if ctx.distributed.get_rank() == 0:
                log.info("Trained to step %d; last validation: %s", ctx._last_step, _shown(metrics))
    except InvalidHP:
        traceback.print_exc()
        return EXIT_INVALID_HP
    return 0


def load_class(name: str) -> Any:
    """Return the class that ``module:TrialClass`` names, from the current folder or what is installed.

    :raises SetupError: there is no such module or class
    """
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise SetupError(f"There is no module {error.name!r} in {os.getcwd()} or among what is installed.") from error
    found = getattr(module, class_name, None)
    if found is None:
        raise SetupError(f"{module.__file__ or module_name} defines no class {class_name!r}.")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m airflow_provider_dtrain.train.harness", description="Train a PyTorchTrial class.",
        epilog="As a trial everything but the class comes from the experiment's configuration.",
    )  # fmt: skip
    parser.add_argument("trial_class", metavar="module:TrialClass")
    parser.add_argument("--config", metavar="FILE", help="experiment configuration (YAML or JSON)")
    parser.add_argument("--hparam", metavar="NAME=VALUE", action="append", default=[], help="may be repeated")
    parser.add_argument("--max-length", metavar="UNIT=N", help="batches=100, records=5000 or epochs=3")
    parser.add_argument("--checkpoint-dir", metavar="DIR", help="where checkpoints go and training goes on from")
    parser.add_argument("--seed", type=int, help="of the trial; default: 0")
    parser.add_argument("--device", help="e.g. cpu; default: a GPU when one is visible")
    return parser


def _hparam(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise SetupError(f"--hparam {text!r}: NAME=VALUE is expected, e.g. --hparam lr=0.1.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, {"true": True, "false": False}.get(value.lower(), value)


def _read(path: str) -> Mapping[str, Any]:
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if path.endswith(".json"):
        import json

        document = json.loads(text)
    else:
        try:
            import yaml
        except ImportError:
            raise SetupError(f"--config {path} needs PyYAML: pip install pyyaml, or give a .json file.") from None
        document = yaml.safe_load(text)
    if not isinstance(document, Mapping):
        raise SetupError(f"--config {path} holds {type(document).__name__}; a mapping is expected.")
    return document


def _shown(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in metrics.items()) or "none in this attempt"


if __name__ == "__main__":
    sys.exit(main())
