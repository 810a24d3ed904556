"""Removal of environments that no run uses: old ones on request, and the oldest ones for a new one."""

from __future__ import annotations

import time

from ..files.layout import Layout
from ..limits import ENVIRONMENTS_BYTES
from .folder import EnvironmentFolder, Use
from .inventory import folders_in, size_of

#: Kind in the names of environments, as of archives.
KIND = "environments"


def collect_environments(layout: Layout, older_than_s: float, wanted: set[str] | None) -> dict[str, int]:
    """Remove environments that were not used for a time. Return their sizes.

    :param wanted: names (``environments/<digest>``) of those to remove; None removes nothing and returns all
    """
    sizes: dict[str, int] = {}
    for folder in folders_in(layout):
        name = f"{KIND}/{folder.digest}"
        if time.time() - folder.used_at() < older_than_s or (wanted is not None and name not in wanted):
            continue
        size = size_of(folder)
        if (folder.use() if wanted is None else folder.remove()) is Use.FREE:
            sizes[name] = size
    return sizes


def make_room(layout: Layout, new: EnvironmentFolder, limit_bytes: int = ENVIRONMENTS_BYTES) -> list[str]:
    """Remove the environments that were not used for longest, until all together are below a limit.

    :param new: the one that is about to be built, which stays
    :return: the digests of the removed ones
    """
    found = sorted((one for one in folders_in(layout) if one.digest != new.digest), key=lambda one: one.used_at())
    sizes = {one.digest: size_of(one) for one in found}
    removed: list[str] = []
    for one in found:
        if sum(sizes.values()) <= limit_bytes:
            break
        if one.remove() is Use.FREE:
            removed.append(one.digest)
        del sizes[one.digest]
    return removed
