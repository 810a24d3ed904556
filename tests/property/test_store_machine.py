"""State machine of the store: with any order of calls and crashes, no slot is ever granted twice."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path

import sqlalchemy as sa
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from airflow_provider_dtrain.errors import ConflictError, NotFoundError, StaleWatchError, UnplaceableError
from airflow_provider_dtrain.store.database.tables import allocation_slots, allocations, attempts, trials
from airflow_provider_dtrain.store.records.trials import HostRecord, SlotRecord, TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store
from testbed.stores import new_sqlite
from tests.support.machines import FOLDER, STEPS, Crash, run_until_seen

SIZES = {"h1": 4, "h2": 4, "h3": 2}
HOLDS = {"granted", "starting", "running", "stopping", "expired"}
FAILURE = {"error": "HostUnreachableError", "kind": "infra", "message": "gone", "host": None, "rank": None}
ANY = st.integers(0, 10**6)
SOMETIMES = st.sampled_from([False, False, False, True])
STATES = st.sampled_from(["draining", "ready", "ready", "ready", "unreachable"])
WRITES = (
    "attempts.set_running", "queue.release", "queue.put_back", "attempts.next", "attempts.move_on", "attempts.end",
    "attempts.yield_gang",
)  # fmt: skip
#: Events that occurred, so that a run without events cannot pass.
SEEN: Counter[str] = Counter()


class StoreMachine(RuleBasedStateMachine):
    """Several callers, some of which are stale or crash inside a transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="dtrain-machine-", dir=FOLDER)
        new_sqlite(Path(self.folder, "s.db"))
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.store = Store.open(f"sqlite:///{self.folder}/s.db", clock=lambda: self.now)
        self.crashing = False
        sa.event.listen(self.store.db.engine, "commit", self._maybe_crash)
        #: Attempt -> every issued watch; the last one is current.
        self.watches: dict[int, list[int]] = {}
        self.trials = itertools.count()
        self.last_token = 0
        #: (host, slot) -> (attempt, token) of the process that runs there.
        self.processes: dict[tuple[str, int], tuple[int, int]] = {}
        self.token_of: dict[int, int] = {}
        #: Attempt -> offset of its stream after the reported checkpoints.
        self.told: dict[int, int] = {}
        #: Allocation -> the recoverer that has claimed it, and the end of the claim.
        self.claims: dict[int, tuple[str, datetime]] = {}

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    def _maybe_crash(self, _connection: object) -> None:
        if self.crashing:
            raise Crash

    def call(self, method: str, *arguments: object, crashes: bool = False, **named: object) -> object:
        """Call the store. A call that crashes must change nothing."""
        before = self.dump() if crashes else None
        self.crashing = crashes
        try:
            return attrgetter(method)(self.store)(*arguments, **named)
        except (Crash, StaleWatchError, ConflictError, NotFoundError, UnplaceableError):
            return None
        finally:
            self.crashing = False
            assert before is None or self.dump() == before

    def dump(self) -> list[object]:
        with self.store.db.engine.connect() as connection:
            return [connection.execute(sa.select(table)).all() for table in allocation_slots.metadata.sorted_tables]

    def pick(self, which: int, stale: bool, states: set[str]) -> tuple[int, int] | None:
        """Return an attempt whose allocation is in one of the states, and one of its watches."""
        with self.store.db.engine.connect() as connection:
            query = sa.select(attempts.c.id).join(allocations, allocations.c.id == attempts.c.allocation_id)
            found = list(connection.scalars(query.where(allocations.c.state.in_(states)).order_by(attempts.c.id)))
        if not found:
            return None
        attempt = found[which % len(found)]
        watches = self.watches[attempt]
        return attempt, watches[which % len(watches)] if stale else watches[-1]

    def learn(self, ticket: object) -> None:
        if ticket is not None and ticket.attempt_id not in self.watches:
            self.watches[ticket.attempt_id] = [self.store.attempts.watch(ticket.attempt_id, watcher="m")]

    @initialize(sizes=st.lists(st.sampled_from([0, 1, 2, 3, 4, 8]), min_size=5, max_size=5))
    def a_busy_pool(self, sizes: list[int]) -> None:
        for name, size in SIZES.items():
            slots = tuple(SlotRecord(index=i) for i in range(size))
            self.store.hosts.add(HostRecord(name=name, pool="p", slot_type="cpu", slots=slots))
        self.config = self.store.configs.put({}, origins={}).config_id
        self.store.pools.set("p", preemption="slices", min_run_s=5.0, fresh_s=40.0, young_s=90.0, max_wait_s=300.0)
        for size in sizes:
            self.submit_now(size, 42, False)
        self.store.queue.schedule("p")
        for attempt, watches in list(self.watches.items()):
            self.take_up_now(attempt, watches[-1], False)
            self.watches[attempt].append(self.store.attempts.watch(attempt, watcher="m"))

    @rule(
        slots=st.sampled_from([0, 1, 1, 2, 2, 3, 4, 8]),
        priority=st.sampled_from([1, 42]),
        crashes=SOMETIMES,
    )
    def submit(self, slots: int, priority: int, crashes: bool) -> None:
        self.submit_now(slots, priority, crashes)

    def submit_now(self, slots: int, priority: int, crashes: bool) -> None:
        key = TrialKey(dag_id="d", run_id="r", task_id=f"t{next(self.trials)}")
        submission = TrialSubmission(
            key=key, experiment_name="e", config_id=self.config, pool="p", slots=slots, priority=priority
        )
        self.learn(self.call("trials.submit", submission, crashes=crashes))

    @rule(crashes=SOMETIMES)
    def schedule(self, crashes: bool) -> None:
        self.renew_all()
        self.call("queue.schedule", "p", crashes=crashes)

    def renew_all(self) -> None:
        for attempt, watches in self.watches.items():
            self.call("queue.renew", attempt, watches[-1])

    @rule(seconds=st.sampled_from([1, 1, 1, 31, 61]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(which=ANY)
    def take_over(self, which: int) -> None:
        if (picked := self.pick(which, False, HOLDS | {"waiting"})) is not None:
            attempt, before = picked
            self.watches[attempt].append(self.store.attempts.watch(attempt, watcher="m"))
            assert self.watches[attempt][-1] > before

    @rule(which=ANY, stale=SOMETIMES, crashes=SOMETIMES)
    def take_up(self, which: int, stale: bool, crashes: bool) -> None:
        if (picked := self.pick(which, stale, {"granted"})) is not None:
            self.take_up_now(*picked, crashes)

    @rule(which=ANY)
    def wait_and_take_up(self, which: int) -> None:
        if (picked := self.pick(which, False, {"waiting", "granted"})) is not None:
            self.renew_all()
            self.call("queue.schedule", "p")
            self.take_up_now(*picked, False)

    def take_up_now(self, attempt: int, watch: int, crashes: bool) -> None:
        run = self.call("queue.take_up", attempt, watch, crashes=crashes)
        if run is not None:
            self.note("granted")
            assert watch == self.watches[attempt][-1]
            self.start_processes(attempt)

    def start_processes(self, attempt: int) -> None:
        view = self.store.attempts.get(attempt)
        assert view.token is not None
        for host, slots in view.placement.items():
            for slot in slots:
                assert (host, slot) not in self.processes, "two gangs on one slot"
                self.processes[host, slot] = attempt, view.token

    @rule(
        which=ANY,
        stale=SOMETIMES,
        crashes=SOMETIMES,
        method=st.sampled_from(["attempts.set_running", "attempts.set_stopping"]),
    )
    def progress(self, which: int, stale: bool, crashes: bool, method: str) -> None:
        state = "starting" if method == "attempts.set_running" else "running"
        picked = self.pick(which, stale, {state})
        if picked is not None and self.store.attempts.get(picked[0]).state == state:
            self.change(picked, method, *(() if method == "attempts.set_running" else ("why",)), crashes=crashes)

    @rule(which=ANY, stale=SOMETIMES, crashes=SOMETIMES, partly=st.booleans())
    def fence_and_release(self, which: int, stale: bool, crashes: bool, partly: bool) -> None:
        if (picked := self.pick(which, stale, HOLDS - {"granted"})) is None:
            return
        view = self.store.attempts.get(picked[0])
        for host in view.held_hosts[: 1 if partly else None]:
            # As on a host: every process of the attempt's run ends before the host answers ``clear``.
            ended = [place for place, (run, _) in self.processes.items() if run == picked[0] and place[0] == host]
            for place in ended:
                del self.processes[place]
            self.change(picked, "queue.release", host, crashes=crashes, proof="clear")

    @rule(which=ANY, stale=SOMETIMES, crashes=SOMETIMES, host=st.sampled_from([None, *SIZES]))
    def put_back(self, which: int, stale: bool, crashes: bool, host: str | None) -> None:
        picked = self.pick(which, stale, {"starting", "released"})
        if picked is not None and self.store.attempts.get(picked[0]).state == "starting":
            self.change(picked, "queue.put_back", "why", host, crashes=crashes)

    @rule(which=ANY, stale=SOMETIMES, crashes=SOMETIMES, host=st.sampled_from([None, *SIZES]))
    def restart(self, which: int, stale: bool, crashes: bool, host: str | None) -> None:
        picked = self.pick(which, stale, {"starting", "running", "stopping", "released"})
        if picked is None or self.store.attempts.get(picked[0]).state not in {"starting", "running", "stopping"}:
            return
        if host is None:
            ticket = self.change(picked, "attempts.next", crashes=crashes, failure=FAILURE, counted=True)
            self.learn(ticket)
            if ticket is not None and self.store.attempts.get(ticket.attempt_id).state == "starting":
                mine = {place: holder for place, holder in self.processes.items() if holder[0] == picked[0]}
                self.processes |= {place: (ticket.attempt_id, token) for place, (_, token) in mine.items()}
        else:
            self.learn(self.change(picked, "attempts.move_on", crashes=crashes, failure=FAILURE, exclude_host=host))

    @rule(which=ANY, stale=SOMETIMES, crashes=SOMETIMES, state=st.sampled_from(["errored", "killed"]))
    def end(self, which: int, stale: bool, crashes: bool, state: str) -> None:
        if (picked := self.pick(which, stale, HOLDS | {"waiting"})) is not None:
            self.change(picked, "attempts.end", crashes=crashes, state=state)

    # -- preemption and pause ------------------------------------------------------------------
    @rule(which=ANY, crashes=SOMETIMES)
    def a_checkpoint_is_told(self, which: int, crashes: bool) -> None:
        picked = self.pick(which, False, {"running"})
        if picked is not None and self.store.attempts.get(picked[0]).state == "running":
            event = {"seq": 1, "at": 0.0, "kind": "checkpoint", "step": 1, "path": "checkpoints/1"}
            host, old = next(iter(self.store.attempts.get(picked[0]).placement)), self.told.get(picked[0], 0)
            self.change(picked, "events.commit", host, "rank0.events", old, old + 10, [event], crashes=crashes)
            if not crashes:
                self.told[picked[0]] = old + 10

    @rule(which=ANY, slots=st.sampled_from([2, 4, 8]))
    def an_urgent_one_comes(self, which: int, slots: int) -> None:
        """A preemptible trial runs, and a trial with a better priority waits for its slots."""
        for _ in range(3):
            self.wait_and_take_up(which)
        for attempt, watches in list(self.watches.items()):
            if self.store.attempts.get(attempt).state == "starting":
                self.change((attempt, watches[-1]), "attempts.set_running")
            self.a_checkpoint_is_told(attempt, False)
        self.now += timedelta(seconds=10)
        self.submit_now(slots, 1, False)
        self.schedule(False)
        wanted = [attempt for attempt in self.watches if self.store.control.pending(attempt).preempted_for is not None]
        SEEN["preempted"] += len(wanted)

    @rule(which=ANY, crashes=SOMETIMES, paused=st.booleans())
    def pause_or_activate(self, which: int, crashes: bool, paused: bool) -> None:
        if (picked := self.pick(which, False, HOLDS | {"waiting"})) is not None:
            trial = self.store.attempts.get(picked[0]).trial_id
            self.call("control.pause" if paused else "control.activate", trial, "m", crashes=crashes)
            self.note("pause" if paused else "activate")

    @rule(which=ANY, crashes=SOMETIMES, priority=st.sampled_from([1, 42, 99]))
    def change_priority(self, which: int, crashes: bool, priority: int) -> None:
        if (picked := self.pick(which, False, HOLDS | {"waiting"})) is not None:
            trial = self.store.attempts.get(picked[0]).trial_id
            self.call("control.set", "trial", trial, priority=priority, by="m", crashes=crashes)

    @rule(which=ANY, stale=SOMETIMES, crashes=SOMETIMES, requested=st.booleans(), partly=st.booleans())
    def give_way(self, which: int, stale: bool, crashes: bool, requested: bool, partly: bool) -> None:
        """Yield as a follower does: on request of a user or the queue, or in a race with the end of that request."""
        picked = self.pick(which, stale, {"starting", "running", "stopping"})
        if picked is None:
            return
        view, requests = self.store.attempts.get(picked[0]), self.store.control.pending(picked[0])
        if requested and requests.pause_by is None and requests.preempted_for is None:
            return
        if picked[1] == self.watches[picked[0]][-1]:
            for host in view.held_hosts[: 1 if partly else None]:
                ended = [place for place, (run, _) in self.processes.items() if run == picked[0] and place[0] == host]
                for place in ended:
                    del self.processes[place]
                self.call("queue.release", *picked, host, proof="clear")
        paused = requests.pause_by is not None
        self.learn(self.change(picked, "attempts.yield_gang", crashes=crashes, reason="why", paused=paused))

    # -- recovery and hosts --------------------------------------------------------------------
    @rule(which=ANY, by=st.sampled_from(["a", "b"]), for_s=st.sampled_from([5.0, 40.0]), ends=st.booleans())
    def claim(self, which: int, by: str, for_s: float, ends: bool) -> None:
        views = self.store.recovery.recoverable()
        if not views:
            return
        allocation = views[which % len(views)].allocation_id
        holder, until = self.claims.get(allocation, ("", self.now))
        got = self.store.recovery.claim(allocation, by, for_s)
        assert got is (holder in ("", by) or until <= self.now), "one recoverer at a time, and no claim lasts forever"
        self.note(f"claim {got}")
        if got:
            self.claims[allocation] = by, self.now + timedelta(seconds=for_s)
            assert not self.store.recovery.claim(allocation, "c", 1.0)
        if got and ends:
            self.store.recovery.end(allocation, by)
            del self.claims[allocation]

    @rule(host=st.sampled_from(list(SIZES)), force=st.booleans(), crashes=SOMETIMES)
    def a_host_is_removed_and_comes_back(self, host: str, force: bool, crashes: bool) -> None:
        if self.call("hosts.remove", host, force=force, crashes=crashes) is None:
            return
        # The caller of a forced removal guarantees that no process is left.
        for place in [place for place in self.processes if place[0] == host]:
            assert force, "a host in use was removed without force"
            del self.processes[place]
        slots = tuple(SlotRecord(index=i) for i in range(SIZES[host]))
        self.store.hosts.add(HostRecord(name=host, pool="p", slot_type="cpu", slots=slots))
        self.note("host removed")

    @invariant()
    def every_trial_that_has_not_ended_has_one_attempt_that_goes_on(self) -> None:
        with self.store.db.engine.connect() as connection:
            mine = (attempts.c.trial_id, attempts.c.id, attempts.c.number, attempts.c.ended_at)
            query = sa.select(*mine, trials.c.state)
            rows = list(connection.execute(query.join(trials, trials.c.id == attempts.c.trial_id)))
        newest: dict[int, int] = {}
        for row in rows:
            newest[row.trial_id] = max(newest.get(row.trial_id, 0), row.number)
        for row in rows:
            goes_on = row.state in {"queued", "running", "paused"} and row.number == newest[row.trial_id]
            assert (row.ended_at is None) is goes_on, row

    def change(self, picked: tuple[int, int], method: str, *arguments: object, **named: object) -> object:
        """Write as a follower. A stale follower must change nothing."""
        attempt, watch = picked
        is_stale = watch != self.watches[attempt][-1]
        before = self.dump() if is_stale else None
        result = self.call(method, attempt, watch, *arguments, **named)
        assert before is None or self.dump() == before, "a stale follower changed something"
        self.note(f"{method} {'stale' if is_stale else 'current'}")
        return result

    @staticmethod
    def note(what: str) -> None:
        event(what)
        SEEN[what] += 1

    @rule(
        host=st.sampled_from(list(SIZES)), state=st.sampled_from(["draining", "ready", "ready", "ready", "unreachable"])
    )
    def host_changes(self, host: str, state: str) -> None:
        self.store.hosts.set_state(host, state)

    @rule(host=st.sampled_from(list(SIZES)), enabled=st.sampled_from([True, True, False]))
    def slot_is_switched(self, host: str, enabled: bool) -> None:
        self.store.hosts.set_slot_enabled(host, 0, enabled)

    @invariant()
    def every_held_slot_has_one_holder(self) -> None:
        with self.store.db.engine.connect() as connection:
            rows = connection.execute(sa.select(allocation_slots)).all()
            owners = {row.id: row for row in connection.execute(sa.select(allocations))}
        held = [row for row in rows if row.released_at is None]
        places = Counter((row.host, row.slot) for row in held if row.slot >= 0)
        assert [place for place, number in places.items() if number > 1] == []
        assert {owners[row.allocation_id].state for row in held} <= HOLDS
        holding = {row.allocation_id for row in held}
        assert {row.id for row in owners.values() if row.state in HOLDS} <= holding
        for place, (_, token) in self.processes.items():
            assert [row.token for row in held if (row.host, row.slot) == place] == [token]

    @invariant()
    def tokens_only_grow_and_belong_to_one_grant(self) -> None:
        with self.store.db.engine.connect() as connection:
            rows = connection.execute(sa.select(allocation_slots).order_by(allocation_slots.c.id)).all()
        tokens = [row.token for row in rows]
        assert tokens == sorted(tokens)
        for row in rows:
            assert self.token_of.setdefault(row.token, row.allocation_id) == row.allocation_id


def test_no_slot_is_given_out_twice() -> None:
    needed = ["granted", *(f"{method} current" for method in WRITES), "pause", "activate",
              "preempted", "claim True", "host removed"]  # fmt: skip
    run_until_seen(StoreMachine, SEEN, needed, examples=25, steps=STEPS)
