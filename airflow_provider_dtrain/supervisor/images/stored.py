"""Records of the images that launches used on this host."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from typing import NamedTuple

from ..fields import Fields
from ..file_access import names_in, read_json, write_json
from ..files.layout import Layout
from ..limits import RUNTIME_BYTES, RUNTIME_S
from ..machine.container_runtime import run_command
from ..names import Json
from ..refusal import Refused


class StoredImage(NamedTuple):
    """An image that a launch used. The time of its record is that of the last use.

    :param downloads: ids of images (podman, docker) or paths of files (apptainer) that launches have downloaded under
        this name, the latest first; none for an image that was here before
    """

    path: str
    runtime: str
    image: str
    downloads: tuple[str, ...]
    size_bytes: int

    @classmethod
    def of(cls, layout: Layout, runtime: str, image: str) -> StoredImage:
        """Return the record of an image, an empty one before its first use."""
        digest = hashlib.sha256(f"{runtime} {image}".encode()).hexdigest()
        path = os.path.join(folder_of(layout), f"{digest}.json")
        return cls.read(path) or cls(path, runtime, image, (), 0)

    @classmethod
    def read(cls, path: str) -> StoredImage | None:
        """Return the record in a file, None without a valid one."""
        found = read_json(path) or {}
        try:
            fields = Fields(found)
            names = fields.text("runtime"), fields.text("image")
            return cls(path, *names, tuple(fields.texts("downloads")), fields.integer("bytes", 0, 1 << 62))
        except Refused:
            return None

    def note_use(self, download: str | None, size_bytes: int) -> None:
        """Record a use.

        :param download: what was downloaded for it, None if the image was here
        """
        downloads = self.downloads
        if download is not None:
            # A launch beside this one may be about to start a container of the image that the name stood for before.
            older = [one for one in downloads if one != download]
            left = [one for one in older[1:] if not _remove_nameless(self.runtime, one)]
            downloads = (download, *older[:1], *left)
        size = size_bytes if download is not None else self.size_bytes
        document: Json = {"runtime": self.runtime, "image": self.image, "downloads": list(downloads), "bytes": size}
        write_json(self.path, document, durable=False)

    def remove(self) -> bool:
        """Remove what launches have downloaded, and the record. Return False if something of it is used."""
        if self.runtime == "apptainer":
            for file in self.downloads:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(file)
        elif self.downloads:
            is_named = _id_of(self.runtime, self.image) == self.downloads[0]
            # Without force, which would end containers.
            if is_named and run_command([self.runtime, "image", "rm", self.image], RUNTIME_S).status != 0:
                return False
            used = [one for one in self.downloads if not _remove_nameless(self.runtime, one)]
            if used:
                return False
        os.unlink(self.path)
        return True


def folder_of(layout: Layout) -> str:
    """Return the folder of records and of apptainer's images."""
    return os.path.join(layout.remote_dir, "images")


def stored_images(layout: Layout) -> list[StoredImage]:
    """Return the records of this account."""
    folder = folder_of(layout)
    found = (StoredImage.read(os.path.join(folder, name)) for name in names_in(folder) if name.endswith(".json"))
    return [one for one in found if one is not None]


def inspect(runtime: str, image: str) -> Json | None:
    """Return what a runtime knows of an image, None if that is nothing."""
    done = run_command([runtime, "image", "inspect", image], RUNTIME_S)
    with contextlib.suppress(ValueError, LookupError):
        found = json.loads(done.output[:RUNTIME_BYTES])[0] if done.status == 0 else None
        return found if isinstance(found, dict) else None
    return None


def _id_of(runtime: str, image: str) -> str | None:
    return (inspect(runtime, image) or {}).get("Id")


def _remove_nameless(runtime: str, image: str) -> bool:
    """Remove an image by its id unless it has a name or a container uses it. Return False if it is used."""
    if runtime == "apptainer":
        # A new download has replaced the file.
        return True
    found = inspect(runtime, image)
    if found is None or found.get("RepoTags"):
        # A user has named it, so it is no longer what a launch left.
        return True
    return run_command([runtime, "image", "rm", image], RUNTIME_S).status == 0
