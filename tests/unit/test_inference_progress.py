"""Progress of a batch inference and the states of its shards, from the reports of ranks."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_dtrain.core.lifecycle.inference_progress import (
    InferenceProgress,
    ShardCounts,
    ShardReport,
    as_trial_progress,
    in_ranges,
    inference_progress,
    inference_text,
    result_text,
    shard_states,
)
from airflow_provider_dtrain.train.inference.publication import ranges

#: 100 shards of 10 rows, 40 of them done before; 30 more in 60 seconds.
COUNTS = ShardCounts(
    total=100, missing=60, rows=1000, rows_done=400, done=30, done_rows=300, first_start_s=1000.0, last_end_s=1060.0
)


def progress(counts: ShardCounts = COUNTS, *, now_s: float = 1060.0, is_live: bool = True) -> InferenceProgress:
    return inference_progress(counts, now_s=now_s, is_live=is_live)


def test_share_speed_and_time_left_come_from_the_rows() -> None:
    found = progress()
    assert (found.done, found.rows_done, found.share) == (70, 700, 0.7)
    assert found.rows_per_s == 5.0
    assert found.eta_s == 60.0
    assert inference_text(found) == "70 % done, 70 of 100 shards, 5 rows/s, 1 min left"


def test_the_time_left_runs_down_between_reports_and_never_below_zero() -> None:
    assert progress(now_s=1070.0).eta_s == 50.0
    assert progress(now_s=5000.0).eta_s == 0.0
    assert progress(now_s=900.0).eta_s == 60.0, "a clock that was set back adds no time"


def test_without_the_number_of_rows_the_shards_count() -> None:
    found = progress(replace(COUNTS, rows=None))
    assert (found.share, found.eta_s, found.rows_per_s) == (0.7, 60.0, 5.0)


def test_nothing_is_known_before_the_first_shard_has_ended() -> None:
    found = progress(replace(COUNTS, done=0, done_rows=0, last_end_s=None))
    assert (found.share, found.rows_per_s, found.eta_s) == (0.4, None, None)
    assert inference_text(found) == "40 % done, 40 of 100 shards"


def test_an_attempt_that_has_ended_has_no_time_left() -> None:
    assert progress(is_live=False).eta_s is None
    assert progress(replace(COUNTS, done=60, done_rows=600)).eta_s is None


def test_shards_that_were_set_aside_count_as_done_and_are_named() -> None:
    found = progress(replace(COUNTS, done=58, done_rows=580, skipped=2))
    assert (found.share, found.done, found.eta_s) == (1.0, 98, None)
    assert inference_text(found).startswith("100 % done, 98 of 100 shards, 2 set aside")


def test_a_published_manifest_is_the_whole() -> None:
    assert progress(replace(COUNTS, is_published=True)).share == 1.0
    # A second run into the same folder has nothing to do.
    again = ShardCounts(total=100, missing=0, rows=1000, rows_done=1000)
    assert (progress(again).share, progress(again).eta_s) == (1.0, None)


def test_hundred_percent_means_that_nothing_is_left() -> None:
    found = progress(replace(COUNTS, total=100_000, missing=1, rows=1_000_000, rows_done=999_990, done=0, done_rows=0))
    assert inference_text(found).startswith("99 % done, 99,999 of 100,000 shards")


def test_hostile_counts_stay_within_their_bounds() -> None:
    chance = random.Random(5)
    for _ in range(2000):
        numbers: list[Any] = [chance.choice([0, 1, 7, 10**6, 2**63 - 1]) for _ in range(8)]
        times = [chance.choice([None, 0.0, -1e11, 1e11, 5.0]) for _ in range(2)]
        counts = ShardCounts(
            total=numbers[0], missing=numbers[1], rows=chance.choice([None, numbers[2]]), rows_done=numbers[3],
            done=numbers[4], done_rows=numbers[5], skipped=numbers[6], failed=numbers[7], first_start_s=times[0],
            last_end_s=times[1], is_published=chance.random() < 0.2,
        )  # fmt: skip
        found = progress(counts, now_s=chance.choice([0.0, 1e11]), is_live=chance.random() < 0.8)
        assert 0 <= found.share <= 1
        assert 0 <= found.done <= found.total
        assert found.eta_s is None or found.eta_s >= 0
        assert found.rows_per_s is None or found.rows_per_s >= 0
        assert inference_text(found)


# -- states


def states(total: int, missing: int, *reports: tuple[int, str, bool], **more: Any) -> str:
    return shard_states(
        total, missing, [ShardReport(index, f"shard_{kind}", now) for index, kind, now in reports], **more
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (states(4, 4), "wwww"),
        (states(4, 4, (0, "started", True), (0, "done", True), (1, "started", True)), "drww"),
        (states(4, 4, (0, "started", True), (0, "failed", True)), "fwww"),
        (states(4, 4, (0, "started", True), (0, "failed", True), (0, "started", True)), "rwww"),
        (states(4, 4, (0, "started", True), (0, "skipped", True)), "swww"),
        # A rank of an earlier attempt died in shard 1.
        (states(4, 4, (0, "done", False), (1, "started", False)), "dwww"),
        (states(4, 4, (0, "done", False), (1, "started", False), blamed={1}), "dfww"),
        # Ranks take missing shards in order: an earlier run had finished shards 0 and 2.
        (states(6, 4, (1, "started", True), (3, "started", True)), "drdrww"),
        # Rank 0 names them, so that shards that an earlier run has set aside are not taken for finished ones.
        (states(6, 4, (3, "started", True), finished="0,5"), "dwwrwd"),
        (states(6, 4, finished="0,2-3"), "dwddww"),
        (states(6, 6, (5, "done", True), finished=""), "wwwwwd"),
        (states(6, 0), "dddddd"),
        (states(3, 1, (2, "skipped", True), is_published=True), "dds"),
        (states(0, 0), ""),
        # A hostile host reports shards that do not exist.
        (states(2, 2, (2, "done", True), (10**6, "done", True), (-1, "done", True)), "ww"),
    ],
)
def test_each_shard_has_the_state_of_its_latest_report(found: str, expected: str) -> None:
    assert found == expected


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([4], "4"), ([0, 1, 2, 20, 17, 18], "0-2,17-18,20"), ([3, 1], "1,3")]
)
def test_finished_shards_travel_as_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text
    assert in_ranges(text, 100) == set(numbers)


def test_a_list_of_ranges_is_bounded_on_both_sides() -> None:
    assert ranges(range(0, 10_000, 2)) is None
    assert ranges(range(100_000)) == "0-99999"
    assert in_ranges("0-999999999,-3,4-,a,²,5-6-7,1e3, 2,12345678901", 4) == {0, 1, 2, 3}
    assert in_ranges("9-3,1", 4) == {1}


def test_the_progress_of_a_list_has_shards_and_an_expected_end() -> None:
    now = datetime(2026, 11, 23, tzinfo=UTC)
    found = as_trial_progress(progress(), now)
    assert (found.done, found.total, found.unit, found.share) == (70, 100, "shards", 0.7)
    assert found.expected_end == now + timedelta(seconds=60)
    slow = replace(COUNTS, total=10**9, missing=10**9, rows=None, rows_done=0, done=1, last_end_s=1e9)
    assert as_trial_progress(progress(slow), now).expected_end == now + timedelta(days=366)
    assert as_trial_progress(progress(replace(COUNTS, is_published=True)), now).expected_end is None


def test_the_result_names_what_was_computed_and_what_was_there() -> None:
    resumed = ShardCounts(total=80, missing=3, rows=20_000, rows_done=19_250, done=3, done_rows=750)
    assert result_text(progress(resumed)) == "3 of 80 shards computed, 20,000 rows in the output folder"
    finished = ShardCounts(total=80, missing=0, rows=20_000, rows_done=20_000, is_published=True)
    assert result_text(progress(finished)) == "nothing computed, because the output folder had all 80 shards"
