"""Model of the protocol: store, followers and hosts as immutable states, and all moves between them."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from airflow_provider_dtrain.core.lifecycle import states
from airflow_provider_dtrain.core.scheduling.decision import run_pass
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, PoolOptions

NAMES = ("h0", "h1")
#: The exhaustive search fails beyond this number of states.
MOST_STATES = 400_000
Run = tuple[int, int]


class Row(NamedTuple):
    """An allocation of a request."""

    request: int
    state: str = "waiting"
    token: int = 0
    places: tuple[int, ...] = ()
    released: frozenset[int] = frozenset()

    @property
    def holds(self) -> frozenset[int]:
        return frozenset(self.places) - self.released if self.state in states.HOLDING else frozenset()


class Follower(NamedTuple):
    """A process that follows a row. Its view may be older than the store."""

    row: int
    watch: int
    #: The grant in its view.
    token: int = 0
    places: tuple[int, ...] = ()
    #: Hosts that answered ``clear``.
    clear: frozenset[int] = frozenset()


class Place(NamedTuple):
    """A host with one slot."""

    process: Run | None = None
    highest: int = 0
    #: Runs that must not start here.
    buried: frozenset[Run] = frozenset()


class Store(NamedTuple):
    counter: int
    rows: tuple[Row, ...]
    watches: tuple[int, ...]


class State(NamedTuple):
    store: Store
    places: tuple[Place, Place]
    followers: frozenset[Follower] = frozenset()
    backup: Store | None = None
    takeovers: int = 1
    crashes: int = 1
    #: None: the backup was restored.
    backups: int | None = 0


class Violation(Exception):
    """The protocol has violated an invariant."""


@functools.cache
def grants(waiting: tuple[tuple[int, int], ...], held: frozenset[int]) -> dict[int, tuple[int, ...]]:
    """Return row -> hosts, as decided by the real scheduling pass."""
    machines = [Host(name, 1, held=frozenset({0}) if i in held else frozenset()) for i, name in enumerate(NAMES)]
    requests = [GangRequest(str(row), slots, sequence=row) for row, slots in waiting]
    decision = run_pass(machines, requests, PoolOptions())
    return {int(row): tuple(sorted(map(NAMES.index, place.slots))) for row, place in decision.grants}


class Model:
    """Transitions of the protocol's model.

    :param sizes: slots of each request
    :param asks: False: slots are freed by a clock, without the host's answer
    :param buries: False: hosts forget the fenced runs
    :param rows: largest number of allocations; with more than two, a trial may wait again
    :param tokens: after this number of grants, all are taken up
    :param budget: largest number of other events, by name
    """

    def __init__(
        self, sizes: tuple[int, int], *, asks: bool = True, buries: bool = True, rows: int = 2, tokens: int = 3,
        **budget: int,
    ) -> None:  # fmt: skip
        self.sizes, self.asks, self.buries, self.rows, self.tokens = sizes, asks, buries, rows, tokens
        waiting = tuple(Row(request) for request in range(2))
        follow = frozenset(Follower(row, 1) for row in range(2))
        self.first = State(Store(0, waiting, (1, 1)), (Place(), Place()), follow)._replace(**budget)

    def following(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self.passes(state)
        for follower in state.followers:
            yield from self.followed(state, follower)
        for row in range(len(state.store.rows)):
            yield from self.row_moves(state, row)
        for place in range(2):
            yield from self.host_moves(state, place)
        if state.backups and state.backup is None:
            yield "backup", state._replace(backup=state.store)
        if state.backups and state.backup is not None:
            after = state._replace(store=state.backup, backup=None, backups=None, followers=frozenset(), takeovers=2)
            yield "restore", after

    # -- the store -----------------------------------------------------------------------------
    def passes(self, state: State) -> Iterator[tuple[str, State]]:
        rows, counter = list(state.store.rows), state.store.counter
        waiting = tuple((i, self.sizes[row.request]) for i, row in enumerate(rows) if row.state == "waiting")
        held = [place for row in rows for place in row.holds]
        if len(held) != len(set(held)):
            raise Violation(f"the store gave a slot out twice: {rows}")
        for index, places in grants(waiting, frozenset(held)).items():
            counter += 1
            rows[index] = moved(rows[index], "granted")._replace(token=counter, places=places)
        if counter != state.store.counter:
            yield "pass", state._replace(store=state.store._replace(counter=counter, rows=tuple(rows)))

    def row_moves(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        row = state.store.rows[index]
        if row.state == "granted" and state.store.counter < self.tokens:
            yield "untaken", put(state, index, moved(row, "waiting")._replace(token=0, places=()))
        if state.takeovers and row.state != "released":
            watches = list(state.store.watches)
            watches[index] += 1
            knows = (row.token, row.places) if row.holds and row.state != "granted" else (0, ())
            new = Follower(index, watches[index], *knows)
            store = state.store._replace(watches=tuple(watches))
            yield (
                "take over",
                state._replace(store=store, followers=state.followers | {new}, takeovers=state.takeovers - 1),
            )

    def followed(self, state: State, one: Follower) -> Iterator[tuple[str, State]]:
        row, current = state.store.rows[one.row], one.watch == state.store.watches[one.row]
        if current:
            yield from self.current_moves(state, one, row)
        if state.crashes:
            yield "crash", state._replace(followers=state.followers - {one}, crashes=state.crashes - 1)
        for place in one.places:
            yield from self.start(state, one, place)
            if place not in one.clear:
                yield "fence", self.fenced(state, one, place)

    def current_moves(self, state: State, one: Follower, row: Row) -> Iterator[tuple[str, State]]:
        if row.state == "granted":
            knows = one._replace(token=row.token, places=row.places, clear=frozenset())
            yield "take up", swap(put(state, one.row, moved(row, "starting")), one, knows)
        if row.state == "starting" and one.token == row.token:
            yield "running", put(state, one.row, moved(row, "running"))
        if row.state in ("starting", "running", "stopping"):
            yield "end", put(state, one.row, moved(row, "expired"))
        if row.state == "running":
            yield "stopping", put(state, one.row, moved(row, "stopping"))
        ready = one.clear if self.asks else frozenset(one.places)
        for place in ready & row.holds if one.token == row.token and row.state != "granted" else ():
            released = row.released | {place}
            freed = row._replace(released=released)
            over = released == frozenset(row.places)
            yield "release", put(state, one.row, moved(freed, "released") if over else freed)
        if row.state in ("released", "expired") and len(state.store.rows) < self.rows and state.backups is not None:
            yield "again", self.again(state, one, row)

    def again(self, state: State, one: Follower, row: Row) -> State:
        """Let the trial wait for another gang. The old one stays held until its hosts have answered."""
        rows, watches = (*state.store.rows, Row(row.request)), (*state.store.watches, 1)
        new = Follower(len(rows) - 1, 1)
        store = state.store._replace(rows=rows, watches=watches)
        return state._replace(store=store, followers=state.followers | {new})

    # -- the hosts -----------------------------------------------------------------------------
    def start(self, state: State, one: Follower, place: int) -> Iterator[tuple[str, State]]:
        """Deliver a start to a host, possibly late. The host decides."""
        run, host = (state.store.rows[one.row].request, one.token), state.places[place]
        if run in host.buried or host.process == run:
            return
        if one.token < host.highest:
            return
        if host.process is not None:
            # The slot's lock refuses the run. This state must be unreachable without a restored backup.
            if state.backups is not None:
                raise Violation(f"{run} was to start on {place}, where {host.process} lives")
            return
        yield "start", self.at(state, place, host._replace(process=run, highest=max(host.highest, one.token)))

    def fenced(self, state: State, one: Follower, place: int) -> State:
        run, host = (state.store.rows[one.row].request, one.token), state.places[place]
        buried = host.buried | {run} if self.buries else host.buried
        process = None if host.process == run else host.process
        # A host that has seen a later grant refuses the fence, and has nothing of the run.
        highest = max(host.highest, one.token) if self.buries else host.highest
        after = self.at(state, place, host._replace(process=process, buried=buried, highest=highest))
        return swap(after, one, one._replace(clear=one.clear | {place}))

    def host_moves(self, state: State, place: int) -> Iterator[tuple[str, State]]:
        host = state.places[place]
        if host.process is not None:
            # The ranks end, or the supervisor ends them because the run was not renewed.
            gone = host._replace(process=None, buried=host.buried | {host.process})
            yield "gone", self.at(state, place, gone)
        if state.backups is None and host.highest > state.store.counter:
            yield "raise token", state._replace(store=state.store._replace(counter=host.highest))

    def at(self, state: State, place: int, host: Place) -> State:
        places = list(state.places)
        places[place] = host
        return state._replace(places=(places[0], places[1]))


def moved(row: Row, new: str) -> Row:
    """Return the row in its next state, which the table of transitions must allow."""
    states.check("allocation", row.state, new)
    return row._replace(state=new)


def put(state: State, index: int, row: Row) -> State:
    rows = list(state.store.rows)
    rows[index] = row
    return state._replace(store=state.store._replace(rows=tuple(rows)))


def swap(state: State, old: Follower, new: Follower) -> State:
    return state._replace(followers=state.followers - {old} | {new})


def check(state: State) -> None:
    """Raise Violation when a process lives in a slot that the store has released."""
    if state.backups is None:
        return
    for row in state.store.rows:
        for place in row.released:
            if state.places[place].process == (row.request, row.token):
                raise Violation(f"{row} was released on {place} and lives there: {state}")


def explore(model: Model) -> dict[State, list[tuple[str, State]]]:
    """Return every reachable state with its successors."""
    found: dict[State, list[tuple[str, State]]] = {}
    waiting = [model.first]
    seen = {model.first}
    while waiting:
        state = waiting.pop()
        check(state)
        found[state] = following = list(model.following(state))
        for what, after in following:
            if state.backups == after.backups:
                grown = zip(state.store.watches, after.store.watches, strict=False)
                assert all(new >= old for old, new in grown), f"a watch fell at {what}"
                assert after.store.counter >= state.store.counter
            if after not in seen:
                seen.add(after)
                waiting.append(after)
        assert len(seen) < MOST_STATES, "the model has grown too large to look at everything"
    return found


def cannot_become_free(found: dict[State, list[tuple[str, State]]]) -> list[State]:
    """Return the states from which no path leads to a store without holders and hosts without processes."""
    before: dict[State, list[State]] = defaultdict(list)
    for state, following in found.items():
        for _, after in following:
            before[after].append(state)
    good = [state for state in found if is_free(state)]
    reached = set(good)
    while good:
        for state in before[good.pop()]:
            if state not in reached:
                reached.add(state)
                good.append(state)
    # Without takeovers left, a crash of the last follower is final; in reality another follower always takes over.
    return [state for state in found if state not in reached and state.takeovers]


def is_free(state: State) -> bool:
    return not any(row.holds for row in state.store.rows) and not any(place.process for place in state.places)
