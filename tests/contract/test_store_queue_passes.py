"""Results of scheduling passes on each database: preemption, claims, reservations, shares."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.core.scheduling.model import PoolOptions
from airflow_provider_dtrain.errors import UnplaceableError, UserError
from airflow_provider_dtrain.store.database.tables import allocations, pools
from airflow_provider_dtrain.store.records.gangs import GangSubmission
from airflow_provider_dtrain.store.records.trials import TrialKey
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host

pytestmark = pytest.mark.each_change

CHECKPOINT = {"seq": 1, "at": 1.0, "kind": "checkpoint", "step": 1, "path": "checkpoints/1"}
MIN_RUN_S = PoolOptions().min_run_s


def row_of(store, allocation_id):
    with store.db.engine.connect() as connection:
        return connection.execute(sa.select(allocations).where(allocations.c.id == allocation_id)).one()


def due_in_s(store, clock):
    with store.db.engine.connect() as connection:
        due = connection.scalar(sa.select(pools.c.next_due_at))
    return None if due is None else (due - clock.now).total_seconds()


def heard(store, *tickets):
    """Renew requests as their waiting tasks do."""
    for ticket in tickets:
        view = store.attempts.get(ticket.attempt_id)
        store.queue.renew(ticket.attempt_id, view.watch or store.attempts.watch(ticket.attempt_id, watcher="me"))


@pytest.fixture
def urgent(store, submit, start, clock):
    """Return a running gang that may be interrupted, its watch, and the more urgent one for which it has to go."""
    store.hosts.add(host("h1", 2))
    victim = submit(slots=2, preemptible=True)
    watch = start(victim)
    clock.advance(MIN_RUN_S)
    claimant = submit(slots=2, priority=1)
    result = store.queue.schedule("gpus")
    assert (result.granted, result.preempted) == ((), (victim.allocation_id,))
    return victim, watch, claimant


def test_a_gang_that_has_to_go_hears_for_whom(store, urgent):
    victim, _, claimant = urgent
    assert store.control.pending(victim.attempt_id).preempted_for == f"trial {claimant.trial_id}"
    assert store.attempts.get(victim.attempt_id).preempted_for == f"trial {claimant.trial_id}"
    assert store.attempts.get(claimant.attempt_id).preempted_for is None
    assert row_of(store, claimant.allocation_id).claim == {"h1": [0, 1]}


def test_nobody_is_told_to_go_twice_for_the_same(store, urgent, submit, clock):
    _, _, claimant = urgent
    submit(slots=1)
    heard(store, claimant)
    assert store.queue.schedule("gpus").preempted == ()


def test_the_slots_of_a_preempted_gang_go_to_the_claimant_and_nobody_else(store, urgent, submit):
    victim, watch, claimant = urgent
    thief = submit(slots=1, priority=1)
    store.queue.release(victim.attempt_id, watch, "h1", proof="clear")
    after = store.attempts.yield_gang(victim.attempt_id, watch, reason="for a more urgent one", paused=False)
    assert store.queue.schedule("gpus").granted == (claimant.allocation_id,)
    row = row_of(store, claimant.allocation_id)
    assert (row.claim, row.reserved_hosts, row.position) == (None, None, None)
    assert [store.attempts.get(t.attempt_id).allocation_state for t in (thief, after)] == ["waiting", "waiting"]


def test_counters_survive_a_preemption(store, urgent, clock):
    victim, watch, _ = urgent
    clock.advance(20)
    store.queue.release(victim.attempt_id, watch, "h1", proof="clear")
    after = store.attempts.yield_gang(victim.attempt_id, watch, reason="", paused=False)
    row = row_of(store, after.allocation_id)
    assert (row.held_s, row.waited_s) == (MIN_RUN_S + 20, 0)
    clock.advance(5)
    heard(store, after)
    store.queue.schedule("gpus")
    assert row_of(store, after.allocation_id).eligible_since is not None


def test_a_claim_survives_the_process_that_made_it(store, urgent, url, clock, submit):
    victim, watch, claimant = urgent
    another = Store.open(url, clock=clock)
    submit(slots=1, priority=2)
    assert another.queue.schedule("gpus").preempted == ()
    assert row_of(another, claimant.allocation_id).claim == {"h1": [0, 1]}
    another.queue.release(victim.attempt_id, watch, "h1", proof="clear")
    assert another.queue.schedule("gpus").granted == (claimant.allocation_id,)
    another.close()


@pytest.mark.parametrize("end", ["request", "pause", "silence", "host"])
def test_a_claim_ends_with_its_request_its_owner_and_its_host(store, urgent, submit, clock, end):
    _, _, claimant = urgent
    if end == "request":
        store.attempts.end(claimant.attempt_id, store.attempts.watch(claimant.attempt_id, watcher="me"), state="killed")
    elif end == "pause":
        store.control.pause(claimant.trial_id, "ann")
    elif end == "silence":
        clock.advance(61)
    else:
        store.hosts.add(host("h2", 2))
        store.hosts.set_state("h2", "draining")
        store.hosts.set_state("h1", "unreachable", "no answer")
    other = submit(slots=2, priority=1)
    store.queue.schedule("gpus")
    row = row_of(store, claimant.allocation_id)
    assert row.state == "released" or row.claim is None
    assert row_of(store, other.allocation_id).state == "waiting"


def test_only_what_wrote_a_checkpoint_or_says_it_can_is_interrupted(store, submit, start, clock):
    store.hosts.add(host("h1", 2))
    silent, other = submit(), submit()
    watch = start(silent)
    start(other)
    clock.advance(MIN_RUN_S)
    wanted = submit(slots=1, priority=1)
    assert store.queue.schedule("gpus").preempted == ()
    store.events.commit(silent.attempt_id, watch, "h1", "rank0.events", 0, 9, [CHECKPOINT])
    heard(store, wanted)
    assert store.queue.schedule("gpus").preempted == (silent.allocation_id,)


def test_a_gang_that_declined_is_not_interrupted_whatever_it_wrote(store, submit, start, clock):
    store.hosts.add(host("h1", 1))
    ticket = submit(preemptible=False)
    watch = start(ticket)
    store.events.commit(ticket.attempt_id, watch, "h1", "rank0.events", 0, 9, [CHECKPOINT])
    clock.advance(MIN_RUN_S)
    submit(priority=1)
    assert store.queue.schedule("gpus").preempted == ()


def test_a_costly_gang_runs_longer_before_it_is_interrupted(store, submit, start, clock):
    store.hosts.add(host("h1", 1))
    ticket = submit(preemptible=True)
    watch = start(ticket)
    store.attempts.set_cost(ticket.attempt_id, watch, 120)
    wanted = submit(priority=1)
    clock.advance(20 * 120 - 1)
    heard(store, wanted)
    assert store.queue.schedule("gpus").preempted == ()
    assert due_in_s(store, clock) <= 1.01
    clock.advance(1)
    heard(store, wanted)
    assert store.queue.schedule("gpus").preempted == (ticket.allocation_id,)


def test_with_preemption_off_nobody_is_interrupted(store, submit, start, clock):
    store.hosts.add(host("h1", 1))
    store.pools.set("gpus", preemption="off")
    start(submit(preemptible=True))
    clock.advance(MIN_RUN_S)
    submit(priority=1)
    assert store.queue.schedule("gpus").preempted == ()


def test_a_priority_that_is_raised_while_waiting_interrupts(store, submit, start, clock):
    store.hosts.add(host("h1", 1))
    victim = submit(preemptible=True)
    start(victim)
    wanted = submit()
    clock.advance(MIN_RUN_S)
    heard(store, wanted)
    assert store.queue.schedule("gpus").preempted == ()
    store.control.set("trial", wanted.trial_id, priority=1, by="ann")
    assert store.queue.schedule("gpus").preempted == (victim.allocation_id,)


def test_a_reservation_survives_the_process_and_stays_where_it_is(store, submit, start, url, clock):
    for name in ("h1", "h2", "h3"):
        store.hosts.add(host(name, 2))
    small = [submit(slots=1, preemptible=False) for _ in range(6)]
    watches = [start(ticket) for ticket in small]
    wide = submit(slots=4)
    store.queue.schedule("gpus")
    reserved = row_of(store, wide.allocation_id).reserved_hosts
    assert len(reserved) == 2
    another = Store.open(url, clock=clock)
    late = submit(slots=1)
    for ticket, watch in zip(small, watches, strict=True):
        placement = another.attempts.get(ticket.attempt_id).placement
        if set(placement) <= set(reserved):
            another.queue.release(ticket.attempt_id, watch, *placement, proof="clear")
            granted = another.queue.schedule("gpus").granted
            assert late.allocation_id not in granted
            if row_of(another, wide.allocation_id).state == "waiting":
                assert row_of(another, wide.allocation_id).reserved_hosts == reserved
    assert row_of(another, wide.allocation_id).state == "granted"
    assert set(another.attempts.get(wide.attempt_id).placement) == set(reserved)
    another.close()


def test_an_experiment_holds_at_most_its_max_slots_and_waits_without_counting(store, submit, start, clock):
    store.hosts.add(host("h1", 8))
    first, second = submit(slots=2, max_slots=2), submit(slots=2)
    other = submit(slots=2, experiment_name="other")
    assert set(store.queue.schedule("gpus").granted) == {first.allocation_id, other.allocation_id}
    clock.advance(40)
    heard(store, second)
    store.pools.set("gpus", reservations=1)
    store.queue.schedule("gpus")
    assert row_of(store, second.allocation_id).waited_s == pytest.approx(0, abs=0.01)
    assert row_of(store, second.allocation_id).eligible_since is None
    assert "at most 2 slots" in store.attempts.get(second.attempt_id).reason
    store.control.set("experiment", first.experiment_id, max_slots=0, by="ann")
    assert store.queue.schedule("gpus").granted == (second.allocation_id,)


def test_experiments_share_by_weight(store, submit, start, clock):
    store.hosts.add(host("h1", 3))
    start(submit(slots=1, experiment_name="heavy", weight=4.0))
    start(submit(slots=1, experiment_name="light", weight=1.0))
    light, heavy = submit(slots=1, experiment_name="light"), submit(slots=1, experiment_name="heavy")
    # One slot each: per weight the light one holds four times as much.
    assert store.queue.schedule("gpus").granted == (heavy.allocation_id,)
    assert store.attempts.get(light.attempt_id).position == 1


def test_two_passes_at_once_grant_each_gang_once(store, submit, url, clock):
    for number in range(4):
        store.hosts.add(host(f"h{number}", 2))
    tickets = [submit(slots=2) for _ in range(6)]
    stores = [Store.open(url, clock=clock) for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        results = list(threads.map(lambda one: one.queue.schedule("gpus"), stores))
    granted = [allocation for result in results for allocation in result.granted]
    if len(granted) < 4:
        granted += store.queue.schedule("gpus").granted
    assert sorted(granted) == [ticket.allocation_id for ticket in tickets[:4]]
    assert store.queue.schedule("gpus").granted == ()
    for one in stores:
        one.close()


def test_a_held_gang_is_named_and_not_interrupted(store, submit, clock):
    store.hosts.add(host("h1", 1))
    key = TrialKey(dag_id="d", run_id="r", task_id="hold")
    gang = store.gangs.submit(GangSubmission(key=key, pool="gpus", slots=1))
    watch = store.gangs.watch(gang.allocation_id, watcher="sensor")
    assert store.queue.schedule("gpus").granted == (gang.allocation_id,)
    assert store.gangs.take_up(gang.allocation_id, watch)
    clock.advance(890)
    wanted = submit(priority=1)
    result = store.queue.schedule("gpus")
    assert (result.granted, result.preempted) == ((), ())
    assert "gang of d/hold" in store.attempts.get(wanted.attempt_id).reason
    assert due_in_s(store, clock) <= 10.01
    clock.advance(11)
    assert store.queue.schedule("gpus").granted == (wanted.allocation_id,)


def test_a_silent_request_keeps_its_place_but_no_host(store, submit, start, clock):
    store.hosts.add(host("h1", 2))
    small = submit(preemptible=False)
    start(small)
    wide, late = submit(slots=2), submit(slots=1)
    store.queue.schedule("gpus")
    assert row_of(store, wide.allocation_id).reserved_hosts == ["h1"]
    clock.advance(61)
    heard(store, late)
    assert store.queue.schedule("gpus").granted == (late.allocation_id,)
    row = row_of(store, wide.allocation_id)
    assert (row.reserved_hosts, row.eligible_since, row.waited_s) == (None, None, 60)
    assert "skipped until" in store.attempts.get(wide.attempt_id).reason
    heard(store, wide)
    store.queue.schedule("gpus")
    assert store.attempts.get(wide.attempt_id).position == 1


def test_a_request_that_waits_says_when_it_may_start(store, submit, start, clock):
    store.hosts.add(host("h1", 2))
    start(submit(slots=2, max_runtime_s=600.0))
    ticket = submit(slots=2)
    store.queue.schedule("gpus")
    view = store.attempts.get(ticket.attempt_id)
    assert view.expected
    assert view.reason
    [_, waiting] = store.queue_view.tasks("gpus")
    assert (waiting.expected, waiting.position) == (view.expected, 1)


def test_a_pass_that_changes_nothing_writes_only_that_it_was(store, submit, start, clock):
    store.hosts.add(host("h1", 2))
    start(submit(slots=2))
    tickets = [submit(slots=2) for _ in range(3)]
    store.queue.schedule("gpus")
    store.pools.set("gpus", reservations=2)
    written = []
    sa.event.listen(store.db.engine, "before_cursor_execute", lambda *args: written.append(args[2]))
    store.queue.schedule("gpus")
    assert [text for text in written if text.startswith("UPDATE allocations")] == []
    assert tickets


def test_time_alone_makes_the_next_pass_due(store, submit, start, clock):
    store.hosts.add(host("h1", 1))
    start(submit(preemptible=True))
    wanted = submit(priority=1)
    store.queue.schedule("gpus")
    clock.advance(MIN_RUN_S - 30)
    heard(store, wanted)
    assert store.queue.schedule("gpus").preempted == ()
    assert 0 < due_in_s(store, clock) <= 30.01


@pytest.mark.parametrize("state", ["ready", "draining", "unreachable", "lost"])
def test_a_host_in_any_state_but_disabled_keeps_a_request_waiting(store, submit, state):
    store.hosts.add(host("h1", 8))
    store.hosts.add(host("h2", 2))
    ticket = submit(slots=8)
    for step in {"lost": ("unreachable", "lost"), "ready": ()}.get(state, (state,)):
        store.hosts.set_state("h1", step, "test")
    store.queue.schedule("gpus")
    assert not store.attempts.get(ticket.attempt_id).unplaceable
    heard(store, ticket)


@pytest.mark.parametrize("how", ["removed", "disabled", "fewer slots", "slot off"])
def test_what_can_never_run_any_more_fails_when_the_hosts_change_and_not_before(store, submit, how):
    store.hosts.add(host("h1", 8))
    store.hosts.add(host("h2", 2))
    ticket, patient = submit(slots=8), submit(slots=8, on_unplaceable="wait")
    store.hosts.set_state("h1", "draining")
    store.queue.schedule("gpus")
    heard(store, ticket)
    if how == "removed":
        store.hosts.remove("h1")
    elif how == "disabled":
        store.hosts.set_state("h1", "disabled")
    elif how == "fewer slots":
        store.hosts.update_facts("h1", {}, slots=host("h1", 4).slots)
    else:
        store.hosts.set_slot_enabled("h1", 0, False)
    store.queue.schedule("gpus")
    with pytest.raises(UnplaceableError, match="8 slots"):
        heard(store, ticket)
    store.attempts.end(ticket.attempt_id, store.attempts.get(ticket.attempt_id).watch, state="errored")
    heard(store, patient)
    assert row_of(store, patient.allocation_id).eligible_since is None
    store.hosts.add(host("h3", 8))
    assert patient.allocation_id in store.queue.schedule("gpus").granted


def test_hosts_that_come_and_leave_change_what_may_start(store, submit, start):
    store.hosts.add(host("h1", 2))
    first, second = submit(slots=2), submit(slots=2)
    start(first)
    assert store.queue.schedule("gpus").granted == ()
    store.hosts.add(host("h2", 2))
    assert store.queue.schedule("gpus").granted == (second.allocation_id,)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"reservations": -1}, "reservations .* got -1"),
        ({"max_wait_s": 0.0}, "max_wait_s .* got 0.0"),
        ({"protected_share": 1.5}, "protected_share .* got 1.5"),
        ({"protected_share": 0.0}, "protected_share .* got 0.0"),
        ({"fresh_s": 33 * 3600.0}, "at least fresh_s"),
        ({"young_s": 60.0}, "at least fresh_s"),
        ({"min_run_s": -1.0}, "min_run_s .* got -1.0"),
        ({"preemption": "always"}, "off, priority, slices"),
        ({"fit": "worse"}, "best, worst"),
    ],
)
def test_an_option_out_of_range_is_refused_and_changes_nothing(store, values, words):
    store.hosts.add(host("h1", 1))
    before = store.pools.get("gpus")
    with pytest.raises(UserError, match=words):
        store.pools.set("gpus", **values)
    assert store.pools.get("gpus") == before


def test_options_of_a_pool_are_kept(store):
    store.hosts.add(host("h1", 1))
    values = {"max_wait_s": 60.0, "protected_share": 0.25, "fresh_s": 1.0, "young_s": 2.0, "min_run_s": 3.0}
    pool = store.pools.set("gpus", preemption="slices", **values, by="ann")
    assert {name: getattr(pool.options, name) for name in values} == values
    assert store.pools.get("gpus").options == pool.options
