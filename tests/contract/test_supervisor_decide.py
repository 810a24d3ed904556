"""The searcher's decisions on their way to the ranks: the command ``decide``."""

from __future__ import annotations

import json
import os
import stat
import threading
from typing import Any

import pytest

from tests.support.supervisor_host import SLEEP, Host, Refusal, make_plan, start, until

RUN = "t1.1.7"


def told(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((host.run_dir(RUN) / "decisions.json").read_text())
    return found


def test_decisions_lie_where_the_ranks_look_and_nobody_else_reads_them(host: Host) -> None:
    channel = host.channel()
    start(channel, make_plan(RUN, *SLEEP))
    answer = channel.call("decide", run=RUN, token=7, decisions={"0": "continue", "1": "stop"})
    assert answer["decisions"] == told(host) == {"0": "continue", "1": "stop"}
    assert stat.S_IMODE((host.run_dir(RUN) / "decisions.json").stat().st_mode) == 0o600


def test_a_rank_sees_a_decision_only_as_a_whole(one_host: Host) -> None:
    """The rank polls the file and could not parse a half-written one."""
    channel = one_host.channel()
    start(channel, make_plan(RUN, *SLEEP))
    over, bad = threading.Event(), []

    def poll() -> None:
        while not over.is_set():
            try:
                json.loads((one_host.run_dir(RUN) / "decisions.json").read_text())
            except FileNotFoundError:
                pass
            except ValueError as error:
                bad.append(error)

    reader = threading.Thread(target=poll)
    reader.start()
    for rung in range(100):
        channel.call("decide", run=RUN, token=7, decisions={str(rung): "continue"})
    over.set()
    reader.join()
    assert bad == []
    assert len(told(one_host)) == 100


def test_a_repeated_decision_changes_nothing_and_one_that_is_there_stands(one_host: Host) -> None:
    channel = one_host.channel()
    start(channel, make_plan(RUN, *SLEEP))
    channel.call("decide", run=RUN, token=7, decisions={"0": "continue", "1": "stop"})
    before = os.stat(one_host.run_dir(RUN) / "decisions.json").st_ino
    channel.call("decide", run=RUN, token=7, decisions={"0": "continue"})
    assert channel.call("decide", run=RUN, token=7, decisions={"1": "continue"})["decisions"]["1"] == "stop"
    assert os.stat(one_host.run_dir(RUN) / "decisions.json").st_ino == before, "nothing was written"
    assert told(one_host) == {"0": "continue", "1": "stop"}


def test_two_followers_at_once_lose_no_decision(one_host: Host) -> None:
    first, second = one_host.channel(), one_host.channel()
    start(first, make_plan(RUN, *SLEEP))
    for rung in range(0, 100, 2):
        keys = [
            (channel, channel.post("decide", run=RUN, token=7, decisions={str(rung + nth): "continue"}))
            for nth, channel in enumerate((first, second))
        ]
        for channel, key in keys:
            channel.answer(key)
    assert len(told(one_host)) == 100


@pytest.mark.parametrize("token", [6, 8])
def test_a_decision_for_another_grant_is_refused(one_host: Host, token: int) -> None:
    channel = one_host.channel()
    start(channel, make_plan(RUN, *SLEEP))
    with pytest.raises(Refusal) as refused:
        channel.call("decide", run=RUN, token=token, decisions={"0": "stop"})
    assert refused.value.code == "stale_token"
    assert not (one_host.run_dir(RUN) / "decisions.json").exists()


@pytest.mark.parametrize("decisions", [
    {"0": "kill"}, {"0": None}, {"0": ["stop"]}, {"-1": "stop"}, {"01": "stop"}, {"../0": "stop"}, {"0\n": "stop"},
    {"x" * 1000: "stop"}, ["stop"], "stop", None, {str(rung): "stop" for rung in range(257)},
])  # fmt: skip
def test_what_is_no_decision_is_refused_by_the_name_of_the_field(one_host: Host, decisions: Any) -> None:
    channel = one_host.channel()
    start(channel, make_plan(RUN, *SLEEP))
    with pytest.raises(Refusal) as refused:
        channel.call("decide", run=RUN, token=7, decisions=decisions)
    assert refused.value.code == "bad_plan"
    assert refused.value.answer["field"].startswith("decisions")
    assert not (one_host.run_dir(RUN) / "decisions.json").exists()


def test_the_file_stays_small_however_often_somebody_decides(one_host: Host) -> None:
    channel = one_host.channel()
    start(channel, make_plan(RUN, *SLEEP))
    channel.call("decide", run=RUN, token=7, decisions={str(rung): "continue" for rung in range(256)})
    with pytest.raises(Refusal) as refused:
        channel.call("decide", run=RUN, token=7, decisions={"256": "stop"})
    assert refused.value.code == "bad_plan"
    assert len(told(one_host)) == 256


def test_an_unknown_run_has_no_decisions_and_one_that_is_over_may_get_one(one_host: Host) -> None:
    channel = one_host.channel()
    with pytest.raises(Refusal) as refused:
        channel.call("decide", run=RUN, token=7, decisions={"0": "stop"})
    assert refused.value.code == "unknown_run"
    start(channel, make_plan(RUN, "true"))
    channel.wait_event(RUN, "ended")
    channel.call("decide", run=RUN, token=7, decisions={"0": "stop"})
    assert told(one_host) == {"0": "stop"}


def test_a_link_to_decisions_is_not_followed(one_host: Host, tmp_path: Any) -> None:
    """A rank may create a symbolic link. Its target stays unchanged."""
    channel, precious = one_host.channel(), tmp_path / "precious"
    precious.write_text('{"0":"stop"}')
    start(channel, make_plan(RUN, *SLEEP))
    (one_host.run_dir(RUN) / "decisions.json").symlink_to(precious)
    channel.call("decide", run=RUN, token=7, decisions={"0": "continue"})
    until(lambda: told(one_host) == {"0": "continue"})
    assert precious.read_text() == '{"0":"stop"}'


PLAIN = (
    "python",
    "-c",
    "import json, os, time\n"
    "for epoch in (1, 2):\n"
    "    with open(os.environ['DTRAIN_METRICS'], 'a') as file:\n"
    "        file.write(json.dumps({'step': epoch, 'validation': {'loss': 0.5}, 'epoch': epoch}) + '\\n')\n"
    "time.sleep(1000)\n",
)


def test_a_program_without_the_library_asks_by_its_metrics_file_and_is_ended_by_the_answer(one_host: Host) -> None:
    channel = one_host.channel()
    searcher = {"metric": "loss", "max_length": {"epochs": 8}}
    context = {"config": {"searcher": searcher}, "hparams": {}, "rungs": [2, 4]}
    start(channel, make_plan(RUN, *PLAIN), context=context)

    def asked() -> dict[str, Any] | None:
        return next((one for one in channel.events(RUN, "rank0.events") if one["kind"] == "rung"), None)

    question = channel.wait(asked)
    assert (question["rung"], question["units"], question["metric"]) == (0, 2, 0.5)
    channel.call("decide", run=RUN, token=7, decisions={"0": "stop"})
    assert channel.wait_event(RUN, "exit")["sent_signal"]
    assert channel.wait_event(RUN, "ended")["reason"] != "failed"
