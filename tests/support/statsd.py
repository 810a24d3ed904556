"""A StatsD server on a loopback socket, and Airflow's own StatsD logger that sends to it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils


class StatsdServer:
    """Receiver of datagrams."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.received: list[str] = []

    def until(self, line: str, deadline_s: float = 20.0) -> list[str]:
        """Return all lines received so far, once one begins with the given text.

        :raises AssertionError: none did within the time
        """
        give_up_at = time.monotonic() + deadline_s
        while not any(one.startswith(line) for one in self.received):
            self._socket.settimeout(max(0.001, give_up_at - time.monotonic()))
            try:
                self.received += self._socket.recv(65536).decode().splitlines()
            except TimeoutError:
                raise AssertionError(f"{line!r} did not arrive. Received: {self.received}") from None
        return self.received

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


@contextmanager
def statsd_server(monkeypatch: pytest.MonkeyPatch, *, with_tags: bool = False) -> Iterator[StatsdServer]:
    """Yield a server to which Airflow's ``Stats`` of this process sends.

    :param with_tags: as InfluxDB's StatsD expects them
    """
    pytest.importorskip("statsd", reason="the client of StatsD is not installed: pip install apache-airflow[statsd]")
    server = StatsdServer()
    options = {"STATSD_ON": "True", "STATSD_HOST": "127.0.0.1", "STATSD_PORT": str(server.port)}
    for name, value in {**options, "STATSD_INFLUXDB_ENABLED": str(with_tags)}.items():
        monkeypatch.setenv(f"AIRFLOW__METRICS__{name}", value)
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
    try:
        yield server
    finally:
        monkeypatch.undo()
        stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
        server.close()
