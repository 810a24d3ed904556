"""Removal of everything that this program has put on a host.

Only names that this program gives are removed, one folder below ``remote_dir`` and ``state_dir``: a user may keep other
files there. A removal that is killed is continued by the next one, and until then nothing looks complete that is not.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import stat
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from ..environments.folder import EnvironmentFolder, Use
from ..environments.inventory import folders_in, size_of
from ..fields import Fields
from ..file_access import names_in, read_json
from ..files.layout import Layout
from ..files.trees import remove_tree, tree_bytes
from ..images.garbage import collect_images
from ..limits import COLLECT_LIMIT
from ..machine.host import mount_of
from ..machine.locks import is_locked, take_lock
from ..machine.processes import find_process, program, send_signal
from ..names import DELETED, DIGEST, KINDS, NETWORK_FILE_SYSTEMS, RUN_NAME, WORD, Json
from ..refusal import Refused
from ..run.leftovers import has_left

#: Part of the folders of runs.
RUNS = "runs"
#: End of the name of a file that is being written, or of a folder that is being removed.
_REST = r"(?:\..*)?"
_TEST = r"\.dtrain-(?:test|check)-.*"
_DIGEST = re.compile(rf"\.?{DIGEST.pattern}{_REST}|{_TEST}", re.ASCII)
_RUN = re.compile(rf"\.?{RUN_NAME.pattern}{_REST}|{_TEST}", re.ASCII)
_TOMBSTONE = re.compile(rf"{RUN_NAME.pattern}(?:\+{WORD.pattern})?{_REST}|{_TEST}", re.ASCII)
_SLOT = re.compile(rf"\d{{1,9}}\.(?:lock|token){_REST}|{_TEST}", re.ASCII)
_WARM = re.compile(rf"[0-9a-f]{{32}}\.(?:sock|lock|pid|json){_REST}", re.ASCII)
_RECORD = re.compile(rf"(?:store\.json|store\.lock|listed_devices\.json){_REST}|{_TEST}", re.ASCII)
#: Time for a warm parent to end.
_END_S = 5.0
#: Most reasons and paths in one answer.
_SHOWN = 100


class Item(NamedTuple):
    """Something that this program has made.

    :param part: name of a row that users see
    :param remove: removes it, and returns why it stays, None if it is gone
    """

    part: str
    path: str
    size_bytes: int
    remove: Callable[[], str | None]


def purge_request(layout: Layout, fields: Fields) -> Callable[[], Json]:
    """Return the work that measures, or removes, everything of this program."""
    dry_run = fields.flag("dry_run", default=False)
    with_remote_dir = fields.flag("with_remote_dir", default=True)
    limit_s = fields.number("limit_s", 0, 3600, default=3600)
    return lambda: purge(layout, dry_run=dry_run, with_remote_dir=with_remote_dir, limit_s=limit_s)


def purge(layout: Layout, *, dry_run: bool, with_remote_dir: bool, limit_s: float) -> Json:
    """Remove everything of this program, and return what it was, by part.

    :param dry_run: only return it, with the reasons why a removal would be refused now
    :param with_remote_dir: False: ``remote_dir`` stays, because other hosts use it
    :param limit_s: time after which the rest is left to the next call
    :raises Refused: ``in_use``, work is on this host; nothing was removed
    """
    busy = work_here(layout)
    if busy and not dry_run:
        raise Refused("in_use", f"It holds work: {'; '.join(busy[:3])}. Nothing was removed.")
    if not dry_run:
        _end_warm_parents(layout)
    left: list[Json] = []
    items = _items(layout, with_remote_dir=with_remote_dir, left=left)
    taken, is_complete = _take(items, time.monotonic() + limit_s, left, dry_run=dry_run)
    if is_complete and not dry_run:
        _remove_folders(layout, with_remote_dir=with_remote_dir)
    parts: dict[str, Json] = {}
    for item in taken:
        row = parts.setdefault(item.part, {"count": 0, "bytes": 0})
        row["count"] += 1
        row["bytes"] += item.size_bytes
    kind = mount_of(layout.remote_dir)[1]
    return {
        "parts": parts,
        "runs": [os.path.basename(item.path) for item in taken if item.part == RUNS][:COLLECT_LIMIT],
        "left": left[:_SHOWN],
        "busy": busy[:_SHOWN],
        "is_complete": is_complete,
        "remote_dir": layout.remote_dir,
        "state_dir": layout.state_dir,
        "network": kind if kind in NETWORK_FILE_SYSTEMS else None,
    }


def _take(items: Iterator[Item], until: float, left: list[Json], *, dry_run: bool) -> tuple[list[Item], bool]:
    """Remove items until a time on the monotonic clock. Return those that are gone, and whether no time was short.

    :param left: receives those that stay, with the reason
    :param dry_run: return all, and remove none
    """
    gone: list[Item] = []
    for item in items:
        if time.monotonic() > until:
            return gone, False
        reason = None if dry_run else item.remove()
        if reason is None:
            gone.append(item)
        else:
            left.append({"path": item.path, "reason": reason})
    return gone, True


def work_here(layout: Layout) -> list[str]:
    """Return the reasons why files of this host are needed now: runs, leftovers of runs, slots, environments."""
    found = []
    for folder in map(layout.run, layout.runs()):
        if folder.alive() or is_locked(folder.file("lock")):
            found.append(f"run {folder.name} lives")
        elif has_left(folder):
            found.append(f"run {folder.name} has left processes or a container")
    for index in layout.slots():
        path = layout.slot_lock(index)
        if is_locked(path):
            found.append(f"slot {index} is held by {(read_json(path) or {}).get('run', 'an unknown run')}")
    uses = {Use.RUN: "is used by a run", Use.CHANGE: "is being built or removed"}
    for environment in folders_in(layout):
        if (use := environment.use()) in uses:
            found.append(f"environment {environment.digest[:12]} {uses[use]}")
    return found


def _items(layout: Layout, *, with_remote_dir: bool, left: list[Json]) -> Iterator[Item]:
    """Yield everything, the program itself last: until then the next call can continue.

    :param left: receives the folders that are links
    """
    state, remote = layout.state_dir, layout.remote_dir
    for path in _own(state, "runs", _RUN, left):
        yield _tree(RUNS, path, lock=os.path.join(path, "lock"))
    if with_remote_dir:
        yield from _environments(layout, left)
        yield from _images(layout, left)
        for kind in KINDS:
            for path in _own(remote, kind, _DIGEST, left):
                yield _tree("code and libraries", path)
    for name, pattern in (("warm", _WARM), ("slots", _SLOT), ("tombstones", _TOMBSTONE), ("", _RECORD)):
        for path in _own(state, name, pattern, left):
            yield _tree("records", path, lock=path if path.endswith(".lock") else None)
    if with_remote_dir:
        for path in _own(remote, "", re.compile(_TEST), left):
            yield _tree("records", path)
        own = os.path.basename(program())
        for path in sorted(_own(remote, "supervisor", _DIGEST, left), key=lambda one: os.path.basename(one) == own):
            yield _tree("supervisor", path)


def _own(root: str, name: str, pattern: re.Pattern[str], left: list[Json]) -> list[str]:
    """Return the paths in a folder whose names this program gives. A folder that is a link is not entered."""
    folder = os.path.join(root, name) if name else root
    for path in (root, folder):
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISLNK(os.lstat(path).st_mode):
                one = {"path": path, "reason": f"it is a link to {os.readlink(path)}, and links are not followed"}
                if one not in left:
                    left.append(one)
                return []
    return [os.path.join(folder, one) for one in sorted(names_in(folder)) if pattern.fullmatch(one)]


def _tree(part: str, path: str, lock: str | None = None) -> Item:
    return Item(part, path, tree_bytes(path), partial(_remove, path, lock))


def _remove(path: str, lock: str | None) -> str | None:
    """Remove a file or folder, under its lock. Return why it stays, None if it is gone."""
    held = None
    if lock is not None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            held = take_lock(lock, create=False)
            if held is None:
                return f"a process has locked {lock}"
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            hidden = path if path.endswith(DELETED) else _hide(path)
            remove_tree(hidden)
            return f"parts of it cannot be removed: rm -rf {hidden}" if os.path.lexists(hidden) else None
        os.unlink(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"it cannot be removed: {error.strerror or error}"
    finally:
        if held is not None:
            os.close(held)
    return None


def _hide(path: str) -> str:
    """Rename a folder, because a partly removed one must not look complete. Return its path."""
    hidden = f".{os.path.basename(path)}.{random.getrandbits(48):012x}{DELETED}"
    hidden = os.path.join(os.path.dirname(path), hidden)
    os.chmod(path, 0o700)
    os.rename(path, hidden)
    return hidden


def _environments(layout: Layout, left: list[Json]) -> Iterator[Item]:
    paths = _own(layout.remote_dir, "environments", _DIGEST, left)
    digests = sorted({os.path.basename(path).lstrip(".").partition(".")[0] for path in paths})
    for digest in digests:
        folder = EnvironmentFolder(layout, digest)
        own = [path for path in paths if os.path.basename(path).lstrip(".").startswith(digest)]
        yield Item("environments", folder.path, size_of(folder), partial(_remove_environment, folder, own))


def _remove_environment(folder: EnvironmentFolder, paths: list[str]) -> str | None:
    if (use := folder.remove()) in (Use.RUN, Use.CHANGE):
        return f"it is in use ({use.value})"
    # An earlier removal may have left files without their lock.
    reasons = [_remove(path, None) for path in paths if os.path.lexists(path)]
    return next((reason for reason in reasons if reason is not None), None)


def _images(layout: Layout, left: list[Json]) -> Iterator[Item]:
    """Yield images that launches have downloaded, containers without a run, and the records of both."""
    records = _own(layout.remote_dir, "images", _DIGEST, left)
    for name, size in sorted(collect_images(layout, 0.0, None).items() if records else ()):
        yield Item("images", name, size, partial(_remove_image, layout, name))
    for path in records:
        if os.path.lexists(path) and not path.endswith(".json"):
            yield _tree("images", path)


def _remove_image(layout: Layout, name: str) -> str | None:
    return None if name in collect_images(layout, 0.0, {name}) else "a container uses it, or its runtime is away"


def _end_warm_parents(layout: Layout) -> None:
    """End the processes that keep PyTorch imported. None of them has a run, whose lock would have been seen."""
    folder = os.path.join(layout.state_dir, "warm")
    names = [name for name in names_in(folder) if name.endswith(".lock") and _WARM.fullmatch(name)]
    for name in names:
        proc = find_process(read_json(os.path.join(folder, name.removesuffix(".lock") + ".pid")))
        if proc is not None and is_locked(os.path.join(folder, name)):
            send_signal(proc, signal.SIGTERM)
    until = time.monotonic() + _END_S
    while any(is_locked(os.path.join(folder, name)) for name in names) and time.monotonic() < until:
        time.sleep(0.01)


def _remove_folders(layout: Layout, *, with_remote_dir: bool) -> None:
    """Remove the folders that are empty now."""
    state, remote = layout.state_dir, layout.remote_dir
    names = [os.path.join(state, name) for name in ("warm", "slots", "tombstones", "runs")] + [state]
    if layout.is_default:
        names.append(os.path.dirname(state))
    if with_remote_dir:
        names += [os.path.join(remote, name) for name in ("environments", "images", *KINDS, "supervisor")] + [remote]
    for name in names:
        with contextlib.suppress(OSError):
            os.rmdir(name)
