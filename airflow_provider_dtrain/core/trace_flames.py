"""Flame graphs from traces in Chrome's format, as the profiler of PyTorch writes them."""

from __future__ import annotations

import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.errors import UserError

#: Most bytes of a trace that is read, after it was unpacked, and most of its events. A few seconds of CPU time.
TRACE_BYTES: Final = 160 << 20
EVENTS_MOST: Final = 1_000_000
#: Most nodes of a track, tracks, levels of a tree, and characters of a name.
NODES_MOST, TRACKS_MOST, DEPTH_MOST, NAME_CHARS = 1500, 24, 256, 300
#: A node below this share of its track is left out: it would be thinner than a pixel.
SHARE_LEAST: Final = 0.0005
#: Categories of work on a device.
_OF_GPU: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_STEP: Final = re.compile(r"(?<=^ProfilerStep)#\d+$")
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class FlameNode:
    """Calls of one name below the same callers, added up."""

    name: str
    #: Index of the caller in the list; None: it has no caller.
    parent: int | None
    #: Microseconds with and without the calls below it.
    total_us: float
    self_us: float
    calls: int


@dataclass(frozen=True, kw_only=True)
class FlameTrack:
    """Work of one thread, or of one stream of a GPU."""

    name: str
    is_gpu: bool
    total_us: float
    #: Callers first, the longest ones of one caller first. Short calls are left out.
    nodes: list[FlameNode]
    #: Names below the same callers that were too short or too many.
    left_out: int


@dataclass(frozen=True, kw_only=True)
class FlameGraph:
    """Flame graph of a trace: its threads, the busiest first, then the streams of its GPUs."""

    #: From the begin of the first event to the end of the last one, microseconds.
    span_us: float
    events: int
    tracks: list[FlameTrack]
    #: Threads and streams that are not in the list.
    more: int


class _Event(msgspec.Struct):
    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | float | str = 0
    tid: int | float | str = 0
    ts: int | float = 0
    dur: int | float = 0


class _Trace(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents", default_factory=list)


@dataclass
class _Node:
    name: str
    children: dict[str, _Node] = field(default_factory=dict)
    total_us: float = 0.0
    calls: int = 0


def flame_graph(pieces: Iterable[bytes], *, is_packed: bool) -> FlameGraph:
    """Return the flame graph of a trace.

    :param pieces: content of the file
    :param is_packed: it is packed by gzip
    :raises UserError: it is no trace, or too large
    """
    content = _content(pieces, is_packed=is_packed)
    # An event has an object of its own, its arguments often another one. Empty ones would fill the memory.
    if content.count(b"{") > 4 * EVENTS_MOST:
        raise _too_large("too many events", f"{EVENTS_MOST:,}")
    try:
        events = msgspec.json.decode(content, type=_Trace).events
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"The file is no trace in Chrome's format: {str(error)[:200]}.") from None
    if len(events) > EVENTS_MOST:
        raise _too_large(f"{len(events):,} events", f"{EVENTS_MOST:,}")
    spans = [one for one in events if one.ph == "X" and _is_time(one.ts) and _is_time(one.dur) and one.dur >= 0]
    tracks: dict[tuple[object, object], list[_Event]] = defaultdict(list)
    for one in spans:
        tracks[one.pid, one.tid].append(one)
    found = [_track(key, own) for key, own in tracks.items()]
    found.sort(key=lambda track: (track.is_gpu, -track.total_us))
    begin = min((one.ts for one in spans), default=0)
    end = max((one.ts + one.dur for one in spans), default=0)
    return FlameGraph(
        span_us=end - begin,
        events=len(spans),
        tracks=found[:TRACKS_MOST],
        more=max(0, len(found) - TRACKS_MOST),
    )


def _content(pieces: Iterable[bytes], *, is_packed: bool) -> bytes:
    found = bytearray()
    try:
        for piece in _unpacked(pieces) if is_packed else pieces:
            found += piece
            if len(found) > TRACE_BYTES:
                raise _too_large(f"more than {byte_size(TRACE_BYTES)}", byte_size(TRACE_BYTES))
    except (zlib.error, EOFError) as error:
        raise UserError(f"The trace cannot be unpacked: {error}.") from None
    return bytes(found)


def _unpacked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    packed = zlib.decompressobj(31)
    for piece in pieces:
        while piece and not packed.eof:
            yield packed.decompress(piece, _PIECE_BYTES)
            piece = packed.unconsumed_tail
    if not packed.eof:
        raise EOFError("it is not complete")


def _too_large(actual: str, most: str) -> UserError:
    return UserError(f"The trace has {actual}, and a flame graph is made of at most {most}. Download it for a viewer.")


def _is_time(value: float) -> bool:
    return math.isfinite(value) and abs(value) < 1e18


def _track(key: tuple[object, object], events: list[_Event]) -> FlameTrack:
    root = _tree(events)
    gpu = sum(one.cat in _OF_GPU for one in events)
    is_gpu = 2 * gpu > len(events)
    process, thread = (str(one)[:NAME_CHARS] for one in key)
    name = f"GPU {process}, stream {thread}" if is_gpu else f"process {process}, thread {thread}"
    nodes, left_out = _nodes(root)
    return FlameTrack(name=name, is_gpu=is_gpu, total_us=root.total_us, nodes=nodes, left_out=left_out)


def _tree(events: list[_Event]) -> _Node:
    """Return the calls of a thread, added up by their callers. An event that outlasts its caller is cut at its end."""
    root = _Node("")
    events.sort(key=lambda one: (one.ts, -one.dur))
    stack: list[tuple[float, _Node]] = [(math.inf, root)]
    for one in events:
        while stack[-1][0] <= one.ts:
            stack.pop()
        end = min(one.ts + one.dur, stack[-1][0])
        if len(stack) > DEPTH_MOST:
            continue
        parent = stack[-1][1]
        # The steps of the profiler are numbered, and are the same part of the program.
        name = _STEP.sub("", one.name[:NAME_CHARS])
        node = parent.children.setdefault(name, _Node(name))
        node.total_us += end - one.ts
        node.calls += 1
        if parent is root:
            root.total_us += end - one.ts
        stack.append((end, node))
    return root


def _nodes(root: _Node) -> tuple[list[FlameNode], int]:
    """Return the nodes of a tree with callers first, the longest ones, and the number of those that are left out."""
    least = _least_us(root)
    found: list[FlameNode] = []
    total = 0
    waiting: list[tuple[_Node, int | None]] = [(root, None)]
    while waiting and len(found) < NODES_MOST:
        node, index = waiting.pop()
        if node is not root:
            below = sum(child.total_us for child in node.children.values())
            own = max(0.0, node.total_us - below)
            found.append(FlameNode(name=node.name, parent=index, total_us=node.total_us, self_us=own, calls=node.calls))
            index = len(found) - 1
        total += len(node.children)
        shown = [child for child in node.children.values() if child.total_us >= least][:NODES_MOST]
        shown.sort(key=lambda one: (one.total_us, one.name))
        waiting += [(child, index) for child in shown]
    return found, total - len(found)


def _least_us(root: _Node) -> float:
    """Return the duration below which nodes are left out, so that at most :data:`NODES_MOST` remain."""
    totals: list[float] = []
    level = [root]
    while level:
        level = [child for node in level for child in node.children.values()]
        totals += [one.total_us for one in level]
    totals.sort(reverse=True)
    least = root.total_us * SHARE_LEAST
    return least if len(totals) <= NODES_MOST else max(least, totals[NODES_MOST - 1])
