"""Writers of a SQLite store write in order of arrival, even when earlier writers fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_dtrain.store.database import write_queue
from airflow_provider_dtrain.store.database.write_queue import FileQueue, ThreadQueue
from airflow_provider_dtrain.store.store import Store
from tests.support.store_world import until

DEADLINE_S = 60.0
#: Takes a turn, prints that it has it, and keeps it until its input ends.
HOLDER = """
import sys, time
from airflow_provider_dtrain.store.database.write_queue import FileQueue
print("asking", flush=True)
with FileQueue(sys.argv[1]).turn(time.monotonic() + 600):
    print("writing", flush=True)
    sys.stdin.read()
"""


def last_ticket(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[:8], "little") if path.exists() else 0


@contextmanager
def writer(path: Path, *, first: bool = True) -> Iterator[subprocess.Popen[str]]:
    """A process that has the turn, or waits for it."""
    before = last_ticket(path)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "asking\n"
        until(lambda: last_ticket(path) > before)
        if first:
            assert process.stdout.readline() == "writing\n"
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


@contextmanager
def turn(path: Path) -> Iterator[None]:
    with FileQueue(str(path)).turn(time.monotonic() + DEADLINE_S):
        yield


def test_threads_get_the_lock_in_the_order_in_which_they_asked():
    lock, order = ThreadQueue(), []
    assert lock.acquire(0)

    def take(number):
        assert lock.acquire(DEADLINE_S)
        order.append(number)
        lock.release()

    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=take, args=(number,)))
        threads[-1].start()
        until(lambda asked=number: len(lock._waiting) == asked + 1)
    lock.release()
    # It was handed over: a later caller does not get in between.
    assert lock.acquire(DEADLINE_S)
    for thread in threads:
        thread.join(DEADLINE_S)
    assert order == [0, 1, 2, 3, 4]


def test_a_thread_that_waited_in_vain_leaves_the_queue():
    lock = ThreadQueue()
    assert lock.acquire(0)
    assert not lock.acquire(0.01)
    lock.release()
    assert lock.acquire(0)


def test_a_thread_whose_wait_is_interrupted_leaves_the_queue():
    lock, waits = ThreadQueue(), threading.main_thread().ident
    assert lock.acquire(0)

    def interrupt(*_: object) -> None:
        raise TimeoutError("the task's time is over")

    old = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with ThreadPoolExecutor(1) as threads:
            sent = threads.submit(lambda: (until(lambda: lock._waiting), signal.pthread_kill(waits, signal.SIGUSR1)))
            with pytest.raises(TimeoutError, match="the task's time is over"):
                lock.acquire(DEADLINE_S)
            sent.result(DEADLINE_S)
    finally:
        signal.signal(signal.SIGUSR1, old)
    lock.release()
    assert lock.acquire(0)


def test_processes_write_in_the_order_in_which_they_came(tmp_path):
    path, order = tmp_path / "queue", []

    def take(number):
        with turn(path):
            order.append(number)

    # To the kernel each opening of the file is another owner, as in several processes.
    with ThreadPoolExecutor(6) as threads, turn(path):
        for number in range(6):
            threads.submit(take, number)
            until(lambda asked=number: last_ticket(path) == asked + 2)
        assert order == []
    assert order == [0, 1, 2, 3, 4, 5]


def test_a_writer_that_is_killed_holds_up_no_other(tmp_path):
    path = tmp_path / "queue"
    with writer(path) as holder, writer(path, first=False) as second, ThreadPoolExecutor(1) as threads:
        third = threads.submit(lambda: turn(path).__enter__())
        until(lambda: last_ticket(path) == 3)
        second.kill()
        second.wait()
        assert not third.done()
        holder.kill()
        holder.wait()
        third.result(DEADLINE_S)


def test_a_writer_that_is_stopped_while_it_waits_is_passed_by_once(tmp_path, monkeypatch):
    path = tmp_path / "queue"
    monkeypatch.setattr(write_queue, "STUCK_S", 0.2)
    with writer(path) as stopped:
        stopped.send_signal(signal.SIGSTOP)
        with turn(path):
            pass
        # It would take longer than the test: the next one finds that it was passed by.
        monkeypatch.setattr(write_queue, "STUCK_S", 3600.0)
        with turn(path):
            pass


def test_a_writer_goes_ahead_when_its_time_is_over(tmp_path):
    path = tmp_path / "queue"
    with turn(path), FileQueue(str(path)).turn(time.monotonic() - 1.0):
        pass


def test_a_writer_whose_wait_is_interrupted_leaves_the_queue(tmp_path, monkeypatch):
    path = tmp_path / "queue"

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with turn(path):
        monkeypatch.setattr(write_queue.time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            turn(path).__enter__()
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert str(path) not in [os.path.realpath(link) for link in links], "its ticket is held for ever"


@pytest.mark.parametrize("content", [b"\xff" * 16, b"x", b""])
def test_numbers_that_nobody_of_ours_wrote_stop_no_writer(tmp_path, content):
    path = tmp_path / "queue"
    path.write_bytes(content)
    with turn(path):
        pass
    with turn(path):
        assert last_ticket(path) == 2


def test_without_a_file_to_queue_at_writers_leave_the_order_to_sqlite(tmp_path):
    with turn(tmp_path / "missing" / "queue"):
        pass


def test_a_store_queues_at_a_file_for_its_owner_only(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/dtrain.db")
    store.payloads.put("a" * 64, b"x")
    store.close()
    path = tmp_path / "dtrain.db-queue"
    assert last_ticket(path) > 0
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_transaction_of_a_store_comes_after_those_that_came_before_it(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/dtrain.db")
    path = tmp_path / "dtrain.db-queue"
    with ThreadPoolExecutor(1) as threads:
        with turn(path):
            before = last_ticket(path)
            put = threads.submit(store.payloads.put, "a" * 64, b"x")
            until(lambda: last_ticket(path) == before + 1)
            assert not store.payloads.has("a" * 64)
        put.result(DEADLINE_S)
    assert store.payloads.has("a" * 64)
    store.close()
