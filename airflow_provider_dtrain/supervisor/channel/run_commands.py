"""Commands about runs and archives of a host that are answered at once."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable

from ..fields import Fields
from ..files.layout import Layout, RunFolder
from ..files.segments import read_measurements
from ..limits import DECISIONS_LIMIT, PROFILED_MOST, TELEMETRY_BYTES
from ..machine.processes import boottime
from ..names import DECISION, DIGEST, KINDS, MEASUREMENTS, READABLE, RUN_NAME, RUNG, Json
from ..refusal import Refused
from ..run.control import decide, renew
from ..run.fencing import stop
from ..run.profile_request import request_profile
from .streams import read_log


def folder_of(layout: Layout, fields: Fields) -> RunFolder:
    """Return the folder of the run that a command names.

    :raises Refused: ``unknown_run``
    """
    folder = layout.run(fields.run())
    if not folder.exists or folder.plan() is None:
        raise Refused("unknown_run", f"Run {folder.name} is not known on this host.")
    return folder


def stop_run(layout: Layout, fields: Fields) -> tuple[Json, bytes]:
    """Stop the ranks of a run."""
    return stop(layout, fields.run(), fields.number("grace_s", 0, 86400, default=None)), b""


def request_stop(layout: Layout, fields: Fields) -> tuple[Json, bytes]:
    """Ask the ranks of a run to stop after their next step."""
    how = {"by_signal": fields.flag("by_signal", default=False)}
    how["grace_s"] = fields.number("grace_s", 0, 86400, default=None)
    write_stop_request(folder_of(layout, fields), how)
    return {}, b""


def write_stop_request(folder: RunFolder, how: Json) -> None:
    """Ask the ranks of a run to stop after their next step, once."""
    if not folder.has("stop_requested"):
        folder.command("stop_requested", {"at": time.time(), **how})
    folder.ring()


def profile(layout: Layout, fields: Fields) -> tuple[Json, bytes]:
    """Ask running ranks to record their next batches."""
    ranks = fields.items("ranks", least=1)
    if not all(type(rank) is int and rank >= 0 for rank in ranks):
        raise fields.bad("ranks", "must be whole numbers from 0")
    batches = fields.integer("batches", 1, PROFILED_MOST)
    return request_profile(folder_of(layout, fields), ranks, batches, fields.flag("with_stack", default=False)), b""


def decide_rungs(layout: Layout, fields: Fields) -> tuple[Json, bytes]:
    """Hand the searcher's decisions to the ranks of a run."""
    inner = fields.inner("decisions")
    if len(inner.values) > DECISIONS_LIMIT or not all(RUNG.fullmatch(str(rung)) for rung in inner.values):
        raise inner.bad("", f"must have at most {DECISIONS_LIMIT} keys, each the number of a rung")
    decisions = {str(rung): inner.text(rung, DECISION, limit=16) for rung in inner.values}
    return decide(folder_of(layout, fields), fields.integer("token", 0, 1 << 62), decisions), b""


def renew_runs(layout: Layout, fields: Fields) -> tuple[Json, bytes]:
    """Renew the leases of runs."""
    runs = fields.texts("runs", RUN_NAME, limit=1 << 16)
    reading = fields.number("boottime_s", 0, 1e12)
    renew(layout, runs, reading, fields.number("orphan_timeout_s", 0, 1e8))
    return {}, b""


def read_stream(layout: Layout, fields: Fields) -> tuple[Json, bytes]:
    """Return a part of a file of a run."""
    folder = layout.run(fields.run())
    name = fields.text("stream", READABLE)
    rank, _, kind = name.rpartition(".")
    path = folder.file("events.supervisor") if rank == "supervisor" else folder.file(rank, kind)
    offset = fields.integer("offset", -(1 << 62), 1 << 62)
    length = fields.integer("length", 0, 4 << 20)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Refused("unknown_stream", f"{folder.name} has no {name} on this host: {error.strerror}.") from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Refused("unknown_stream", f"{name} of {folder.name} is not a regular file.")
        start = max(0, found.st_size + offset) if offset < 0 else offset
        start, data = read_log(fd, path, start, length) if kind == "log" else (start, os.pread(fd, length, start))
    finally:
        os.close(fd)
    return {"bytes": len(data), "size": found.st_size, "offset": start}, data


def read_telemetry(layout: Layout, fields: Fields, *, is_busy: bool) -> tuple[Json, bytes]:
    """Return new measurements of a run.

    :param is_busy: events and logs wait on the channel
    """
    folder = folder_of(layout, fields)
    inner = fields.inner("streams")
    if len(inner.values) > 1025 or not all(MEASUREMENTS.fullmatch(str(name)) for name in inner.values):
        raise inner.bad("", "must have at most 1025 keys, each 'samples' or 'rank<k>.timings'")
    offsets = {name: inner.integer(name, 0, 1 << 62) for name in inner.values}
    most = fields.integer("most_bytes", 1, TELEMETRY_BYTES)
    if is_busy:
        raise Refused("busy", "Events and logs of this channel are sent first. Ask again later.")
    parts, data = read_measurements(folder, offsets, most)
    return {"parts": parts, "bytes": len(data)}, data


def have_archives(layout: Layout, fields: Fields) -> tuple[Json, bytes]:
    """Return the archives that this host lacks."""
    kind = fields.text("kind", re.compile("|".join(KINDS)))
    digests = fields.texts("digests", DIGEST, limit=1024)
    missing = []
    for digest in digests:
        paths = [layout.archive(kind, digest)] + [layout.library(digest)] * (kind == "libraries")
        if not any(os.path.exists(path) for path in paths):
            missing.append(digest)
        for path in paths:
            # An archive that is about to be used gets a new time, so that ``collect`` keeps it.
            with contextlib.suppress(OSError):
                os.utime(path)
    return {"missing": missing}, b""


def read_clocks(layout: Layout, fields: Fields) -> tuple[Json, bytes]:
    """Return the clocks of this host."""
    return {"wall_s": time.time(), "boottime_s": boottime()}, b""


#: Name of a command -> function that returns its answer, and bytes behind it.
COMMANDS: dict[str, Callable[[Layout, Fields], tuple[Json, bytes]]] = {
    "clock": read_clocks,
    "stop": stop_run,
    "request_stop": request_stop,
    "decide": decide_rungs,
    "profile": profile,
    "renew": renew_runs,
    "read": read_stream,
    "have": have_archives,
}
