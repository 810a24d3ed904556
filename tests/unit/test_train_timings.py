"""Durations of a rank on their way into its files."""

from __future__ import annotations

import os
import time
from typing import ClassVar

import pytest

from airflow_provider_dtrain.train.reports import samples as samples_module
from airflow_provider_dtrain.train.reports import timings as timings_module
from airflow_provider_dtrain.train.reports.events import EventWriter
from airflow_provider_dtrain.train.reports.samples import MOST_VALUES, SampleFile
from airflow_provider_dtrain.train.reports.seconds import SecondsFile, Sums
from airflow_provider_dtrain.train.reports.timings import EARLY_LINES, RankTimings, open_timings
from tests.support.event_lines import lines_of


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test turns."""

    class Clock:
        now = 1000.0

        def __call__(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(timings_module, "perf_counter", clock)
    monkeypatch.setattr(samples_module.time, "monotonic", clock)
    return clock


@pytest.fixture
def timings(tmp_path, clock):
    files = SampleFile(tmp_path / "samples"), SecondsFile(tmp_path / "timings")
    return RankTimings(EventWriter(tmp_path / "events"), *files)


def batch(timings, clock, backward_s=0.002):
    timings.add("backward", backward_s)
    clock.now += 0.25
    timings.batch_done(clock.now)


def test_each_second_has_a_line_with_every_value_in_microseconds(timings, clock, tmp_path):
    for number in range(10):
        batch(timings, clock, 0.001 * (number + 1))
    timings.close()
    lines = lines_of(tmp_path / "samples")
    assert [line["seq"] for line in lines] == [1, 2, 3]
    assert [line["first"] for line in lines] == [0, 5, 9]
    assert [line["batches"] for line in lines] == [5, 4, 1]
    assert [value for line in lines for value in line["us"]["backward"]] == [1000 * (n + 1) for n in range(10)]
    assert {line["kind"] for line in lines} == {"batches"}


def test_a_summary_goes_to_the_events_every_ten_seconds_and_at_the_end(timings, clock, tmp_path):
    for number in range(50):
        batch(timings, clock, 0.5 if number == 7 else 0.1)
    before = [event for event in lines_of(tmp_path / "events") if event["kind"] == "timings"]
    assert len(before) == 1
    timings.close()
    found = lines_of(tmp_path / "events")
    assert len(found) == 2
    assert sum(event["names"]["backward"]["count"] for event in found) == 50
    assert sum(event["names"]["backward"]["total_s"] for event in found) == pytest.approx(5.4)
    assert [event["names"]["backward"]["max_s"] for event in found] == [0.5, 0.1]
    assert found[-1]["batches"] == 50


def test_a_loader_is_timed_and_a_batch_ends_with_its_last_step(timings, clock, tmp_path):
    def slow():
        for number in range(3):
            clock.now += 0.03
            yield number

    seen = []
    for number in timings.batches(slow()):
        seen.append(number)
        clock.now += 0.01
        timings.batch_done(clock.now)
        clock.now += 0.01
        timings.batch_done(clock.now)
        clock.now += 5.0  # what the script does after its steps
    timings.close()
    assert seen == [0, 1, 2]
    names = {}
    for line in lines_of(tmp_path / "samples"):
        for name, values in line["us"].items():
            names.setdefault(name, []).extend(values)
    assert names == {"dataloader_next": [30000] * 3, "train_batch": [20000] * 3}
    assert lines_of(tmp_path / "events")[-1]["batches"] == 3


def seconds(tmp_path):
    return [line for line in lines_of(tmp_path / "timings") if line["kind"] == "timings"]


def test_each_second_has_a_line_with_count_total_shortest_and_longest(timings, clock, tmp_path):
    for number in range(10):
        batch(timings, clock, 0.001 * (number + 1))
    timings.close()
    lines = seconds(tmp_path)
    assert [(line["first"], line["batches"]) for line in lines] == [(0, 5), (5, 4), (9, 1)]
    assert [line["us"]["backward"] for line in lines] == [
        [5, 15000, 1000, 5000], [4, 30000, 6000, 9000], [1, 10000, 10000, 10000],
    ]  # fmt: skip
    assert [line["us"].get("step") for line in lines] == [None, [4, 1_000_000, 250_000, 250_000], [1, *[250_000] * 3]]
    assert all(abs(line["boot"] - time.clock_gettime(time.CLOCK_BOOTTIME)) < 60 for line in lines)


def test_after_some_minutes_a_line_holds_five_seconds_and_nothing_is_lost(timings, clock, tmp_path):
    for _ in range(4 * 400):
        batch(timings, clock)
    timings.close()
    lines = seconds(tmp_path)
    assert [line["batches"] for line in lines[1:-1]] == [4] * (EARLY_LINES - 1) + [20] * (len(lines) - EARLY_LINES - 1)
    assert sum(line["us"]["backward"][0] for line in lines) == 1600
    assert [line["first"] + line["batches"] for line in lines[:-1]] == [line["first"] for line in lines[1:]]


def test_forward_is_what_remains_of_a_batch_in_a_script_and_in_a_trial_class(timings, clock, tmp_path):
    def one(names):
        for name in names:
            timings.add(name, 0.01)
            clock.now += 0.01
        clock.now += 0.03
        timings.batch_done(clock.now)

    names = ("to_device", "backward", "step_optimizer", "step_lr_schedulers")
    for _ in timings.batches(range(2)):
        one(names)
    timings.close()
    assert seconds(tmp_path)[-1]["us"]["forward"] == [2, 60_000, 30_000, 30_000]
    trial = RankTimings(EventWriter(None), None, SecondsFile(tmp_path / "trial"))
    for name in (*names, "train_batch"):
        trial.add(name, 0.05 if name == "train_batch" else 0.01)
    trial._flush(0.0)
    (line,) = [line for line in lines_of(tmp_path / "trial") if line["kind"] == "timings"]
    assert line["us"]["forward"] == [1, 30_000, 30_000, 30_000], "the trainer moves batches outside of train_batch"


def test_an_exchange_counts_once_per_measurement(timings, clock, tmp_path):
    class Model:
        iteration = 0

        def _get_ddp_logging_data(self):
            return {"iteration": self.iteration, "backward_comm_time": str(2_000_000 * self.iteration)}

    model = Model()
    timings.watch_model(model)
    for number in range(12):
        model.iteration = number // 5
        batch(timings, clock)
    timings.close()
    assert [line["us"].get("gradient_exchange") for line in seconds(tmp_path)] == [
        None, [1, 2000, 2000, 2000], [1, 4000, 4000, 4000],
    ]  # fmt: skip
    (event,) = lines_of(tmp_path / "events")
    assert event["names"]["gradient_exchange"] == {"count": 2, "total_s": 0.006, "max_s": 0.004}


@pytest.mark.parametrize(("step_s", "rate"), [(0.01, 100), (0.06, 50), (0.3, 10), (0.9, 5), (2.0, 1), (30.0, 1)])
def test_exchanges_are_measured_about_every_five_seconds(timings, clock, step_s, rate):
    class Model:
        rates: ClassVar[list[int]] = []

        def _get_ddp_logging_data(self):
            return {"iteration": 0}

        def _set_ddp_runtime_logging_sample_rate(self, rate):
            self.rates.append(rate)

    Model.rates.clear()
    timings.watch_model(Model())
    for _ in range(4 + int(20 / step_s)):
        clock.now += step_s
        timings.add("backward", step_s / 2)
        timings.batch_done(clock.now)
    assert Model.rates == [rate], "set once"


def test_two_files_of_seconds_stay_below_their_limit_and_bytes_keep_their_numbers(tmp_path, clock):
    path = tmp_path / "timings"
    found = SecondsFile(path, limit_bytes=8 << 10)
    for number in range(1000):
        found.write(number, 1, {"backward": Sums(1, 0.1, 0.1, 0.1)})
        if number == 500:
            found.close()
            found = SecondsFile(path, limit_bytes=8 << 10)
    found.close()
    before, after = tmp_path / "timings.1", path
    assert before.stat().st_size <= 8 << 10
    assert after.stat().st_size <= 8 << 10
    (first, *lines), (second, *latest) = lines_of(before), lines_of(after)
    assert (first["kind"], second["kind"]) == ("segment", "segment")
    assert second["base"] == first["base"] + before.stat().st_size
    numbers = [line["first"] for line in (*lines, *latest)]
    assert numbers == list(range(numbers[0], 1000))


def test_values_are_thinned_when_batches_are_very_short(timings, clock, tmp_path):
    add = timings.adder("backward")
    for number in range(10 * MOST_VALUES):
        add(number / 1e6)
    clock.now += 2
    timings.close()
    (line,) = lines_of(tmp_path / "samples")
    assert line["every"] == {"backward": 10}
    assert line["us"]["backward"] == list(range(0, 10 * MOST_VALUES, 10))
    (event,) = lines_of(tmp_path / "events")
    assert event["names"]["backward"]["count"] == 10 * MOST_VALUES, "the summary has them all"


def test_the_file_stays_below_its_limit_and_says_when_it_gets_sparser(tmp_path, clock):
    path = tmp_path / "samples"
    found = SampleFile(path, limit_bytes=64 << 10)
    for number in range(2000):
        found.write(number, 1, {"backward": [0.1] * 50})
        clock.now += 1.0
    assert path.stat().st_size < 64 << 10
    lines = lines_of(path)
    assert [line["interval_s"] for line in lines if line["kind"] == "interval"][:3] == [2, 4, 8]
    firsts = [line["first"] for line in lines if line["kind"] == "batches"]
    assert firsts[:50] == list(range(50))
    assert firsts[-1] > 300
    again = SampleFile(path, limit_bytes=64 << 10)
    again.write(0, 1, {"backward": [0.1]})
    assert path.stat().st_size < 64 << 10


@pytest.mark.parametrize(
    ("profiling", "measures"),
    [({}, True), (None, True), ({"enabled": False}, False), ({"timings": False}, False), ({"timings": True}, True)],
)
def test_profiling_switches_it_on_and_off(tmp_path, profiling, measures):
    writer = EventWriter(tmp_path / "events")
    timings = open_timings(tmp_path / "events", {"profiling": profiling}, writer, 0)
    timings.add("backward", 1.0)
    timings.adder("to_device")(1.0)
    assert list(timings.batches([1, 2])) == [1, 2]
    timings.batch_done(time.perf_counter())
    timings.close()
    assert timings.enabled is measures
    assert (tmp_path / "samples").exists() is measures
    assert (tmp_path / "timings").exists() is measures
    assert bool(lines_of(tmp_path / "events")) is measures


def test_off_cluster_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    timings = open_timings(None, {}, EventWriter(None), 0)
    timings.add("backward", 1.0)
    timings.close()
    assert not timings.enabled
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_loses_measurements_and_nothing_else(tmp_path):
    writer = EventWriter(tmp_path / "events")
    samples = SampleFile(tmp_path / "samples")
    samples._writer._fd = open("/dev/full", "wb", buffering=0).fileno()  # noqa: SIM115 - closed with the test
    seconds = SecondsFile(tmp_path / "timings")
    os.close(seconds._fd)
    seconds._fd = open("/dev/full", "wb", buffering=0).fileno()  # noqa: SIM115
    timings = RankTimings(writer, samples, seconds)
    timings.add("backward", 1.0)
    timings._flush(0.0)
    timings._summarize()
    (event,) = lines_of(tmp_path / "events")
    assert event["names"]["backward"]["count"] == 1


def test_hooks_of_callbacks_are_timed_by_class_and_hook(timings, clock, tmp_path):
    callbacks = pytest.importorskip("airflow_provider_dtrain.train.trial.callbacks")

    class Stopping(callbacks.PyTorchCallback):
        def on_validation_start(self):
            clock.now += 0.5

        def on_trial_shutdown(self):
            raise RuntimeError

    odd = type("Odd <Klass>é", (Stopping,), {})
    many = callbacks.Callbacks({"a": Stopping(), "b": Stopping(), "c": odd()}, timings)
    many.call("on_validation_start")
    many.call("on_training_start")
    with pytest.raises(RuntimeError):
        many.call("on_trial_shutdown")
    timings.close()
    (line,) = [line for line in lines_of(tmp_path / "timings") if line["kind"] == "timings"]
    assert line["us"] == {
        "callbacks.Stopping.on_validation_start": [2, 1_000_000, 500_000, 500_000],
        "callbacks.Odd__Klass__.on_validation_start": [1, 500_000, 500_000, 500_000],
    }


def test_a_rank_times_a_limited_number_of_callbacks_by_name(timings, tmp_path):
    callbacks = pytest.importorskip("airflow_provider_dtrain.train.trial.callbacks")
    kinds = [
        type(f"K{index}", (callbacks.PyTorchCallback,), {"on_training_start": lambda self: None}) for index in range(40)
    ]
    many = callbacks.Callbacks({kind.__name__: kind() for kind in kinds}, timings)
    for _ in range(2):
        many.call("on_training_start")
    timings.close()
    (line,) = [line for line in lines_of(tmp_path / "timings") if line["kind"] == "timings"]
    assert len(line["us"]) == callbacks.TIMINGS_MOST + 1
    assert line["us"][callbacks.OTHER][0] == 2 * (40 - callbacks.TIMINGS_MOST)
    assert set(line["us"]) == {f"callbacks.K{index}.on_training_start" for index in range(32)} | {callbacks.OTHER}
