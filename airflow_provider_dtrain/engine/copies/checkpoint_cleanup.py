"""Removal of the checkpoints that an experiment does not keep, after one of its trials has ended."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.checkpoint_location import CheckpointPlace, StorageKind, storage_root
from airflow_provider_dtrain.core.checkpoint_policy import unkept
from airflow_provider_dtrain.core.documents import ConfigDocument, JsonObject
from airflow_provider_dtrain.core.lifecycle.states import TrialState
from airflow_provider_dtrain.core.lifecycle.timing import REMOVE_TIMEOUT_S
from airflow_provider_dtrain.engine.copies.checkpoints import as_saved, numbers_of, remove_copy
from airflow_provider_dtrain.engine.session.background import in_background
from airflow_provider_dtrain.engine.session.runtime import answer
from airflow_provider_dtrain.engine.session.threads import in_thread
from airflow_provider_dtrain.errors import DtrainError

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.store.records.trials import AttemptView, CheckpointView

#: States after which a trial writes no further checkpoints and does not resume from one.
DONE = frozenset({TrialState.COMPLETED, TrialState.STOPPED, TrialState.KILLED})
#: Checkpoints that could not be removed and are named in the log.
MOST_SHOWN = 10
#: Seconds that the end of a trial waits for a removal, and seconds after which the removal times out.
REMOVAL_PATIENCE_S, REMOVAL_MOST_S = 3.0, 300.0


@dataclass(frozen=True)
class Unkept:
    """Checkpoints that an experiment does not keep."""

    experiment_id: int
    config: ExperimentConfig
    sealed: bytes | None
    checkpoints: list[CheckpointView]

    @property
    def ids(self) -> frozenset[int]:
        """Ids of the checkpoints."""
        return frozenset(one.checkpoint_id for one in self.checkpoints)


async def find_unkept(rt: Runtime, view: AttemptView, state: str, error: DtrainError | None) -> Unkept | None:
    """Return the checkpoints of finished trials that the experiment does not keep, or None.

    This trial counts as one of the finished trials.

    :param state: how this trial ends
    :param error: why; an Airflow retry resumes from the latest checkpoint unless the user's code is at fault
    """
    from airflow_provider_dtrain.store.configs import model_of

    is_done = state in DONE or (error is not None and error.kind == "user")
    stored = await rt.db(rt.store.configs.get, view.config_id)
    config = model_of(stored)
    if config.checkpoint_policy != "best" or not is_done:
        return None
    checkpoints = await rt.db(rt.store.checkpoints.of_experiment, view.experiment_id)
    metric = config.searcher.metric
    removed_ids = {one.checkpoint_id for one in unkept([as_saved(c, metric) for c in checkpoints], numbers_of(config))}
    if not removed_ids:
        return None
    # Only now: a search may have thousands of trials, and this runs at the end of each.
    trials = await rt.db(lambda: rt.store.trials.list(experiment_id=view.experiment_id, limit=None))
    done = {one.trial_id for one in trials if one.state in DONE} | {view.trial_id}
    unwanted = [c for c in checkpoints if c.checkpoint_id in removed_ids and c.trial_id in done]
    return Unkept(view.experiment_id, config, stored.secrets, unwanted) if unwanted else None


async def remove_in_time(rt: Runtime, unkept: Unkept) -> None:
    """Remove checkpoints. A long removal continues in the background.

    Best effort: it never fails or blocks a trial. A checkpoint that cannot be removed is logged, stays in the store,
    and is retried when the next trial of the experiment ends.
    """

    async def remove() -> None:
        try:
            async with asyncio.timeout(REMOVAL_MOST_S):
                await _remove(rt, unkept)
        except (TimeoutError, DtrainError) as error:
            rt.log.warning("Checkpoints that the experiment does not keep stay for now: %s", error or "it timed out")

    await asyncio.wait({in_background(remove())}, timeout=REMOVAL_PATIENCE_S)


@dataclass(frozen=True)
class _Folder:
    """A folder on a host from which checkpoints are removed."""

    host: str
    #: None: ``root`` is a folder that the configuration names; else the run whose folder is the root.
    run: str | None
    root: str
    folder: str


async def _remove(rt: Runtime, unkept: Unkept) -> None:
    groups: dict[_Folder, list[CheckpointView]] = defaultdict(list)
    buckets: list[CheckpointView] = []
    removed: list[CheckpointView] = []
    root = storage_root(unkept.config.checkpoint_storage.model_dump(mode="json")) or ""
    for one in unkept.checkpoints:
        place = removable(one, root)
        if place is None:
            rt.log.warning("Checkpoint of step %d of trial %d is not in the configured storage", one.step, one.trial_id)
        elif place.kind is StorageKind.BUCKET:
            buckets.append(one)
        elif one.removed_at is not None:
            removed.append(one)
        else:
            run = one.run if place.kind is StorageKind.RUN else None
            groups[_Folder(one.host, run, place.root, place.folder)].append(one)
    removed += await _from_bucket(rt, unkept.config, unkept.sealed, buckets) if buckets else []
    answers = await asyncio.gather(*(_from_host(rt, where, found) for where, found in groups.items()))
    removed += [one for of_host in answers for one in of_host]
    for one in removed:
        await _forget(rt, one, unkept.experiment_id)
    if removed:
        rt.log.info("Removed %d checkpoint(s) that the experiment does not keep", len(removed))


def removable(checkpoint: CheckpointView, root: str) -> CheckpointPlace | None:
    """Return the place of a checkpoint that may be removed, or None.

    None means that the checkpoint was refused or lies below another root.

    :param root: folder or URL that the configuration of the ending trial names; "" = none
    """
    place = checkpoint.place
    if place is None or checkpoint.refused is not None:
        return None
    return place if place.kind is StorageKind.RUN or place.root == root else None


async def _from_host(rt: Runtime, where: _Folder, found: Sequence[CheckpointView]) -> list[CheckpointView]:
    """Remove checkpoints from a host, and return those that are gone."""
    names = [one.place.name if one.place else "" for one in found]
    asked: JsonObject = {"folder": where.folder, "names": names}
    asked |= {"run": where.run} if where.run is not None else {"root": where.root}
    try:
        link = await rt.link(where.host)
        document = await answer(link, "remove_checkpoints", timeout_s=REMOVE_TIMEOUT_S, **asked)
    except DtrainError as error:
        rt.log.warning("%d checkpoint(s) on host '%s' are kept for now: %s", len(found), where.host, error)
        return []
    kept = document.get("kept")
    reasons = [f"{name} ({kept[name]!s:.200})" for name in names if name in kept] if isinstance(kept, dict) else []
    if reasons:
        more = f" and {len(reasons) - MOST_SHOWN} more" if len(reasons) > MOST_SHOWN else ""
        reasons_text = ", ".join(reasons[:MOST_SHOWN]) + more
        rt.log.warning("Checkpoints in %s on host '%s' stay: %s", where.folder, where.host, reasons_text)
    answered = document.get("removed")
    removed_ids = {name for name in answered if isinstance(name, str)} if isinstance(answered, list) else set()
    return [one for one, name in zip(found, names, strict=True) if name in removed_ids]


async def _from_bucket(
    rt: Runtime, config: ExperimentConfig, sealed: bytes | None, found: list[CheckpointView]
) -> list[CheckpointView]:
    """Remove checkpoints from the bucket, and return those that are gone."""
    from airflow_provider_dtrain.hooks.secrets import storage_config

    try:
        options = await storage_config(config, sealed)
        return await in_thread(delete_from_bucket, options, found)
    except Exception as error:
        rt.log.warning("%d checkpoint(s) in the bucket are kept for now: %s", len(found), error)
        return []


def delete_from_bucket(options: ConfigDocument, found: list[CheckpointView]) -> list[CheckpointView]:
    """Remove checkpoints from the bucket of ``checkpoint_storage``, and return those that are gone. Blocks."""
    from airflow_provider_dtrain.train.checkpoint.storage import Storage, open_storage

    storages: dict[str, Storage] = {}
    removed_ids = []
    for one in found:
        place = removable(one, storage_root(options) or "")
        if place is None:
            continue
        root = f"{place.root}/{place.folder}"
        if root not in storages:
            storages[root] = open_storage(root, options)
        if storages[root].remove(place.name):
            removed_ids.append(one)
    return removed_ids


async def _forget(rt: Runtime, one: CheckpointView, experiment_id: int) -> None:
    await rt.db(rt.store.checkpoints.mark_removed, [one.checkpoint_id])
    await in_thread(remove_copy, rt.settings.checkpoint_dir, one, experiment_id)
