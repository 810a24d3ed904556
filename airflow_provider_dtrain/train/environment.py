"""What the process finds when it starts: its rank, its trial, its files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError


@dataclass(frozen=True)
class Environment:
    """One rank's place in its gang, and what the control side gave it.

    Off-cluster most of it is empty: one process, rank 0 of 1.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    #: Index of this rank's host in the gang.
    group_rank: int = 0
    #: ``t<trial>.<attempt>.<token>`` on the cluster, else None.
    run: str | None = None
    run_dir: Path | None = None
    events_path: Path | None = None
    error_path: Path | None = None
    #: Explicit folder for checkpoints; None off-cluster unless the user names one.
    checkpoint_dir: Path | None = None
    latest_checkpoint: Path | None = None
    hparams: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    #: The effective experiment configuration, without secrets.
    config: Mapping[str, Any] = field(default_factory=dict)
    trial_id: int | None = None
    attempt: int | None = None

    @property
    def on_cluster(self) -> bool:
        """True for a rank that a supervisor started."""
        return self.run is not None

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Environment:
        """Return what this process was given.

        :param environ: default: the process's environment
        :raises SetupError: a variable or the context file cannot be understood
        """
        env = os.environ if environ is None else environ
        context = _context(env.get("DTRAIN_CONTEXT"))
        world_size = _integer(env, "WORLD_SIZE", 1)
        rank = _integer(env, "RANK", 0)
        if not 0 <= rank < world_size:
            raise SetupError(f"RANK is {rank} but WORLD_SIZE is {world_size}; ranks count from 0.")
        return cls(
            rank=rank,
            local_rank=_integer(env, "LOCAL_RANK", 0),
            world_size=world_size,
            local_world_size=_integer(env, "LOCAL_WORLD_SIZE", world_size),
            group_rank=_integer(env, "GROUP_RANK", 0),
            run=env.get("DTRAIN_RUN") or None,
            run_dir=_path(env.get("DTRAIN_RUN_DIR")),
            events_path=_path(env.get("DTRAIN_EVENTS")),
            error_path=_path(env.get("TORCHELASTIC_ERROR_FILE")),
            checkpoint_dir=_path(env.get("DTRAIN_CHECKPOINT_DIR")),
            latest_checkpoint=_path(context.get("latest_checkpoint") or env.get("DTRAIN_LATEST_CHECKPOINT")),
            hparams=_hparams(context, env),
            seed=_seed(context, env),
            config=_mapping(context.get("config"), "config of DTRAIN_CONTEXT"),
            trial_id=context.get("trial_id"),
            attempt=context.get("attempt"),
        )


def _context(path: str | None) -> Mapping[str, Any]:
    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            return _mapping(json.load(file), f"DTRAIN_CONTEXT ({path})")
    except (OSError, ValueError) as error:
        raise SetupError(f"DTRAIN_CONTEXT names {path}, which cannot be read: {error}") from error


def _hparams(context: Mapping[str, Any], env: Mapping[str, str]) -> Mapping[str, Any]:
    if "hparams" in context:
        return _mapping(context["hparams"], "hparams of DTRAIN_CONTEXT")
    text = env.get("DTRAIN_HPARAMS")
    if not text:
        return {}
    try:
        return _mapping(json.loads(text), "DTRAIN_HPARAMS")
    except ValueError as error:
        raise SetupError(f"DTRAIN_HPARAMS is no JSON object: {error}") from error


def _seed(context: Mapping[str, Any], env: Mapping[str, str]) -> int | None:
    if context.get("seed") is not None:
        return int(context["seed"])
    return _integer(env, "DTRAIN_TRIAL_SEED", 0) if env.get("DTRAIN_TRIAL_SEED") else None


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SetupError(f"{what} is {type(value).__name__}; a JSON object is expected.")
    return value


def _integer(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    try:
        return int(text)
    except ValueError:
        raise SetupError(f"{name} is {text!r}; a whole number is expected.") from None


def _path(text: str | None) -> Path | None:
    return Path(os.path.abspath(text)) if text else None
