"""Reports about shards in the store: counts for lists of trials, states for a page."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_dtrain.core.lifecycle.inference_progress import ShardCounts, shard_states
from airflow_provider_dtrain.store.queries.rights import AllRights
from airflow_provider_dtrain.store.queries.trials import trial_detail, trial_page
from airflow_provider_dtrain.store.records.pages import TrialQuery
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.terminal.trials import summary_of
from testbed.stores import host

#: Queries of numbers inside JSON differ between the databases.
pytestmark = pytest.mark.each_change


def event(seq, kind, at=1.0, **fields):
    return {"seq": seq, "at": at, "kind": kind, **fields}


def began(seq, total, missing, **more):
    rows = {"rows": total * 10, "rows_done": (total - missing) * 10, **more}
    return event(seq, "shards", total=total, missing=missing, location="/o", batch_size=64, resumed=False, **rows)


def done(seq, shard, at, rows=10):
    return event(seq, "shard_done", at, shard=shard, rows=rows, bytes=9, part="p", sha256="a", seconds=1.0)


def started(seq, shard, at):
    return event(seq, "shard_started", at, shard=shard, label=f"part-{shard}", tries=1)


@pytest.fixture
def infer(store, submit, start):
    """Report events of a running trial: ``infer(events)`` -> its ticket."""
    store.hosts.add(host("a"))

    def report(events):
        ticket = submit()
        store.events.commit(ticket.attempt_id, start(ticket), "a", "rank0.events", 0, 100, events)
        return ticket

    return report


def test_the_counts_of_several_trials_are_read_at_once(store, infer) -> None:
    one = infer([began(1, 4, 3), started(2, 1, 10.0), done(3, 1, 14.0), started(4, 2, 14.0),
                 event(5, "shard_failed", shard=2, label="x", error="e", tries=1, is_final=False)])  # fmt: skip
    two = infer([began(1, 2, 0), event(2, "manifest", location="/o", rows=20, shards=2, bytes=9, skipped=[],
                                       sha256="a", schema={})])  # fmt: skip
    training = infer([])
    found = store.shards.counts([one.trial_id, two.trial_id, training.trial_id, 999])
    assert found == {
        one.trial_id: ShardCounts(
            total=4,
            missing=3,
            rows=40,
            rows_done=10,
            done=1,
            done_rows=10,
            failed=1,
            first_start_s=10.0,
            last_end_s=14.0,
        ),
        two.trial_id: ShardCounts(total=2, missing=0, rows=20, rows_done=20, is_published=True),
    }
    assert store.shards.counts([]) == {}


def test_only_the_latest_attempt_that_counted_its_shards_has_counts(store, infer, clock) -> None:
    ticket = infer([began(1, 4, 4), done(2, 0, 5.0), done(3, 1, 6.0)])
    watch = store.attempts.get(ticket.attempt_id).watch
    clock.advance(60)
    later = store.attempts.next(ticket.attempt_id, watch, failure={"error": "x", "kind": "user"}, counted=False)
    assert store.shards.counts([ticket.trial_id])[ticket.trial_id].done == 2
    watch = store.attempts.watch(later.attempt_id, watcher="test")
    store.events.commit(later.attempt_id, watch, "a", "rank0.events", 0, 100, [began(1, 4, 2), done(2, 2, 70.0)])
    counts = store.shards.counts([ticket.trial_id])[ticket.trial_id]
    assert (counts.missing, counts.done, counts.rows_done) == (2, 1, 20)
    reports = store.shards.reports(ticket.trial_id, is_live=True)
    assert [(one.shard, one.is_current) for one in reports] == [(0, False), (1, False), (2, True)]
    assert shard_states(4, 2, reports) == "dddw"
    assert not any(one.is_current for one in store.shards.reports(ticket.trial_id, is_live=False))


def test_a_list_of_trials_has_the_progress_of_a_running_inference(store, start, clock) -> None:
    store.hosts.add(host("a"))
    config = store.configs.put({"inference": {"outputs": {"path": "/o"}}}, origins={})
    key = TrialKey(dag_id="d", run_id="r", task_id="infer")
    ticket = store.trials.submit(
        TrialSubmission(key=key, experiment_name="e", config_id=config.config_id, pool="gpus", slots=1)
    )
    at = clock.now.timestamp()
    reports = [began(1, 4, 3, finished="2"), started(2, 0, at - 20), done(3, 0, at - 10), done(4, 1, at)]
    store.events.commit(ticket.attempt_id, start(ticket), "a", "rank0.events", 0, 100, reports)
    (entry,) = store.trial_table.some([ticket.trial_id])
    progress = entry.progress
    assert (progress.done, progress.total, progress.unit, progress.share) == (3, 4, "shards", 0.75)
    assert progress.expected_end == clock.now + timedelta(seconds=10)
    assert store.shards.counts([ticket.trial_id])[ticket.trial_id].finished == "2"
    (listed,) = trial_page(store, AllRights(), TrialQuery()).rows
    assert listed.shards == trial_detail(store, AllRights(), ticket.trial_id).shards
    assert (listed.shards.done, listed.shards.share) == (3, 0.75)
    assert summary_of(listed).startswith("75 % done, 3 of 4 shards")


def test_numbers_that_a_host_chose_overflow_nothing(store, infer) -> None:
    huge = 2**63 - 1
    ticket = infer([began(1, 3, 3, rows=huge), *(done(2 + n, n, 5.0, rows=huge) for n in range(3))])
    counts = store.shards.counts([ticket.trial_id])[ticket.trial_id]
    assert counts.done_rows >= huge
    assert len(store.shards.reports(ticket.trial_id, is_live=True)) == 3


def test_troubles_are_the_latest_reports_of_failures(store, infer) -> None:
    failures = [
        event(2 + n, "shard_failed", shard=n, label=f"part-{n}", error="e", tries=1, is_final=False) for n in range(5)
    ]
    ticket = infer([began(1, 9, 9), *failures, event(9, "shard_skipped", shard=0, label="part-0", error="e")])
    found = store.shards.troubles(ticket.trial_id, most=2)
    assert [(one["kind"], one["shard"]) for one in found] == [("shard_skipped", 0), ("shard_failed", 4)]


def test_times_of_shards_are_unix_seconds(store, infer, clock) -> None:
    at = (clock.now + timedelta(hours=1)).timestamp()
    ticket = infer([began(1, 1, 1), started(2, 0, at)])
    assert store.shards.counts([ticket.trial_id])[ticket.trial_id].first_start_s == pytest.approx(at)
