"""The checkpoints of one trial on rank 0: their storage, its lock, and the newest of them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint import retention, storage
from airflow_provider_dtrain.train.checkpoint.description import SavedCheckpoint
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import CheckpointError, CheckpointStorageError
from airflow_provider_dtrain.train.files.file_systems import is_url
from airflow_provider_dtrain.train.files.lease import BEAT_S, Lease, describe
from airflow_provider_dtrain.train.files.place import Place

LEASE = ".writer.json"
#: Interval at which the writer of a bucket raises its counter, each time by a paid request, seconds.
BUCKET_BEAT_S = 20.0


class TrialStorage:
    """Folder or bucket with the checkpoints of one trial. Rank 0 alone reads and writes it.

    :param where: folder or URL for checkpoints
    :param has_earlier: True: older checkpoints in it belong to this trial; False: it is a folder of this run alone
    """

    def __init__(self, env: RankEnvironment, where: Path | str, *, has_earlier: bool, is_chief: bool) -> None:
        self._root = env.run_dir
        #: ``checkpoint_storage`` of the configuration.
        self.config: Mapping[str, Any] = env.config.get("checkpoint_storage") or {}
        self.policy = retention.policy_of(env.config)
        #: None on other ranks, and without checkpoints.
        self.storage: storage.Storage | None = None
        self._lease: Lease | None = None
        self._swept = False
        #: The newest checkpoint that this process wrote or restored; rank 0 only.
        self.latest: SavedCheckpoint | None = None
        if is_chief and self.policy["keep"] != "none":
            self.storage = storage.open_storage(where, self.config, has_earlier=has_earlier)
            self._lease = lease_of(self.storage.place, env)

    def claim(self) -> None:
        """Become the only run that writes to the folder.

        :raises CheckpointError: another run writes to it
        """
        if self._lease is not None:
            # A folder that accepts no files is named when the checkpoint is written.
            with contextlib.suppress(OSError):
                self._lease.acquire()

    def check(self) -> None:
        """Raise when another run has taken the folder since, or when this run cannot know.

        :raises CheckpointError: names the other run
        :raises CheckpointStorageError: the lease cannot be read
        """
        if self._lease is None:
            return
        try:
            self._lease.confirm()
        except OSError as error:
            assert self.storage is not None
            location = self.storage.place.location
            raise CheckpointStorageError(
                f"No checkpoint is written to {location}, because its lease {LEASE} cannot be read: {error}. Another "
                "run may write there."
            ) from error

    def release(self) -> None:
        """Let other runs write to the folder."""
        if self._lease is not None:
            self._lease.release()

    def sweep(self) -> None:
        """Remove the leftovers of killed processes, once."""
        if not self._swept:
            assert self.storage is not None
            self.storage.sweep()
            self._swept = True

    def shown_latest(self) -> str | None:
        """Return the path of the newest checkpoint as events show it, or None."""
        return self.shown(self.latest.url or self.latest.path) if self.latest else None

    def shown(self, where: Path | str) -> str:
        """Return a path relative to the run folder if it is inside it, else unchanged."""
        root = self._root
        if isinstance(where, Path) and root is not None and root in where.parents:
            return str(where.relative_to(root))
        return str(where)


def lease_of(place: Place, env: RankEnvironment) -> Lease:
    """Return the lease of a place with checkpoints, which the run that writes them must acquire."""

    def in_use(holder: Mapping[str, Any], _is_taken: bool) -> CheckpointError:
        return CheckpointError(
            f"Another run writes checkpoints to {place.location}: {describe(holder)}. Each would delete the "
            "checkpoints of the other. Use another checkpoint_dir, or end that run. To only read weights, use "
            f"dtrain.load_weights. If that run has ended, delete {place.location}/{LEASE}."
        )

    return Lease(
        place,
        LEASE,
        run=env.run or "off-cluster",
        key=env.run.partition(".")[0] if env.run else None,
        in_use=in_use,
        names_process=True,
        recreates=True,
        beat_s=BUCKET_BEAT_S if is_url(place.location) else BEAT_S,
    )
