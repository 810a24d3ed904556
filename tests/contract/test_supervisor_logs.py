"""Logs that grow beyond their limit: where the middle of a file cannot be freed, and where they fill the disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.supervisor.limits import LOG_LAG
from airflow_provider_dtrain.supervisor.run.log_limit import punch_hole
from airflow_provider_dtrain.supervisor.run.ranks import tail_of
from tests.support.supervisor_host import Host, make_plan, start, until

RUN, LIMIT = "t1.1.7", 1 << 20


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host whose runs lie on ramfs, which knows no holes."""
    folder = tmp_path / "ram"
    folder.mkdir()
    if os.geteuid() != 0 or os.system(f"mount -t ramfs none {folder}"):
        pytest.skip("mounting a ramfs needs root")
    host = Host(tmp_path / "host")
    host.state_dir = folder / "state"
    yield host
    host.clean()
    os.system(f"umount -l {folder}")


def test_the_file_system_of_these_tests_frees_no_middle(host: Host) -> None:
    with (host.state_dir.parent / "file").open("wb") as file:
        file.write(b"x" * LIMIT)
        file.flush()
        with pytest.raises(OSError, match="not supported"):
            punch_hole(file.fileno(), 4096, 8192)


def test_a_log_is_cut_and_keeps_head_and_end(host: Host) -> None:
    channel = host.channel()
    script = "yes 0123456789 | head -c 8000000; echo; echo last; exec sleep 1000"
    start(channel, make_plan(RUN, "sh", "-c", script, log_limit_bytes=LIMIT), logs="none")
    path = host.run_dir(RUN) / "rank0" / "log"
    until(lambda: path.exists() and path.stat().st_size > 8_000_000, "the log")
    until(lambda: path.stat().st_blocks * 512 <= LIMIT, "the cut")
    until(lambda: tail_of(str(path), 6).endswith(b"last\n"), "the end, written back")
    channel.call("subscribe", run=RUN, offsets={}, logs="all")
    channel.wait(lambda: channel.stream(RUN, "rank0.log").endswith(b"last\n"))
    (gap,) = [frame for frame in channel.frames if frame["t"] == "gap"]
    log = channel.stream(RUN, "rank0.log")
    assert gap["offset"] == LIMIT // 2
    assert b"\0" not in log
    assert len(log) + gap["skip_bytes"] == path.stat().st_size


def test_a_follower_reads_on_beyond_a_cut_and_takes_it_for_no_other_file(host: Host) -> None:
    channel = host.channel()
    flood = "import os, time\nfor n in range(600):\n    os.write(1, b'x' * 65535 + b'\\n'); time.sleep(0.005)\n"
    # Lines that are written during a cut are lost, so the last line follows the last cut.
    cut = f"while os.fstat(1).st_blocks * 512 > {LIMIT}:\n    time.sleep(0.01)\ntime.sleep(0.5)\n"
    start(channel, make_plan(RUN, "python", "-c", flood + cut + "print('last word')", log_limit_bytes=LIMIT))
    assert channel.wait_event(RUN, "ended")["reason"] == "completed"
    channel.wait(lambda: channel.stream(RUN, "rank0.log").endswith(b"last word\n"))
    frames = [frame for frame in channel.frames if frame.get("stream") == "rank0.log"]
    assert any(frame["t"] == "gap" for frame in frames)
    assert not any(frame.get("epoch") for frame in frames)
    log = host.run_dir(RUN) / "rank0" / "log"
    assert log.stat().st_blocks * 512 < 600 * 65536


@pytest.mark.parametrize("stopped", ["follower", "supervisor", "both"])
def test_a_rank_writes_on_whoever_stopped_and_each_byte_is_sent_or_counted(tmp_path: Path, stopped: str) -> None:
    host, size, go = Host(tmp_path / "host"), 4 * LOG_LAG, tmp_path / "go"
    flood = (
        "import os, sys, time\n"
        f"while not os.path.exists('{go}'): time.sleep(0.01)\n"
        f"for _ in range({size // 65536}): os.write(1, b'x' * 65535 + b'\\n')\n"
        f"open('{go}.done', 'w').close()\n"
    )
    try:
        channel = host.channel()
        start(channel, make_plan(RUN, "python", "-c", flood, log_limit_bytes=2 * size))
        pids = {"follower": channel.process.pid, "supervisor": host.supervisor_pid(RUN)}
        for pid in pids.values() if stopped == "both" else [pids[stopped]]:
            os.kill(pid, signal.SIGSTOP)
        go.touch()
        until(Path(f"{go}.done").exists, "the end of the rank's output")
        for pid in pids.values():
            os.kill(pid, signal.SIGCONT)
        assert channel.wait_event(RUN, "ended")["reason"] == "completed"
        gaps = [frame for frame in channel.frames if frame["t"] == "gap"]
        assert {frame["reason"] for frame in gaps} == {"the follower was far behind"} or stopped == "supervisor"
        assert len(channel.stream(RUN, "rank0.log")) + sum(frame["skip_bytes"] for frame in gaps) == size
    finally:
        host.clean()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Host]:
    """A host whose runs lie on a disk of 6 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=6m none {folder}"):
        pytest.skip("mounting a small tmpfs needs root")
    host = Host(tmp_path / "host")
    host.state_dir = folder / "state"
    yield host
    host.clean()
    os.system(f"umount -l {folder}")


def test_a_log_that_fills_the_disk_is_cut_and_the_rank_writes_on(small_disk: Host) -> None:
    patient = (
        "import os, time\n"
        "full = 0\n"
        "while full < 3:\n"
        "    try: os.write(1, b'x' * 65535 + b'\\n')\n"
        "    except OSError: full += 1; time.sleep(0.1)\n"
        "while True:\n"
        "    try: os.write(1, b'last word\\n'); break\n"
        "    except OSError: time.sleep(0.05)\n"
    )
    channel = small_disk.channel()
    start(channel, make_plan(RUN, "python", "-c", patient, log_limit_bytes=LIMIT), logs="none")
    assert channel.wait_event(RUN, "ended")["reason"] == "completed"
    path = small_disk.run_dir(RUN) / "rank0" / "log"
    assert path.stat().st_size > LIMIT
    assert path.stat().st_blocks * 512 <= 2 * LIMIT
    assert tail_of(str(path), 10).endswith(b"last word\n")
