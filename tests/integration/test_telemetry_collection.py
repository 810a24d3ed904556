"""Collection of telemetry: files of hosts, the code that sends them, the collector, and a store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.core.series.points import Key
from airflow_provider_dtrain.core.series.step_times import SlowRule
from airflow_provider_dtrain.engine.attempt import telemetry
from airflow_provider_dtrain.engine.attempt.telemetry import TelemetryCollector
from airflow_provider_dtrain.errors import (
    HostUnreachableError,
    StaleWatchError,
    StoreUnavailableError,
)
from airflow_provider_dtrain.store.database.tables import telemetry_chunks
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store
from airflow_provider_dtrain.supervisor.files.events import encode_event
from airflow_provider_dtrain.supervisor.files.layout import RunFolder
from airflow_provider_dtrain.supervisor.files.segments import SegmentWriter, read_measurements
from testbed.stores import host, new_sqlite

#: Age of all hosts. The machine that runs the tests may have started a minute ago.
UP_S = 86_400.0


def since_boot() -> float:
    """Return the seconds since the boot of a host."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) + UP_S


class Machine:
    """A host with one run, and its open channel."""

    alive = True
    clock_offset_s = 0.0

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.failure: Exception | None = None
        self.lie: dict[str, Any] = {}
        layout: Any = SimpleNamespace(state_dir="")
        self.run_folder = RunFolder(layout, "run")
        self.run_folder.path = str(folder)
        self.boot_offset_s = since_boot() - time.time()
        folder.mkdir()
        self.samples = SegmentWriter(str(folder / "samples"), 64 << 20)
        (folder / f"rank{rank}").mkdir()
        self.timings = SegmentWriter(str(folder / f"rank{rank}" / "timings"), 64 << 20)

    def measure(self, seconds: int = 1, *, ago_s: float = 0.0, cpu: float = 50.0) -> None:
        """Write what sampler and ranks write in some seconds."""
        for second in range(seconds):
            at = {"at": time.time() - ago_s + second}
            boot = {"boot": since_boot() - ago_s + second}
            for number, file in enumerate((self.samples, self.timings)):
                fields = {"us": {"backward": [5, 50_000, 9000, 11_000]}} if number else {"cpu_util": cpu}
                kind = "timings" if number else "system"
                file._append(encode_event({"seq": second + 1, **at, **boot, "kind": kind, **fields}))

    def call(self, command: str, /, *, timeout_s: float, run: str, **arguments: Any) -> Future[dict[str, Any]]:
        self.calls.append((command, arguments))
        answer: Future[dict[str, Any]] = Future()
        if self.failure is not None:
            answer.set_exception(self.failure)
        else:
            parts, data = read_measurements(self.run_folder, arguments["streams"], arguments["most_bytes"])
            answer.set_result({"parts": parts, "bytes": len(data), "data": data, **self.lie})
        return answer


