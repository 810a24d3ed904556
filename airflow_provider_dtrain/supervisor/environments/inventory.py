"""Environments on this host: what they are, which runs use them, and their removal by name."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ..file_access import names_in
from ..files.layout import Layout
from ..files.trees import tree_bytes
from ..names import DIGEST, Json
from .folder import EnvironmentFolder, Use


def folders_in(layout: Layout) -> Iterator[EnvironmentFolder]:
    """Yield the environments on this host, complete or not."""
    digests = {name.partition(".")[0] for name in names_in(os.path.dirname(layout.environment("0")))}
    for digest in sorted(digests):
        if DIGEST.fullmatch(digest):
            yield EnvironmentFolder(layout, digest)


def size_of(folder: EnvironmentFolder) -> int:
    """Return the bytes on disk of an environment, as counted at the end of its build, else now."""
    size = (folder.mark() or {}).get("bytes")
    return size if isinstance(size, int) else tree_bytes(folder.path)


def totals(layout: Layout) -> Json:
    """Return the number of complete environments, and their bytes."""
    sizes = [size_of(folder) for folder in folders_in(layout) if folder.mark() is not None]
    return {"count": len(sizes), "bytes": sum(sizes)}


def describe(layout: Layout, digest: str | None) -> Json:
    """Return the environments on this host.

    Environments of which only a failed build is known are left out.

    :param digest: only this one, with its packages; None: all, without their packages
    """
    folders = folders_in(layout) if digest is None else iter([EnvironmentFolder(layout, digest)])
    found = [_described(folder, with_packages=digest is not None) for folder in folders if folder.has_files()]
    if any(one["use"] == Use.RUN.value for one in found):
        users = _users(layout)
        for one in found:
            one["runs"] = users.get(one["digest"], [])
    return {"environments": found}


def _described(folder: EnvironmentFolder, *, with_packages: bool) -> Json:
    use = folder.use()
    mark = folder.mark()
    known = mark or {}
    packages = list(known.get("packages") or [])
    return {
        "digest": folder.digest,
        "is_complete": mark is not None,
        "use": use.value,
        "runs": [],
        "progress": folder.state().get("progress") if mark is None and use is Use.CHANGE else None,
        "bytes": size_of(folder),
        "used_at": folder.used_at(),
        "package_count": len(packages),
        "packages": packages if with_packages else None,
        **{name: known.get(name) for name in ("python", "interpreter", "lock", "built_at", "built_s")},
    }


def _users(layout: Layout) -> dict[str, list[str]]:
    """Return the runs on this host that use environments, by digest."""
    users: dict[str, list[str]] = {}
    for folder in map(layout.run, layout.runs()):
        if folder.alive() and (digest := (folder.plan() or {}).get("environment")) is not None:
            users.setdefault(digest, []).append(folder.name)
    return users


def remove(layout: Layout, digest: str, *, dry_run: bool) -> Json:
    """Remove an environment that is free, and return its use until then and its size.

    :param dry_run: only return them
    """
    folder = EnvironmentFolder(layout, digest)
    size = size_of(folder)
    use = folder.use() if dry_run else folder.remove()
    users = _users(layout).get(digest, []) if use is Use.RUN else []
    return {"use": use.value, "size": size, "runs": users}
