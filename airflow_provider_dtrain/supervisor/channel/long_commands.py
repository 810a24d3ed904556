"""Commands that may take long: their fields are checked now, and the work that is returned is for a thread."""

from __future__ import annotations

import os
from collections.abc import Callable

from ..checks.probe import probe
from ..environments import inventory
from ..environments.command import environment_request
from ..environments.garbage import collect_environments
from ..fields import Fields, shorten
from ..files.garbage import collect, remove_checkpoints
from ..files.layout import Layout
from ..images.download import image_request
from ..images.garbage import collect_images
from ..limits import COLLECT_LIMIT, FENCE_WAIT_S
from ..names import ARCHIVE_NAME, CHECKPOINT_NAME, DEVICE, DIGEST, RUN_NAME, WORD, Json
from ..refusal import Refused
from ..run.fencing import fence
from ..run.lost_folder import Launched
from ..run.stacks import stacks_request
from ..run.status import status
from .log_search import run_match
from .purge import purge_request
from .run_commands import folder_of


def probe_host(layout: Layout, fields: Fields) -> Callable[[], Json]:
    """Return the work that measures this host."""
    return lambda: probe(layout)


def host_status(layout: Layout, fields: Fields) -> Callable[[], Json]:
    """Return the work that describes runs and slots of this host."""
    items = [Fields(item, "slots") for item in fields.items("slots", limit=65536, default=[])]
    devices = {slot.integer("slot", 0, 65535): slot.text("device", DEVICE, default=None) for slot in items}
    names = fields.texts("runs", RUN_NAME, limit=COLLECT_LIMIT) if "runs" in fields.values else None
    return lambda: status(layout, devices, names)


def fence_run(layout: Layout, fields: Fields) -> Callable[[], Json]:
    """Return the work that ends a run and proves that no process is left."""
    run = fields.run()
    token = fields.integer("token", 0, 10**18)
    wait_s = fields.number("wait_s", 0, 60, default=FENCE_WAIT_S)
    launch = fields.text("launch", WORD, default=None)
    launched = Launched(fields.inner("launched")) if "launched" in fields.values else None
    return lambda: fence(layout, run, token, wait_s, launch, launched)


def remove_from_storage(layout: Layout, fields: Fields) -> Callable[[], Json]:
    """Return the work that removes checkpoints of a run or of a storage folder."""
    names = fields.texts("names", CHECKPOINT_NAME, limit=4096)
    folder = fields.text("folder")
    if fields.text("run", default=None) is not None:
        root = layout.run(fields.run()).path
    else:
        root = fields.text("root")
        if not root.startswith("/") or ".." in root.split("/"):
            raise fields.bad("root", f"must be an absolute path without '..', got {shorten(root)}")
        if not os.path.isdir(root):
            raise Refused("not_found", f"This host has no folder {shorten(root)}. Mount it, or correct the path.")
    return lambda: remove_checkpoints(root, folder, names)


def collect_garbage(layout: Layout, fields: Fields) -> Callable[[], Json]:
    """Return the work that removes old runs, archives, environments and images."""
    age_s = fields.number("older_than_s", 0, 1e12)
    dry_run = fields.flag("dry_run", default=False)
    named = "runs" in fields.values
    runs = fields.texts("runs", RUN_NAME, limit=COLLECT_LIMIT) if named else None
    archives = fields.texts("archives", ARCHIVE_NAME, limit=COLLECT_LIMIT, default=[])
    wanted = None if dry_run else set(archives)

    def work() -> Json:
        found = collect(layout, age_s, runs=runs, archives=archives, dry_run=dry_run)
        more = {**collect_environments(layout, age_s, wanted), **collect_images(layout, age_s, wanted)}
        return {**found, "archives": {**found["archives"], **more}}

    return work


def list_environments(layout: Layout, fields: Fields) -> Callable[[], Json]:
    """Return the work that describes the environments of this host."""
    digest = fields.text("digest", DIGEST, default=None)
    return lambda: inventory.describe(layout, digest)


def remove_environment(layout: Layout, fields: Fields) -> Callable[[], Json]:
    """Return the work that removes an environment that is not in use."""
    digest = fields.text("digest", DIGEST)
    dry_run = fields.flag("dry_run", default=False)
    return lambda: inventory.remove(layout, digest, dry_run=dry_run)


def match_logs(layout: Layout, fields: Fields) -> Callable[[], Json]:
    """Return the work that searches the logs of a run."""
    folder = folder_of(layout, fields)
    patterns = fields.texts("patterns", least=1, limit=64)
    return lambda: run_match(folder, patterns)


def rank_stacks(layout: Layout, fields: Fields) -> Callable[[], Json]:
    """Return the work that reads the Python stacks of ranks."""
    return stacks_request(folder_of(layout, fields), fields)


#: Name of a command -> function that returns the work.
COMMANDS: dict[str, Callable[[Layout, Fields], Callable[[], Json]]] = {
    "probe": probe_host,
    "image": image_request,
    "status": host_status,
    "fence": fence_run,
    "remove_checkpoints": remove_from_storage,
    "collect": collect_garbage,
    "purge": purge_request,
    "match": match_logs,
    "stacks": rank_stacks,
    "environment": environment_request,
    "environments": list_environments,
    "remove_environment": remove_environment,
}
