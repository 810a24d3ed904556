"""Removal of old runs, archives and checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import stat
import time
from collections.abc import Iterable

from ..fields import shorten
from ..file_access import names_in
from ..limits import COLLECT_LIMIT, MAX_LINE, TOMBSTONE_DAYS, UNSTARTED_S
from ..machine.locks import is_locked, take_lock
from ..names import CONTAINER_RECORD, DELETED, DIGEST, KINDS, Json
from .layout import Layout, RunFolder
from .trees import opened_below, remove_tree, tree_bytes, walk_tree


def collect(
    layout: Layout,
    older_than_s: float,
    *,
    runs: Iterable[str] | None = None,
    archives: Iterable[str] = (),
    dry_run: bool = False,
) -> Json:
    """Remove the folders of runs that ended long ago, and archives unused for as long. Return their sizes.

    Folders of runs that were never started, such as those of refused starts, are removed likewise. Tombstones stay,
    because a late start of a removed run must be refused.

    :param runs: only these; None = all
    :param archives: ``payloads/<digest>`` and ``libraries/<digest>`` to remove; an archive in use stays
    :param dry_run: remove nothing; return what could be removed, with all unused archives
    :raises OSError: nothing could be removed; the first error
    """
    sizes: dict[str, int] = {}
    wanted = None if runs is None else set(runs)
    now = time.time()
    failed = None
    if not dry_run:
        finish_removals(layout)
    for name in layout.runs():
        if len(sizes) == COLLECT_LIMIT:
            break
        if wanted is not None and name not in wanted:
            continue
        try:
            size = collect_run(layout.run(name), older_than_s, now, dry_run=dry_run)
        except OSError as error:
            failed = failed or error
            continue
        if size is not None:
            sizes[name] = size
    found = collect_archives(layout, older_than_s, None if dry_run else set(archives))
    if not dry_run:
        forget_tombstones(layout, now)
    if failed is not None and not dry_run and not sizes and not found:
        raise failed
    return {"removed": sorted(sizes), "sizes": sizes, "archives": found}


def collect_run(folder: RunFolder, older_than_s: float, now: float, *, dry_run: bool) -> int | None:
    """Remove the folder of an old run. Return the bytes that this frees on the disk, None if the run stays.

    :raises OSError: the tombstone cannot be written, or the folder cannot be renamed
    """
    was_started = folder.has("started")
    if not is_collectable(folder, older_than_s, now) or folder.alive():
        return None
    if dry_run:
        return None if is_locked(folder.file("lock")) else tree_bytes(folder.path)
    try:
        lock = take_lock(folder.file("lock"))
    except FileNotFoundError:
        return None
    if lock is None:
        return None
    try:
        if folder.has("started") != was_started:
            return None
        size = tree_bytes(folder.path)
        bury_collected(folder)
        hidden = f".{folder.name}.{random.getrandbits(48):012x}{DELETED}"
        hidden = os.path.join(os.path.dirname(folder.path), hidden)
        os.rename(folder.path, hidden)
        remove_tree(hidden)
        return max(0, size - tree_bytes(hidden))
    finally:
        os.close(lock)


def is_collectable(folder: RunFolder, older_than_s: float, now: float) -> bool:
    """Return whether a run ended long ago, or was never started and nothing in its folder changed for as long."""
    with contextlib.suppress(FileNotFoundError):
        return now - os.stat(folder.file("ended")).st_mtime >= older_than_s
    if folder.has("started") or folder.has(CONTAINER_RECORD):
        return False
    newest = max((found.st_ctime for _, found in walk_tree(folder.path)), default=now)
    return now - newest >= (older_than_s if folder.has_tombstone else max(older_than_s, UNSTARTED_S))


def bury_collected(folder: RunFolder) -> None:
    """Write the tombstone of a run that is about to be removed. On a full disk its folders make room.

    The run's ``ended`` file stays until then, because it refuses a late start as well.
    """
    try:
        return folder.layout.bury(folder.name, None)
    except OSError:
        if not folder.has("ended"):
            raise
    for name in names_in(folder.path):
        if os.path.isdir(folder.file(name)):
            remove_tree(folder.file(name))
    folder.layout.bury(folder.name, None)


def finish_removals(layout: Layout) -> None:
    """Remove what earlier collections have left of the folders of runs."""
    runs = os.path.join(layout.state_dir, "runs")
    for name in names_in(runs):
        if name.startswith(".") and name.endswith(DELETED):
            remove_tree(os.path.join(runs, name))


def forget_tombstones(layout: Layout, now: float) -> None:
    """Remove tombstones older than :data:`TOMBSTONE_DAYS` whose run has no folder."""
    tombstones = os.path.join(layout.state_dir, "tombstones")
    for name in os.listdir(tombstones):
        with contextlib.suppress(OSError):
            path = os.path.join(tombstones, name)
            if now - os.stat(path).st_mtime > TOMBSTONE_DAYS * 86400 and not os.path.exists(layout.run(name).path):
                os.unlink(path)


def collect_archives(layout: Layout, older_than_s: float, wanted: set[str] | None) -> dict[str, int]:
    """Remove archives that no run of this host uses and no command asked for since. Return their sizes.

    :param wanted: ``kind/digest`` of those to remove; None removes nothing and returns all
    """
    plans = [layout.run(name).plan() or {} for name in layout.runs() if not layout.run(name).has("ended")]
    used = {str(plan.get(key)) for plan in plans for key in ("payload", "library")}
    sizes: dict[str, int] = {}
    for kind in KINDS:
        folder = os.path.join(layout.remote_dir, kind)
        for entry in names_in(folder):
            digest = entry.partition(".")[0]
            path = os.path.join(folder, entry)
            name = f"{kind}/{digest}"
            if not DIGEST.fullmatch(digest) or digest in used or (wanted is not None and name not in wanted):
                continue
            with contextlib.suppress(OSError):
                # ``have`` renews the time of an archive, so the age is checked immediately before the removal.
                if time.time() - os.lstat(path).st_mtime < older_than_s:
                    continue
                sizes[name] = sizes.get(name, 0) + tree_bytes(path)
                if wanted is not None:
                    remove_archive(path)
    return sizes


def remove_archive(path: str) -> None:
    """Remove an archive, or the folder it was unpacked into. A partly removed folder must not look complete."""
    if not os.path.isdir(path) or os.path.islink(path):
        os.unlink(path)
        return
    hidden = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}{DELETED}")
    os.rename(path, hidden)
    remove_tree(hidden)


def remove_checkpoints(root: str, folder: str, names: list[str]) -> Json:
    """Remove checkpoints of the training library from a folder below ``root``. Other content stays.

    :param names: of the checkpoints' folders; a missing one counts as removed
    """
    try:
        with opened_below(root, folder) as path:
            return remove_from(path, names)
    except FileNotFoundError:
        return {"removed": list(names), "kept": {}}


def remove_from(root: str, names: list[str]) -> Json:
    """Remove checkpoints from the folder that holds them."""
    removed = []
    kept = {}
    for name in names:
        path = os.path.join(root, name)
        reason = why_no_checkpoint(path) if os.path.lexists(path) else None
        if reason is not None:
            kept[name] = reason
            continue
        try:
            # A partly removed checkpoint must not look complete.
            hidden = os.path.join(root, f".{name}.{os.getpid()}.deleted")
            with contextlib.suppress(FileNotFoundError):
                os.rename(path, hidden)
                shutil.rmtree(hidden, ignore_errors=True)
            removed.append(name)
        except OSError as error:
            kept[name] = str(error)
    return {"removed": removed, "kept": kept}


def why_no_checkpoint(path: str) -> str | None:
    """Return the reason why a folder is not a checkpoint of the training library, None if it is one."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return "it is not a folder"
        with open(os.path.join(path, "metadata.json"), "rb") as file:
            metadata = json.loads(file.read(MAX_LINE))
        # Files of a program may be in subfolders.
        known = {"metadata.json", *(name.partition("/")[0] for name in metadata["files"])}
        if not isinstance(metadata["step"], int) or not isinstance(metadata["format"], int):
            return "its metadata.json was not written by the training library"
        foreign = sorted(set(os.listdir(path)) - known)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return f"its metadata cannot be read: {type(error).__name__}"
    return f"it also contains {shorten(foreign[0])}" if foreign else None
