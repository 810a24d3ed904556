"""State machine of a search: with any order of reports and crashes, the store decides by the rule, and only once."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from airflow_provider_dtrain.core.search.asha import Decision
from airflow_provider_dtrain.errors import StaleWatchError
from airflow_provider_dtrain.store.records.trials import Ticket
from airflow_provider_dtrain.store.store import Store
from testbed.rungs import Rungs
from testbed.stores import host, new_sqlite
from tests.support.machines import FOLDER, Crash, run_until_seen
from tests.support.search_world import Search

#: Bracket -> its rungs; all end at the same length.
BRACKETS = {0: 3, 1: 2}
LENGTH, DIVISOR = 4, 2
FAILURE = {"error": "UserError", "kind": "user", "message": "ValueError: no"}
ANY = st.integers(0, 10**6)
SOMETIMES = st.sampled_from([False, False, False, True])
METRICS = st.sampled_from([1.0, 2.0, 2.0, 3.0, 5.0, -1.0, float("nan"), float("inf"), None])
#: Events that occurred, so that a run without events cannot pass.
SEEN: Counter[str] = Counter()


class Model(Rungs):
    """Model of the rule, with trials that may still report after they have failed."""

    def __init__(self, num_rungs: int, smaller_is_better: bool) -> None:
        super().__init__(num_rungs, LENGTH, DIVISOR, smaller_is_better)
        self.failed: set[int] = set()
        self.told: dict[int, list[Decision]] = {}

    def ask(self, trial: int, rung: int, metric: float) -> None:
        waits_for = self._next.get(trial, 0)
        length = self.lengths[min(rung, len(self.lengths) - 1)]
        if waits_for == len(self.lengths) or length < self.lengths[waits_for]:
            return
        if trial in self.failed:
            self.failed.remove(trial)
            self._rungs[waits_for].leave(trial)
            del self._ended[trial]
        if trial not in self._ended:
            last = self.report(trial, length, metric)
            entered = self._next[trial] - waits_for
            self.told.setdefault(trial, []).extend([*["continue"] * (entered - 1), last])

    def fail(self, trial: int) -> None:
        if trial not in self._ended:
            super().fail(trial)
            self.failed.add(trial)


class SearchMachine(RuleBasedStateMachine):
    """Trials of one search with their followers, some of which are stale or crash inside a transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="dtrain-search-", dir=FOLDER)
        new_sqlite(Path(self.folder, "s.db"))
        self.store = Store.open(f"sqlite:///{self.folder}/s.db")
        self.crashing = False
        sa.event.listen(self.store.db.engine, "commit", self._maybe_crash)
        self.newest: dict[int, Ticket] = {}
        self.tickets: list[Ticket] = []
        self.cleared: set[int] = set()
        #: Numbers of the trials that Airflow may retry.
        self.errored: set[int] = set()
        self.bracket_of: dict[int, int] = {}

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    def _maybe_crash(self, connection: sa.Connection) -> None:
        if self.crashing and not connection.get_execution_options().get("dtrain_reads"):
            raise Crash

    @initialize(smaller=st.booleans())
    def plan(self, smaller: bool) -> None:
        self.store.hosts.add(host("a", 1))
        self.search = Search(self.store)
        self.models = {bracket: Model(rungs, smaller) for bracket, rungs in BRACKETS.items()}
        rungs = {bracket: model.lengths for bracket, model in self.models.items()}
        self.search.plan(rungs=rungs, divisor=DIVISOR, max_trials=10, smaller_is_better=smaller)

    @precondition(lambda self: len(self.newest) < 8)
    @rule()
    def submit(self) -> None:
        self._submit(len(self.newest), 0)

    def _submit(self, number: int, max_tries: int) -> None:
        ticket = self.search.start(number, max_tries=max_tries, bracket=number % 3 % 2)
        self.errored.discard(number)
        self.newest[number] = ticket
        self.tickets.append(ticket)
        self.bracket_of[ticket.trial_id] = number % 3 % 2

    @precondition(lambda self: self.tickets)
    @rule(which=ANY, rungs=st.lists(st.integers(0, 3), min_size=1, max_size=3), metric=METRICS, crashes=SOMETIMES)
    def ask(self, which: int, rungs: list[int], metric: float | None, crashes: bool) -> None:
        ticket = self.tickets[which % len(self.tickets)]
        events = [{"kind": "rung", "rung": rung, "metric": metric, "units": rung} for rung in rungs]
        self.crashing = crashes
        before = self.search.entries()
        try:
            self.search.commit(ticket, *events)
        except Crash:
            self.crashing = False
            SEEN["crash"] += 1
            assert self.search.entries() == before
            # The follower that takes over reads the same bytes again.
            self.search.follow(ticket.attempt_id)
            self.search.commit(ticket, *events)
        finally:
            self.crashing = False
        SEEN["asked"] += 1
        if ticket.trial_id in self.cleared:
            SEEN["asked though cleared"] += 1
            return
        model = self.models[self.bracket_of[ticket.trial_id]]
        SEEN["revived"] += ticket.trial_id in model.failed
        for rung in rungs:
            model.ask(ticket.trial_id, rung, float("nan") if metric is None else metric)

    @precondition(lambda self: self.tickets)
    @rule(which=ANY, metric=METRICS)
    def ask_without_right(self, which: int, metric: float | None) -> None:
        ticket = self.tickets[which % len(self.tickets)]
        self.store.attempts.watch(ticket.attempt_id, watcher="another")
        before = self.search.entries()
        try:
            self.search.ask(ticket, 3, metric)
        except StaleWatchError:
            SEEN["stale"] += 1
        assert self.search.entries() == before
        self.search.follow(ticket.attempt_id)

    @precondition(lambda self: self.newest)
    @rule(which=ANY, state=st.sampled_from(["errored", "errored", "errored", "killed", "completed", "stopped"]))
    def end(self, which: int, state: str) -> None:
        number = which % len(self.newest)
        ticket = self.newest[number]
        if self.store.attempts.get(ticket.attempt_id).ended_at is not None:
            return
        if state == "errored":
            self.errored.add(number)
        self.search.end(ticket, state, failure=FAILURE if state in {"errored", "killed"} else None)
        if state in {"errored", "killed"}:
            self.models[self.bracket_of[ticket.trial_id]].fail(ticket.trial_id)
        SEEN[state] += 1

    @precondition(lambda self: self.errored)
    @rule(which=ANY, rungs=st.lists(st.integers(0, 3), max_size=2), metric=METRICS)
    def retry(self, which: int, rungs: list[int], metric: float | None) -> None:
        number = sorted(self.errored)[which % len(self.errored)]
        self.errored.remove(number)
        ticket = self.newest[number]
        watch = self.store.attempts.watch(ticket.attempt_id, watcher="the retry")
        again = self.store.attempts.next(ticket.attempt_id, watch, failure=FAILURE, counted=True)
        self.tickets.remove(ticket)
        self.search.follow(again.attempt_id)
        self.newest[number] = again
        self.tickets.append(again)
        SEEN["retry"] += 1
        if rungs:
            self.ask(len(self.tickets) - 1, rungs, metric, False)

    @precondition(lambda self: self.newest)
    @rule(which=ANY, is_late=SOMETIMES)
    def draw_again(self, which: int, is_late: bool) -> None:
        number = which % len(self.newest)
        old = self.newest[number]
        if self.store.attempts.get(old.attempt_id).ended_at is not None:
            return
        again = self.search.draw_again(old)
        self.tickets.remove(old)
        self.newest[number] = again
        self.tickets.append(again)
        model = self.models[self.bracket_of[old.trial_id]]
        model.clear(old.trial_id)
        model.told.pop(old.trial_id, None)
        model.failed.discard(old.trial_id)
        SEEN["drawn again"] += 1
        if is_late:
            before = self.search.entries()
            self.search.ask(old, 3, 0.0)
            assert self.search.entries() == before

    @precondition(lambda self: self.newest)
    @rule(which=ANY, is_late=SOMETIMES)
    def clear(self, which: int, is_late: bool) -> None:
        number = which % len(self.newest)
        old = self.newest[number]
        key = self.store.trials.get(old.trial_id).key
        self._submit(number, key.max_tries + 1)
        self.cleared.add(old.trial_id)
        model = self.models[self.bracket_of[old.trial_id]]
        model.clear(old.trial_id)
        model.failed.discard(old.trial_id)
        SEEN["clear"] += 1
        if is_late:
            self.ask(self.tickets.index(old), [3], 0.0, False)

    @invariant()
    def the_rungs_are_those_of_the_rule(self) -> None:
        if not hasattr(self, "models"):
            return
        entries = self.search.entries()
        assert len({(entry.trial_id, entry.rung) for entry in entries}) == len(entries)
        for bracket, model in self.models.items():
            for rung in range(len(model.lengths)):
                mine = [e for e in entries if (e.bracket, e.rung, e.has_left) == (bracket, rung, False)]
                assert sorted(entry.trial_id for entry in mine) == sorted(model.entries(rung))
                failed = {entry.trial_id for entry in mine if entry.is_error}
                assert failed == {trial for trial in model.failed if model._next.get(trial, 0) == rung}

    @invariant()
    def everybody_was_told_what_the_rule_says_once(self) -> None:
        for ticket in self.tickets:
            model = self.models[self.bracket_of[ticket.trial_id]]
            assert self.search.told(ticket) == model.told.get(ticket.trial_id, [])


def test_decisions_are_those_of_the_rule_whatever_happens() -> None:
    needed = ["asked", "crash", "stale", "revived", "errored", "killed", "retry", "clear", "drawn again"]
    needed += ["asked though cleared"]
    run_until_seen(SearchMachine, SEEN, needed, examples=40, steps=30)
