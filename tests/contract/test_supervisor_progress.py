"""Progress reports of a host about its ranks: their processes, and the pages that the library writes."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.hosts.wire import ProgressFrame
from airflow_provider_dtrain.supervisor.channel.progress import read_page
from airflow_provider_dtrain.supervisor.limits import PAGE_BYTES, STANDS_S
from airflow_provider_dtrain.supervisor.machine.processes import boottime
from airflow_provider_dtrain.train.process import heartbeat
from tests.support.supervisor_host import SLEEP, Channel, Host, make_plan, start

LIBRARY = str(Path(heartbeat.__file__).parents[3])
#: A rank without torch that only writes the library's page: it takes steps until a file ``hold`` exists.
RANK = (
    "import os, sys, time\n"
    f"sys.path.insert(0, {LIBRARY!r})\n"
    "from pathlib import Path\n"
    "from airflow_provider_dtrain.train.process import heartbeat\n"
    "steps, here, folder = [0], heartbeat.HERE, Path(os.environ['DTRAIN_RUN_DIR'])\n"
    "here.begin(folder, int(os.environ['RANK']), lambda: steps[0])\n"
    "here.started, here.now = True, heartbeat.COMPUTE\n"
    "while True:\n"
    "    if (folder / 'exchange').exists():\n"
    "        here.now = heartbeat.BACKWARD\n"
    "    elif not (folder / 'hold').exists():\n"
    "        steps[0] += 1\n"
    "    time.sleep(0.01)\n"
)


def reports(channel: Channel) -> list[dict[str, Any]]:
    return [frame for frame in channel.frames if frame["t"] == "progress"]


def rank_of(channel: Channel, number: int = 0) -> dict[str, Any]:
    """The latest report of one rank, {} before the first."""
    found = reports(channel)
    return next((one for one in found[-1]["ranks"] if one["rank"] == number), {}) if found else {}


def test_a_stopped_process_is_told_of_within_seconds_and_so_is_its_going_on(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan("t1.1.7", *SLEEP, ranks=2))
    pids = {entry["rank"]: entry["pid"] for entry in channel.wait_event("t1.1.7", "started")["ranks"]}
    os.kill(pids[1], signal.SIGSTOP)
    told = channel.wait(lambda: (found := rank_of(channel, 1)).get("state") == "T" and found["state_s"] >= 4 and found)
    assert told["pid"] == pids[1]
    assert "phase" not in told, "it does not use the library"
    stopped = [one for one in reports(channel) if any(rank["state"] == "T" for rank in one["ranks"])]
    spans = [later["boottime_s"] - one["boottime_s"] for one, later in zip(stopped, stopped[1:], strict=False)]
    assert stopped[0]["ranks"][1]["state_s"] <= 5.5, "not only with a beat"
    assert spans, "again and again"
    os.kill(pids[1], signal.SIGCONT)
    channel.wait(lambda: rank_of(channel, 1).get("state") == "S")
    assert rank_of(channel, 0)["state"] == "S"


@pytest.mark.nightly
def test_the_page_of_a_rank_says_where_it_is_and_for_how_long(one_host: Host) -> None:
    channel = one_host.channel()
    start(channel, make_plan("t1.1.7", sys.executable, "-c", RANK))
    moving = channel.wait(lambda: (found := rank_of(channel)).get("steps", 0) > 10 and found)
    assert (moving["phase"], moving["started"], moving["what"]) == ("compute", True, "its training loop")
    assert moving["still_s"] < 5
    (one_host.run_dir("t1.1.7") / "hold").touch()
    channel.wait(lambda: rank_of(channel)["still_s"] >= 4)
    held = rank_of(channel)
    assert held["silent_s"] < 4, "it lives"
    (one_host.run_dir("t1.1.7") / "exchange").touch()
    channel.wait(lambda: rank_of(channel)["phase"] == "exchange")
    assert rank_of(channel)["what"] == "the gradient exchange"
    assert rank_of(channel)["steps"] == held["steps"]
    os.kill(held["pid"], signal.SIGSTOP)
    channel.wait(lambda: rank_of(channel)["silent_s"] >= 4)
    frame = {key: value for key, value in reports(channel)[-1].items() if key != "raw"}
    read = ProgressFrame.parse(frame, "here").ranks[0]
    assert (read.is_stopped, read.phase, read.host) == (True, "exchange", "here")


@pytest.mark.nightly
def test_a_stopped_supervisor_is_told_of(one_host: Host) -> None:
    channel = one_host.channel()
    start(channel, make_plan("t1.1.7", *SLEEP))
    channel.wait(lambda: reports(channel))
    assert reports(channel)[-1]["supervisor_stopped_s"] == 0
    os.kill(one_host.supervisor_pid("t1.1.7"), signal.SIGSTOP)
    channel.wait(lambda: reports(channel)[-1]["supervisor_stopped_s"] > 0)


@pytest.mark.nightly
def test_healthy_ranks_are_told_of_with_beats_only(one_host: Host) -> None:
    channel = one_host.channel()
    start(channel, make_plan("t1.1.7", sys.executable, "-c", RANK))
    channel.wait(lambda: rank_of(channel).get("steps", 0) > 10)
    beats, told = len([f for f in channel.frames if f["t"] == "beat"]), len(reports(channel))
    channel.wait(lambda: len([f for f in channel.frames if f["t"] == "beat"]) >= beats + 2)
    # A loaded machine may make a rank stand for some seconds.
    news = [one for one in reports(channel)[told:] if one["ranks"][0].get("still_s", 0) >= STANDS_S]
    assert len(reports(channel)) - told - len(news) <= 3


@pytest.mark.parametrize(
    "page",
    [b"", b"{", b"[]", b'{"at": "now"}', b"x" * 5000,
     b'{"at":1,"since":1,"steps":-1,"started":true,"phase":"a","what":"b"}',
     b'{"at":1,"since":1,"steps":1,"started":1,"phase":"a","what":"b"}',
     b'{"at":1,"since":1,"steps":1,"started":true,"phase":"a b","what":"b"}'],
)  # fmt: skip
def test_a_page_that_cannot_be_believed_is_none(tmp_path: Path, page: bytes) -> None:
    (tmp_path / "0").write_bytes(page)
    assert read_page(str(tmp_path / "0"), 100.0) == {}
    (tmp_path / "1").symlink_to(tmp_path / "0")
    assert read_page(str(tmp_path / "1"), 100.0) == {}
    assert read_page(str(tmp_path / "none"), 100.0) == {}


def test_the_library_writes_pages_of_one_size_that_the_host_can_read(tmp_path: Path) -> None:
    here = heartbeat.Here()
    here.begin(tmp_path, 3, lambda: 7)
    path = tmp_path / "progress" / "3"
    first = json.loads(path.read_bytes())
    assert (first["phase"], first["started"], first["steps"]) == ("start", False, 7)
    with here.at(heartbeat.CHECKPOINT):
        assert here.now == heartbeat.CHECKPOINT
        with here.at(heartbeat.MESSAGE):
            assert here.now == heartbeat.MESSAGE
        assert here.now == heartbeat.CHECKPOINT
    assert here.now == heartbeat.START
    assert path.stat().st_size == heartbeat.PAGE_BYTES == PAGE_BYTES
    here.end()
    page = read_page(str(path), boottime())
    assert (page["phase"], page["steps"]) == ("ended", 7)
    assert page["silent_s"] < 20
    here.end()


def test_a_rank_without_a_run_folder_or_a_disk_goes_on_without_a_page(tmp_path: Path) -> None:
    here = heartbeat.Here()
    here.begin(None, 0, lambda: 0)
    here.begin(tmp_path / "not" / "there", 0, lambda: 0)
    here.end()
    assert here.now == heartbeat.END
