"""``searcher.source_checkpoint`` and ``inference.weights``: the checkpoint whose weights a trial starts from."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.checkpoint_location import StorageKind, url_problem
from airflow_provider_dtrain.core.checkpoint_policy import best_checkpoint
from airflow_provider_dtrain.core.config.inference import EXPERIMENT
from airflow_provider_dtrain.core.documents import ConfigDocument
from airflow_provider_dtrain.core.lifecycle.states import TRIAL_ENDED
from airflow_provider_dtrain.errors import ConfigError, NotFoundError, Problem

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.store.records.trials import CheckpointView
    from airflow_provider_dtrain.store.store import Store

WEIGHTS = "inference.weights"
METADATA = "metadata.json"
_TRIAL = re.compile(r"trial:(\d{1,18})(?::(best|latest|\d{1,18}))?", re.ASCII)
_FORMS = (
    "must be trial:ID, trial:ID:best, trial:ID:latest, trial:ID:STEP, or the absolute path or URL of a checkpoint, as "
    "a trial's result shows it"
)


class _Refused(Exception):
    """A text does not name a checkpoint that can be used. Its message is that of a problem."""


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
    store: Store, config: ExperimentConfig, *, shared: str | None, is_checkpoint: Callable[[str], bool]
) -> SourceCheckpoint | None:
    """Return the source checkpoint that a configuration names, or None. Blocks.

    :param shared: folder that all hosts share; paths below it are not checked here
    :param is_checkpoint: returns whether a URL that the store does not know holds a checkpoint
    :raises ConfigError: the checkpoint does not exist, or cannot be read from this machine
    """
    field, named = source_field(config)
    if named is None:
        return None
    try:
        return _resolved(store, config, _of_experiment(store, named), shared=shared, is_checkpoint=is_checkpoint)
    except _Refused as error:
        raise ConfigError([Problem(path=field, message=str(error))]) from None


def source_field(config: ExperimentConfig) -> tuple[str, str | None]:
    """Return the field that names the source checkpoint, and its value."""
    if config.inference is not None:
        return WEIGHTS, config.inference.weights
    return "searcher.source_checkpoint", config.searcher.source_checkpoint


def trial_of(store: Store, named: str) -> int | None:
    """Return the id of the trial whose checkpoint a text names, or None: the store knows no such checkpoint. Blocks.

    :param named: value of the field; not the name of an experiment
    """
    if (match := _TRIAL.fullmatch(named)) is not None:
        return int(match[1])
    known = store.checkpoints.find(named.rstrip("/"))
    return None if known is None else known.trial_id


def pinned(store: Store, document: Mapping[str, Any], may_read: Callable[[str], bool] | None = None) -> ConfigDocument:
    """Return an effective configuration whose weights name a trial instead of an experiment. Blocks.

    All attempts then use the same weights, also when a later experiment of this name ends.

    :param may_read: returns whether experiments of a DAG may be named; None = of all DAGs
    :raises ConfigError: the experiment does not exist, or has no best trial
    """
    section = document.get("inference") or {}
    named = section.get("weights")
    if named is None:
        return dict(document)
    try:
        return {**document, "inference": {**section, "weights": _of_experiment(store, named, may_read)}}
    except _Refused as error:
        raise ConfigError([Problem(path=WEIGHTS, message=str(error))]) from None


def _resolved(
    store: Store, config: ExperimentConfig, named: str, *, shared: str | None, is_checkpoint: Callable[[str], bool]
) -> SourceCheckpoint:
    if (match := _TRIAL.fullmatch(named)) is not None:
        return _of_trial(store, int(match[1]), match[2] or "best")
    is_url = "://" in named
    if not is_url and (not named.startswith("/") or ".." in named.split("/")):
        raise _Refused(f"{_FORMS}; got '{named}'")
    where = named.rstrip("/")
    if not is_url and (Path(where) / METADATA).is_file():
        return SourceCheckpoint(where=where, is_sent=True)
    known = store.checkpoints.find(where)
    if known is not None:
        return _of_view(known)
    if is_url:
        problem = url_problem(where, config.checkpoint_storage.model_dump(mode="json"))
        if problem is not None:
            raise _Refused(f"{where} is not read: {problem}")
        if is_checkpoint(where):
            return SourceCheckpoint(where=where, is_sent=False)
        raise _Refused(f"there is no checkpoint at {where}: it has no {METADATA}")
    if shared is not None and where.startswith(shared.rstrip("/") + "/"):
        return SourceCheckpoint(where=where, is_sent=False)
    if Path(where).exists():
        raise _Refused(
            f"{where} is no checkpoint, which is a folder of dtrain with the file {METADATA}. Code that reads other "
            "files loads them itself, for example with torch.load"
        )
    raise _Refused(f"there is no checkpoint at {where}: it is not on this machine and no trial is known to have it")


def _of_experiment(store: Store, named: str, may_read: Callable[[str], bool] | None = None) -> str:
    """Return the best trial of the experiment that a text names, or the text itself when it names none."""
    if not named.startswith(EXPERIMENT):
        return named
    name = named.removeprefix(EXPERIMENT)
    found = store.experiments.list(name=name, limit=None)
    if not found and name.isdecimal() and len(name) < 19:
        try:
            found = [store.experiments.get(int(name))]
        except NotFoundError:
            found = []
    found = [one for one in found if may_read is None or may_read(one.dag_id)]
    if not found:
        raise _Refused(f"there is no experiment '{name}'. See: airflow dtrain experiments list")
    # Newest first: an experiment that still runs has no final best trial.
    ended = [one for one in found if one.state != "running"]
    if not ended:
        raise _Refused(f"experiment {found[0].experiment_id} '{name}' is still running; its best trial may change")
    best = next((one.best_trial for one in ended if one.best_trial is not None), None)
    if best is None:
        raise _Refused(f"experiment {ended[0].experiment_id} '{name}' has no best trial: none reported its metric")
    return f"trial:{best}:best"


def _of_trial(store: Store, trial_id: int, which: str) -> SourceCheckpoint:
    try:
        trial = store.trials.get(trial_id)
    except NotFoundError as error:
        raise _Refused(str(error)) from None
    if trial.state not in TRIAL_ENDED:
        raise _Refused(f"trial {trial_id} is still {trial.state}; its checkpoints change until it has ended")
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
    raise _Refused(f"trial {trial_id} has no checkpoint '{which}'; it has these steps: {steps}")


def _of_view(checkpoint: CheckpointView) -> SourceCheckpoint:
    if checkpoint.copy_url is not None:
        return SourceCheckpoint(where=checkpoint.copy_url, is_sent=True)
    if checkpoint.place is not None and checkpoint.place.kind is not StorageKind.RUN:
        return SourceCheckpoint(where=checkpoint.place.path, is_sent=False)
    raise _Refused(
        f"the checkpoint of step {checkpoint.step} of trial {checkpoint.trial_id} lies only on host "
        f"'{checkpoint.host}'. Keep checkpoints in shared storage, or raise [dtrain] checkpoint_copy_limit"
    )
