"""The route of a trial's shards: states, progress, troubles, and rights."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.api.routes import shards as route
from airflow_provider_dtrain.cli._store_source import StoreSource
from airflow_provider_dtrain.client.main import main, parser
from airflow_provider_dtrain.core.config import assemble
from airflow_provider_dtrain.store.queries.results import BAD_ROWS_MOST
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.terminal.results import results as show_results
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.http_api import HttpApi

SECTION = {"processor": "m:P", "outputs": {"path": "/out"}}


@pytest.fixture
def inference(store, start):
    """Report events of rank 0 of a running batch inference: ``inference(events)`` -> its ticket."""
    store.hosts.add(host("a"))
    config = store.configs.put(assemble(None, {"inference": SECTION}).document, origins={})
    key = TrialKey(dag_id="d", run_id="r", task_id="infer")
    submission = TrialSubmission(key=key, experiment_name="e", config_id=config.config_id, pool="gpus", slots=1)
    ticket = store.trials.submit(submission)
    watch = start(ticket)
    done = 0

    def report(*events):
        nonlocal done
        rows = [{"seq": done + n, "at": 10.0 + done + n, **event} for n, event in enumerate(events, 1)]
        store.events.commit(ticket.attempt_id, watch, "a", "rank0.events", done, done + len(rows), rows)
        done += len(rows)
        return ticket

    return report


def began(total, missing):
    return {
        "kind": "shards",
        "total": total,
        "missing": missing,
        "rows": total * 10,
        "rows_done": (total - missing) * 10,
    }


def shard(kind, index, **fields):
    return {"kind": f"shard_{kind}", "shard": index, "label": f"part-{index}", **fields}


def test_the_grid_and_the_progress_follow_the_reports(store, inference) -> None:
    api = Api(store)
    ticket = inference()
    path = f"/trials/{ticket.trial_id}/shards"
    empty = api.get(path)
    assert (empty["total"], empty["states"], empty["share"], empty["words"]) == (0, "", 0.0, "")
    assert empty["location"] == "/out"
    inference(began(5, 5), shard("started", 0), shard("started", 1), shard("done", 0, rows=10),
              shard("failed", 1, error="ValueError: <b>poison</b>"), shard("skipped", 2, error="three times"),
              shard("started", 3))  # fmt: skip
    page = api.get(path)
    assert page["states"] == "dfsrw"
    assert {name: page[name] for name in ("done", "running", "waiting", "failed", "skipped")} == {
        "done": 1, "running": 1, "waiting": 1, "failed": 1, "skipped": 1,
    }  # fmt: skip
    assert (page["rows"], page["rows_done"]) == (50, 10)
    assert page["words"].startswith("40 % done, 1 of 5 shards, 1 set aside")
    assert [(one["shard"], one["state"]) for one in page["troubles"]] == [(2, "skipped"), (1, "failed")]
    assert page["troubles"][1]["error"] == "ValueError: <b>poison</b>"
    assert api.get(f"/trials/{ticket.trial_id}")["is_inference"] is True


def test_more_shards_than_a_grid_can_show_are_only_counted(store, inference, monkeypatch) -> None:
    monkeypatch.setattr(route, "SHARDS_MOST", 4)
    ticket = inference(began(5, 3), shard("started", 2), shard("done", 2, rows=10))
    page = Api(store).get(f"/trials/{ticket.trial_id}/shards")
    assert (page["total"], page["states"], page["done"], page["waiting"]) == (5, "", 3, 2)


def test_a_trial_that_trains_has_no_shards(store, submit) -> None:
    store.hosts.add(host("a"))
    ticket = submit()
    api = Api(store)
    status, code, message = api.refusal("GET", f"/trials/{ticket.trial_id}/shards")
    assert (status, code) == (404, "not_found")
    assert "no batch inference" in message
    assert api.get(f"/trials/{ticket.trial_id}")["is_inference"] is False


def test_shards_of_another_dag_do_not_exist(store, inference) -> None:
    ticket = inference(began(5, 5))
    mine, other = (Api(store, readable=dags).refusal for dags in ((), ("other",)))
    for refusal in (mine, other):
        status, code, message = refusal("GET", f"/trials/{ticket.trial_id}/shards")
        assert (status, code, message) == (404, "not_found", f"There is no trial {ticket.trial_id}.")


EVIL = "<img src=x onerror=alert(1)>\x1b[31m\u202e"


def preview(shard=0, rows=(("1", None), (EVIL, "2")), columns=(("id", "int64"), (EVIL, "string"))):
    return {
        "kind": "results_preview",
        "shard": shard,
        "label": f"part-{shard}",
        "columns": [list(one) for one in columns],
        "columns_in_all": len(columns),
        "rows": [list(row) for row in rows],
    }


def test_the_first_reported_results_are_shown_as_texts_to_users_who_may_read_logs(store, inference) -> None:
    api = Api(store)
    ticket = inference(began(5, 5))
    path = f"/trials/{ticket.trial_id}/results"
    assert (api.get(path)["columns"], api.get(path)["rows"]) == ([], [])
    inference(preview(3), preview(0, rows=()))
    page = api.get(path)
    assert (page["shard"], page["label"], page["rows"]) == (3, "part-3", [["1", None], [EVIL, "2"]])
    assert page["columns"][1] == {"name": EVIL, "type": "string"}
    assert Api(store, logs=False).refusal("GET", path)[:2] == (403, "forbidden")
    assert Api(store, readable=set()).refusal("GET", path)[:2] == (404, "not_found")


def test_results_reach_a_terminal_without_its_control_characters(
    store, inference, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    ticket = inference(began(5, 5), preview())
    with HttpApi(Api(store)) as server:
        assert main(["trials", "results", str(ticket.trial_id), "--server", server.url]) == 0
        shown = capsys.readouterr()
        show_results(parser().parse_args(["trials", "results", str(ticket.trial_id)]), StoreSource(store))
        assert shown.out == capsys.readouterr().out
    assert not {"\x1b", "\u202e"} & set(shown.out)
    assert "onerror" in shown.out


def test_a_shard_that_failed_several_times_is_one_trouble(store, inference) -> None:
    failures = [shard("failed", 1, error=f"try {number}") for number in range(3)]
    ticket = inference(began(5, 5), *failures, shard("skipped", 1, error="try 2"), shard("failed", 4, error="once"))
    troubles = Api(store).get(f"/trials/{ticket.trial_id}/shards")["troubles"]
    assert [(one["shard"], one["state"], one["failures"], one["error"]) for one in troubles] == [
        (4, "failed", 1, "once"),
        (1, "skipped", 3, "try 2"),
    ]


def test_bad_rows_are_named_to_users_who_may_read_logs(store, inference) -> None:
    row = [70_001, f"scan{EVIL}.jpg", "no image"]
    bad = shard("done", 2, rows=7, rows_bad=3, bad_rows=[row, [70_002, "b.jpg", "no image"]])
    later = [shard("done", number, rows=10, rows_bad=0, bad_rows=[]) for number in range(3, 3 + BAD_ROWS_MOST)]
    ticket = inference(began(200, 200), bad, *later)
    path = f"/trials/{ticket.trial_id}/results"
    rows = Api(store).get(path)["bad_rows"]
    assert rows[0] == {"shard": 2, "row": 70_001, "name": f"scan{EVIL}.jpg", "error": "no image"}
    assert len(rows) == 2
    assert Api(store, logs=False).refusal("GET", path)[:2] == (403, "forbidden")


def test_bad_rows_are_counted_over_attempts_and_named_in_the_progress(store, inference) -> None:
    ticket = inference({**began(5, 3), "rows_bad": 4}, shard("started", 2), shard("done", 2, rows=7, rows_bad=3))
    page = Api(store).get(f"/trials/{ticket.trial_id}/shards")
    assert (page["rows_bad"], page["on_bad_row"]) == (7, "fail")
    assert ", 7 bad rows" in page["words"]
    (row,) = Api(store).get("/trials")["rows"]
    assert row["shards"]["rows_bad"] == 7
