"""Facts on which the results of a batch inference depend, compared before another run continues in its folder."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.function import CALL, MODULE
from airflow_provider_dtrain.train.values import JsonObject

#: Settings of the section ``inference`` that do not change a row of the output.
_WITHOUT_EFFECT = frozenset({"inputs", "weights", "on_bad_shard", "collect", "batch_size"})
_OUTPUTS_WITHOUT_EFFECT = frozenset({"path", "overwrite", "preview"})
_CHUNK_BYTES = 2**20
_LIBRARY = __name__.partition(".")[0]


def facts(
    env: RankEnvironment,
    settings: Mapping[str, Any],
    identity: Mapping[str, Any],
    weights: Any,
    read: Iterable[Path] = (),
) -> JsonObject:
    """Return the facts: part -> JSON.

    :param settings: the section ``inference`` of the configuration
    :param identity: identity of the input, as its plan gives it
    :param weights: identity of the weights, or None
    :param read: files of the code folder that the processor has read, for example weights of its own
    """
    root = Path(os.getcwd())
    outputs = settings.get("outputs") or {}
    optimizations = env.config.get("optimizations") or {}
    return {
        "inputs": dict(identity),
        "code": {**code_files(root), **_digests(root, read)},
        "weights": weights,
        "settings": {
            **{name: value for name, value in settings.items() if name not in {*_WITHOUT_EFFECT, "outputs"}},
            "outputs": {name: value for name, value in outputs.items() if name not in _OUTPUTS_WITHOUT_EFFECT},
            "mixed_precision": optimizations.get("mixed_precision") or "none",
            **({"float32_modules": modules} if (modules := optimizations.get("float32_modules")) else {}),
            "hyperparameters": dict(env.hparams),
            "seed": env.seed,
        },
    }


def code_files(root: Path) -> dict[str, str]:
    """Return the user's modules that this process has imported: path below the folder -> sha256.

    Modules that are not imported do not matter: a DAG folder holds code of many DAGs. Blank lines around the code do
    not matter either: the function of a decorated task keeps its line numbers by them.
    """
    found = {}
    for module_name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not path.endswith(".py") or module_name.partition(".")[0] == _LIBRARY:
            continue
        try:
            name = Path(os.path.abspath(path)).relative_to(root)
            if "site-packages" in name.parts:
                continue
            found[str(name)] = hashlib.sha256(Path(path).read_bytes().strip()).hexdigest()
            arguments = Path(path).parent / CALL
            if module_name == MODULE and arguments.is_file():
                found[str(name.with_name(CALL))] = hashlib.sha256(arguments.read_bytes()).hexdigest()
        except (ValueError, OSError):
            continue
    return dict(sorted(found.items()))


def _digests(root: Path, files: Iterable[Path]) -> dict[str, str]:
    """Return path below the folder -> sha256."""
    found = {}
    for path in files:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        found[os.path.relpath(path, os.path.realpath(root))] = digest.hexdigest()
    return found
