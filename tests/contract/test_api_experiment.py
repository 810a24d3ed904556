"""The pages of an experiment and of a trial, on each database. Rights are given, see ``api_world``."""

from __future__ import annotations

import csv
import io
import threading
from itertools import pairwise
from urllib.parse import urlencode

import pytest

from airflow_provider_dtrain.core.search.importance import importance
from airflow_provider_dtrain.store import trial_progress
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from testbed.standalone import wait_until
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.search_world import Search

pytestmark = pytest.mark.airflow
#: For facts that do not depend on the database.
SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)

SPACE = {
    "lr": {"type": "log", "minval": -4, "maxval": -1},
    "opt": {"type": "categorical", "vals": ["adam", "sgd"]},
    "net": {"width": {"type": "int", "minval": 8, "maxval": 64}},
    "epochs": 3,
}
DOCUMENT = {
    "name": "e", "entrypoint": "python train.py", "hyperparameters": SPACE,
    "searcher": {"name": "async_halving", "metric": "loss", "max_length": {"batches": 16}},
    "environment": {"environment_variables": {"API_TOKEN": "hidden-7f3a"}},
}  # fmt: skip
ORIGINS = {"name": "config", "entrypoint": "template", "hyperparameters.lr": "config", "hyperparameters.opt": "config"}


def hparams(number):
    return {"lr": 10.0 ** -(number + 1), "opt": "adam" if number % 2 else "sgd", "net": {"width": 8 * (number + 1)}}


@pytest.fixture
def search(store):
    store.hosts.add(host("a", slots=8))
    found = Search(store)
    found.config = store.configs.put(DOCUMENT, origins=ORIGINS).config_id
    found.plan(max_trials=6, divisor=2, rungs={0: (1, 4)})
    return found


def trial(search, number, loss, *, state=None):
    ticket = search.start(number, slots=1, hparams=hparams(number))
    search.validate(ticket, loss=loss, accuracy=1 - loss)
    search.ask(ticket, 0, loss)
    if state is not None:
        search.end(ticket, state)
    return ticket


@pytest.fixture
def ended(search):
    return [trial(search, number, loss, state="completed") for number, loss in enumerate((0.5, 0.25, 0.75))]


def path(search, more=""):
    return f"/experiments/{search.view.experiment_id}{more}"


@pytest.mark.each_change
def test_a_running_trial_has_a_progress_and_so_has_its_experiment(api, search):
    document = {**DOCUMENT, "searcher": {"name": "single", "max_length": {"records": 400}}, "records_per_epoch": 100}
    config = search.store.configs.put(document, origins={}).config_id
    search.config, search.name, search.view = config, "single", None
    search.plan(task="single", method="single", max_trials=2, rungs={})
    ticket = search.start(0, slots=1, hparams={"global_batch_size": 4})
    of = f"/trials/{ticket.trial_id}"
    assert api.get(of)["progress"] == {"done": 0, "total": 400, "unit": "records", "share": 0, "expected_end": None}
    for at, (kind, step) in enumerate((("report", 10), ("validation", 20), ("report", 50))):
        search.commit(ticket, {"kind": kind, "step": step, "metrics": {"loss": 1.0}, "at": 100.0 + at})
    found = api.get(of)["progress"]
    assert (found["done"], found["share"]) == (200, 0.5)
    assert found["expected_end"] is not None
    page = api.get(path(search))
    assert (page["progress"], page["expected_end"]) == (0.25, None)
    _is_sorted_by_the_progress_that_it_shows(api, search)
    other = search.start(1, slots=1, hparams={"global_batch_size": 4})
    search.end(other, "completed")
    page = api.get(path(search))
    assert (page["progress"], page["expected_end"]) == (0.75, found["expected_end"])
    search.end(ticket, "completed")
    assert api.get(of)["progress"] is None
    assert api.get(path(search))["progress"] == 1


