"""Days of hosts: who held their slots, their states, checks and slow ranks, with the rights of the reader."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.cli._store_source import StoreSource
from airflow_provider_dtrain.client.main import parser
from airflow_provider_dtrain.core.host_rates import HostFinding, HostRate, RateMetric
from airflow_provider_dtrain.core.lifecycle.states import HostState
from airflow_provider_dtrain.core.series.slow_causes import Finding, SlowCause
from airflow_provider_dtrain.core.series.stragglers import Changes, Straggler
from airflow_provider_dtrain.errors import NotFoundError, UserError
from airflow_provider_dtrain.resources.host_days import HostDay
from airflow_provider_dtrain.store import host_days as records
from airflow_provider_dtrain.store.queries.host_days import host_days
from airflow_provider_dtrain.store.queries.rights import AllRights
from airflow_provider_dtrain.store.records.gangs import GangSubmission
from airflow_provider_dtrain.store.records.trials import TrialKey
from airflow_provider_dtrain.terminal import host_days as terminal
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.search_world import Search

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
HOSTILE = '<img src=x onerror="alert(1)">\x1b[31m\u202edne'


class Site:
    """Hour by hour from noon: a trial on all of host a, then a trial of DAG other on one slot."""

    def __init__(self, store, clock) -> None:
        clock.now = NOON
        store.hosts.add(host("a", slots=4))
        search, self.other = Search(store), Search(store, name="secret", dag="other", run="r2")
        for one in (search, self.other):
            one.plan()
        first = search.start(0, slots=4)
        clock.advance(3600)
        search.end(first)
        self.ticket = self.other.start(0, slots=1)
        clock.advance(3600)
        self.first, self.second = first.trial_id, self.ticket.trial_id

    def end(self) -> None:
        """End the second trial."""
        self.other.end(self.ticket)

    def name_slow(self, store, at: datetime, text: str) -> None:
        """Name rank 3 of the second trial as slow."""
        cause = Finding(cause=SlowCause.OTHER_PROCESSES, text=text, advice="")
        named = Straggler(rank=3, host="a", since_s=int(at.timestamp()), ratio=2.0, cost=0.5, finding=cause)
        attempt = self.ticket.attempt_id
        store.stragglers.record(attempt, self.other.watches[attempt], Changes(named=(named,)))


@pytest.fixture
def site(store, clock) -> Site:
    return Site(store, clock)


def one_day(store, rights=None, name: str = "a", day: date | None = None) -> HostDay:
    (found,) = host_days(store, rights or AllRights(), [name], day=day).hosts
    return found


def work(found: HostDay) -> list[tuple]:
    return [(str(one.kind), one.trial_id, one.slots, one.since, one.until) for one in found.work]


def test_gangs_hold_their_slots_from_the_grant_to_the_release(store, site) -> None:
    found = one_day(store)
    assert work(found) == [
        ("trial", site.first, [0, 1, 2, 3], NOON, NOON + HOUR),
        ("trial", site.second, [0], NOON + HOUR, None),
    ]
    first = found.work[0]
    assert (first.name, first.trial_number, first.started_at) == ("e", 0, NOON)
    assert (first.trial_state, found.work[1].trial_state) == ("completed", "running")
    assert (found.held_slot_s, found.idle_slot_s) == (5 * 3600, 3 * 3600)
    # Before its registration, the host got no gangs.
    assert found.away_slot_s == 4 * 22 * 3600


def test_a_day_is_one_of_utc_and_work_may_begin_before_it(store, site, clock) -> None:
    clock.now = NOON + timedelta(days=2)
    first, second, today = (one_day(store, day=date(2026, 3, 10 + number)) for number in range(3))
    assert [one.trial_id for one in first.work] == [site.first, site.second]
    assert first.held_slot_s == 4 * 3600 + 11 * 3600
    assert work(second) == [("trial", site.second, [0], NOON + HOUR, None)]
    assert (second.held_slot_s, second.idle_slot_s, second.away_slot_s) == (86400, 3 * 86400, 0)
    assert today.held_slot_s == 12 * 3600
    site.end()
    # Released after its end: it still held the slot on the earlier days.
    assert work(one_day(store, day=date(2026, 3, 11))) == [("trial", site.second, [0], NOON + HOUR, clock.now)]
    with pytest.raises(UserError, match="to 2026-03-12"):
        one_day(store, day=date(2026, 3, 13))
    for early in (date(1969, 12, 31), date.min):
        with pytest.raises(UserError, match="from 1970"):
            one_day(store, day=early)
    assert one_day(store, day=date(1970, 1, 1)).work == []


def test_former_states_are_kept_with_their_reasons(store, site, clock) -> None:
    store.hosts.set_state("a", HostState.UNREACHABLE, "no route")
    clock.advance(600)
    store.hosts.set_state("a", HostState.READY)
    store.hosts.drain("a", HOSTILE)
    clock.advance(600)
    site.end()
    clock.advance(600)
    found = one_day(store)
    assert [(str(one.state), one.reason) for one in found.states] == [
        ("ready", ""),
        ("unreachable", "no route"),
        ("draining", HOSTILE),
        ("drained", HOSTILE),
    ]
    edges = [NOON + HOUR * 2 + timedelta(seconds=600 * number) for number in range(3)]
    assert [one.since for one in found.states] == [NOON, *edges]
    assert [one.until for one in found.states] == [*edges, None]
    # Without gangs it was away for half an hour, in which its last gang still held a slot for 20 minutes.
    assert found.away_slot_s == 4 * (86400 - 9000) + 4 * 1800 - 1200
    assert found.idle_slot_s + found.held_slot_s + found.away_slot_s == 4 * 86400


def test_retention_removes_former_states_and_a_removed_host_has_none(store, site, clock) -> None:
    store.hosts.set_state("a", HostState.UNREACHABLE)
    clock.advance(60)
    store.hosts.set_state("a", HostState.READY)
    clock.advance(60)
    removed = [
        one for one in store.retention.remove(clock.now - timedelta(seconds=90)) if one.kind == "states of hosts"
    ]
    assert [one.count for one in removed] == [1]
    assert [str(one.state) for one in one_day(store).states] == ["unreachable", "ready"]
    store.hosts.remove("a", force=True)
    with pytest.raises(NotFoundError, match="no host 'a'"):
        one_day(store)


def test_trials_on_a_held_gang_follow_it_and_a_check_is_no_gang(store, clock) -> None:
    clock.now = NOON
    store.hosts.add(host("a", slots=2))
    store.hosts.add(host("b", slots=1))
    key = TrialKey(dag_id="d", run_id="r", task_id="hold")
    store.gangs.submit(GangSubmission(key=key, pool="gpus", slots=2))
    store.queue.schedule("gpus")
    store.host_rates.hold(["b"], by="ann")
    clock.advance(60)
    assert work(one_day(store)) == [("gang", None, [0, 1], NOON, None)]
    assert one_day(store).work[0].name == "gang of d/hold"
    assert one_day(store).held_slot_s == 120
    (check,) = one_day(store, name="b").work
    assert (str(check.kind), check.name) == ("check", "")


def rate(name: str, peer: str | None = None) -> HostRate:
    return HostRate(host=name, slot=0, peer=peer, metric=RateMetric.MEMORY, value=1.0, spread=0.0, kind="k")


def test_checks_and_slow_ranks_are_notes(store, site, clock) -> None:
    store.hosts.add(host("b", slots=1))
    store.host_rates.record([rate("a"), rate("b")], [])
    clock.advance(60)
    slow = rate("a", peer="b")
    store.host_rates.record([slow], [HostFinding(hosts=("b",), sentence="network slow", rates=(slow,), ratio=0.5)])
    site.name_slow(store, clock.now, "no cause")
    clock.advance(60)
    notes = one_day(store).notes
    assert [(str(one.kind), one.is_slow, one.trial_id, one.until) for one in notes] == [
        ("check", False, None, NOON + 2 * HOUR),
        ("check", False, None, NOON + 2 * HOUR + timedelta(seconds=60)),
        ("slow_rank", True, site.second, None),
    ]
    assert notes[2].text.startswith("Rank 3 on a takes 2.0 times")
    assert [(one.is_slow, one.text) for one in one_day(store, name="b").notes] == [
        (False, "1 measurements without a finding"),
        (True, "network slow"),
    ]


def test_of_more_than_an_answer_has_the_latest_part_is_complete(store, clock, monkeypatch) -> None:
    monkeypatch.setattr(records, "_RELEASED", records._RELEASED.limit(3))
    monkeypatch.setattr(records, "SLOTS_MOST", 2)
    clock.now = NOON
    store.hosts.add(host("a", slots=2))
    search = Search(store)
    search.plan(max_trials=9)
    tickets = []
    for number in range(4):
        tickets.append(search.start(number, slots=1))
        clock.advance(600)
        search.end(tickets[-1])
    found = host_days(store, AllRights(), ["a"])
    assert (found.is_cut, found.since, found.until) == (True, NOON + timedelta(minutes=20), clock.now)
    (day,) = found.hosts
    assert [one.trial_id for one in day.work] == [one.trial_id for one in tickets[2:]]
    assert (day.held_slot_s, day.idle_slot_s, day.away_slot_s) == (1200, 1200, 0)


@SQLITE
def test_the_days_of_many_hosts_cost_as_many_statements_as_that_of_one(store, site) -> None:
    for number in range(20):
        store.hosts.add(host(f"h{number}", slots=1))
    statements: list[str] = []
    sa.event.listen(store.db.engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    counts = []
    for names in (["a"], ["a", *(f"h{number}" for number in range(20)), "nowhere"]):
        statements.clear()
        host_days(store, AllRights(), names)
        counts.append(len(statements))
    assert counts[0] == counts[1] <= 12


@pytest.mark.airflow
@SQLITE
def test_work_of_dags_that_a_user_may_not_read_has_no_names(store, site, clock, airflow_home) -> None:
    site.name_slow(store, clock.now, "secret cause")
    clock.advance(60)
    api = Api(store, readable={"d"})
    answer = api.answer("GET", "/cluster/day?host=a&host=<b>")
    (found,) = answer.json()["hosts"]
    assert [(one["kind"], one["trial_id"], one["experiment_id"], one["name"]) for one in found["work"]] == [
        ("trial", 1, 1, "e"),
        ("other", None, None, ""),
    ]
    assert [(one["text"], one["trial_id"]) for one in found["notes"]] == [("slow rank", None)]
    assert found["held_slot_s"] == 5 * 3600 + 60
    assert "secret" not in answer.text
    for query, status in (
        ("", 422),
        ("host=" + "h" * 64, 422),
        ("host=a&day=soon", 422),
        ("host=a&day=2026-02-30", 422),
        ("&".join(f"host=h{number}" for number in range(101)), 422),
        ("host=nowhere", 404),
        ("host=a&day=2030-01-01", 422),
        ("host=a&day=0001-01-01", 422),
    ):
        assert api.answer("GET", f"/cluster/day?{query}").status_code == status, query
    assert Api(store, plugins=False).answer("GET", "/cluster/day?host=a").status_code == 403


@SQLITE
def test_the_command_prints_the_day_and_makes_hostile_reasons_visible(store, site, clock, capsys) -> None:
    store.hosts.drain("a", HOSTILE)
    clock.advance(60)
    arguments = parser().parse_args(["hosts", "day", "a", "-o", "plain"])
    terminal.day(arguments, StoreSource(store))
    shown = capsys.readouterr().out
    assert "held           5.0 slot hours (5 %)" in shown
    assert "trial 1 of e: completed" in shown
    assert "0-3" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    with pytest.raises(SystemExit):
        parser().parse_args(["hosts", "day", "a", "--day", "2026-02-30"])
    arguments = parser().parse_args(["hosts", "day", "nowhere", "--day", "2026-03-10"])
    with pytest.raises(NotFoundError, match="no host 'nowhere'"):
        terminal.day(arguments, StoreSource(store))
