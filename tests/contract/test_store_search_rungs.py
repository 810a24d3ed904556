"""Decisions at rungs: by the rule, exactly once, with failures, clears and take-overs."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.errors import StaleWatchError
from airflow_provider_dtrain.store import rungs
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.tables import rung_entries
from airflow_provider_dtrain.store.store import Store
from testbed.rungs import Rungs
from testbed.stores import host
from tests.support.search_world import Search

FAILURE = {"error": "UserError", "kind": "user", "message": "ValueError: no"}


@pytest.fixture
def search(store) -> Search:
    store.hosts.add(host("a", 8))
    found = Search(store)
    found.plan(rungs={0: (1, 4, 16)}, max_trials=12, divisor=4)
    return found


@pytest.mark.each_change
def test_a_trial_goes_on_only_among_the_best_of_its_rung(search):
    told = [search.ask(search.start(number), 0, value) for number, value in enumerate((5.0, 4.0, 6.0, 3.0, 3.5, 7.0))]
    assert told == ["continue", "continue", "stop", "continue", "stop", "stop"]
    assert [(entry.trial_number, entry.metric) for entry in search.entries()] == [
        (3, 3.0), (4, 3.5), (1, 4.0), (0, 5.0), (2, 6.0), (5, 7.0),
    ]  # fmt: skip


def test_decisions_are_those_of_the_rule_for_each_metric_and_direction(store):
    store.hosts.add(host("a", 8))
    values = [3.0, math.nan, 1.0, 1.0, None, 2.0, -math.inf, "0", 4.0, 0.5, math.inf, 10**400]
    for smaller in (True, False):
        search = Search(store, run=f"smaller {smaller}")
        search.plan(max_trials=12, divisor=3, rungs={0: (3, 9)}, smaller_is_better=smaller)
        oracle = Rungs(2, 9, 3, smaller)
        for number, value in enumerate(values):
            metric = float(value) if isinstance(value, float) else math.nan
            told = search.ask(search.start(number), 0, value)
            assert told == oracle.report(number, 3, metric), (number, value)
        assert sum(entry.metric is None for entry in search.entries()) == 6


def test_one_question_may_reach_several_rungs_and_the_top_completes(search):
    first, second = search.start(0), search.start(1)
    assert search.ask(first, 1, 0.5, units=5) == "continue"
    assert search.told(first) == ["continue", "continue"]
    assert search.ask(second, 2, 0.7, units=16) == "stop"
    assert search.told(second) == ["stop"]
    assert search.ask(first, 2, 0.9, units=17) == "complete"
    entries = search.store.searches.decisions(first.trial_id)
    assert [(entry.rung, entry.units, entry.metric, entry.attempt) for entry in entries] == [
        (0, 5, 0.5, 1), (1, 5, 0.5, 1), (2, 17, 0.9, 1),
    ]  # fmt: skip
    assert (search.store.trials.get(first.trial_id).rung, search.store.attempts.get(second.attempt_id).rung) == (2, 0)


def test_a_question_beyond_the_top_is_one_of_the_top(search):
    ticket = search.start(0)
    assert search.ask(ticket, 99, 0.5) == "complete"
    assert search.told(ticket) == ["continue", "continue", "complete"]


def test_a_repeated_question_changes_nothing(search):
    ticket = search.start(0)
    search.ask(ticket, 0, 0.5)
    for other in (0.4, 0.3, 0.2, 0.1):
        search.ask(search.start(int(other * 10)), 0, other)
    before = search.entries()
    assert search.ask(ticket, 0, 99.0) == "continue"
    assert search.entries() == before


def test_an_entry_that_was_decided_is_not_replaced_by_another_one(search):
    search.ask(search.start(0), 0, 0.5)
    before = search.entries()
    with search.store.db.engine.begin() as conn:
        row = dict(conn.execute(sa.select(rung_entries)).mappings().one())
        values = {f"new_{name}": row[name] for name in rungs._NAMES} | {"new_metric": 0.1, "new_decision": "stop"}
        statements.execute(conn, rungs._ENTER, values)
    assert search.entries() == before


def test_late_reports_of_a_stopped_trial_are_ignored(search):
    search.ask(search.start(0), 0, 0.1)
    stopped = search.start(1)
    assert search.ask(stopped, 0, 0.5) == "stop"
    assert search.ask(stopped, 2, 0.0) == "stop"
    assert len(search.told(stopped)) == 1


@pytest.mark.parametrize("rung", [None, -1, "0", 0.0, True, [0]])
def test_a_question_without_a_rung_is_only_an_event(search, rung):
    ticket = search.start(0)
    assert search.ask(ticket, rung, 0.5) is None
    assert [event.kind for event in search.store.events.of_attempt(ticket.attempt_id)] == ["rung"]


def test_only_rank_0_of_a_trial_with_rungs_asks(search, submit, start):
    ticket = search.start(0)
    search.commit(ticket, {"kind": "rung", "rung": 0, "metric": 0.5}, stream="rank1.events")
    other = search.start(1, bracket=7)
    assert (search.told(ticket), search.ask(other, 0, 0.5)) == ([], None)
    plain = submit(task="alone")
    watch = start(plain)
    event = {"seq": 1, "at": 1.0, "kind": "rung", "rung": 0, "metric": 0.5}
    search.store.events.commit(plain.attempt_id, watch, "a", "rank0.events", 0, 9, [event])
    assert search.store.searches.decisions(plain.trial_id) == []


def test_brackets_are_compared_apart(store):
    store.hosts.add(host("a", 8))
    search = Search(store)
    search.plan(rungs={0: (1, 4), 1: (4,)}, max_trials=4)
    assert search.ask(search.start(0), 0, 0.1) == "continue"
    assert search.ask(search.start(1, bracket=1), 0, 0.9) == "complete"
    assert search.ask(search.start(2), 0, 0.9) == "stop"
    assert [(entry.bracket, entry.trial_number) for entry in search.entries()] == [(0, 0), (0, 2), (1, 1)]


def test_a_stale_follower_decides_nothing(search):
    ticket = search.start(0)
    search.store.attempts.watch(ticket.attempt_id, watcher="another")
    with pytest.raises(StaleWatchError):
        search.ask(ticket, 0, 0.5)
    assert search.entries() == []


# -- failures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["errored", "killed"])
def test_a_trial_that_failed_ranks_last_where_it_was(search, state):
    failed = search.start(0)
    search.ask(failed, 0, 0.5)
    search.end(failed, state, failure=FAILURE)
    assert search.told(failed) == ["continue"]
    last = search.entries()[-1]
    assert (last.rung, last.is_error, last.metric, last.decision, last.units) == (1, True, None, None, 1)
    assert search.store.trials.get(failed.trial_id).rung == 0
    # The failed trial counts: of two entries, the best one continues.
    other = search.start(1)
    assert search.ask(other, 1, 0.1) == "continue"


def test_failures_count_so_that_a_worse_trial_goes_on(search):
    for number in range(7):
        search.end(search.start(number), "errored", failure=FAILURE)
    assert search.ask(search.start(7), 0, 0.9) == "continue"
    assert search.ask(search.start(8), 0, 0.95) == "continue"
    assert search.ask(search.start(9), 0, 0.99) == "stop"


def test_a_trial_that_had_its_last_word_leaves_no_entry_when_it_fails(search):
    search.ask(search.start(0), 0, 0.1)
    stopped, completed = search.start(1), search.start(2)
    assert (search.ask(stopped, 0, 0.5), search.ask(completed, 2, 0.01)) == ("stop", "complete")
    before = search.entries()
    search.end(stopped, "errored", failure=FAILURE)
    search.end(completed, "killed", failure=FAILURE)
    assert search.entries() == before


def test_a_trial_that_airflow_retries_replaces_its_failure_by_its_report(search):
    ticket = search.start(0)
    search.end(ticket, "errored", failure=FAILURE)
    search.ask(search.start(1), 0, 0.5)
    watch = search.store.attempts.watch(ticket.attempt_id, watcher="the retry")
    again = search.store.attempts.next(ticket.attempt_id, watch, failure=FAILURE, counted=True)
    search.follow(again.attempt_id)
    assert again.trial_id == ticket.trial_id
    assert search.ask(again, 0, 0.4) == "continue"
    mine = search.store.searches.decisions(ticket.trial_id)
    assert [(entry.metric, entry.is_error, entry.attempt) for entry in mine] == [(0.4, False, 2)]
    # It is counted once: of 2 entries, one continues.
    assert search.ask(search.start(2), 0, 0.45) == "stop"
    assert len(search.entries()) == 3


def test_a_trial_that_fails_twice_has_one_entry(search):
    ticket = search.start(0)
    search.end(ticket, "errored", failure=FAILURE)
    watch = search.store.attempts.watch(ticket.attempt_id, watcher="the retry")
    again = search.store.attempts.next(ticket.attempt_id, watch, failure=FAILURE, counted=True)
    search.follow(again.attempt_id)
    search.end(again, "errored", failure=FAILURE)
    assert [(entry.rung, entry.is_error) for entry in search.entries()] == [(0, True)]


def test_a_trial_that_completes_or_is_stopped_by_a_person_leaves_no_failure(search):
    search.end(search.start(0), "completed")
    search.end(search.start(1), "stopped")
    assert search.entries() == []


# -- generations ----------------------------------------------------------------------------------------


def test_a_cleared_trial_leaves_the_rungs_and_what_others_were_told_stands(search):
    best = search.start(0)
    search.ask(best, 0, 0.1)
    second = search.start(1)
    assert search.ask(second, 0, 0.2) == "stop"
    new = search.start(0, max_tries=1)
    assert [(entry.trial_id, entry.has_left) for entry in search.entries()] == [
        (best.trial_id, True), (second.trial_id, False),
    ]  # fmt: skip
    # Better than what is left, though not than what has left.
    assert search.ask(new, 0, 0.15) == "continue"
    assert (search.told(best), search.told(second)) == (["continue"], ["stop"])


def test_a_late_question_of_a_cleared_trial_enters_nothing(search):
    old = search.start(0)
    search.submit(0, max_tries=1)
    assert search.ask(old, 0, 0.1) is None
    search.end(old, "killed")
    assert search.entries() == []


def test_a_clear_that_goes_back_to_fewer_tries_is_a_clear_too(search):
    first = search.start(0, max_tries=3)
    search.ask(first, 0, 0.1)
    search.submit(0, max_tries=1)
    assert [entry.has_left for entry in search.entries()] == [True]


# -- hyperparameters that were refused -----------------------------------------------------------------


def test_what_refused_hyperparameters_reported_counts_no_more_and_the_trial_enters_anew(search):
    good, refused = search.start(0), search.start(1)
    search.validate(refused, loss=0.1)
    assert search.ask(refused, 0, 0.1) == "continue"
    assert search.ask(good, 0, 0.5) == "stop"
    again = search.draw_again(refused)
    trial = search.store.trials.get(refused.trial_id)
    assert (trial.best_metric, trial.best_step, trial.rung, search.told(again)) == (None, None, None, [])
    assert [entry.trial_number for entry in search.entries()] == [0]
    # Its former 0.1 would have left it in the second place.
    assert search.ask(again, 0, 0.3) == "continue"
    search.validate(again, loss=0.3)
    assert search.store.trials.get(again.trial_id).best_metric == 0.3
    assert [(entry.metric, entry.attempt) for entry in search.entries()] == [(0.3, 2), (0.5, 1)]
    assert search.told(good) == ["stop"]


def test_late_reports_of_refused_hyperparameters_are_ignored_and_those_of_others_are_not(search):
    refused = search.start(0)
    again = search.draw_again(refused)
    search.validate(refused, loss=0.1)
    assert search.ask(refused, 0, 0.1) is None
    assert (search.entries(), search.store.trials.get(again.trial_id).best_metric) == ([], None)
    watch = search.watches[again.attempt_id]
    later = search.store.attempts.next(again.attempt_id, watch, failure=FAILURE, counted=True)
    search.validate(again, loss=0.2)
    assert search.ask(again, 0, 0.2) == "continue"
    assert search.store.trials.get(later.trial_id).best_metric == 0.2


def test_a_trial_that_others_end_is_ranked_last_although_its_hyperparameters_were_drawn_again(search):
    again = search.draw_again(search.start(0))
    search.end(again, "errored", failure=FAILURE)
    assert [(entry.is_error, entry.attempt) for entry in search.entries()] == [(True, 2)]


# -- together -------------------------------------------------------------------------------------------


@pytest.mark.each_change
def test_trials_that_ask_at_once_are_decided_one_after_the_other(search, url):
    tickets = [search.start(number) for number in range(8)]
    stores = [Store.open(url) for _ in range(4)]
    values = [0.8, 0.3, 0.6, 0.1, 0.5, 0.2, 0.7, 0.4]

    def ask(number):
        ticket = tickets[number]
        event = {"seq": 1, "at": 1.0, "kind": "rung", "rung": 0, "metric": values[number]}
        watch = search.watches[ticket.attempt_id]
        stores[number % 4].events.commit(ticket.attempt_id, watch, "a", "rank0.events", 0, 9, [event])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(8)))
    for opened in stores:
        opened.close()
    # Each decision depends on the entries before it: a replay in commit order gives the same decisions.
    order = search.order_of_entries()
    assert sorted(number for number, _ in order) == list(range(8))
    oracle = Rungs(3, 16, 4)
    assert [oracle.report(number, 1, values[number]) for number, _ in order] == [told for _, told in order]


@pytest.mark.parametrize("smaller", [True, False])
def test_a_decision_is_stored_with_its_standing_and_the_last_metric_that_continued(store, smaller):
    store.hosts.add(host("a", 8))
    search = Search(store)
    search.plan(max_trials=12, divisor=3, rungs={0: (3, 9)}, smaller_is_better=smaller)
    reported: list[float] = []
    for number, value in enumerate((3.0, 1.0, 1.0, math.nan, 2.0, 0.5, 4.0, 0.7, 0.1)):
        ticket = search.start(number)
        told = search.ask(ticket, 0, value)
        sign = 1 if smaller else -1
        reported.append(sign * value if math.isfinite(value) else math.inf)
        [entry] = store.searches.decisions(ticket.trial_id)
        kept = max(1, len(reported) // 3)
        last = sorted(reported)[kept - 1]
        assert entry.entries == len(reported)
        assert entry.place == 1 + sum(other <= reported[-1] for other in reported[:-1])
        assert (told == "continue") == (entry.place <= kept)
        assert entry.cutoff == (None if math.isinf(last) else sign * last)