@pytest.mark.each_change
def test_experiments_whose_trials_have_no_known_length_have_no_progress_until_one_ends_and_are_the_last_of_the_order(
    api, search
):
    search.config = search.store.configs.put({**DOCUMENT, "searcher": {"name": "custom"}}, origins={}).config_id
    for number in range(2):
        ticket = search.start(number, slots=1)
        search.commit(ticket, {"kind": "report", "step": 10, "metrics": {"loss": 1.0}, "at": 100.0})
    half = Search(search.store, name="half", run="half")
    half.plan(max_trials=2)
    half.end(half.start(0, slots=1))
    for order in ("asc", "desc"):
        rows = api.get("/experiments", sort="progress", order=order)["rows"]
        assert [(row["name"], row["progress"]) for row in rows] == [("half", 0.5), (search.name, None)]
    assert api.get(path(search))["progress"] is None
    version = search.store.experiment_table.version()
    search.end(ticket, "completed")
    assert api.get(path(search))["progress"] == pytest.approx(1 / 6)
    assert search.store.experiment_table.version() != version


@pytest.mark.each_change
def test_a_trial_without_a_known_share_is_as_far_as_the_others_of_its_experiment(api, search):
    document = {**DOCUMENT, "searcher": {"name": "random", "max_length": {"records": 400}, "max_trials": 2}}
    search.config = search.store.configs.put(document, origins={}).config_id
    for number, hparams in enumerate(({"global_batch_size": 4}, {})):
        ticket = search.start(number, slots=1, hparams=hparams)
        search.commit(ticket, {"kind": "report", "step": 50, "metrics": {"loss": 1.0}, "at": 100.0})
    trials = api.get("/trials", experiment_id=search.view.experiment_id)["rows"]
    assert [row["progress"]["share"] for row in sorted(trials, key=lambda row: row["number"])] == [0.5, None]
    planned = api.get(path(search))["max_trials"]
    assert api.get(path(search))["progress"] == pytest.approx(2 * 0.5 / planned)


def test_only_trials_with_a_result_count_in_an_experiment_that_has_failed_or_was_killed(api, search):
    found = {}
    for name, states in (
        ("failed", ["errored"]),
        ("killed", ["completed", "running"]),
        ("whole", ["errored", "stopped"]),
    ):
        one = Search(search.store, name=name, run=name)
        found[name] = one.plan(max_trials=len(states)).experiment_id
        for number, state in enumerate(states):
            ticket = one.start(number, slots=1)
            if state != "running":
                one.end(ticket, state)
        if name == "killed":
            search.store.experiments.kill(found[name], "ann")
            one.end(ticket, "killed")
    rows = {row["name"]: row for row in api.get("/experiments", sort="progress", order="desc")["rows"]}
    assert {name: (rows[name]["state"], rows[name]["progress"]) for name in found} == {
        "failed": ("errored", None), "killed": ("killed", 0.5), "whole": ("completed", 1),
    }  # fmt: skip
    assert list(rows)[-1] == "failed"


def test_the_latest_running_trials_of_each_experiment_stand_for_its_progress(api, search, monkeypatch):
    monkeypatch.setattr(trial_progress, "EXPERIMENT_SAMPLE", 1)
    document = {**DOCUMENT, "searcher": {"name": "random", "max_length": {"batches": 100}, "max_trials": 2}}
    search.config = search.store.configs.put(document, origins={}).config_id
    for name, steps in (("first", (10, 50)), ("second", (90, 30))):
        one = Search(search.store, name=name, run=name)
        one.config = search.config
        one.plan(max_trials=2)
        for number, step in enumerate(steps):
            ticket = one.start(number, slots=1)
            one.commit(ticket, {"kind": "report", "step": step, "metrics": {"loss": 1.0}, "at": 100.0})
    rows = api.get("/experiments", sort="progress", order="desc")["rows"]
    assert [(row["name"], row["progress"]) for row in rows if row["progress"]] == [("first", 0.5), ("second", 0.3)]


def _is_sorted_by_the_progress_that_it_shows(api, search):
    """One of 8 trials has ended elsewhere, while the half of a running trial is a quarter of a plan of two."""
    eight = Search(search.store, name="eight", run="eight")
    eight.plan(max_trials=8)
    eight.end(eight.start(0, slots=1))
    for order, expected in (
        ("desc", [("single", 0.25), ("eight", 0.125)]),
        ("asc", [("eight", 0.125), ("single", 0.25)]),
    ):
        rows = api.get("/experiments", sort="progress", order=order)["rows"]
        found = [(row["name"], row["progress"]) for row in rows if row["progress"]]
        assert found == expected
        assert [row["progress"] for row in rows] == sorted((row["progress"] for row in rows), reverse=order == "desc")
        cut = api.get("/experiments", sort="progress", order=order, limit=1, offset=1)
        assert (cut["rows"], cut["total"]) == (rows[1:2], len(rows))


