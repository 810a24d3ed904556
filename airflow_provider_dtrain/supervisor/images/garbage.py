"""Removal of what launches in containers left: images, downloads that were cut off, containers without a run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from ..file_access import names_in
from ..files.layout import Layout
from ..files.trees import remove_tree, tree_bytes
from ..limits import IMAGE_S, RUNTIME_S, UNSTARTED_S
from ..machine.container_runtime import containers, remove_containers, run_command
from ..machine.locks import is_locked
from ..names import CONTAINER_LABEL, CONTAINER_RECORD
from ..refusal import Refused
from ..run.container import end_container
from .download import DOWNLOADS, place_of_downloads
from .stored import StoredImage, folder_of, stored_images


class Leftover(NamedTuple):
    """Something that may be removed.

    :param name: ``kind/<64 hexadecimal digits>``
    :param remove: removes it, and returns whether it is gone
    """

    name: str
    size_bytes: int
    remove: Callable[[], bool]


def collect_images(layout: Layout, older_than_s: float, wanted: set[str] | None) -> dict[str, int]:
    """Remove what no launch has used for a time. Return the sizes.

    :param wanted: names of those to remove; None removes nothing and returns all
    """
    sizes: dict[str, int] = {}
    images = stored_images(layout)
    # First those that keep images in use.
    for one in (*_containers(layout, images), *_downloads(layout), *_images(images, older_than_s)):
        if wanted is None or (one.name in wanted and one.remove()):
            sizes[one.name] = one.size_bytes
    return sizes


def _images(images: list[StoredImage], older_than_s: float) -> Iterator[Leftover]:
    for image in images:
        if _age_s(image.path) >= older_than_s:
            digest = os.path.basename(image.path).partition(".")[0]
            yield Leftover(f"images/{digest}", image.size_bytes, image.remove)


def _downloads(layout: Layout) -> Iterator[Leftover]:
    """Yield the files of downloads whose process was killed, e.g. with the host."""
    places = [(place_of_downloads(), DOWNLOADS), (folder_of(layout), "")]
    for place, start in places:
        for name in names_in(place):
            path = os.path.join(place, name)
            is_partial = name.startswith(start) if start else ".sif." in name
            if not is_partial or _age_s(path) < 2 * IMAGE_S or os.lstat(path).st_uid != os.getuid():
                continue
            yield Leftover(f"downloads/{_digest(path)}", tree_bytes(path), partial(_remove, path))


def _remove(path: str) -> bool:
    if os.path.isdir(path):
        remove_tree(path)
    else:
        os.unlink(path)
    return not os.path.lexists(path)


def _containers(layout: Layout, images: list[StoredImage]) -> Iterator[Leftover]:
    """Yield the containers of runs that were never started, and of folders that are gone.

    Those of started runs are ended by a fence, which proves that no process is left.
    """
    for name in layout.runs():
        folder = layout.run(name)
        record = folder.file(CONTAINER_RECORD)
        if folder.has("started") or not os.path.lexists(record) or _age_s(record) < UNSTARTED_S:
            continue
        if not folder.alive() and not is_locked(folder.file("lock")):
            yield Leftover(f"containers/{_digest(folder.path)}", 0, partial(_is_ended, end_container, folder))
    for runtime in sorted({image.runtime for image in images} - {"apptainer"}):
        for path in _labels(runtime):
            if os.path.dirname(path) == os.path.dirname(layout.run("0").path) and not os.path.lexists(path):
                label = f"{CONTAINER_LABEL}={path}"
                remove = partial(_is_ended, remove_containers, runtime, label)
                yield Leftover(f"containers/{_digest(path)}", 0, remove)


def _is_ended(end: Callable[..., str | None], *arguments: Any) -> bool:
    """End a container. Return whether its runtime has confirmed it."""
    return end(*arguments) is None


def _labels(runtime: str) -> set[str]:
    """Return the folders of the runs that containers of a runtime belong to."""
    with contextlib.suppress(Refused, ValueError, LookupError, TypeError, AttributeError):
        if ids := containers(runtime, CONTAINER_LABEL):
            found = json.loads(run_command([runtime, "container", "inspect", *ids], RUNTIME_S).output)
            return {str(one["Config"]["Labels"][CONTAINER_LABEL]) for one in found}
    return set()


def _age_s(path: str) -> float:
    """Return the time since the last change, 0 if there is none."""
    try:
        return max(0.0, time.time() - os.lstat(path).st_mtime)
    except OSError:
        return 0.0


def _digest(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()
