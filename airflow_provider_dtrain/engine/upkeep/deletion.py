"""Removal of experiments that users have deleted: checkpoints, folders of runs, copies on this machine, then all rows.

Each step can be repeated. An experiment whose removal was interrupted, or whose host does not answer, stays marked in
the store, and the next deletion or ``airflow dtrain gc`` continues with it.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.checkpoint_location import StorageKind
from airflow_provider_dtrain.core.lifecycle.timing import COLLECT_TIMEOUT_S, REMOVE_TIMEOUT_S
from airflow_provider_dtrain.engine.copies.checkpoint_cleanup import delete_from_bucket
from airflow_provider_dtrain.engine.copies.checkpoints import experiment_folder
from airflow_provider_dtrain.engine.upkeep.host_cleanup import PIECE, sizes_in
from airflow_provider_dtrain.errors import DtrainError, HostError

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.hosts.channel.link import HostLink
    from airflow_provider_dtrain.store.records.trials import CheckpointView

#: Most problems of one experiment in words.
PROBLEMS_MOST = 5


@dataclass(kw_only=True)
class Deleted:
    """An experiment that was removed, or the reasons why parts of it are left."""

    experiment_id: int
    checkpoints: int = 0
    #: Folders of runs on hosts.
    runs: int = 0
    rows: int = 0
    #: Sentences about files that stay for good.
    left: list[str] = field(default_factory=list)
    #: Why it stays marked. Empty: nothing of it is left.
    problems: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        if not self.problems:
            removed = f"{self.rows} rows, {self.runs} folders on hosts, {self.checkpoints} other checkpoints."
            return " ".join((f"Experiment {self.experiment_id} is deleted: {removed}", *self.left[:PROBLEMS_MOST]))
        more = f" and {len(self.problems) - PROBLEMS_MOST} more" if len(self.problems) > PROBLEMS_MOST else ""
        return (
            f"Parts of experiment {self.experiment_id} are left: {' '.join(self.problems[:PROBLEMS_MOST])}{more} "
            "To continue, run: airflow dtrain gc"
        )


def remove_marked(hook: DtrainHook) -> list[Deleted]:
    """Remove all experiments that are marked for deletion, also those that an earlier deletion has left. Blocks."""
    return [_remove(hook, one) for one in hook.store.deletions.pending()]


def _remove(hook: DtrainHook, experiment_id: int) -> Deleted:
    found = Deleted(experiment_id=experiment_id)
    try:
        _remove_checkpoints(hook, found)
    except (DtrainError, OSError) as error:
        found.problems.append(f"Checkpoints: {error}")
    registered = {host.name: host for host in hook.store.hosts.registered()}
    for name, runs in hook.store.deletions.runs(experiment_id).items():
        # The folders of a host that was removed are out of reach.
        if (record := registered.get(name)) is None:
            continue
        try:
            if record.state in ("disabled", "unreachable", "lost"):
                raise HostError(name, f"Host '{name}' is {record.state}.")
            _remove_runs(hook.link(record), runs, found)
        except DtrainError as error:
            found.problems.append(str(error))
    if found.problems:
        return found
    shutil.rmtree(experiment_folder(hook.settings.checkpoint_dir, experiment_id), ignore_errors=True)
    found.rows = sum(hook.store.deletions.remove_rows(experiment_id))
    return found


def _remove_runs(link: HostLink, runs: Sequence[str], found: Deleted) -> None:
    """Remove the folders of an experiment's runs on a host, which ignores the names of runs that it does not have."""
    for start in range(0, len(runs), PIECE):
        call = link.call("collect", timeout_s=COLLECT_TIMEOUT_S, older_than_s=0, runs=runs[start : start + PIECE])
        removed = sizes_in(link.host, call.result(COLLECT_TIMEOUT_S + 5), "sizes")
        found.runs += len(removed)


def _remove_checkpoints(hook: DtrainHook, found: Deleted) -> None:
    """Remove the checkpoints that are outside of folders of runs.

    :raises DtrainError: some cannot be removed
    """
    views = hook.store.checkpoints.of_experiment(found.experiment_id)
    shared: dict[tuple[str, str, str], list[CheckpointView]] = defaultdict(list)
    buckets: dict[int, list[CheckpointView]] = defaultdict(list)
    for one in views:
        if one.place is not None and one.place.kind is StorageKind.SHARED:
            shared[one.host, one.place.root, one.place.folder].append(one)
        elif one.place is not None and one.place.kind is StorageKind.BUCKET:
            buckets[hook.store.trials.get(one.trial_id).config_id].append(one)
    for (host, root, folder), own in shared.items():
        _mark(hook, found, own, _from_host(hook, host, root, folder, own, found.left))
    for config_id, own in buckets.items():
        _mark(hook, found, own, _from_bucket(hook, config_id, own))


def _mark(hook: DtrainHook, found: Deleted, own: Sequence[CheckpointView], removed: Sequence[CheckpointView]) -> None:
    hook.store.checkpoints.mark_removed([one.checkpoint_id for one in removed])
    found.checkpoints += len(removed)
    if len(removed) < len(own):
        found.problems.append(f"{len(own) - len(removed)} checkpoint(s) could not be removed.")


def _from_host(
    hook: DtrainHook, host: str, root: str, folder: str, own: Sequence[CheckpointView], left: list[str]
) -> Sequence[CheckpointView]:
    """Remove checkpoints from a folder that hosts share.

    :param left: receives a sentence about files that nothing here can remove
    """
    record = next((one for one in hook.store.hosts.registered() if one.name == host), None)
    if record is None:
        # Only that host could reach the folder, as far as is known. Its administrator removes the files.
        left.append(f"{len(own)} checkpoint(s) stay in {root}/{folder}, because host '{host}' no longer exists.")
        return own
    names = [one.place.name if one.place else "" for one in own]
    call = hook.link(record).call(
        "remove_checkpoints", timeout_s=REMOVE_TIMEOUT_S, folder=folder, names=names, root=root
    )
    answered = call.result(REMOVE_TIMEOUT_S + 5).get("removed")
    removed = {name for name in answered if isinstance(name, str)} if isinstance(answered, list) else set()
    return [one for one, name in zip(own, names, strict=True) if name in removed]


def _from_bucket(hook: DtrainHook, config_id: int, own: list[CheckpointView]) -> Sequence[CheckpointView]:
    from airflow_provider_dtrain.hooks.secrets import storage_config_now
    from airflow_provider_dtrain.store.configs import model_of

    stored = hook.store.configs.get(config_id)
    try:
        return delete_from_bucket(storage_config_now(model_of(stored), stored.secrets), own)
    except DtrainError:
        raise
    except Exception as error:
        # Clients of object storage have their own exceptions.
        raise DtrainError(f"the bucket cannot be reached: {error}") from error