@SQLITE
def test_the_page_of_an_experiment_has_its_plan_space_and_metrics(api, search, ended, clock):
    page = api.get(path(search))
    assert (page["best"], page["best_trial"]) == (0.25, ended[1].trial_id)
    assert page["search"]["rungs"] == {"0": [1, 4]}
    assert page["search"]["units"] == "batches"
    assert {"group": "validation", "name": "loss"} in page["metrics"]
    shown = {one["name"]: (one["kind"], one["log"], one["minimum"], one["maximum"]) for one in page["hyperparameters"]}
    assert shown == {
        "lr": ("float", True, 1e-4, 0.1), "opt": ("categorical", False, None, None),
        "net.width": ("int", False, 8, 64), "epochs": ("const", False, None, None),
    }  # fmt: skip
    assert page["fork"] == {"possible": True, "reason": ""}


@pytest.mark.each_change
def test_trials_are_sorted_by_numbers_and_texts_of_their_hyperparameters(api, search, ended):
    search.submit(3)
    assert numbers(api, search, sort="hparams.lr") == [2, 1, 0, 3]
    assert numbers(api, search, sort="hparams.net.width", order="desc") == [2, 1, 0, 3]
    assert numbers(api, search, sort="hparams.opt") == [1, 0, 2, 3]
    assert numbers(api, search, sort="best_metric") == [1, 0, 2, 3]
    assert numbers(api, search, sort="hparams.no.such") == [0, 1, 2, 3]


def numbers(api, search, **query):
    return [row["number"] for row in api.get("/trials", experiment_id=search.view.experiment_id, **query)["rows"]]


@pytest.mark.parametrize("sort", ["hparams.", "name", 'hparams.a"b', "id; DROP TABLE trials"])
@SQLITE
def test_an_order_that_makes_no_sense_is_refused(api, search, sort):
    status, code, message = api.refusal(
        "GET", "/trials", params={"sort": sort, "experiment_id": search.view.experiment_id}
    )
    assert (status, code) == (422, "invalid")
    assert message


@pytest.mark.parametrize(
    "sort", ["number", "state", "units", "rung", "created_at", "ended_at", "restarts", "duration_s"]
)
@SQLITE
def test_trials_are_sorted_by_each_column_in_both_directions(api, search, ended, sort):
    up = numbers(api, search, sort=sort)
    assert sorted(up) == [0, 1, 2]
    assert sorted(numbers(api, search, sort=sort, order="desc")) == [0, 1, 2]


@pytest.mark.each_change
def test_trials_are_ordered_by_parts_of_a_second(api, search, clock):
    # The second and third end in a later second than they start in, and the first does not.
    for number, (start_at_s, duration_s) in enumerate(((0.35, 0.9), (0.9, 0.4), (0.6, 0.65))):
        clock.advance(1 - clock.now.microsecond / 1e6 + start_at_s)
        ticket = search.start(number, slots=0)
        clock.advance(duration_s)
        search.end(ticket)
    assert numbers(api, search, sort="duration_s") == [1, 2, 0]
    assert numbers(api, search, sort="duration_s", order="desc") == [0, 2, 1]


@pytest.mark.each_change
def test_trials_are_found_by_state_text_number_and_tag(api, search, ended):
    search.store.control.set("trial", ended[2].trial_id, description="odd", tags=["x"], by="ann")
    search.submit(3)
    assert numbers(api, search, state=["queued"]) == [3]
    assert numbers(api, search, q="ODD") == numbers(api, search, tag="x") == [2]
    assert numbers(api, search, q="sgd") == [0, 2]
    assert numbers(api, search, q="%") == []
    assert api.get("/trials", experiment_id=search.view.experiment_id, limit=2, offset=1)["total"] == 4


@SQLITE
def test_a_row_of_a_trial_says_why_it_waits(api, search):
    trial(search, 0, 0.5)
    search.submit(1, slots=8)
    search.store.queue.schedule("gpus")
    first, second = api.get("/trials", experiment_id=search.view.experiment_id)["rows"]
    assert (first["state"], first["position"], first["units"], first["rung"]) == ("running", None, 1, 0)
    assert (second["state"], second["position"]) == ("queued", 1)
    assert "slot" in second["reason"]
    assert second["name"] == "1 | not drawn yet" or second["name"].startswith("1 | lr=")


