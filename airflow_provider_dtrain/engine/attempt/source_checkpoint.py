"""``searcher.source_checkpoint``: the checkpoint whose weights a trial starts from."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.checkpoint_location import StorageKind, url_problem
from airflow_provider_dtrain.core.lifecycle.states import TRIAL_ENDED
from airflow_provider_dtrain.engine.copies.checkpoints import best_checkpoint
from airflow_provider_dtrain.errors import ConfigError, NotFoundError, Problem

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.store.records.trials import CheckpointView
    from airflow_provider_dtrain.store.store import Store

FIELD = "searcher.source_checkpoint"
METADATA = "metadata.json"
_TRIAL = re.compile(r"trial:(\d{1,18})(?::(best|latest|\d{1,18}))?", re.ASCII)
_FORMS = (
    "must be trial:ID, trial:ID:best, trial:ID:latest, trial:ID:STEP, or the absolute path or URL of a checkpoint, as "
    "a trial's result shows it"
)


@dataclass(frozen=True, kw_only=True)
class SourceCheckpoint:
    """A checkpoint that exists as far as the control side can tell."""

    #: Path on the hosts or URL; for a folder of this machine its own path.
    where: str
    #: True: it lies on this machine and is sent to the chief.
    is_sent: bool

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.where.rstrip("/").rpartition("/")[2]


def resolve(
    store: Store, config: ExperimentConfig, *, shared: str | None, look_up: Callable[[str], bool]
) -> SourceCheckpoint | None:
    """Return the source checkpoint that a configuration names, or None. Blocks.

    :param shared: folder that all hosts share; paths below it are not checked here
    :param look_up: returns whether a URL that the store does not know holds a checkpoint
    :raises ConfigError: the checkpoint does not exist, or cannot be read from this machine
    """
    named = config.searcher.source_checkpoint
    if named is None:
        return None
    if (match := _TRIAL.fullmatch(named)) is not None:
        return _of_trial(store, int(match[1]), match[2] or "best")
    is_url = "://" in named
    if not is_url and (not named.startswith("/") or ".." in named.split("/")):
        raise _refuse(f"{_FORMS}; got '{named}'")
    where = named.rstrip("/")
    if not is_url and (Path(where) / METADATA).is_file():
        return SourceCheckpoint(where=where, is_sent=True)
    known = store.checkpoints.find(where)
    if known is not None:
        return _of_view(known)
    if is_url:
        problem = url_problem(where, config.checkpoint_storage.model_dump(mode="json"))
        if problem is not None:
            raise _refuse(f"{where} is not read: {problem}")
        if look_up(where):
            return SourceCheckpoint(where=where, is_sent=False)
        raise _refuse(f"there is no checkpoint at {where}: it has no {METADATA}")
    if shared is not None and where.startswith(shared.rstrip("/") + "/"):
        return SourceCheckpoint(where=where, is_sent=False)
    raise _refuse(f"there is no checkpoint at {where}: it is not on this machine and no trial is known to have it")


def _of_trial(store: Store, trial_id: int, which: str) -> SourceCheckpoint:
    try:
        trial = store.trials.get(trial_id)
    except NotFoundError as error:
        raise _refuse(str(error)) from None
    if trial.state not in TRIAL_ENDED:
        raise _refuse(f"trial {trial_id} is still {trial.state}; its checkpoints change until it has ended")
    found = store.checkpoints.of_trial(trial_id)
    if which == "best" and found:
        searcher = store.configs.get(trial.config_id).document.get("searcher") or {}
        metric = searcher.get("metric")
        smaller = searcher.get("smaller_is_better", True)
        return _of_view(best_checkpoint(found, metric, smaller))
    if which == "latest" and found:
        return _of_view(max(found, key=lambda c: (c.attempt, c.step, c.checkpoint_id)))
    at = [c for c in found if str(c.step) == which]
    if at:
        return _of_view(at[-1])
    steps = ", ".join(str(c.step) for c in found) or "none"
    raise _refuse(f"trial {trial_id} has no checkpoint '{which}'; it has these steps: {steps}")


def _of_view(checkpoint: CheckpointView) -> SourceCheckpoint:
    if checkpoint.copy_url is not None:
        return SourceCheckpoint(where=checkpoint.copy_url, is_sent=True)
    if checkpoint.place is not None and checkpoint.place.kind is not StorageKind.RUN:
        return SourceCheckpoint(where=checkpoint.place.path, is_sent=False)
    raise _refuse(
        f"the checkpoint of step {checkpoint.step} of trial {checkpoint.trial_id} lies only on host "
        f"'{checkpoint.host}'. Keep checkpoints in shared storage, or raise [dtrain] checkpoint_copy_limit"
    )


def _refuse(message: str) -> ConfigError:
    return ConfigError([Problem(path=FIELD, message=message)])
