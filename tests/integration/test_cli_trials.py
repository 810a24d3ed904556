"""``airflow dtrain queue|trials|explain`` on gangs that really run on this machine."""

from __future__ import annotations

import psutil
import pytest

from airflow_provider_dtrain.core.control_characters import escaped
from tests.support.cli_world import World
from tests.support.gangs import Gangs, until
from tests.support.hostile_server import CONTROLS

pytest_plugins = ["tests.support.cli_world", "tests.support.gangs"]
pytestmark = [pytest.mark.airflow, pytest.mark.slow]


@pytest.mark.nightly
def test_a_trial_is_seen_read_and_killed_from_the_command_line(world: World, gangs: Gangs) -> None:
    ticket, waiting = gangs.submit("sleep 300", 2), gangs.submit("facts", 2)
    trial = str(ticket.trial_id)
    thread = gangs.carry(ticket)
    until(lambda: gangs.hook.store.attempts.get(ticket.attempt_id).state == "running")
    try:
        tasks = {row["trial_id"]: row for row in world.rows("queue", "list")}
        assert tasks[ticket.trial_id]["placement"] == {"local": [0, 1]}
        assert (tasks[waiting.trial_id]["state"], tasks[waiting.trial_id]["position"]) == ("waiting", 1)
        assert "waiting (1.)" in world("queue", "list").out
        assert [row["trial_id"] for row in world.rows("slots", "list", "--pool", "local")] == [ticket.trial_id] * 2
        why = world("explain", str(waiting.trial_id), "-o", "json")
        assert (why.code, why.json["position"]) == (3, 1)
        assert why.json["reason"]
        assert world("trials", "logs", str(waiting.trial_id)).code == 3

        until(lambda: "rank 1 of 2" in world("trials", "logs", trial, "--rank", "1").out)
        both = world("t", "logs", trial, "--all").out
        assert "[rank 0] rank 0 of 2" in both
        assert "[rank 1] rank 1 of 2" in both
        assert world("trials", "logs", trial, "--rank", "5").code == 1

        refused = world("hosts", "remove", "local", "-y")
        assert (refused.code, f"trial {trial}" in refused.err) == (3, True)
        assert world("trials", "kill", trial).code == 2
        assert world("trials", "kill", trial, "-y").code == 0
        followed = world("trials", "logs", trial, "-f")
        assert (followed.code, "has ended" in followed.err) == (0, True)
    finally:
        gangs.hook.store.control.kill(ticket.trial_id, "test")
        thread.join(60)
    described = world.rows("trials", "describe", trial)
    assert (described["state"], len(described["ranks"])) == ("killed", 2)
    assert "has ended already" in world("trials", "kill", trial, "-y").err


def test_a_finished_trial_has_logs_metrics_and_a_description(world: World, gangs: Gangs) -> None:
    ticket = gangs.submit("facts", 1)
    gangs.carry(ticket).join(90)
    trial = str(ticket.trial_id)
    assert "hparams" in world("trials", "logs", trial).out
    assert world("trials", "logs", trial, "--tail", "1").code == 0
    assert trial in [str(row["trial_id"]) for row in world.rows("trials", "list")]
    assert world.rows("trials", "metrics", trial) == []
    assert world("trials", "metrics", trial, "--csv").code == 0
    assert world.rows("explain", trial)["state"] == "completed"
    timeline = world.rows("trials", "timeline", trial)
    assert [row["kind"] for row in timeline][-3:] == ["granted", "launched", "ended"]
    assert "The trial completed" in world("trials", "timeline", trial, "--kind", "ended").out
    assert world("trials", "timeline", "999").code == 1


def test_reports_come_as_rows_and_as_comma_separated_values(world: World, gangs: Gangs) -> None:
    store, ticket = gangs.hook.store, gangs.submit("sleep 302", 1)
    watch = store.attempts.watch(ticket.attempt_id, watcher="test")
    store.queue.schedule("local")
    assert store.queue.take_up(ticket.attempt_id, watch)
    reports = [
        {"seq": 1, "at": 1.7e9, "kind": "report", "step": 1, "metrics": {"loss": 0.5, "step": 9, "=cmd": 1}},
        {"seq": 2, "at": 1.7e9, "kind": "report", "step": 2, "metrics": {"loss": float("nan")}},
    ]
    store.events.commit(ticket.attempt_id, watch, "local", "rank0.events", 0, 99, reports)
    rows = world.rows("trials", "metrics", str(ticket.trial_id), "--group", "training")
    assert [(row["step"], row["loss"], row["metrics.step"]) for row in rows] == [(1, 0.5, 9), (2, "nan", None)]
    lines = world("trials", "metrics", str(ticket.trial_id), "--csv").out.splitlines()
    assert lines[0] == "attempt,group,step,epoch,rank,at,'=cmd,loss,metrics.step"
    assert lines[2].endswith(",,nan,")
    store.queue.release(ticket.attempt_id, watch, "local", proof="clear")
    result = {CONTROLS: CONTROLS, "map": {CONTROLS: [CONTROLS]}}
    store.attempts.end(ticket.attempt_id, watch, state="completed", failure=None, result=result)
    for form in ("table", "plain", "yaml", "json"):
        shown = world("trials", "describe", str(ticket.trial_id), "-o", form).out
        assert escaped(shown) == shown, form
        assert "PWNED" in shown


def test_removing_a_host_by_force_says_what_it_ends(world: World, gangs: Gangs) -> None:
    ticket = gangs.submit("sleep 301", 2)
    thread = gangs.carry(ticket)
    until(lambda: gangs.hook.store.attempts.get(ticket.attempt_id).state == "running")
    try:
        tried = world("hosts", "remove", "local", "--force", "--dry-run")
        assert (tried.code, f"kills trial {ticket.trial_id}" in tried.err) == (0, True)
        done = world("hosts", "remove", "local", "--force", "-y", "-o", "json")
        assert done.code == 0, done.err
        assert [one["trial"] for one in done.json["ended"]] == [ticket.trial_id]
        assert "did not confirm" not in done.err
        assert [one.pid for one in psutil.process_iter(["cmdline"]) if "301" in (one.info["cmdline"] or [])] == []
    finally:
        gangs.hook.store.control.kill(ticket.trial_id, "test")
        thread.join(60)
    assert "local" not in [row["name"] for row in world.rows("hosts", "list")]