def test_the_tables_are_exported_as_csv_without_formulas(api, search, ended):
    search.store.control.set("experiment", search.view.experiment_id, description="=1+1", by="ann")
    (row,) = csv.DictReader(io.StringIO(api.answer("GET", "/experiments.csv").text))
    assert (row["name"], row["description"], row["best"]) == ("e", "'=1+1", "0.25")
    answer = api.answer("GET", path(search, "/trials.csv"))
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(one["number"], one["loss"], one["net.width"]) for one in rows] == [
        ("0", "0.5", "8"), ("1", "0.25", "16"), ("2", "0.75", "24"),
    ]  # fmt: skip
    assert answer.headers["content-disposition"].startswith("attachment")


def test_the_csv_of_trials_has_the_order_the_filters_and_the_lengths_of_the_table(api, search, ended):
    search.store.control.set("trial", ended[1].trial_id, tags=["good"], by="ann")
    without_rung = search.start(3, slots=1, hparams=hparams(3))
    search.validate(without_rung, loss=0.9)
    for ticket in (ended[2], without_rung):
        search.store.control.set("trial", ticket.trial_id, tags=["good"], by="ann")
    asked = {"sort": "best_metric", "order": "desc", "tag": "good"}
    table = api.get("/trials", experiment_id=search.view.experiment_id, **asked)["rows"]
    answer = api.answer("GET", f"{path(search, '/trials.csv')}?{urlencode(asked)}")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [one["number"] for one in rows] == [str(one["number"]) for one in table] == ["3", "2", "1"]
    assert [one["units"] for one in rows] == [str(one["units"]) for one in table]
    assert all(one["units"] for one in rows)
    assert api.answer("GET", f"{path(search, '/trials.csv')}?sort=no").status_code == 422


def test_curves_show_the_branch_that_counts_after_a_restart(api, search):
    ticket = search.start(0, slots=1)
    search.commit(ticket, *(validation(step, loss=1 / step) for step in (1, 2, 3, 4)))
    failure = {"error": "RankFailedError", "kind": "user", "message": "x"}
    again = search.store.attempts.next(
        ticket.attempt_id, search.watches[ticket.attempt_id], failure=failure, counted=True
    )
    search.follow(again.attempt_id)
    search.commit(again, *(validation(step, loss=10 + step) for step in (3, 4, 5)))
    (curve,) = api.get(path(search, "/curves"), metric="loss")["series"]
    assert (curve["number"], curve["x"], curve["y"]) == (0, [1, 2, 3, 4, 5], [1.0, 0.5, 13, 14, 15])
    (series,) = api.get(f"/trials/{ticket.trial_id}/curves", metric="loss")["series"]
    assert series["attempt"] == [1, 1, 2, 2, 2]
    assert series["y"] == curve["y"]


def validation(step, at=1.0, **metrics):
    return {"kind": "validation", "step": step, "metrics": metrics, "at": at, "epoch": step / 4}


def test_a_curve_has_gaps_for_values_that_are_no_finite_numbers(api, search):
    ticket = search.start(0, slots=1)
    values = [1.0, float("nan"), float("inf"), None, "text", True, 2.0]
    search.commit(ticket, *(validation(step, loss=value) for step, value in enumerate(values, 1)))
    (curve,) = api.get(path(search, "/curves"), metric="loss")["series"]
    assert curve["y"] == [1.0, None, None, None, 1.0, 2.0]
    assert curve["x"] == [1, 2, 3, 5, 6, 7]


@SQLITE
def test_axes_are_batches_epochs_and_seconds_since_the_first_report(api, search):
    ticket = search.start(0, slots=1)
    search.commit(ticket, *(validation(step, at=100.0 + 5 * step, loss=1.0) for step in (4, 8)))
    axes = {
        x: api.get(path(search, "/curves"), metric="loss", x=x)["series"][0]["x"] for x in ("batches", "epochs", "time")
    }
    assert axes == {"batches": [4, 8], "epochs": [1, 2], "time": [0, 20]}


