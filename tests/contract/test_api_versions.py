"""Answers that are known by a version: it changes with the answer, and a kept answer is for the same rights only."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from pydantic import TypeAdapter

from airflow_provider_dtrain.api.call import TIMES_S
from airflow_provider_dtrain.api.models.charts import Curves, Hyperparameters, Rungs
from airflow_provider_dtrain.api.models.experiment_timeline import SlotTimeline
from airflow_provider_dtrain.api.models.trials import TrialCurves
from airflow_provider_dtrain.resources.hosts import Cluster
from airflow_provider_dtrain.store.database.tables import metadata
from airflow_provider_dtrain.store.records.gangs import GangSubmission
from airflow_provider_dtrain.store.records.pages import QueueOrder, QueueQuery
from airflow_provider_dtrain.store.records.trials import SlotRecord, TrialKey
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.search_world import Search

pytestmark = pytest.mark.airflow
LATER = datetime(2031, 1, 1, tzinfo=UTC)
#: For facts that do not depend on the database.
SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@pytest.fixture
def search(store):
    store.hosts.add(host("a", slots=4))
    store.hosts.add(host("b", slots=2))
    found = Search(store)
    found.plan(max_trials=9)
    return found


def shown(api):
    return {name: value for name, value in api.get("/cluster").items() if name != "at"}


def hold(search):
    key = TrialKey(dag_id="d", run_id="r", task_id="hold")
    return search.store.gangs.submit(GangSubmission(key=key, pool="gpus", slots=1, hold_for_s=60))


@pytest.mark.each_change
def test_the_version_of_the_cluster_changes_with_everything_that_the_page_shows(api, search, clock):
    store = search.store
    running = search.start(0, slots=2)
    attempt, watch = running.attempt_id, search.watches[running.attempt_id]
    waiting = search.submit(5, slots=4)
    actions = {
        "an end": lambda: store.attempts.end(attempt, watch, state="completed"),
        "a release": lambda: store.queue.release(attempt, watch, "b", proof="clear"),
        "a host that appears": lambda: store.hosts.add(host("c", slots=1)),
        "a drain": lambda: store.hosts.set_state("b", "draining", "fan"),
        "another reason": lambda: store.hosts.set_state("b", "drained", "belt"),
        "a ready host": lambda: store.hosts.set_state("b", "ready"),
        "a grant": lambda: store.queue.schedule("gpus"),
        "a disabled slot": lambda: store.hosts.set_slot_enabled("c", 0, False),
        "a stuck slot": lambda: store.hosts.mark_slot("c", 0, "stuck", "pid 7"),
        "another note": lambda: store.hosts.mark_slot("c", 0, "stuck", "pid 8"),
        "a probe": lambda: store.hosts.update_facts("c", {}, slots=[SlotRecord(index=0), SlotRecord(index=1)]),
        "a host that goes": lambda: store.hosts.remove("c"),
        "a request": lambda: search.submit(2, slots=1),
        "a start": lambda: search.follow(waiting.attempt_id),
        "a new sample": lambda: search.draw_again(waiting),
    }
    changes_are_seen(actions, lambda: shown(api), store.cluster_page.version, clock)


@SQLITE
def test_the_version_of_the_cluster_stays_while_nothing_of_it_changes(api, search, clock):
    ticket = search.start(0, slots=2)
    search.store.queue.schedule("gpus")
    version = search.store.cluster_page.version()
    clock.advance(60)
    search.store.attempts.renew(search.watches)
    search.validate(ticket, loss=0.5)
    assert search.store.cluster_page.version() == version


@pytest.mark.each_change
def test_the_version_of_a_curve_changes_with_each_report_attempt_and_restarted_file_of_its_trial_only(search):
    first, second = search.start(0, slots=1), search.start(1, slots=1)
    store, ids = search.store, [first.trial_id, second.trial_id]
    before = store.curves.versions(ids)
    assert set(before) == set(ids)
    seen = {before[second.trial_id]}
    attempt, watch = second.attempt_id, search.watches[second.attempt_id]
    (name,) = store.attempts.get(attempt).placement
    actions = (
        lambda: search.validate(second, loss=0.5),
        lambda: search.commit(second, {"kind": "report", "step": 9, "metrics": {"loss": 1}}),
        lambda: search.commit(second, {"kind": "report", "step": 9, "metrics": {"x": 1}}, stream="supervisor.events"),
        lambda: store.events.begin_epoch(attempt, watch, name, "rank0.events", 20, 1, "it is shorter"),
        # The restarted file reaches the position that it had before.
        lambda: store.events.commit(attempt, watch, name, "rank0.events", 0, 20, [], epoch=1),
        lambda: search.draw_again(second),
    )
    for action in actions:
        action()
        after = store.curves.versions(ids)
        assert after[first.trial_id] == before[first.trial_id]
        assert after[second.trial_id] not in seen
        seen.add(after[second.trial_id])


@pytest.mark.each_change
def test_the_first_sample_of_a_holder_changes_the_version_of_the_cluster(api, search):
    ticket = search.start(0, slots=1, hparams=None)
    version, before = search.store.cluster_page.version(), str(shown(api))
    search.store.searches.set_hparams(ticket.attempt_id, search.watches[ticket.attempt_id], {"lr": 7}, 0)
    assert search.store.cluster_page.version() != version
    assert "0 | lr=7" not in before
    assert "0 | lr=7" in str(shown(api))


@SQLITE
def test_two_gangs_that_change_places_change_the_version(api, search):
    first, second = search.start(0, slots=1), search.start(1, slots=1)
    store = search.store
    store.attempts.end(first.attempt_id, search.watches[first.attempt_id], state="completed")
    version = store.cluster_page.version()
    with store.db.engine.begin() as conn:
        for ticket, state in ((first, "running"), (second, "expired")):
            conn.exec_driver_sql(f"UPDATE allocations SET state = '{state}' WHERE id = {ticket.allocation_id}")
    assert store.cluster_page.version() != version


def changes_are_seen(actions, shown, version, clock):
    """Check for each action that the answer changes, and the version with it."""
    before, old = shown(), version()
    for words, action in actions.items():
        clock.advance(1)
        action()
        now, new = shown(), version()
        assert now != before, f"{words}: the test expects that the page shows it"
        assert new != old, words
        before, old = now, new


@pytest.mark.each_change
def test_the_version_of_the_queue_changes_with_everything_that_the_page_shows(api, search, clock):
    store = search.store
    running, drawn, waiting = search.start(0, slots=4), search.start(1, slots=1), search.submit(5, slots=4)
    attempt, watch = running.attempt_id, search.watches[running.attempt_id]
    actions = {
        "a reason and a place": lambda: store.queue.schedule("gpus"),
        "a priority": lambda: store.control.set("trial", waiting.trial_id, priority=7, by="ann"),
        "a pause": lambda: store.control.pause(waiting.trial_id, by="ann"),
        "an activation": lambda: store.control.activate(waiting.trial_id, by="ann"),
        "a new sample": lambda: search.draw_again(drawn),
        "a disabled slot": lambda: store.hosts.set_slot_enabled("b", 1, False),
        "a host that appears": lambda: store.hosts.add(host("c", slots=1)),
        "a follower that is gone": lambda: clock.advance(3600),
        "a follower that is back": lambda: store.attempts.renew(search.watches),
        "a request": lambda: search.submit(2, slots=1),
        "a held gang": lambda: hold(search),
        "an end": lambda: store.attempts.end(attempt, watch, state="completed"),
        "a release": lambda: store.queue.release(attempt, watch, "a", proof="clear"),
        "a grant": lambda: store.queue.schedule("gpus"),
    }
    changes_are_seen(actions, lambda: api.get("/queue"), store.queue_view.version, clock)


#: Columns of a gang that waits or runs, and other values that the page would show or order by.
QUEUE_COLUMNS = {
    "allocations": {
        "state": "stopping",
        "token": 99,
        "priority": 7,
        "sequence": 99,
        "position": 9,
        "reason": "rain",
        "expected": "soon",
        "paused": True,
        "granted_at": LATER,
        "expected_at": LATER,
        "eligible_since": LATER,
        "claim": {"a": [1]},
        "preempted_for": 1,
    },
    "attempts": {"state": "stopping", "reason": "rain"},
    "trials": {"is_drawn": False, "draw": 9},
    "gangs": {"attempt_id": 9},
}


@pytest.mark.each_change
@pytest.mark.parametrize("table", list(QUEUE_COLUMNS))
def test_each_column_that_the_queue_shows_is_part_of_its_version(search, table):
    store = search.store
    search.start(0, slots=1)
    hold(search)
    target = metadata.tables[table]
    for name, value in QUEUE_COLUMNS[table].items():
        before = store.queue_view.version()
        with store.db.engine.begin() as conn:
            conn.execute(target.update().values({name: value}))
        assert store.queue_view.version() != before, name


@pytest.mark.each_change
def test_text_that_moves_between_two_columns_changes_the_version_of_the_queue(search):
    search.start(0, slots=1)
    seen = set()
    for reason, expected in (('x","y', "z"), ("x", 'y","z'), ("", 'x","y,z'), ('x","y,z', "")):
        with search.store.db.engine.begin() as conn:
            conn.execute(metadata.tables["allocations"].update().values(reason=reason, expected=expected))
        seen.add(search.store.queue_view.version())
    assert len(seen) == 4


@SQLITE
@pytest.mark.parametrize("table", ["allocations", "attempts"])
def test_the_last_sign_of_life_of_a_silent_follower_is_part_of_the_version_of_the_queue(search, clock, table):
    if table == "attempts":
        search.start(0, slots=1)
    else:
        search.submit(0, slots=1)
    clock.advance(3600)
    versions = {search.store.queue_view.version()}
    for minutes in (30, 40):
        with search.store.db.engine.begin() as conn:
            at = search.store.db.now() - timedelta(minutes=minutes)
            conn.execute(metadata.tables[table].update().values(renewed_at=at))
        versions.add(search.store.queue_view.version())
    assert len(versions) == 3


@SQLITE
@pytest.mark.parametrize("sort", get_args(QueueOrder))
def test_the_queue_has_the_same_gangs_in_the_same_order_with_and_without_a_filter(search, sort):
    search.start(6, slots=4)
    for number in range(6):
        search.submit(number, slots=2)
    hold(search)
    search.store.queue.schedule("gpus")
    every = QueueQuery(pool=None, state=None, text="", dags=None, sort=sort, descending=False, limit=5, offset=2)
    ids = []
    for query in (every, replace(every, dags=search.store.queue_view.dags())):
        found, total = search.store.queue_view.page(query)
        ids.append(([entry.task.allocation_id for entry in found], total))
    assert ids[0] == ids[1]
    assert ids[0][1] == 8


@pytest.mark.each_change
def test_the_version_of_the_experiments_changes_with_everything_that_the_table_shows(api, search, clock):
    store, own = search.store, search.view.experiment_id
    first = search.start(0, slots=1)
    other = Search(store, name="other", run="other")
    actions = {
        "a name": lambda: store.control.set("experiment", own, display_name="best of all", by="ann"),
        "a description": lambda: store.control.set("experiment", own, description="a try", by="ann"),
        "a tag": lambda: store.control.set("experiment", own, tags=["x"], by="ann"),
        "another tag": lambda: store.control.set("experiment", own, tags=["y"], by="ann"),
        "a best metric": lambda: search.validate(first, loss=0.5),
        "a better one": lambda: search.validate(first, loss=0.25),
        "a trial": lambda: search.submit(1, slots=1),
        "an end": lambda: search.end(first),
        "a stop": lambda: store.experiments.stop(own, "ann"),
        "another experiment": lambda: other.plan(max_trials=4),
        "a larger plan": lambda: other.plan(max_tries=1, max_trials=8),
    }
    changes_are_seen(actions, lambda: api.get("/experiments"), store.experiment_table.version, clock)


@pytest.mark.each_change
def test_the_progress_of_a_running_trial_changes_the_version_of_the_experiments(api, search):
    document = {"entrypoint": "python t.py", "searcher": {"name": "single", "max_length": {"batches": 400}}}
    search.config = search.store.configs.put(document, origins={}).config_id
    ticket = search.start(0, slots=1)
    seen = {search.store.experiment_table.version()}
    for step in (100, 200):
        search.commit(ticket, {"kind": "report", "step": step, "metrics": {"loss": 1.0}})
        assert api.get("/experiments")["rows"][0]["progress"] == pytest.approx(step / 400 / 9)
        version = search.store.experiment_table.version()
        assert version not in seen
        seen.add(version)
    # The next attempt begins anew, without a report.
    search.draw_again(ticket)
    assert api.get("/experiments")["rows"][0]["progress"] == 0
    assert search.store.experiment_table.version() != version


def test_an_experiment_that_runs_and_ends_again_has_another_version(api, search, clock):
    versions = set()
    for tries, state in enumerate(("errored", "completed")):
        clock.advance(5)
        planned = search.plan(max_tries=tries, max_trials=1)
        search.end(search.start(0, slots=1, max_tries=tries), state=state)
        search.store.searches.end(planned.search_id)
        assert api.get("/experiments")["rows"][0]["state"] == state
        versions.add(search.store.experiment_table.version())
    assert len(versions) == 2


@SQLITE
def test_the_versions_of_queue_and_experiments_stay_while_nothing_of_them_changes(api, search, clock):
    ticket = search.start(0, slots=2)
    search.submit(1, slots=4)
    search.store.queue.schedule("gpus")
    versions = search.store.queue_view.version(), search.store.experiment_table.version()
    clock.advance(5)
    search.store.attempts.renew(search.watches)
    search.validate(ticket, other=0.5)
    assert (search.store.queue_view.version(), search.store.experiment_table.version()) == versions


@pytest.mark.parametrize(("path", "view"), [("/queue", "queue_view"), ("/experiments", "experiment_table")])
@SQLITE
def test_a_poll_of_an_unchanged_table_reads_no_page(search, monkeypatch, path, view):
    search.start(0, slots=1)
    api = Api(search.store)
    first = api.answer("GET", path)
    with monkeypatch.context() as patch:
        patch.setattr(getattr(search.store, view), "page", None)
        assert api.answer("GET", path, headers={"If-None-Match": first.headers["etag"]}).status_code == 304
        assert api.answer("GET", path).content == first.content
    for right in ("editable", "readable"):
        setattr(api.rights, right, set())
        again = api.answer("GET", path, headers={"If-None-Match": first.headers["etag"]})
        assert again.status_code == 200, f"{right} were withdrawn"


@SQLITE
def test_an_answer_that_depends_on_the_time_is_kept_for_a_minute(api, search, clock):
    search.start(0, slots=1)
    tag = api.answer("GET", "/queue").headers["etag"]
    clock.advance(TIMES_S)
    search.store.attempts.renew(search.watches)
    assert api.answer("GET", "/queue", headers={"If-None-Match": tag}).status_code == 200


@SQLITE
def test_a_poll_of_an_unchanged_cluster_reads_no_slots(api, search, monkeypatch):
    first = api.answer("GET", "/cluster")
    monkeypatch.setattr(search.store.cluster_page, "state", None)
    again = api.answer("GET", "/cluster", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert api.answer("GET", "/cluster").content == first.content


@SQLITE
def test_a_kept_answer_is_for_users_with_the_same_rights_only(search):
    search.start(0, slots=1)
    api = Api(search.store)
    everything = api.get("/cluster")
    api.rights.readable = set()
    nothing = api.answer("GET", "/cluster", headers={"If-None-Match": api.answer("GET", "/cluster").headers["etag"]})
    assert nothing.status_code == 304
    (hidden,) = api.get("/cluster")["holders"].values()
    assert hidden["trial_name"] is None
    assert hidden["is_hidden"]
    api.rights.readable = None
    assert api.get("/cluster") == everything


@SQLITE
def test_a_right_that_is_withdrawn_counts_at_the_next_poll(search):
    search.start(0, slots=1)
    api = Api(search.store)
    tag = api.answer("GET", "/cluster").headers["etag"]
    api.rights.readable = set()
    again = api.answer("GET", "/cluster", headers={"If-None-Match": tag})
    assert again.status_code == 200
    assert "trial" not in str(again.json()["holders"]).replace("trial_id", "").replace("trial_name", "")


@SQLITE
def test_each_argument_has_an_answer_of_its_own(api, search):
    assert [one["name"] for one in api.get("/cluster", host="a")["hosts"]] == ["a"]
    assert [one["name"] for one in api.get("/cluster", host="b")["hosts"]] == ["b"]
    assert len(api.get("/cluster")["hosts"]) == 2


def test_large_answers_have_the_fields_of_their_models(api, search, clock):
    for number in range(3):
        ticket = search.start(number, slots=1)
        search.validate(ticket, loss=0.5 + number, odd=float("nan"))
        search.ask(ticket, 0, 0.5 + number)
    gang = hold(search)
    search.store.queue.schedule("gpus")
    assert search.store.gangs.get(gang.allocation_id).token
    search.store.hosts.set_slot_enabled("a", 0, False)
    search.store.hosts.set_state("b", "draining", "fan")
    of = f"/experiments/{search.view.experiment_id}"
    models = {
        "/cluster": Cluster,
        "/cluster?host=a": Cluster,
        "/cluster?details=true": Cluster,
        f"{of}/rungs": Rungs,
        f"{of}/curves?x=time": Curves,
        f"{of}/curves?x=epochs": Curves,
        f"{of}/hyperparameters": Hyperparameters,
        f"{of}/timeline": SlotTimeline,
        f"/trials/{ticket.trial_id}/curves": TrialCurves,
    }
    for path, model in models.items():
        found = api.get(path)
        # Unknown fields are refused, and missing ones must have a default.
        checked = TypeAdapter(model)
        again = checked.dump_python(checked.validate_python(found), mode="json", exclude_defaults=model is Cluster)
        assert again == found, path
    clock.advance(timedelta(hours=1).total_seconds())
