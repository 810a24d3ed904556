"""Launches of one program on one host, whose ranks may be forked from a warm parent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.supervisor_host import Channel, Host, is_alive, make_plan, start

WARM = {"idle_s": 60, "private": []}


class Launches:
    """Launches of programs on a host, one after the other.

    :param files: the code
    """

    def __init__(self, host: Host, files: dict[str, str]) -> None:
        self.host = host
        self.channel: Channel = host.channel()
        self.payload = host.send_archive("payloads", files)
        self.count = 0

    def run(self, *argv: str, warm: Any = WARM, **changes: Any) -> dict[str, Any]:
        """Run a program to its end. Return log, reason and whether it was forked."""
        self.count += 1
        run = f"t{self.count}.1.{self.count}"
        secrets = changes.pop("secrets", None)
        plan = make_plan(run, *(argv or ("python", "train.py")), **{"payload": self.payload, "warm": warm, **changes})
        start(self.channel, plan, secrets=secrets)
        ended = self.channel.wait_event(run, "ended")
        started = self.channel.wait_event(run, "started")
        logs = [self.host.run_dir(run) / f"rank{rank['rank']}" / "log" for rank in plan["ranks"]]
        texts = [path.read_text() for path in logs]
        return {**started, "reason": ended["reason"], "log": texts[0], "logs": texts, "run": run}


def parents(host: Host) -> list[int]:
    """Return the living warm parents of a host."""
    known = [json.loads(path.read_text()) for path in (host.state_dir / "warm").glob("*.pid")]
    return sorted(one["pid"] for one in known if is_alive(one["pid"]))


def uses(pid: int, library: str) -> bool:
    """Return whether a process has loaded a library."""
    return library in Path(f"/proc/{pid}/maps").read_text()


def line(found: dict[str, Any], word: str, rank: int = 0) -> str:
    """Return the line of a rank's log that begins with a word."""
    return next(one for one in found["logs"][rank].splitlines() if one.startswith(word))