@SQLITE
def test_a_long_curve_is_reduced_and_keeps_its_extremes(api, search):
    ticket = search.start(0, slots=1)
    values = {step: float(step % 7) for step in range(1, 1001)} | {500: 99.0, 501: -99.0}
    search.commit(ticket, *(validation(step, loss=value) for step, value in values.items()))
    (curve,) = api.get(path(search, "/curves"), metric="loss", max_points=50)["series"]
    assert len(curve["y"]) <= 50
    assert {99.0, -99.0} <= set(curve["y"])
    assert (curve["x"][0], curve["x"][-1]) == (1, 1000)
    assert all(one < other for one, other in pairwise(curve["x"]))


def test_a_curve_with_too_many_reports_is_sampled_at_even_steps(api, search, monkeypatch):
    monkeypatch.setattr("airflow_provider_dtrain.store.curves.ROWS_MOST", 40)
    ticket = search.start(0, slots=1)
    search.commit(ticket, *(validation(step, loss=float(step)) for step in range(10, 2010, 10)))
    (curve,) = api.get(path(search, "/curves"), metric="loss", max_points=40)["series"]
    assert curve["sampled"] is True
    assert (curve["x"][0], curve["x"][-1]) == (10, 2000)
    assert 20 <= len(curve["x"]) <= 41
    assert curve["x"] == curve["y"]
    gaps = [later - former for former, later in pairwise(curve["x"])]
    assert max(gaps) <= 3 * min(gaps)


@pytest.mark.parametrize("name", ['a"b', "<img src=x onerror=alert(1)>", "a.b", "$[0]", "läs's", "x\\y", "%_"])
@SQLITE
def test_a_metric_may_have_any_name(api, search, name):
    ticket = search.start(0, slots=1)
    search.commit(ticket, validation(1, **{name: 7.0, "a": 1.0}))
    assert {"group": "validation", "name": name} in api.get(f"/trials/{ticket.trial_id}")["metrics"]
    (curve,) = api.get(path(search, "/curves"), metric=name)["series"]
    assert curve["y"] == [7.0]
    (series,) = api.get(f"/trials/{ticket.trial_id}/curves", metric=name)["series"]
    assert (series["name"], series["y"]) == (name, [7.0])


@SQLITE
def test_trials_are_chosen_for_a_chart_by_metric_by_number_or_evenly(api, search, ended):
    def shown(**query):
        return [one["trial_id"] for one in api.get(path(search, "/curves"), **query)["series"]]

    first, best, worst = (one.trial_id for one in ended)
    assert shown(select="best", limit=2) == [best, first]
    assert shown(select="latest", limit=2) == [worst, best]
    assert shown(select="spread", limit=2) == [best, worst]
    assert shown(select="best", limit=1, trial=[worst]) == [worst, best]


def test_the_rungs_say_by_how_much_a_trial_missed_the_cut_off_of_its_time(api, search):
    for number, loss in enumerate((0.5, 0.25, 0.75, 0.3)):
        trial(search, number, loss)
    page = api.get(path(search, "/rungs"))
    first, last = page["brackets"][0]["rungs"]
    told = {
        one["number"]: (one["decision"], one["rank"], one["of"], one["cut_off"], one["distance"])
        for one in first["entries"]
    }
    assert told == {
        0: ("continue", 1, 1, None, None), 1: ("continue", 1, 2, 0.5, 0.25), 2: ("stop", 3, 3, 0.25, -0.5),
        3: ("continue", 2, 4, 0.5, pytest.approx(0.2)),
    }  # fmt: skip
    assert (first["reported"], first["continued"], first["stopped"], first["cut_off"]) == (4, 3, 1, 0.3)
    assert (last["reported"], last["cut_off"], last["entries"]) == (0, None, [])


def test_hyperparameters_are_columns_over_all_trials(api, search, ended):
    search.submit(3)
    page = api.get(path(search, "/hyperparameters"))
    assert page["metric"] == [0.5, 0.25, 0.75, None]
    assert page["columns"]["net.width"] == [8, 16, 24, None]
    assert set(page["columns"]) == {"lr", "opt", "net.width"}
    assert page["importance_note"]
    assert api.get(path(search, "/hyperparameters"), metric="accuracy")["metric"] == [0.5, 0.75, 0.25, None]


