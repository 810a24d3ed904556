"""Files of runs on the hosts' own disks: events, and the record of the last renewal."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from airflow_provider_dtrain.store.database.tables import attempts, events, streams
from airflow_provider_dtrain.supervisor.files.events import decode_event
from airflow_provider_dtrain.supervisor.names import RUN_NAME
from testbed.netns import NamespaceHost
from tests.faults.world import World

#: Stream -> number of its last event.
Ends = dict[str, int]
#: (attempt, token, host): one run on one host.
Part = tuple[int, int, str]


def run_folders(host: NamespaceHost) -> list[Path]:
    """Return the folders of all runs on a host, as seen through the host's own mounts."""
    root = Path(f"/proc/{host.init_pid}/root/var/tmp") if host.init_pid else host.folder / "var-tmp"
    return sorted(path for path in root.glob("dtrain-*/*/runs/*") if RUN_NAME.fullmatch(path.name))


def document(host: NamespaceHost, run: str, name: str) -> dict[str, Any]:
    """Return a JSON document in a run's folder, {} when it is missing."""
    for folder in run_folders(host):
        if folder.name == run and (folder / name).exists():
            return dict(json.loads((folder / name).read_text()))
    return {}


def lost_tails(world: World) -> list[str]:
    """Return the event files on the hosts whose last events are missing in the store.

    A run's files must be read completely when the store has the host's ``ended`` event, which is sent after all other
    events, or when the attempt completed. Any other end may precede the last events: a host was given up, a user killed
    the trial, or a follower was replaced.
    """
    found, numbers, told = [], _attempts(world), Told(world)
    there = {part: ends for host in world.hosts for part, ends in _on_disk(host, numbers).items()}
    latest: dict[int, int] = defaultdict(int)
    for attempt_id, token, _ in there:
        latest[attempt_id] = max(latest[attempt_id], token)
    completed = {attempt_id for attempt_id, state in numbers.values() if state == "completed"}
    for part, ends in sorted(there.items()):
        has_completed = part[0] in completed and part[1] == latest[part[0]]
        if has_completed or part in told.ended:
            for stream, last in ends.items():
                known = told.ends[part].get(stream, 0)
                if known < last and (*part, stream) not in told.anew:
                    found.append(f"events of {(*part, stream)}: the store ends with {known}, the file with {last}")
    if told.ends and not there:
        found.append("no host has a file of events: nothing was compared")
    return found


class Told:
    """Events in the store: ``ends`` per part of a run, the parts that ``ended``, the files that began ``anew``."""

    def __init__(self, world: World) -> None:
        self.ends: dict[Part, Ends] = defaultdict(dict)
        self.ended: set[Part] = set()
        with world.store.db.engine.connect() as connection:
            for row in connection.execute(sa.select(events)):
                part = (row.attempt_id, row.token, row.host)
                self.ends[part][row.stream] = max(row.seq or 0, self.ends[part].get(row.stream, 0))
                if row.kind == "ended":
                    self.ended.add(part)
            known = connection.execute(sa.select(streams).where(streams.c.epoch > 0))
            self.anew = {(row.attempt_id, row.token, row.host, row.stream) for row in known}


def _attempts(world: World) -> dict[tuple[int, int], tuple[int, str]]:
    """Return (trial, number) -> (id, state) of all attempts."""
    with world.store.db.engine.connect() as connection:
        rows = connection.execute(sa.select(attempts)).all()
    return {(row.trial_id, row.number): (row.id, row.state) for row in rows}


def _on_disk(host: NamespaceHost, numbers: dict[tuple[int, int], tuple[int, str]]) -> dict[Part, Ends]:
    """Return the last event numbers of the event files on a host."""
    found: dict[Part, Ends] = {}
    for folder in run_folders(host):
        trial, number, token = folder.name.rpartition("t")[2].split(".")
        known = numbers.get((int(trial), int(number)))
        if known is not None:
            files = {f"{path.parent.name}.events": path for path in folder.glob("rank*/events")}
            files["supervisor.events"] = folder / "events.supervisor"
            ends = {stream: last_of(path) for stream, path in files.items() if path.exists()}
            found[known[0], int(token), host.name] = ends
    return found


def last_of(path: Path) -> int:
    """Return the number of a file's last complete event, 0 when there is none."""
    whole = path.read_bytes().rpartition(b"\n")[0]
    return max((int(event["seq"]) for event in map(decode_event, whole.splitlines()) if event), default=0)