class World:
    """A running attempt with its store, hosts and collector."""

    def __init__(self, folder: Path, hosts: int = 1) -> None:
        self.store = Store.open(new_sqlite(folder / "s" / "dtrain.db"))
        names = [f"h{number}" for number in range(hosts)]
        for name in names:
            self.store.hosts.add(host(name, 1))
        config = self.store.configs.put({"entrypoint": "python train.py"}, origins={})
        key = TrialKey(dag_id="d", run_id="r", task_id="t", max_tries=0)
        submission = TrialSubmission(
            key=key, config_id=config.config_id, experiment_name="e", pool="gpus", slots=hosts, number=0
        )
        self.ticket = self.store.trials.submit(submission)
        watch = self.store.attempts.watch(self.ticket.attempt_id, watcher="test")
        self.store.queue.schedule("gpus")
        self.store.queue.take_up(self.ticket.attempt_id, watch)
        plans = {name: {"ranks": [{"rank": index, "local_rank": 0, "slot": 0}]} for index, name in enumerate(names)}
        self.store.attempts.set_plan(self.ticket.attempt_id, watch, {"plans": plans})
        self.store.attempts.set_running(self.ticket.attempt_id, watch)
        self.hosts = {name: Machine(folder / name, rank) for rank, name in enumerate(names)}
        self.collector = self.follow(watch)

    @property
    def host(self) -> Machine:
        return next(iter(self.hosts.values()))

    def follow(self, watch: int) -> TelemetryCollector:
        settings = SimpleNamespace(telemetry_days=30)
        rt: Any = SimpleNamespace(store=self.store, attempt_id=self.ticket.attempt_id, watch=watch, settings=settings)
        view = self.store.attempts.get(self.ticket.attempt_id)
        # As if it had run for two hours.
        view = replace(view, granted_at=datetime.now(UTC) - timedelta(hours=2))
        links: Any = dict(self.hosts)
        return TelemetryCollector(rt, view, links, SlowRule())

    async def collect(self) -> None:
        await self.collector._collect(self.collector._behind or self.hosts)

    def points(self, metric: str = "cpu_util", name: str = "h0") -> int:
        found = self.store.telemetry.series(
            self.ticket.trial_id, metrics=[metric], kind="system" if metric == "cpu_util" else "rank", max_points=20_000
        )
        return sum(value is not None for one in found if one.host == name for value in one.mean)

    def gaps(self, name: str = "h0") -> dict[tuple[str, str], int]:
        found = self.store.telemetry.gaps(self.ticket.trial_id).get(name, [])
        return {(gap.stream, gap.code): gap.lines for gap in found}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.store.close()


async def test_each_collection_takes_what_is_new(world: World) -> None:
    world.host.measure(5, ago_s=100)
    await world.collect()
    world.host.measure(5, ago_s=90)
    await world.collect()
    await world.collect()
    assert (world.points(), world.points("backward")) == (10, 10)
    state = world.store.telemetry.states(world.ticket.attempt_id)["h0"]
    assert state.positions == {
        name: (world.host.folder / path).stat().st_size
        for name, path in (("samples", "samples"), ("rank0.timings", "rank0/timings"))
    }
    assert state.commits == 2, "nothing is written when there is nothing"
    assert world.gaps() == {}


async def test_a_new_follower_resumes_at_the_committed_position_and_stores_nothing_twice(world: World) -> None:
    world.host.measure(5, ago_s=100)
    await world.collect()
    old = world.collector
    world.host.measure(5, ago_s=90)
    world.collector = world.follow(world.store.attempts.watch(world.ticket.attempt_id, watcher="another"))
    await world.collect()
    assert world.host.calls[-1][1]["streams"]["samples"] > 0
    assert world.points() == 10
    world.host.measure(1)
    await old._collect(world.hosts)
    assert world.points() == 10, "it has not seen the commit of the new one"
    with pytest.raises(StaleWatchError):
        await old._collect(world.hosts)
    series = world.store.telemetry.ranges(world.ticket.trial_id)
    assert [one.count for one in series] == [10]


async def test_a_commit_that_another_process_overtakes_is_made_again(world: World) -> None:
    world.host.measure(5, ago_s=100)
    await world.collect()
    twin = world.follow(world.collector.rt.watch)
    await twin._collect(world.hosts)
    world.host.measure(5, ago_s=90)
    await twin._collect(world.hosts)
    await world.collect()
    assert world.points() == 10
    assert world.collector._states is None
    world.host.measure(1)
    await world.collect()
    assert world.points() == 11
    assert [one.count for one in world.store.telemetry.ranges(world.ticket.trial_id)] == [11]


