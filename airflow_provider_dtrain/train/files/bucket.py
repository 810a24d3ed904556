"""Files below a prefix of a bucket. Object stores have no rename, and show an upload once it is complete."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from airflow_provider_dtrain.train.files.digests import Hashing
from airflow_provider_dtrain.train.files.place import Explain, explained, reason
from airflow_provider_dtrain.train.values import FileFacts

log = logging.getLogger(__name__)

#: Parts of an upload, and pieces of a download, bytes.
BLOCK_BYTES = 16 * 1024 * 1024

_T = TypeVar("_T")


class BucketPlace:
    """Implementation of :class:`Place` for object stores.

    :param fs: file system of fsspec that reaches the URL
    """

    renames = False

    def __init__(self, url: str, fs: Any, *, explain: Explain | None = None) -> None:
        self.location = url.rstrip("/")
        self.fs = fs
        self._root = str(fs._strip_protocol(self.location)).rstrip("/")
        self._explain = explain

    # -- files -----------------------------------------------------------------------------------------------------

    def entries(self, folder: str = "") -> dict[str, str]:
        place = f"{self._root}/{folder}".rstrip("/")
        with self._explained():
            # Another process writes here, and some file systems of fsspec remember listings.
            self.fs.invalidate_cache()
            try:
                listing = self.fs.ls(place, detail=True)
            except FileNotFoundError:
                return {}
        kinds = {str(one["name"]).rstrip("/"): str(one["type"]) for one in listing}
        return {path[len(place) + 1 :]: kind for path, kind in kinds.items() if path.startswith(f"{place}/")}

    def names(self, folder: str = "") -> list[str]:
        return sorted(name for name, kind in self.entries(folder).items() if kind == "file" and name)

    def size(self, name: str) -> int | None:
        with self._explained():
            self.fs.invalidate_cache()
            try:
                return int(self.fs.info(f"{self._root}/{name}")["size"])
            except FileNotFoundError:
                return None

    def read(self, name: str, limit_bytes: int | None = None) -> bytes | None:
        limits = {} if limit_bytes is None else {"start": 0, "end": limit_bytes}
        with self._explained():
            try:
                return bytes(self.fs.cat_file(f"{self._root}/{name}", **limits))
            except FileNotFoundError:
                return None

    def read_all(self, names: Sequence[str]) -> dict[str, bytes]:
        if not names:
            return {}
        with self._explained():
            found = self.fs.cat([f"{self._root}/{name}" for name in names], on_error="return")
        if isinstance(found, bytes):
            found = {f"{self._root}/{names[0]}": found}
        contents = {name: found.get(f"{self._root}/{name}") for name in names}
        return {name: content for name, content in contents.items() if isinstance(content, bytes)}

    def write(self, name: str, content: bytes, *, is_durable: bool = True) -> None:
        with self._explained():
            self.fs.pipe_file(f"{self._root}/{name}", content)

    def create(self, name: str, content: bytes) -> bool | None:
        # Not every object store can write on condition.
        return None

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        folder = tempfile.mkdtemp(prefix="dtrain-part-", dir=os.environ.get("DTRAIN_RUN_DIR") or None)
        try:
            yield Path(folder, "part")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def deliver(self, file: Path, name: str) -> None:
        with self._explained():
            self.fs.put_file(str(file), f"{self._root}/{name}")

    def rename(self, name: str, new: str) -> None:
        raise NotImplementedError

    def remove(self, name: str) -> None:
        with self._explained(), contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(f"{self._root}/{name}")

    # -- folders with a mark ---------------------------------------------------------------------------------------

    def locate(self, name: str) -> str:
        return f"{self.location}/{name}"

    def begin(self, name: str) -> str:
        return self.locate(name)

    def stage(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"dtrain-{name}-"))

    def save(self, begun: str, name: str, write: Callable[[IO[bytes]], _T]) -> _T:
        with self._explained():
            file = self.fs.open(f"{begun}/{name}", "wb", block_size=BLOCK_BYTES)
            try:
                result = write(file)
            except BaseException:
                # Closing would create an object from the data written so far.
                with contextlib.suppress(Exception):
                    file.discard()
                with contextlib.suppress(AttributeError):
                    file.closed = True
                raise
            file.close()
        return result

    def complete(self, begun: Path | str, name: str, mark: str, content: bytes) -> None:
        if isinstance(begun, Path):
            for path in sorted(begun.rglob("*")):
                if path.is_file():
                    self.deliver(path, f"{name}/{path.relative_to(begun).as_posix()}")
        self.write(f"{name}/{mark}", content)

    def discard(self, begun: Path | str, name: str, mark: str) -> None:
        try:
            self.remove_folder(name, mark)
        except Exception as error:
            log.warning("%s is incomplete but cannot be removed: %s", self.locate(name), error)

    def remove_folder(self, name: str, mark: str) -> None:
        self.remove(f"{name}/{mark}")
        with self._explained(), contextlib.suppress(FileNotFoundError):
            self.fs.rm(f"{self._root}/{name}", recursive=True)

    def sweep_folders(self, prefix: str, mark: str) -> None:
        for name in self.entries():
            if name.startswith(prefix) and self.size(f"{name}/{mark}") is None:
                self.discard(self.locate(name), name, mark)
        if self.location.startswith(("s3://", "s3a://")):
            self._abort_uploads()

    def _abort_uploads(self) -> None:
        """Abort the multipart uploads below this prefix. The bucket keeps their parts, and lists them nowhere else."""
        bucket, prefix, _ = self.fs.split_path(self.location)
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
                self.location,
                reason(error),
            )
        if aborted:
            log.info("Aborted %d unfinished uploads of killed processes below %s.", aborted, self.location)

    def fetch(self, name: str, target: Path) -> FileFacts:
        """Copy a file to this host. Return its size and sha256.

        :raises FileNotFoundError: it does not exist
        """
        with self._explained():
            source = self.fs.open(f"{self._root}/{name}", "rb", block_size=BLOCK_BYTES, cache_type="readahead")
            with source, open(target, "wb") as file:
                copy = Hashing(file)
                for chunk in iter(partial(source.read, BLOCK_BYTES), b""):
                    copy.write(chunk)
        return copy.description()

    def _explained(self) -> contextlib.AbstractContextManager[None]:
        return explained(self.location, self._explain, Exception)