@SQLITE
def test_the_importance_is_pending_until_a_later_request_has_it(api, search, ended, monkeypatch):
    address, gate = path(search, "/hyperparameters"), threading.Event()

    def slow(*args, **options):
        assert gate.wait(timeout=60)
        return importance(*args, **options)

    monkeypatch.setattr("airflow_provider_dtrain.api.importances.importance", slow)
    assert api.get(address)["is_importance_pending"]
    gate.set()
    wait_until(lambda: not api.get(address)["is_importance_pending"], timeout_s=30, what="the importance")
    assert api.get(address)["importance_note"] != "It is being computed."


def test_a_trial_that_reached_no_rung_has_the_epoch_of_its_latest_validation(api, search, ended):
    ticket = search.start(3, slots=1)
    search.commit(ticket, validation(2, loss=1.0), validation(6, loss=0.9))
    rows = api.get("/trials", experiment_id=search.view.experiment_id)["rows"]
    assert [(row["number"], row["epochs"]) for row in rows] == [(0, None), (1, None), (2, None), (3, 1.5)]
    assert api.get("/compare", trial=[ended[0].trial_id, ticket.trial_id])["has_epochs"] is True


def test_a_trial_without_a_search_shows_its_best_metric_while_it_runs(store):
    store.hosts.add(host("a", slots=8))
    lone = Search(store, name="lone")
    lone.config = store.configs.put(
        {**DOCUMENT, "searcher": {"name": "single", "metric": "loss"}}, origins={}
    ).config_id
    key = TrialKey(dag_id="d", run_id="r", task_id="train")
    submission = TrialSubmission(key=key, experiment_name="lone", config_id=lone.config, pool="gpus", slots=1)
    ticket = store.trials.submit(submission)
    lone.follow(ticket.attempt_id)
    lone.commit(ticket, *(validation(step, loss=loss) for step, loss in ((1, 0.5), (2, 0.25), (3, 0.75))))
    api = Api(store)
    found = api.get(f"/trials/{ticket.trial_id}")
    assert (found["best_metric"], found["best_step"], found["is_best"]) == (0.25, 2, True)
    assert api.get("/experiments")["rows"][0]["best"] == 0.25


@SQLITE
def test_the_configuration_names_the_origin_of_each_value_and_hides_secrets(api, search, ended):
    page = api.get(path(search, "/config"))
    origins = {line["path"]: line["origin"] for line in page["lines"] if line["origin"]}
    assert (origins["name"], origins["entrypoint"], origins["searcher.metric"]) == ("config", "template", "default")
    assert (origins["hyperparameters.lr.type"], origins["hyperparameters.opt.vals.0"]) == ("config", "config")
    assert "hidden-7f3a" not in page["yaml"]
    assert api.get(f"/trials/{ended[0].trial_id}/config")["yaml"] == page["yaml"]


def test_the_page_of_a_trial_has_attempts_ranks_and_timeline(api, search):
    ticket = trial(search, 0, 0.5)
    page = api.get(f"/trials/{ticket.trial_id}")
    assert (page["name"], page["state_text"], page["queue_class"]) == (
        "0 | lr=0.1 width=8 opt=sgd",
        "running",
        "fresh",
    )
    assert [(one["number"], one["state"], one["placement"]) for one in page["attempts_list"]] == [
        (1, "running", {"a": [0]})
    ]
    assert page["is_best"] is True
    ranks = api.get(f"/trials/{ticket.trial_id}/ranks")
    assert ranks["attempt"] == 1
    kinds = [one["kind"] for one in api.get(f"/trials/{ticket.trial_id}/timeline")["entries"]]
    assert kinds[0] == "submitted"
    assert "rung" in kinds
    assert api.refusal("GET", f"/trials/{ticket.trial_id}/ranks", params={"attempt": 9})[0] == 404
    without_logs = Api(search.store, logs=False)
    with_logs = {"logs": True}
    assert without_logs.refusal("GET", f"/trials/{ticket.trial_id}/ranks", params=with_logs)[:2] == (403, "forbidden")
    assert without_logs.get(f"/trials/{ticket.trial_id}/ranks") == ranks
    assert without_logs.get(f"/trials/{ticket.trial_id}")["trial_id"] == ticket.trial_id


