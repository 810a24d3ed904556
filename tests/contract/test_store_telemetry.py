"""Telemetry in the store: commits of followers, and what pages read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_dtrain.core.series.points import Key
from airflow_provider_dtrain.core.series.slow_causes import Finding, SlowCause
from airflow_provider_dtrain.core.series.stragglers import Changes, Straggler
from airflow_provider_dtrain.errors import NotFoundError, StaleWatchError, UserError
from airflow_provider_dtrain.store.database.tables import configs
from airflow_provider_dtrain.store.records.telemetry import HostTelemetry, TelemetryGap
from airflow_provider_dtrain.store.stragglers import MOST_ROWS
from testbed.stores import host
from tests.support.telemetry import START_S, of_host, points


@pytest.fixture(autouse=True)
def at_the_first_point(clock):
    """The time is that of the first point."""
    clock.now = at(0)


@pytest.fixture
def running(store, submit, start):
    """A running trial on host a, and the watch of its follower."""
    store.hosts.add(host("a", 8))
    ticket = submit("t", slots=2)
    return ticket, start(ticket)


def at(second):
    return datetime.fromtimestamp(START_S + second, UTC)


@pytest.mark.each_change
def test_points_come_back_by_series_with_units(store, running):
    ticket, watch = running
    assert store.telemetry.add(ticket.attempt_id, watch, [of_host("a", START_S, 20, gpus=2)])
    found = store.telemetry.series(ticket.trial_id)
    assert [(one.metric, one.device, one.unit, one.rank) for one in found] == [
        ("cpu_util", "", "%", None), ("gpu_util", "GPU-0", "%", None), ("gpu_util", "GPU-1", "%", None),
    ]  # fmt: skip
    cpu = found[0]
    assert (cpu.attempt, cpu.host, cpu.step_s) == (1, "a", 1)
    assert cpu.at_s == list(range(START_S, START_S + 20))
    assert cpu.mean == cpu.minimum == cpu.maximum == [float(value) for value in range(20)]


@pytest.mark.each_change
def test_what_another_writer_has_not_seen_is_not_stored(store, running):
    ticket, watch = running
    first = HostTelemetry(
        host="a", series={Key("cpu_util"): points(START_S, 5, 1)}, positions={"samples": 10}, commits=0
    )
    assert store.telemetry.add(ticket.attempt_id, watch, [first])
    assert not store.telemetry.add(ticket.attempt_id, watch, [first]), "the same again"
    state = store.telemetry.states(ticket.attempt_id)["a"]
    assert (state.commits, state.positions, state.first_s, state.last_s) == (1, {"samples": 10}, START_S, START_S + 4)
    (series,) = store.telemetry.series(ticket.trial_id)
    assert series.mean == [1.0] * 5
    store.attempts.watch(ticket.attempt_id, watcher="another")
    with pytest.raises(StaleWatchError):
        store.telemetry.add(ticket.attempt_id, watch, [HostTelemetry(host="a", series={}, commits=1)])


def test_gaps_are_counted_per_stream_and_reason(store, running):
    ticket, watch = running
    for _ in range(3):
        gap = TelemetryGap(stream="rank1.timings", code="corrupt", lines=2, size_bytes=50, first_at_s=7.0)
        assert store.telemetry.add(ticket.attempt_id, watch, [HostTelemetry(host="a", series={}, gaps=[gap])])
    assert store.telemetry.gaps(ticket.trial_id) == {
        "a": [TelemetryGap(stream="rank1.timings", code="corrupt", lines=6, size_bytes=150, first_at_s=7.0)]
    }
    assert store.telemetry.series(ticket.trial_id) == []


def test_a_pause_is_a_point_without_values(store, running):
    ticket, watch = running
    for start in (START_S, START_S + 100):
        part = HostTelemetry(host="a", series={Key("cpu_util"): points(start, 3, 5)})
        store.telemetry.add(ticket.attempt_id, watch, [part])
    (one,) = store.telemetry.series(ticket.trial_id)
    assert [second - START_S for second in one.at_s] == [0, 1, 2, 3, 100, 101, 102]
    assert one.mean == [5.0, 5.0, 5.0, None, 5.0, 5.0, 5.0]
    assert one.minimum == one.maximum == one.mean


def test_a_long_series_is_reduced_and_keeps_its_extremes(store, running):
    ticket, watch = running
    spiky = points(START_S, 5000, lambda index: 100 if index == 1234 else 10)
    store.telemetry.add(ticket.attempt_id, watch, [HostTelemetry(host="a", series={Key("cpu_util"): spiky})])
    (one,) = store.telemetry.series(ticket.trial_id, max_points=100)
    assert len(one.at_s) <= 100
    assert (max(one.maximum), min(one.minimum)) == (100.0, 10.0)
    assert 10.0 < max(one.mean) < 20.0
    (part,) = store.telemetry.series(ticket.trial_id, since=at(1230), until=at(1240), max_points=100)
    assert part.at_s == list(range(START_S + 1230, START_S + 1240))


def test_what_is_asked_for_is_checked(store, running):
    ticket, _ = running
    with pytest.raises(UserError, match="metrics must be of kind 'system'.* got '<b>'"):
        store.telemetry.series(ticket.trial_id, metrics=["<b>"])
    with pytest.raises(UserError, match="from 10 to 20000, got 1"):
        store.telemetry.series(ticket.trial_id, max_points=1)
    with pytest.raises(NotFoundError, match="no attempt 2"):
        store.telemetry.step_times(ticket.trial_id, 2)
    with pytest.raises(NotFoundError, match="no trial 99"):
        store.telemetry.timings(99)
    assert store.telemetry.series(ticket.trial_id, since=at(5), until=at(1)) == []
    assert store.telemetry.step_times(ticket.trial_id).ranks == []


def test_a_slow_rank_is_named_although_all_steps_take_equally_long(store, running):
    ticket, watch = running
    series = {}
    for rank, busy in enumerate((0.10, 0.10, 0.15, 0.11)):
        parts = {"dataloader_next": 0.01, "train_batch": 0.19, "forward": 0.09, "backward": 0.10}
        series |= {Key(name, "", rank): points(START_S, 100, value, weight=5) for name, value in parts.items()}
        series[Key("gradient_exchange", "", rank)] = points(START_S, 10, 0.2 - busy, step=10)
    store.telemetry.add(ticket.attempt_id, watch, [HostTelemetry(host="a", series=series)])
    found = store.telemetry.step_times(ticket.trial_id, buckets=10)
    assert (found.bucket_s, len(found.at_s), found.slow_ranks) == (10, 10, [2])
    assert [round(rank.median_step_s, 3) for rank in found.ranks] == [0.2] * 4
    assert [round(rank.median_busy_s, 3) for rank in found.ranks] == [0.1, 0.1, 0.15, 0.11]
    assert [rank.is_slow for rank in found.ranks] == [False, False, True, False]
    assert found.ranks[2].ratio == pytest.approx(1.5, rel=0.01)


def test_one_measured_exchange_names_no_rank(store, running):
    ticket, watch = running
    series = {Key("train_batch", "", rank): points(START_S, 100, 0.2, weight=5) for rank in (0, 1)}
    series |= {Key("forward", "", rank): points(START_S, 100, 0.2, weight=5) for rank in (0, 1)}
    series |= {Key("gradient_exchange", "", rank): points(START_S, 1, 0.1 * rank) for rank in (0, 1)}
    store.telemetry.add(ticket.attempt_id, watch, [HostTelemetry(host="a", series=series)])
    found = store.telemetry.step_times(ticket.trial_id)
    assert [round(rank.median_busy_s, 3) for rank in found.ranks] == [0.2, 0.1]
    assert found.slow_ranks == []


@pytest.mark.parametrize(("seconds", "slow"), [(10, []), (310, [0])])
def test_the_exchanges_of_the_first_ten_steps_name_no_rank(store, running, seconds, slow):
    """Rank 1 waits for the start of rank 0, and later for its steps."""
    ticket, watch = running
    series = {}
    for rank in (0, 1):
        series[Key("train_batch", "", rank)] = points(START_S, seconds, 1.0)
        series[Key("forward", "", rank)] = points(START_S, seconds, 1.0)
        exchange = points(START_S, 10, 0.9 * rank)
        for at_s in range(99, seconds, 100):
            exchange.add(START_S + at_s, 1, 0.8 * rank, 0.8 * rank, 0.8 * rank)
        series[Key("gradient_exchange", "", rank)] = exchange
    store.telemetry.add(ticket.attempt_id, watch, [HostTelemetry(host="a", series=series)])
    assert store.telemetry.step_times(ticket.trial_id, buckets=400).slow_ranks == slow


def test_parts_of_a_step_add_up(store, running):
    ticket, watch = running
    store.telemetry.add(ticket.attempt_id, watch, [of_host("a", START_S, 60, ranks=2)])
    found = store.telemetry.timings(ticket.trial_id, buckets=10)
    assert [part.name for part in found.parts] == ["dataloader_next", "forward", "backward"]
    for index in range(len(found.at_s)):
        assert sum(part.share[index] for part in found.parts) == pytest.approx(1)
    assert [round(part.total_share, 3) for part in found.parts] == [0.1, 0.3, 0.6]
    assert [round(part.total_s, 1) for part in found.parts] == [6.0, 18.0, 36.0]
    whole = next(one for one in found.totals if (one.rank, one.name) == (1, "train_batch"))
    assert (whole.count, round(whole.total_s, 1), round(whole.mean_s, 4)) == (600, 54.0, 0.09)


def test_sparklines_have_a_value_per_interval_of_each_host_and_gpu(store, running, clock):
    ticket, watch = running
    clock.now = at(1800)
    store.telemetry.add(ticket.attempt_id, watch, [of_host("a", START_S, 600, gpus=1)])
    found = store.telemetry.sparklines(["a", "nowhere"], at(0), points=10)
    assert [(one.host, one.device, one.metric, one.step_s) for one in found] == [
        ("a", "", "cpu_util", 180), ("a", "GPU-0", "gpu_util", 180),
    ]  # fmt: skip
    assert found[1].mean == [80.0] * 4 + [None] * 6
    with pytest.raises(UserError, match="points must be from 1 to 120"):
        store.telemetry.sparklines(["a"], at(0), points=500)


def test_a_sparkline_of_an_hour_has_a_point_per_minute_at_any_second(store, running, clock):
    ticket, watch = running
    store.telemetry.add(ticket.attempt_id, watch, [of_host("a", START_S, 3630, gpus=1)])
    for second, measured in ((3600, 60), (3601, 59), (3659, 59)):
        clock.now = at(second)
        since = clock.now - timedelta(hours=1, milliseconds=5)
        line = store.telemetry.sparklines(["a"], since, points=60)[1]
        assert (line.step_s, len(line.mean), line.mean.count(80.0)) == (60, 60, measured)


def test_minutes_of_which_only_a_part_was_measured_count_as_much_as_was_measured(store, running, clock):
    ticket, watch = running
    key = Key("gpu_util", "GPU-0")
    clock.now = at(120)
    part = HostTelemetry(host="a", series={key: points(START_S + 54, 6, 20)})
    store.telemetry.add(ticket.attempt_id, watch, [part])
    store.telemetry.add(ticket.attempt_id, watch, [HostTelemetry(host="a", series={key: points(START_S + 60, 60, 90)})])
    (line,) = store.telemetry.sparklines(["a"], at(0), points=1)
    assert (line.step_s, line.mean) == (120, [round((6 * 20 + 60 * 90) / 66, 1)])


def test_a_minute_that_is_not_over_is_shown_only_while_there_is_no_other(store, running, clock):
    ticket, watch = running
    key = Key("gpu_util", "GPU-0")
    clock.now = at(50)
    store.telemetry.add(ticket.attempt_id, watch, [HostTelemetry(host="a", series={key: points(START_S + 40, 10, 30)})])
    assert [line.mean for line in store.telemetry.sparklines(["a"], at(-60), points=2)] == [[None, 30.0]]
    clock.now = at(70)
    store.telemetry.add(ticket.attempt_id, watch, [HostTelemetry(host="a", series={key: points(START_S + 50, 20, 30)})])
    assert [line.mean for line in store.telemetry.sparklines(["a"], at(-50), points=2)] == [[30.0, None]]


def test_ranges_cover_the_whole_attempt(store, running):
    ticket, watch = running
    store.telemetry.add(ticket.attempt_id, watch, [of_host("a", START_S, 100, gpus=1)])
    cpu, gpu = store.telemetry.ranges(ticket.trial_id)
    assert (cpu.metric, cpu.minimum, cpu.maximum, cpu.count, round(cpu.mean, 1)) == ("cpu_util", 0, 99, 100, 49.5)
    assert (gpu.device, gpu.unit, gpu.mean) == ("GPU-0", "%", 80.0)


def test_a_gang_of_eight_gpus_gets_every_point_of_half_an_hour(store, submit, start):
    store.hosts.add(host("a", 8))
    ticket = submit("t", slots=8)
    store.telemetry.add(ticket.attempt_id, start(ticket), [of_host("a", START_S, 1800, gpus=8)])
    found = store.telemetry.series(ticket.trial_id, max_points=2000)
    assert len(found) == 9
    assert {(one.step_s, len(one.at_s)) for one in found} == {(1, 1800)}


@pytest.mark.each_change
def test_callbacks_are_one_part_of_a_step_and_a_total_for_each_hook(store, running):
    ticket, watch = running
    hooks = {"Stopping.on_validation_end": 0.1, "Stopping.on_checkpoint_save_start": 0.5, "other": 0.1}
    series = {Key("callbacks", hook, 0): points(START_S, 20, value) for hook, value in hooks.items()}
    part = of_host("a", START_S, 20, ranks=1)
    store.telemetry.add(ticket.attempt_id, watch, [HostTelemetry(host="a", series={**part.series, **series})])
    store.telemetry.compact(ticket.attempt_id)
    found = store.telemetry.timings(ticket.trial_id, buckets=10)
    totals = {one.name: round(one.total_s, 2) for one in found.totals if one.name.startswith("callbacks")}
    assert totals == {f"callbacks.{hook}": 20 * value for hook, value in hooks.items()}
    by_name = {part.name: round(part.total_s, 2) for part in found.parts}
    assert by_name["callbacks"] == 4.0, "without the hook whose time is in that of the checkpoint"
    lines = store.telemetry.series(ticket.trial_id, kind="rank", metrics=["callbacks"])
    assert [(one.metric, one.device, one.unit) for one in lines] == [
        (f"callbacks.{hook}", "", "s") for hook in sorted(hooks)
    ]


def slow(rank, cause=SlowCause.CPU_QUOTA, host="a"):
    found = Finding(cause=cause, text=f"the {cause} is the cause.", advice="Change it.")
    return Straggler(rank=rank, host=host, since_s=START_S, ratio=1.6, cost=0.38, finding=found)


def test_slow_ranks_are_kept_with_cause_and_end(store, running, clock):
    ticket, watch = running
    clock.now = at(90)
    store.stragglers.record(ticket.attempt_id, watch, Changes(named=(slow(0), slow(1))))
    assert store.stragglers.current(ticket.attempt_id) == {0: "cpu_quota", 1: "cpu_quota"}
    first, _ = store.stragglers.of_trial(ticket.trial_id)
    assert (first.attempt, first.rank, first.host, first.since, first.until) == (1, 0, "a", at(0), None)
    assert first.text == (
        "Rank 0 on a takes 1.6 times as long as the other ranks (it costs the gang 38 % of each step): "
        "the cpu_quota is the cause."
    )
    changed = Changes(changed=(slow(0, SlowCause.CPU_STEAL),), ended={1: START_S + 80})
    store.stragglers.record(ticket.attempt_id, watch, changed)
    assert store.stragglers.current(ticket.attempt_id) == {0: "cpu_steal"}
    assert [(one.cause, one.until) for one in store.stragglers.of_trial(ticket.trial_id)] == [
        ("cpu_steal", None), ("cpu_quota", at(80)),
    ]  # fmt: skip
    store.stragglers.record(ticket.attempt_id, watch, Changes(named=(slow(1),)))
    assert [one.rank for one in store.stragglers.of_trial(ticket.trial_id)] == [0, 1, 1], "a new time is a new row"
    entries = [one for one in store.timeline.of_trial(ticket.trial_id) if one.kind == "slow_rank"]
    assert [(one.host, one.detail["rank"], one.until) for one in entries] == [
        ("a", 0, None), ("a", 1, at(80)), ("a", 1, None),
    ]  # fmt: skip
    assert entries[0].text.endswith("the cpu_steal is the cause. Change it.")


def test_slow_ranks_need_the_watch_and_times_of_the_host_are_not_trusted(store, running, clock):
    ticket, watch = running
    with pytest.raises(StaleWatchError):
        store.stragglers.record(ticket.attempt_id, watch + 1, Changes(named=(slow(0),)))
    clock.now = at(-50)
    store.stragglers.record(ticket.attempt_id, watch, Changes(named=(slow(0),)))
    (found,) = store.stragglers.of_trial(ticket.trial_id)
    assert found.since == at(-50), "not after now"


def test_a_gang_keeps_a_bounded_number_of_slow_ranks(store, running):
    ticket, watch = running
    for first in range(0, 300, 50):
        store.stragglers.record(
            ticket.attempt_id, watch, Changes(named=tuple(slow(rank) for rank in range(first, first + 50)))
        )
    assert len(store.stragglers.of_trial(ticket.trial_id)) == MOST_ROWS


def test_slow_ranks_of_a_week_are_counted_per_host(store, running, clock):
    ticket, watch = running
    clock.now = at(60)
    before = store.cluster_page.version()
    store.stragglers.record(ticket.attempt_id, watch, Changes(named=(slow(0), slow(1))))
    assert store.cluster_page.version() != before
    assert {one.name: one.slow_ranks for one in store.cluster_page.state().hosts} == {"a": 2}
    clock.now = at(60) + timedelta(days=6, hours=23)
    assert [one.slow_ranks for one in store.cluster_page.state().hosts] == [2]
    clock.now = at(60) + timedelta(days=7, hours=1)
    assert [one.slow_ranks for one in store.cluster_page.state().hosts] == [0]


def test_the_rule_for_slow_ranks_is_that_of_the_configuration(store, running):
    ticket, watch = running
    series = {}
    for rank, busy in enumerate((0.10, 0.10, 0.15, 0.11)):
        for name, value in {"train_batch": 0.2, "forward": 0.2}.items():
            series[Key(name, "", rank)] = points(START_S, 100, value, weight=5)
        series[Key("gradient_exchange", "", rank)] = points(START_S, 10, 0.2 - busy, step=10)
    store.telemetry.add(ticket.attempt_id, watch, [HostTelemetry(host="a", series=series)])
    for profiling, slow_ranks in (({}, [2]), ({"straggler_share": 1.6}, []), ({"straggler_after": 200}, [])):
        with store.db.engine.begin() as connection:
            connection.execute(configs.update().values(document={"profiling": profiling}))
        assert store.telemetry.step_times(ticket.trial_id, buckets=10).slow_ranks == slow_ranks


def test_metrics_of_ranks_have_ranges_of_their_own(store, running):
    ticket, watch = running
    series = {Key("cpu_wait", "", rank): points(START_S, 10, 5.0 * rank) for rank in (0, 1)}
    store.telemetry.add(ticket.attempt_id, watch, [HostTelemetry(host="a", series=series)])
    assert [(one.metric, one.rank, one.mean) for one in store.telemetry.ranges(ticket.trial_id)] == [
        ("cpu_wait", 0, 0.0), ("cpu_wait", 1, 5.0),
    ]  # fmt: skip
    assert [(one.rank, one.unit) for one in store.telemetry.series(ticket.trial_id)] == [(0, "%"), (1, "%")]