async def test_a_kill_between_any_two_steps_loses_and_doubles_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector dies before and after its commit, and the next one is another process."""
    store = world.store.telemetry
    commit = store.add

    def dies_before(*_: Any) -> bool:
        raise SystemExit

    def dies_after(*arguments: Any) -> bool:
        commit(*arguments)
        raise SystemExit

    for number, dying in enumerate((dies_before, dies_after, commit)):
        world.host.measure(5, ago_s=100 - 10 * number)
        monkeypatch.setattr(store, "add", dying)
        world.collector = world.follow(world.collector.rt.watch)
        try:
            await world.collect()
        except SystemExit:
            continue
    assert world.points() == 15
    assert [one.count for one in store.ranges(world.ticket.trial_id)] == [15]


async def test_while_the_store_is_away_nothing_is_requested_or_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "TELEMETRY_S", 0.01)
    monkeypatch.setattr(telemetry, "TELEMETRY_BEHIND_S", 0.01)
    monkeypatch.setattr(telemetry, "TELEMETRY_MOST_S", 0.05)
    monkeypatch.setattr(telemetry, "ANSWER_BYTES", 16 << 10)
    store = world.store.telemetry
    away = asyncio.Event()
    states = store.states
    failures: list[int] = []

    def refuse(attempt_id: int) -> Any:
        if away.is_set():
            failures.append(1)
            raise StoreUnavailableError("The store is away.")
        return states(attempt_id)

    monkeypatch.setattr(store, "states", refuse)
    away.set()
    collector = world.collector = world.follow(world.collector.rt.watch)
    task = asyncio.ensure_future(collector.run())
    await until(lambda: len(failures) >= 3)
    assert world.host.calls == []
    world.host.measure(3000, ago_s=3500)
    away.clear()
    await until(lambda: world.points() == world.points("backward") == 3000)
    task.cancel()
    assert world.gaps() == {}
    assert max(arguments["most_bytes"] for _, arguments in world.host.calls) == 16 << 10


async def test_a_file_that_is_too_far_ahead_is_read_from_near_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "LAG_BYTES", 8 << 10)
    monkeypatch.setattr(telemetry, "KEPT_BYTES", 2 << 10)
    monkeypatch.setattr(telemetry, "ANSWER_BYTES", 4 << 10)
    world.host.measure(300, ago_s=400)
    for _ in range(5):
        await world.collect()
    assert 10 < world.points() < 60
    gaps = {gap.stream: gap for gap in world.store.telemetry.gaps(world.ticket.trial_id)["h0"] if gap.code == "missing"}
    assert set(gaps) == {"samples", "rank0.timings"}
    assert gaps["samples"].size_bytes > 20_000
    world.host.measure(1)
    before = world.points()
    await world.collect()
    assert world.points() == before + 1


async def test_a_dropped_segment_is_a_gap(world: World) -> None:
    world.host.samples.limit = 16 << 10
    # The writer reads the clock of this machine.
    world.host.boot_offset_s -= UP_S
    for second in range(500):
        world.host.samples.write("system", {"cpu_util": 50.0, "filler": "x" * 100, "second": second})
    for _ in range(3):
        await world.collect()
    (gap,) = world.store.telemetry.gaps(world.ticket.trial_id)["h0"]
    assert (gap.stream, gap.code) == ("samples", "missing")
    assert gap.size_bytes > 50_000
    assert world.points() >= 1


async def test_one_silent_host_takes_nothing_from_the_rest(tmp_path: Path) -> None:
    world = World(tmp_path, hosts=3)
    for machine in world.hosts.values():
        machine.measure(5, ago_s=20)
    world.hosts["h1"].failure = HostUnreachableError("h1", "Host 'h1' did not answer 'telemetry' in time.")
    await world.collect()
    assert [world.points(name=name) for name in world.hosts] == [5, 0, 5]
    world.hosts["h1"].failure = None
    await world.collect()
    assert [world.points(name=name) for name in world.hosts] == [5, 5, 5]
    world.store.close()


@pytest.mark.parametrize(
    "lie",
    [
        {"parts": [{"stream": "rank9.timings", "offset": 0, "bytes": 0, "end": 0}]},
        {"parts": [{"stream": "samples", "offset": 0, "bytes": 10**9, "end": 0}]},
        {"parts": [{"stream": "samples", "offset": 0, "bytes": 0, "end": 0}] * 2},
        {"data": b"x" * (1 << 20)},
    ],
)
async def test_a_host_that_sends_something_else_is_not_asked_again_on_this_channel(
    world: World, lie: dict[str, Any]
) -> None:
    world.host.measure(5)
    world.host.lie = lie
    await world.collect()
    await world.collect()
    assert len(world.host.calls) == 1
    assert world.points() == 0


async def test_a_line_without_an_end_does_not_stop_the_stream(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "ANSWER_BYTES", 8 << 10)
    world.host.samples._append(b"x" * 10_000)
    world.host.samples._append(b"\n")
    world.host.measure(3)
    for _ in range(4):
        await world.collect()
    assert world.points() == 3
    assert world.gaps() == {("samples", "invalid"): 2, ("samples", "corrupt"): 1}


async def test_a_rank_that_floods_its_file_is_read_at_a_bounded_rate(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "BURST_BYTES", 1 << 20)
    world.collector = world.follow(world.collector.rt.watch)
    now, boot = time.time(), since_boot()
    us = {f"invented{number}": [1, 1, 1, 1] for number in range(100)} | {"backward": [1, 1, 1, 1]}
    line = encode_event({"seq": 1, "at": now, "boot": boot - 500, "kind": "timings", "us": us})
    world.host.timings._append(line * (4 * telemetry.LAG_BYTES // len(line)))
    for _ in range(30):
        await world.collect()
    received = sum(arguments["most_bytes"] for _, arguments in world.host.calls)
    assert received <= 2 << 20, "the burst, and then 36 kB per second"
    assert world.points("backward") == 1
    with world.store.db.engine.connect() as connection:
        size = connection.scalar(sa.select(sa.func.sum(sa.func.length(telemetry_chunks.c.data))))
        assert size < 20_000
    assert {code for _, code in world.gaps()} == {"value", "missing", "corrupt"}


async def test_the_end_of_an_attempt_collects_the_rest_and_rolls_it_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "ANSWER_BYTES", 16 << 10)
    world.host.measure(1000, ago_s=1000)
    await world.collector.finish()
    assert (world.points(), world.points("backward")) == (1000, 1000)
    with world.store.db.engine.connect() as connection:
        metrics = set(connection.scalars(sa.select(telemetry_chunks.c.metric)))
    assert metrics == {"cpu_util", "backward"}, "no slice is left"
    world.host.failure = HostUnreachableError("h0", "gone")
    await world.collector.finish()


async def test_slices_are_compacted_while_the_attempt_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "TELEMETRY_S", 0.01)
    monkeypatch.setattr(telemetry, "TELEMETRY_BEHIND_S", 0.01)
    monkeypatch.setattr(telemetry, "TELEMETRY_COMPACT_S", 0.05)
    world.host.measure(2000, ago_s=2000)
    world.collector = world.follow(world.collector.rt.watch)
    task = asyncio.ensure_future(world.collector.run())

    def metrics() -> set[str]:
        with world.store.db.engine.connect() as connection:
            return set(connection.scalars(sa.select(telemetry_chunks.c.metric)))

    await until(lambda: world.points() == 2000 and metrics() == {"cpu_util", "backward"})
    world.host.measure(1)
    await until(lambda: world.points() == 2001)
    task.cancel()
    assert world.gaps() == {}


async def until(is_so: Any) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.02)


def test_devices_of_a_host_are_those_of_its_plan() -> None:
    plan = {"plans": {"a": {"ranks": [{"rank": 4, "device": "GPU-1"}, {"rank": 5, "device": None}]}}}
    found = telemetry.sources_of(SimpleNamespace(plan=plan), "a")  # type: ignore[arg-type]
    assert set(found) == {"samples", "rank4.timings", "rank5.timings"}
    assert found["samples"].devices == {"GPU-1"}
    assert found["rank5.timings"].rank == 5
    assert Key("backward", "", 5).rank == 5
