"""Followers of one live trial on a real API server: latency of their requests, and CPU time per request.

The trial writes 2 KB of log each second. The followers are threads of one process.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from airflow_provider_dtrain.client.address import address
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.client.source import ServerSource
from airflow_provider_dtrain.store.store import Store
from bench.framework.measuring import Run
from bench.framework.rows import OURS, Bench, Goal, Row
from testbed.api_server import ApiServer
from testbed.seed.airflow_side import migrate_metadata
from testbed.stores import host, new_sqlite


def measure(run: Run) -> None:
    url = new_sqlite(run.folder / "store" / "dtrain.db")
    store = Store.open(url)
    attempt_id, watch = _trial(store)
    server = ApiServer(run.folder / "home", url)
    migrate_metadata(server.environment)
    try:
        server.start()
        _measure(server, store, attempt_id, watch, run)
    finally:
        server.stop()
        store.close()


def _trial(store: Store) -> tuple[int, int]:
    """Return attempt and watch of a trial that runs."""
    from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission

    store.hosts.add(host("a", slots=2))
    config = store.configs.put({"entrypoint": "python train.py"}, origins={}).config_id
    key = TrialKey(dag_id="d", run_id="r", task_id="train")
    ticket = store.trials.submit(TrialSubmission(key=key, experiment_name="e", config_id=config, pool="gpus", slots=1))
    watch = store.attempts.watch(ticket.attempt_id, watcher="bench")
    store.queue.schedule("gpus")
    store.queue.take_up(ticket.attempt_id, watch)
    store.attempts.set_plan(ticket.attempt_id, watch, {"plans": {"a": {"ranks": [{"rank": 0}]}}})
    store.attempts.set_running(ticket.attempt_id, watch)
    return ticket.attempt_id, watch


def _measure(server: ApiServer, store: Store, attempt_id: int, watch: int, run: Run) -> None:
    token, count = server.token("admin"), 50
    over = threading.Event()
    took: list[float] = []
    threads = [
        threading.Thread(target=_follow, args=(server.base, token, number / count, over, took))
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    time.sleep(3)
    took.clear()
    before, own, began = _cpu_s(server.pid), time.process_time(), time.monotonic()
    content = b""
    while time.monotonic() - began < run.size(20.0, 8.0):
        content += os.urandom(1000).hex().encode()
        store.events.commit_log(attempt_id, watch, "a", 0, None, content[-65536:], tail_end=len(content))
        time.sleep(1)
    passed = time.monotonic() - began
    spent = _cpu_s(server.pid) - before
    own = time.process_time() - own
    over.set()
    for thread in threads:
        thread.join()
    run.add("latency", "ours", *(1e3 * seconds for seconds in took))
    run.add("CPU", "ours", 1e3 * spent / len(took))
    run.note(f"{count} followers, {len(took)} requests, {own / passed:.2f} cores of this process.")


def _follow(base: str, token: str, delay_s: float, over: threading.Event, took: list[float]) -> None:
    source = ServerSource(Session(address(base), token))
    offset = 0
    over.wait(delay_s)
    while not over.wait(1.0):
        began = time.monotonic()
        piece = source.log(1, rank=0, attempt=None, offset=offset)
        took.append(time.monotonic() - began)
        if piece.start is not None:
            offset = piece.start + len(piece.content) * 3 // 4


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and its children."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pid:
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


BENCH = Bench(
    what="50 followers of a live trial",
    rows=(
        Row(
            name="latency",
            what="A request for new lines",
            unit="ms",
            sides={"ours": OURS},
            goals=(Goal(side="ours", at_most=150, quantile=0.95),),
        ),
        Row(name="CPU", what="CPU time of the server per request", unit="ms of CPU", sides={"ours": OURS}),
    ),
    measure=measure,
    rounds=(1, 1),
)
