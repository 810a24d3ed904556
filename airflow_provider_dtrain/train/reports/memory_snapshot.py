"""Snapshot of PyTorch's GPU memory where it ran out: an output of the trial, for pytorch.org/memory_viz."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.process.heartbeat import HERE, TRACE
from airflow_provider_dtrain.train.process.imported import imported
from airflow_provider_dtrain.train.reports.events import EventWriter
from airflow_provider_dtrain.train.reports.profiler import FOLDER

log = logging.getLogger(__name__)

#: Latest allocations and releases that are recorded: those of a few steps.
MOST_EVENTS = 20_000
#: Largest file. Older events are left out of a larger one.
MOST_BYTES = 64 << 20
#: Places of the program that a failure names.
_SHOWN = 3


class MemoryHistory:
    """Recorder of the allocations of this rank's GPU memory."""

    def __init__(self, env: RankEnvironment, writer: EventWriter) -> None:
        self._env = env
        self._writer = writer
        self._is_on = False

    def start(self) -> None:
        """Record from now on, if PyTorch has a GPU and can record. Called when torch is imported."""
        import torch

        if not torch.cuda.is_available():
            return
        try:
            torch.cuda.memory._record_memory_history(max_entries=MOST_EVENTS, stacks="python")
            self._is_on = True
        except Exception as error:
            log.warning("profiling.memory_snapshot: allocations are not recorded: %s: %s", type(error).__name__, error)

    def explain(self, error: BaseException) -> str:
        """Keep a snapshot if the error is that GPU memory ran out. Return a sentence about it, empty without one."""
        torch = imported("torch")
        if not self._is_on or torch is None:
            return ""
        kind = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError  # before torch 2.5
        if not isinstance(error, kind):
            return ""
        self._is_on = False
        with HERE.at(TRACE):
            try:
                snapshot = torch.cuda.memory._snapshot()
                torch.cuda.memory._record_memory_history(enabled=None)
                path, size = self._write(snapshot)
            except Exception as failed:
                log.warning("The snapshot of GPU memory is not kept: %s: %s", type(failed).__name__, failed)
                return ""
        name = f"work/{FOLDER}/{path.name}"
        with contextlib.suppress(OSError):
            self._writer.write("trace", {"path": name, "step": HERE.steps(), "size_bytes": size}, sync=True)
        text = f"Snapshot of GPU memory: {name} ({size / 2**20:.1f} MiB)."
        places = [f"{place} {size / 2**20:,.0f} MiB" for place, size in largest(snapshot)]
        text += f" Most memory was allocated by {', '.join(places)}." if places else ""
        log.error("%s", text)
        return text

    def _write(self, snapshot: Mapping[str, Any]) -> tuple[Path, int]:
        folder = (self._env.run_dir / "work" if self._env.run_dir else Path.cwd()) / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rank{self._env.rank}-attempt{self._env.attempt or 1}-out-of-memory.pickle"
        data = _bounded(snapshot)
        partial = folder / f".{path.name}"
        try:
            partial.write_bytes(data)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        return path, len(data)


def _bounded(snapshot: Mapping[str, Any]) -> bytes:
    """Return the file of a snapshot, with as many of the latest events as fit.

    :raises OSError: it is too large without any event
    """
    kept = dict(snapshot)
    while len(data := pickle.dumps(kept)) > MOST_BYTES:
        traces = kept.get("device_traces") or []
        if not any(traces):
            raise OSError(f"it has {len(data):,} bytes, more than {MOST_BYTES:,}")
        kept["device_traces"] = [events[len(events) // 2 + 1 :] for events in traces]
    return data


def largest(snapshot: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the places of the program that hold most memory, as file:line in function, with their bytes."""
    held: Counter[str] = Counter()
    for segment in snapshot.get("segments") or ():
        for block in segment.get("blocks") or ():
            if block.get("state") == "active_allocated":
                held[_place(block)] += int(block.get("size") or 0)
    return [(place, size) for place, size in held.most_common() if place][:_SHOWN]


def _place(block: Mapping[str, Any]) -> str:
    """Return the innermost place outside of PyTorch that allocated a block, empty if it is unknown."""
    for frame in _frames(block):
        name = str(frame.get("filename") or "")
        if name.endswith(".py") and "/torch/" not in name and "/airflow_provider_dtrain/train/" not in name:
            return f"{Path(name).name}:{frame.get('line')} in {frame.get('name')}"
    return ""


def _frames(block: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from block.get("frames") or ()
    for part in block.get("history") or ():  # before torch 2.2
        yield from part.get("frames") or ()
