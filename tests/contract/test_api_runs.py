"""Runs in the API, the commands and the Python client: filters, groups, CSV, saved views, and rights."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.cli import _store_source
from airflow_provider_dtrain.client.client import Client
from airflow_provider_dtrain.core.expressions.parser import COMPARISONS_MOST, parse_expression
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.store.database.run_tables import latest_metrics, run_views
from airflow_provider_dtrain.store.database.tables import audit, trials
from airflow_provider_dtrain.store.queries.runs import COLUMNS_MOST, GROUPED_MOST
from airflow_provider_dtrain.store.run_views import VIEWS_MOST
from testbed.stores import host
from tests.support import run_rows
from tests.support.api_world import Api
from tests.support.http_api import HttpApi
from tests.support.run_oracle import matches
from tests.support.search_world import Search

pytestmark = pytest.mark.airflow
#: For facts that do not depend on the database.
SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
PAGE = (Path(__file__).parents[2] / "docs" / "filters.md").read_text()
#: Filters in the examples of the page.
EXAMPLES = re.findall(r"^\| `(.+)` \| ", PAGE.partition("## Examples")[2].partition("## Facts")[0], re.MULTILINE)
WHERE = 'metrics.loss > 0.1 and not tag = "paper"'


@pytest.fixture
def rows(store):
    return run_rows.fill(store, 120, dags=("d", "other"))


@pytest.fixture
def api(store, rows) -> Api:
    return Api(store)


@pytest.mark.parametrize("where", EXAMPLES)
def test_each_example_of_the_page_is_served_and_finds_what_it_means(api, rows, where: str) -> None:
    expression = parse_expression(where)
    rows = [{**row, "pool": None, "slots": None, "duration": None} for row in rows]
    found = api.get("/runs", where=where, replaced=True, limit=1000)
    assert {row["trial_id"] for row in found["rows"]} == {row["trial"] for row in rows if matches(row, expression)}


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) == 9
    assert all(f"where={EXAMPLES[0]}" != one for one in EXAMPLES)


@SQLITE
def test_the_same_filter_finds_the_same_trials_by_every_door(api, rows, store, tmp_path, monkeypatch) -> None:
    expected = {row["trial"] for row in rows if matches(row, parse_expression(WHERE))}
    assert expected
    assert {one["trial_id"] for one in api.get("/trials", where=WHERE, replaced=True, limit=1000)["rows"]} == expected
    assert {one["trial_id"] for one in api.get("/runs", where=WHERE, replaced=True, limit=1000)["rows"]} == expected
    of_store = _store_source.StoreSource(store).trials(experiment=None, state=None, tags=(), limit=1000, where=WHERE)
    assert {one.trial_id for one in of_store} == expected
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with HttpApi(api) as server:
        client = Client(server.url, "token", allow_http=True)
        assert {one.trial_id for one in client.trials.list(where=WHERE)} == expected
        assert set(client.trials.frame(where=WHERE).index) == expected
        with pytest.raises(UserError, match=r"wrong at character 6: '==' is no operator"):
            client.trials.list(where="best == 1")


@SQLITE
def test_an_error_of_a_filter_a_column_or_an_order_is_422_with_its_place(api) -> None:
    for parameters, words in (
        ({"where": "best == 1"}, "wrong at character 6"),
        ({"column": ["best", "bset"]}, "Did you mean best?"),
        ({"sort": "best > 1"}, "wrong at character 6"),
        ({"sort": "tag"}, "cannot be ordered or grouped by tag"),
        ({"where": "x" * 2001}, "at most 2000"),
    ):
        status, _, message = api.refusal("GET", "/runs", params=parameters)[:3]
        assert (status, words in message) == (422, True), message
    for parameters in ({"by": "tag"}, {"by": "state", "sort": "mean:best"}, {"by": "state", "sort": "median:best"}, {}):
        assert api.refusal("GET", "/runs/groups", params=parameters)[0] == 422, parameters


@SQLITE
def test_a_filter_without_a_match_names_a_similar_name(api) -> None:
    assert (
        api.get("/runs", where="metrics.losss > 0")["hint"] == "No trial has metrics.losss. Did you mean metrics.loss?"
    )
    assert api.get("/runs", where="params.zzzzzz > 0")["hint"] == "No trial has params.zzzzzz."
    assert api.get("/runs", where="metrics.loss > 1e300")["hint"] is None
    assert api.get("/runs", where="metrics.loss > 0")["hint"] is None


@SQLITE
def test_columns_say_which_values_are_better(store) -> None:
    api = Api(store)
    store.hosts.add(host("a"))
    for name, searcher in (
        ("small", {"metric": "loss", "smaller_is_better": True}),
        ("large", {"metric": "accuracy", "smaller_is_better": False}),
    ):
        config = store.configs.put({"entrypoint": "python train.py", "searcher": searcher}, origins={}).config_id
        search = Search(store, name=name, run=name)
        search.config = config
        search.submit(0)
    columns = ["best", "metrics.loss", "metrics.accuracy", "created"]
    for where, wanted in (
        ("", [None, True, False, None]),
        ('experiment = "small"', [True, True, None, None]),
        ('experiment = "large"', [False, None, False, None]),
        ('experiment = "none"', [None] * 4),
    ):
        assert api.get("/runs", where=where, column=columns)["smaller_is_better"] == wanted, where
        grouped = api.get("/runs/groups", where=where, column=columns, by="params")
        assert grouped["smaller_is_better"] == wanted[: len(grouped["columns"])] == wanted[:3], where


def test_the_largest_filter_with_all_columns_and_groups_costs_little(api, store) -> None:
    tags = " or ".join(f'(tag = "a{n}" and params.lr != {n})' for n in range(COMPARISONS_MOST // 2))
    deep = " and ".join(f"params.nested.{n}.x !~ 'a'" for n in range(COMPARISONS_MOST))
    columns = [f"params.p{n}" for n in range(COLUMNS_MOST)]
    for where in (tags, f"not ({tags})", deep):
        answer = api.answer("GET", "/runs", params={"where": where, "column": columns, "sort": "params.lr"})
        assert answer.status_code == 200, answer.text
        assert answer.elapsed.total_seconds() < 5
        by = ["params", "state", *columns[: GROUPED_MOST - 2]]
        found = api.answer("GET", "/runs/groups", params={"where": where, "column": columns, "by": by})
        assert found.status_code == 200, found.text


def test_rows_names_groups_and_files_have_only_trials_that_the_user_may_read(store, rows) -> None:
    api = Api(store, readable={"d"}, hosts=False)
    own = [row["trial"] for row in rows if row["dag"] == "d"]
    assert {row["trial_id"] for row in api.get("/runs", replaced=True, limit=1000)["rows"]} == set(own)
    groups = api.get("/runs/groups", by="dag", replaced=True)
    assert [(one["keys"], one["trials"]) for one in groups["rows"]] == [(["d"], len(own))]
    text = api.answer("GET", "/runs.csv", params={"replaced": True}).text
    assert {int(row["trial_id"]) for row in csv.DictReader(io.StringIO(text))} == set(own)
    with store.db.engine.begin() as conn:
        theirs = [row["trial"] for row in rows if row["dag"] == "other"]
        conn.execute(trials.update().where(trials.c.id.in_(theirs)).values(hparams={"secret": 1}, is_drawn=True))
    assert "params.secret" not in api.get("/runs/names")["params"]
    assert "params.secret" in Api(store).get("/runs/names")["params"]
    of_none = Api(store, readable=set(), hosts=False)
    assert of_none.get("/runs", replaced=True)["total"] == 0
    assert of_none.get("/runs/names")["metrics"] == []


@SQLITE
def test_a_file_has_columns_of_the_view_and_no_formula(api, store) -> None:
    with store.db.engine.begin() as conn:
        evil = {"=cmd()": "=1+1", "opt": "@SUM(A1)", "n": -5}
        conn.execute(trials.update().where(trials.c.id == 1).values(hparams=evil, is_drawn=True, cleared_at=None))
        conn.execute(sa.delete(latest_metrics).where(latest_metrics.c.trial_id == 1))
        conn.execute(latest_metrics.insert().values(trial_id=1, validation={"-x": 1.0}, training={}))
    given = {"column": ['params."=cmd()"', "params.opt", "params.n", 'metrics."-x"', "tag"], "where": "trial = 1"}
    (row,) = csv.reader(io.StringIO(api.answer("GET", "/runs.csv", params=given).text.partition("\r\n")[2]))
    assert row[6:10] == ["'=1+1", "'@SUM(A1)", "-5", "1.0"]
    grouped = api.answer("GET", "/runs.csv", params={**given, "by": ["params.opt", "params"]})
    names, row = csv.reader(io.StringIO(grouped.text))
    assert names[:4] == ["params.opt", "params", "trials", 'params."=cmd()" mean']
    assert row[0] == "'@SUM(A1)"
    assert grouped.headers["content-disposition"] == 'attachment; filename="groups.csv"'


VIEW = {
    "name": "Paper",
    "is_shared": False,
    "where": WHERE,
    "columns": ["best", "params.lr"],
    "by": ["params"],
    "sort": "-mean:best",
    "charts": [{"kind": "scatter", "y": "best", "x": "params.lr"}, {"kind": "curves", "y": "metrics.loss", "x": ""}],
}


def test_a_user_saves_changes_and_removes_views_and_shares_them_for_reading(api, store) -> None:
    saved = api.answer("POST", "/runs/views", json=VIEW)
    assert saved.status_code == 201
    view = saved.json()
    assert {name: view[name] for name in VIEW} == VIEW
    assert (view["owner"], view["is_own"]) == ("ann", True)
    bob = Api(store, name="bob")
    assert bob.get("/runs/views")["rows"] == []
    path = f"/runs/views/{view['view_id']}"
    for method, body in (("PUT", VIEW), ("DELETE", None)):
        status, code, message = bob.refusal(method, path, json=body)[:3]
        assert (status, code) == (404, "not_found"), message
    shared = api.answer("PUT", path, json={**VIEW, "is_shared": True, "name": "Of all"}).json()
    assert (shared["name"], shared["is_shared"]) == ("Of all", True)
    (seen,) = bob.get("/runs/views")["rows"]
    assert (seen["name"], seen["owner"], seen["is_own"], seen["where"]) == ("Of all", "ann", False, WHERE)
    for method, body in (("PUT", VIEW), ("DELETE", None)):
        assert bob.answer(method, path, json=body).status_code == 404
    assert api.get("/runs/views")["rows"] == [shared]
    # A name is used once per user, and the same one by several users.
    assert bob.answer("POST", "/runs/views", json={**VIEW, "name": " Of all "}).status_code == 201
    assert api.refusal("POST", "/runs/views", json={**VIEW, "name": "Of all"})[:2] == (409, "conflict")
    assert api.answer("DELETE", path).status_code == 204
    assert api.answer("DELETE", path).status_code == 404
    with store.db.engine.connect() as conn:
        actions = conn.execute(sa.select(audit.c.by, audit.c.action).where(audit.c.subject.like("view %"))).all()
    assert [tuple(one) for one in actions] == [
        ("ann", "view saved"),
        ("ann", "view saved"),
        ("bob", "view saved"),
        ("ann", "view removed"),
    ]


@SQLITE
@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": "a\u202e"},
        {"name": "x" * 101},
        {"where": "best >"},
        {"columns": ["bset"]},
        {"columns": ["best"] * (COLUMNS_MOST + 1)},
        {"by": ["best > 1"]},
        {"sort": "mean:"},
        {"charts": [{"kind": "scatter", "y": "best", "x": "a b"}]},
        {"charts": [{"kind": "curves", "y": "best", "x": ""}]},
        {"charts": [{"kind": "pie", "y": "best", "x": ""}]},
        {"owner": "bob"},
    ],
    ids=str,
)
def test_a_view_that_cannot_be_shown_is_not_saved(api, change) -> None:
    assert api.answer("POST", "/runs/views", json={**VIEW, **change}).status_code == 422
    assert api.get("/runs/views")["rows"] == []


@SQLITE
def test_a_view_is_saved_with_the_header_only_and_a_user_has_a_limited_number(api, store) -> None:
    assert api.refusal("POST", "/runs/views", json=VIEW, headers={"X-Dtrain": "0"})[:2] == (403, "cross_site")
    view = api.answer("POST", "/runs/views", json=VIEW).json()
    with store.db.engine.begin() as conn:
        (own,) = conn.execute(sa.select(run_views)).mappings()
        copies = [{**own, "id": None, "name": f"v{n}"} for n in range(VIEWS_MOST - 1)]
        conn.execute(run_views.insert(), [{key: one[key] for key in one if key != "id"} for one in copies])
    status, _, message = api.refusal("POST", "/runs/views", json={**VIEW, "name": "more"})[:3]
    assert (status, f"at most {VIEWS_MOST} are kept" in message) == (422, True)
    assert api.answer("PUT", f"/runs/views/{view['view_id']}", json={**VIEW, "name": "more"}).status_code == 200


@pytest.fixture
def odd_documents(store, rows) -> None:
    """Documents that no configuration has, but a row of the table can hold."""
    with store.db.engine.begin() as conn:
        deep = {"a": {"a": {"a": [1, {"b": None}]}}, "x" * 300: "y" * 5000, "": 1, 'quo"te': 2, "back\\slash": 3}
        conn.execute(trials.update().where(trials.c.id == 1).values(hparams=deep, is_drawn=True, cleared_at=None))
        nul = {"opt": "x\0", "lr": 1}
        conn.execute(trials.update().where(trials.c.id == 2).values(hparams=nul, is_drawn=True, cleared_at=None))


@pytest.mark.usefixtures("odd_documents")
def test_odd_names_and_values_of_hyperparameters_break_nothing(api) -> None:
    names = api.get("/runs/names")["params"]
    assert not any('quo"te' in one or "slash" in one for one in names)
    for where in ("params.a.a.a != null", "params.a.a.a.b = null", f"params.{'x' * 300} ~ 'YYY'"):
        found = api.get("/runs", where=f"trial = 1 and {where}", column=["params.a", f"params.{'x' * 300}"])
        assert found["total"] == 1, where
    # A document with a NUL breaks no filter over the other trials.
    others = api.get("/runs", where='params.opt = "adam" or params.lr > 0', column=["params.opt"], sort="params.opt")
    assert others["total"] > 0
    assert api.get("/runs", where="trial = 2", column=["params.opt"])["rows"][0]["values"] == ["x\0"]
    api.get("/runs/groups", by=["params", "params.opt"])
    groups = api.get("/runs/groups", by=["params.a", "params.a.a.a"], where="trial = 1")["rows"]
    assert groups[0]["keys"] == [{"a": {"a": [1, {"b": None}]}}, [1, {"b": None}]]
