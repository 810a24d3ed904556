"""A link to the peer of peer.py in the place of the supervisor."""

from __future__ import annotations

import sys
from pathlib import Path
from queue import Queue
from typing import Any

from airflow_provider_dtrain.hosts.channel.link import HostLink
from airflow_provider_dtrain.hosts.transport.base import Transport
from airflow_provider_dtrain.hosts.wire import Frame
from tests.support.supervisors import program

PEER = Path(__file__).with_name("peer.py").read_bytes()


def connect(transport: Transport, **options: Any) -> HostLink:
    archive = program(options.pop("source", PEER))
    settings = {"remote_dir": "~/.dtrain", "state_dir": None, "python": sys.executable, "archive": archive, **options}
    return HostLink.connect(transport, **settings)


def answer(link: HostLink, cmd: str, **args: Any) -> dict[str, Any]:
    return link.call(cmd, timeout_s=20, **args).result(timeout=30)


def frame(queue: Queue[Frame]) -> Frame:
    return queue.get(timeout=20)
