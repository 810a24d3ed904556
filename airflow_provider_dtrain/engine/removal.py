"""Removing the checkpoints that an experiment does not keep, after one of its trials has ended."""

from __future__ import annotations

import asyncio
import shutil
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.retention import unkept
from airflow_provider_dtrain.engine.checkpoints import as_saved, is_in_run_folder, is_url, numbers_of
from airflow_provider_dtrain.engine.runtime import answer
from airflow_provider_dtrain.engine.threads import in_thread
from airflow_provider_dtrain.errors import DtrainError

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.engine.outcome import State
    from airflow_provider_dtrain.engine.runtime import Runtime
    from airflow_provider_dtrain.store.records import AttemptView, CheckpointView

#: States after which a trial writes no more checkpoints and does not go on from one.
DONE = ("completed", "stopped", "killed")
REMOVE_TIMEOUT_S = 60.0
#: How long the end of a trial waits for a removal, and when the removal is given up.
REMOVAL_PATIENCE_S, REMOVAL_MOST_S = 3.0, 300.0

#: The loop holds tasks weakly.
_BACKGROUND: set[asyncio.Task[None]] = set()


@dataclass(frozen=True)
class Unkept:
    """Checkpoints that an experiment does not keep."""

    config: ExperimentConfig
    sealed: bytes | None
    checkpoints: list[CheckpointView]

    @property
    def ids(self) -> frozenset[int]:
        """Their ids."""
        return frozenset(one.checkpoint_id for one in self.checkpoints)


async def find_unkept(rt: Runtime, view: AttemptView, state: State, error: DtrainError | None) -> Unkept | None:
    """Return what the whole experiment does not keep of its trials that are done, this one included.

    :param state: how this trial ends
    :param error: why; an Airflow retry goes on from the latest checkpoint unless the user's code is at fault
    """
    from airflow_provider_dtrain.core.config import ExperimentConfig

    is_done = state in DONE or (error is not None and error.kind == "user")
    stored = await rt.db(rt.store.get_config, view.config_id)
    config = ExperimentConfig.model_validate(dict(stored.document))
    if config.checkpoint_policy != "best" or not is_done:
        return None
    checkpoints = await rt.db(rt.store.experiment_checkpoints, view.experiment_id)
    metric = config.searcher.metric
    gone = {one.checkpoint_id for one in unkept([as_saved(c, metric) for c in checkpoints], numbers_of(config))}
    if not gone:
        return None
    # Only now: a search may have thousands of trials, and this runs at the end of each.
    trials = await rt.db(lambda: rt.store.list_trials(experiment_id=view.experiment_id, limit=None))
    done = {one.trial_id for one in trials if one.state in DONE} | {view.trial_id}
    unwanted = [c for c in checkpoints if c.checkpoint_id in gone and c.trial_id in done]
    return Unkept(config, stored.secrets, unwanted) if unwanted else None


async def remove_in_time(rt: Runtime, unkept: Unkept) -> None:
    """Remove checkpoints; what takes long goes on in the background.

    Nothing here fails or holds up a trial: what cannot be removed is said, stays in the store and is tried again when
    the next trial of the experiment ends.
    """

    async def remove() -> None:
        try:
            async with asyncio.timeout(REMOVAL_MOST_S):
                await _remove(rt, unkept.config, unkept.sealed, unkept.checkpoints)
        except (TimeoutError, DtrainError) as error:
            rt.log.warning("Checkpoints that the experiment does not keep stay for now: %s", error or "no time left")

    task = asyncio.ensure_future(remove())
    _BACKGROUND.add(task)
    task.add_done_callback(_BACKGROUND.discard)
    await asyncio.wait({task}, timeout=REMOVAL_PATIENCE_S)


async def _remove(rt: Runtime, config: ExperimentConfig, sealed: bytes | None, unwanted: list[CheckpointView]) -> None:
    groups: dict[tuple[str, str | None, str], list[CheckpointView]] = defaultdict(list)
    buckets: list[CheckpointView] = []
    for one in unwanted:
        if is_url(one.path):
            buckets.append(one)
        elif one.removed_at is not None:
            groups["", None, ""].append(one)
        else:
            run = one.run if is_in_run_folder(one) else None
            groups[one.host, run, one.path.rpartition("/")[0]].append(one)
    removed = await _from_bucket(rt, config, sealed, buckets) if buckets else []
    on_hosts = [(key, found) for key, found in groups.items() if key[0]]
    answers = await asyncio.gather(*(_from_host(rt, *key, found) for key, found in on_hosts))
    removed += [one for gone in answers for one in gone] + groups.get(("", None, ""), [])
    for one in removed:
        await _forget(rt, one)
    if removed:
        rt.log.info("Removed %d checkpoint(s) that the experiment does not keep", len(removed))


async def _from_host(
    rt: Runtime, host: str, run: str | None, root: str, found: list[CheckpointView]
) -> list[CheckpointView]:
    """Return those that are gone from the host."""
    names = [one.path.rpartition("/")[2] for one in found]
    asked: dict[str, Any] = {"root": root, "names": names, **({"run": run} if run is not None else {})}
    try:
        link = await rt.link(host)
        told = await answer(link, "remove_checkpoints", timeout_s=REMOVE_TIMEOUT_S, **asked)
    except DtrainError as error:
        rt.log.warning("%d checkpoint(s) on host '%s' are kept for now: %s", len(found), host, error)
        return []
    for name, reason in told.get("kept", {}).items():
        rt.log.warning("Checkpoint %s/%s on host '%s' is not wanted any more but stays: %s", root, name, host, reason)
    gone = set(told.get("removed", ()))
    return [one for one, name in zip(found, names, strict=True) if name in gone]


async def _from_bucket(
    rt: Runtime, config: ExperimentConfig, sealed: bytes | None, found: list[CheckpointView]
) -> list[CheckpointView]:
    """Return those that are gone from the bucket."""
    from airflow_provider_dtrain.hooks.secrets import storage_config

    try:
        options = await storage_config(config, sealed)
        return await in_thread(_delete_all, options, found)
    except Exception as error:
        rt.log.warning("%d checkpoint(s) in the bucket are kept for now: %s", len(found), error)
        return []


def _delete_all(options: dict[str, Any], found: list[CheckpointView]) -> list[CheckpointView]:
    from airflow_provider_dtrain.train.storage_remote import RemoteStorage

    storages: dict[str, RemoteStorage] = {}
    gone = []
    for one in found:
        root = one.path.rpartition("/")[0]
        if root not in storages:
            storages[root] = RemoteStorage(root, options)
        if storages[root].remove(one.path):
            gone.append(one)
    return gone


async def _forget(rt: Runtime, one: CheckpointView) -> None:
    await rt.db(rt.store.mark_removed, [one.checkpoint_id])
    # Only what this provider wrote itself.
    if one.copy_url is not None and rt.settings.checkpoint_dir in Path(one.copy_url).parents:
        await in_thread(shutil.rmtree, one.copy_url, ignore_errors=True)