@SQLITE
def test_telemetry_without_any_points_is_an_empty_answer(api, search):
    ticket = trial(search, 0, 0.5)
    of = f"/trials/{ticket.trial_id}"
    assert api.get(f"{of}/telemetry") == {"series": []}
    assert api.get(f"{of}/timings")["at_s"] == []
    assert api.get(f"{of}/step_times")["ranks"] == []
    assert api.get(f"{of}/profile") == {"attempt": 1, "timings": [], "system": [], "slow_ranks": [], "stragglers": []}
    assert api.get("/cluster/utilization", host=["a", "nope"]) == {"at_s": [], "hosts": []}


@SQLITE
def test_only_what_differs_between_trials_is_listed(api, search, ended):
    ids = [one.trial_id for one in ended[:2]]
    page = api.get("/compare", trial=ids)
    found = api.get("/differences/trials", trial=ids)
    rows = {one["name"]: one for one in found["rows"] if one["subject"] == "configuration"}
    assert rows.pop("environment.environment_variables.API_TOKEN")["is_unknown"], "private values may differ or not"
    assert {name: one["values"] for name, one in rows.items()} == {
        "hyperparameters.lr": ["0.1", "0.01"], "hyperparameters.opt": ['"sgd"', '"adam"'],
        "hyperparameters.net.width": ["8", "16"],
    }  # fmt: skip
    assert found["trials"] == ids
    assert [one["trial_id"] for one in page["trials"]] == ids
    assert [one["y"] for one in api.get("/curves", trial=ids, metric="loss")["series"]] == [[0.5], [0.25]]
    assert page["has_epochs"] is False


@pytest.mark.parametrize("ids", [[1], list(range(1, 10)), []])
@SQLITE
def test_two_to_eight_trials_are_compared(api, search, ended, ids):
    for path in ("/compare", "/differences/trials"):
        assert api.refusal("GET", path, params={"trial": ids})[:2] == (422, "invalid")
    assert api.refusal("GET", "/differences/experiments", params={"experiment": ids})[:2] == (422, "invalid")


OF_EXPERIMENT = [
    "",
    "/comments",
    "/trials.csv",
    "/curves",
    "/rungs",
    "/hyperparameters",
    "/config",
    "/failures",
    "/timeline",
]
OF_TRIAL = [
    "", "/curves", "/telemetry", "/timings", "/step_times", "/timeline", "/ranks", "/checkpoints", "/outputs",
    "/profile", "/config", "/provenance", "/failure", "/outputs/download?path=x",
    "/checkpoints/1/download",
    "/comments", "/media", "/media/image?path=x", "/media/content?path=x",
]  # fmt: skip


@pytest.mark.parametrize("bad", ["999", "0", "-1", str(2**63), str(10**30)])
def test_an_id_that_does_not_exist_is_not_found_on_every_route(api, search, ended, bad):
    paths = [f"/experiments/{bad}{more}" for more in OF_EXPERIMENT] + [f"/trials/{bad}{more}" for more in OF_TRIAL]
    paths += [f"/trials?experiment_id={bad}"] if bad == "999" else []
    answers = {one: api.answer("GET", one) for one in paths}
    assert {one: found.status_code for one, found in answers.items()} == dict.fromkeys(paths, 404)


@SQLITE
def test_an_id_that_the_user_may_not_read_looks_as_if_it_did_not_exist(search, ended):
    closed = Api(search.store, readable=[])
    paths = [path(search, more) for more in OF_EXPERIMENT] + [f"/trials/{ended[0].trial_id}{more}" for more in OF_TRIAL]
    paths.append(f"/trials?experiment_id={search.view.experiment_id}")
    assert closed.get("/trials") == {"rows": [], "total": 0}
    assert {closed.answer("GET", one).status_code for one in paths} == {404}
    one, other = closed.refusal("GET", path(search)), closed.refusal("GET", "/experiments/999")
    assert one[2].replace(str(search.view.experiment_id), "N") == other[2].replace("999", "N")
    ids = {"trial": [one.trial_id for one in ended]}
    assert closed.answer("GET", "/compare", params=ids).status_code == 404
    assert closed.answer("GET", "/curves", params=ids | {"metric": "loss"}).status_code == 404


@SQLITE
def test_polling_an_unchanged_chart_costs_no_curve(api, search, ended, monkeypatch):
    first = api.answer("GET", path(search, "/curves"))
    monkeypatch.setattr(search.store.curves, "of_trials", lambda *_a, **_k: pytest.fail("read again"))
    again = api.answer("GET", path(search, "/curves"), headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
