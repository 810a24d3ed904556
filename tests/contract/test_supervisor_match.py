"""Search for patterns in the logs of a run's ranks, on the host."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.supervisor.channel.log_search import log_lines, without_edges
from airflow_provider_dtrain.supervisor.limits import CHUNK, MATCH_LINE, MATCH_WALL_S
from tests.support.supervisor_host import Channel, Host, Refusal, make_plan, start

RUN = "t1.1.7"
#: Rank 1 prints the pattern early, and both ranks print more than any tail holds.
TALK = (
    "python", "-c",
    "import os, sys\n"
    "rank = os.environ['RANK']\n"
    "if rank == '1': print('step 3: the moon is out of cheese, sorry')\n"
    "for number in range(30000): print('nothing to see in line', number, 'of rank', rank, 'x' * 40)\n"
    "sys.stdout.flush(); sys.exit(3 if rank == '1' else 0)\n",
)  # fmt: skip


@pytest.fixture
def talked(host: Host) -> Channel:
    channel = host.channel()
    start(channel, make_plan(RUN, *TALK, ranks=2, grace_s=20, log_limit_bytes=1 << 30), logs="none")
    channel.wait_event(RUN, "ended")
    return channel


def test_a_line_is_found_in_every_rank_and_far_from_the_end(talked: Channel) -> None:
    found = talked.call("match", run=RUN, patterns=[".*out of (cheese|ham).*", "no such words", "^nothing.*rank 0 x+$"])
    assert found["matches"]["0"] == {"rank": 1, "line": "step 3: the moon is out of cheese, sorry"}
    assert "1" not in found["matches"]
    assert found["matches"]["2"]["rank"] == 0
    assert (found["unfinished"], found["refused"]) == ([], {})


def test_a_pattern_that_this_python_cannot_read_is_named_and_the_others_count(talked: Channel) -> None:
    found = talked.call("match", run=RUN, patterns=["(", "cheese"])
    assert list(found["refused"]) == ["0"]
    assert found["matches"]["1"]["rank"] == 1


@pytest.mark.nightly
def test_a_pattern_that_never_ends_is_given_up_and_holds_up_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    channel = host.channel()
    start(channel, make_plan(RUN, "python", "-c", "print('a' * 60)\nprint('cheese')\n"), logs="none")
    channel.wait_event(RUN, "ended")
    begun = time.monotonic()
    key = channel.post("match", run=RUN, patterns=["(a+)+b", "cheese"])
    channel.call("status")
    assert key not in channel.answers, "the channel answers meanwhile"
    while key not in channel.answers:
        channel.read()
    found = channel.answer(key)
    assert found["unfinished"] == [0]
    assert found["matches"] == {"1": {"rank": 0, "line": "cheese"}}
    assert time.monotonic() - begun < MATCH_WALL_S + 15
    host.clean()


@pytest.mark.parametrize("bad", [[1], *(pytest.param(bad, marks=pytest.mark.nightly) for bad in ([], ["a"] * 65, "a"))])
def test_bad_patterns_are_refused(talked: Channel, bad: Any) -> None:
    with pytest.raises(Refusal, match="bad_plan"):
        talked.call("match", run=RUN, patterns=bad)


def test_lines_keep_their_limits_over_chunks_and_holes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    long = b"y" * (CHUNK + 100)
    with path.open("wb") as file:
        file.write(b"first\r\n" + long + b"\nshort\n")
        file.seek(64 << 20)
        file.write(b"\nafter the hole\nunfinished")
    begun = time.process_time()
    found = list(log_lines(str(path), 0))
    assert time.process_time() - begun < 1.0, "64 MiB of nothing were read"
    assert found[0] == "first"
    assert all(len(line) <= MATCH_LINE for line in found)
    assert "short" in found
    assert found[-2:] == ["after the hole", "unfinished"]
    assert list(log_lines(str(path), -10)) == ["unfinished"]
    os.unlink(path)
    assert list(log_lines(str(path), 0)) == []


@pytest.mark.parametrize(
    ("pattern", "short"),
    [(".*CUDA.*", "CUDA.*"), (".*.*a", "a"), (".*?a", ".*?a"), ("a.*", "a.*"), (".*", ""), (".*a|b", "a|b")],
)
def test_the_words_around_a_pattern_cost_nothing(pattern: str, short: str) -> None:
    assert without_edges(pattern) == short
