"""Checkpoints in a bucket: uploaded file by file, and complete once their metadata is uploaded."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint import checkpoint_file, description, found_checkpoints, retention
from airflow_provider_dtrain.train.checkpoint.description import Checkpoint
from airflow_provider_dtrain.train.checkpoint.folder_lock import LockObject
from airflow_provider_dtrain.train.checkpoint.storage_options import file_system
from airflow_provider_dtrain.train.errors import CheckpointError, CheckpointStorageError, DamagedCheckpointError

log = logging.getLogger(__name__)

#: Parts of an upload, and pieces of a download, bytes.
BLOCK_BYTES = 16 * 1024 * 1024


class RemoteStorage:
    """A prefix of a bucket that only this trial writes to.

    Object stores have no rename. ``metadata.json`` is uploaded last, and a prefix without it is not a checkpoint.

    :param root: URL of the trial's checkpoints, e.g. ``s3://bucket/prefix/experiment-1/trial-2``
    :param config: ``checkpoint_storage`` of the configuration, with its secrets
    """

    def __init__(self, root: str, config: Mapping[str, Any], *, look: bool = True) -> None:
        self.root = root.rstrip("/")
        self._look = look
        self._scheme = root.partition("://")[0]
        self.fs = file_system(root, config)
        #: Names in use, listed once, because a listing for each save would delay training.
        self._taken: set[str] | None = None

    def lock_place(self) -> LockObject:
        """Return the lock as an object beside the checkpoints."""
        return LockObject(self.fs, self.root)

    def sweep(self) -> None:
        """Remove the unfinished uploads of a killed process."""
        for url in self._prefixes():
            if not self.fs.exists(f"{url}/{description.METADATA}"):
                self.remove(url)
        if self._scheme in {"s3", "s3a"}:
            self._abort_uploads()

    def _abort_uploads(self) -> None:
        """Abort the multipart uploads below this prefix. The bucket keeps their parts, and lists them nowhere else."""
        bucket, prefix, _ = self.fs.split_path(self.root)
        place: dict[str, str] = {}
        aborted = 0
        try:
            while True:
                page = self.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/", **place)
                for upload in page.get("Uploads") or ():
                    which = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                    self.fs.call_s3("abort_multipart_upload", Bucket=bucket, **which)
                    aborted += 1
                if not page.get("IsTruncated"):
                    break
                place = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
        except Exception as error:
            log.warning(
                "Unfinished uploads below %s cannot be listed or aborted: %s. Allow s3:ListBucketMultipartUploads and "
                "s3:AbortMultipartUpload, or set a lifecycle rule that aborts them.",
                self.root,
                _words(error),
            )
        if aborted:
            log.info("Aborted %d unfinished uploads of killed processes below %s.", aborted, self.root)

    def reserve(self, step: int) -> str:
        """Return the URL that the next checkpoint of this step will have."""
        if self._taken is None:
            self._taken = set(self._names())
        name = description.next_name(step, self._taken)
        self._taken.add(name)
        return f"{self.root}/{name}"

    def begin(self, where: str, step: int) -> str:
        """Return the URL of the checkpoint itself. It is complete once its metadata is there."""
        return where

    def write(
        self,
        where: str,
        step: int,
        contents: Mapping[str, Any],
        facts: Mapping[str, Any],
        *,
        begun: str | None = None,
        more: Callable[[], Mapping[str, Any]] | None = None,
    ) -> Checkpoint:
        """Write a checkpoint. Return it once it is complete in the bucket.

        :raises CheckpointError: the storage rejects the write, or an object cannot be loaded without pickle
        """
        try:
            files = {name: self.upload(f"{where}/{name}", value) for name, value in contents.items()}
            files.update(more() if more is not None else {})
            text = description.metadata_text(step, facts, files)
            self.fs.pipe_file(f"{where}/{description.METADATA}", text)
        except CheckpointError:
            self.remove(where)
            raise
        except Exception as error:
            self.remove(where)
            words = f"The checkpoint of step {step} cannot be written to {where}: {_words(error)}"
            raise CheckpointStorageError(words) from error
        return description.parse(text, Path(where.rpartition("/")[2]), where)

    def stage(self, step: int) -> Path:
        """Return a new folder on this host for files that :meth:`write_tree` uploads."""
        return Path(tempfile.mkdtemp(prefix=f"dtrain-step-{step}-"))

    def write_tree(self, where: str, step: int, folder: Path, facts: Mapping[str, Any]) -> Checkpoint:
        """Upload a subfolder of :meth:`stage`. Return the checkpoint once it is complete in the bucket.

        :raises CheckpointError: the storage rejects it
        """
        try:
            files = {}
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    name = path.relative_to(folder).as_posix()
                    files[name] = checkpoint_file.describe(path)
                    self.fs.put_file(str(path), f"{where}/{name}")
            text = description.metadata_text(step, facts, files)
            self.fs.pipe_file(f"{where}/{description.METADATA}", text)
        except Exception as error:
            self.remove(where)
            words = f"The checkpoint of step {step} cannot be written to {where}: {_words(error)}"
            raise CheckpointStorageError(words) from error
        finally:
            shutil.rmtree(folder.parent, ignore_errors=True)
        return description.parse(text, Path(where.rpartition("/")[2]), where)

    def prune(self, policy: Mapping[str, Any]) -> list[str]:
        """Delete the checkpoints that the policy does not keep. Return the deleted URLs."""
        readable = []
        for url in self._prefixes():
            with contextlib.suppress(CheckpointError):
                readable.append(self._read(url))
        kept = {checkpoint.url for checkpoint in retention.keep(readable, policy)}
        return [str(one.url) for one in readable if one.url not in kept and self.remove(str(one.url))]

    def found(self, first: Any = None) -> list[tuple[Any, str, Callable[[Path], Checkpoint]]]:
        """Return every candidate for a restore."""
        if not self._look:
            return []
        found: list[tuple[Any, str, Callable[[Path], Checkpoint]]] = []
        for url in self._prefixes():
            found.append(((*found_checkpoints.age(url.rpartition("/")[2]), 0.0), url, partial(self.fetch, url)))
        return found

    def fetch(self, url: str, folder: Path) -> Checkpoint:
        """Copy a checkpoint below a folder, check it on the way, and return it.

        :raises DamagedCheckpointError: the checkpoint is incomplete or differs from what was written
        """
        described = self._read(url)
        target = folder / url.rpartition("/")[2]
        target.mkdir(parents=True, exist_ok=True)
        for name, expected in described.metadata["files"].items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            found = self._download(f"{url}/{name}", target / name)
            if found != expected:
                raise DamagedCheckpointError(f"{url}: {name} differs from what was written")
        text = self._metadata(url)
        # Other ranks recognize the copy by it.
        (target / description.METADATA).write_bytes(text)
        return description.parse(text, target, url)

    # -- single objects --------------------------------------------------------------------------------------------

    def upload(self, url: str, value: Any) -> dict[str, Any]:
        """Upload one file of a checkpoint. Return its size and sha256."""
        file = self.fs.open(url, "wb", block_size=BLOCK_BYTES)
        try:
            description = checkpoint_file.dump(value, file)
        except BaseException:
            # Closing would create an object from the data written so far.
            with contextlib.suppress(Exception):
                file.discard()
            file.closed = True
            raise
        file.close()
        return description

    def _download(self, url: str, path: Path) -> dict[str, Any]:
        digest = hashlib.sha256()
        size = 0
        try:
            source = self.fs.open(url, "rb", block_size=BLOCK_BYTES, cache_type="readahead")
            with source, open(path, "wb") as file:
                while chunk := source.read(BLOCK_BYTES):
                    digest.update(chunk)
                    size += len(chunk)
                    file.write(chunk)
        except FileNotFoundError as error:
            raise DamagedCheckpointError(f"{url} is missing") from error
        return {"size_bytes": size, "sha256": digest.hexdigest()}

    def _read(self, url: str) -> Checkpoint:
        return description.parse(self._metadata(url), Path(url.rpartition("/")[2]), url)

    def _metadata(self, url: str) -> bytes:
        try:
            return bytes(
                self.fs.cat_file(f"{url}/{description.METADATA}", start=0, end=description.METADATA_LIMIT_BYTES + 1)
            )
        except FileNotFoundError as error:
            raise DamagedCheckpointError(f"{url} has no {description.METADATA}") from error
        except Exception as error:
            raise CheckpointError(f"The checkpoint {url} cannot be read: {_words(error)}") from error

    def remove(self, url: str) -> bool:
        """Delete a checkpoint, its metadata first, so that a partly deleted one does not look intact."""
        try:
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm_file(f"{url}/{description.METADATA}")
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm(url, recursive=True)
        except Exception as error:
            log.warning("Checkpoint %s is no longer needed but cannot be removed: %s", url, _words(error))
            return False
        return True

    def _names(self) -> Iterator[str]:
        try:
            entries = self.fs.ls(self.root, detail=False)
        except FileNotFoundError:
            return
        except Exception as error:
            raise CheckpointError(f"The checkpoints at {self.root} cannot be listed: {_words(error)}") from error
        for entry in entries:
            name = str(entry).rstrip("/").rpartition("/")[2]
            if name.startswith("step-"):
                yield name

    def _prefixes(self) -> list[str]:
        return [f"{self.root}/{name}" for name in self._names()]


def _words(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
