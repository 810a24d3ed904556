"""``dtrain`` prints what ``airflow dtrain`` prints: the same records, by HTTP and from the store."""

from __future__ import annotations

import json
import random
import re
from argparse import Namespace
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from airflow_provider_dtrain.cli._store_source import StoreSource
from airflow_provider_dtrain.client.address import address
from airflow_provider_dtrain.client.main import main, parser
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store.queries.experiments import experiment_detail, experiment_page, experiment_summary
from airflow_provider_dtrain.store.queries.profiles import profile_of
from airflow_provider_dtrain.store.queries.rights import AllRights
from airflow_provider_dtrain.store.records.pages import ExperimentQuery
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store
from airflow_provider_dtrain.terminal import cluster, experiments, host_days, profile, provenance, trials, usage, watch
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.http_api import HttpApi
from tests.support.search_world import Search
from tests.support.slow_proxy import SlowProxy
from tests.support.telemetry import START_S, of_host

pytestmark = pytest.mark.airflow

#: Arguments of a command -> the function that ``airflow dtrain`` runs for it.
COMMANDS = {
    "trials list": trials.list_trials,
    "trials list --experiment 1": trials.list_trials,
    "trials list --where metrics.loss=0.5": trials.list_trials,
    "trials describe 1": trials.describe,
    "trials metrics 1": trials.metrics,
    "trials metrics 1 --csv": trials.metrics,
    "trials timeline 1": trials.timeline,
    "trials checkpoints 1 --removed": trials.checkpoints,
    "trials profile 1": profile.profile,
    "experiments list": experiments.list_experiments,
    "experiments describe 1": experiments.describe,
    "trials diff 1 2": provenance.diff_trials,
    "experiments diff 1 OTHER": provenance.diff_experiments,
    "queue list": cluster.list_tasks,
    "hosts list": cluster.list_hosts,
    "hosts day a": host_days.day,
    "hosts day a --day 2026-01-02": host_days.day,
    "slots list": cluster.list_slots,
    "pools usage --by dag": usage.usage,
    "pools usage --by user --days 3 --csv": usage.usage,
}


@pytest.fixture
def search(store):
    store.hosts.add(host("a", slots=4))
    found = Search(store)
    found.plan(max_trials=4)
    ticket = found.start(0, slots=2)
    found.start(1, slots=1)
    found.submit(2, slots=4)
    store.queue.schedule("gpus")
    found.validate(ticket, **{"loss": 0.5, "odd": float("nan"), "=sum": 1})
    other = Search(store, name="other", run="r2")
    other.plan()
    other.submit(0)
    # PostgreSQL leaves out an id where an insert met a row that exists.
    found.other_id = other.view.experiment_id
    return found


@pytest.fixture
def server(api: Api, tmp_path, monkeypatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with HttpApi(api) as found:
        yield found.url


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["table", "json"])
def test_each_command_prints_what_airflow_dtrain_prints(server, search, clock, capsys, form):
    # Gangs have used slots.
    clock.advance(30)
    for words, show in COMMANDS.items():
        argv = [*words.replace("OTHER", str(search.other_id)).split(), "-o", form, "--server", server]
        assert main(argv) == 0, capsys.readouterr()
        remote = capsys.readouterr().out
        show(parser().parse_args(argv), StoreSource(search.store))
        assert remote == capsys.readouterr().out, words
        assert remote.strip() or words.split()[1] in ("checkpoints", "profile")


def test_trials_of_an_experiment_that_does_not_exist_are_an_error(server, search, capsys):
    for argv in (["--experiment", "99"], ["--experiment", "99", "-o", "json"]):
        assert main(["trials", "list", *argv, "--server", server]) != 0
        assert "no experiment 99" in capsys.readouterr().err.lower()
    assert main(["trials", "list", "--experiment", "1", "--state", "killed", "--server", server]) == 0
    assert "No trial has these properties." in "".join(capsys.readouterr())


def test_rows_of_dags_that_the_user_may_not_read_do_not_exist(search, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    key = TrialKey(dag_id="secret", run_id="r", task_id="train")
    config_id = search.store.trials.get(1).config_id
    submission = TrialSubmission(key=key, experiment_name="hush", config_id=config_id, pool="gpus", slots=1)
    hidden = search.store.trials.submit(submission).trial_id
    search.store.queue.schedule("gpus")
    with HttpApi(Api(search.store, readable={"d"}, hosts=False, logs=False)) as found:
        at = ["--server", found.url, "-o", "json"]
        for words in ("trials list", "experiments list", "queue list", "slots list", "hosts list"):
            assert main([*words.split(), *at]) == 0
            text = capsys.readouterr().out
            assert "hush" not in text, words
            assert "secret" not in text, words
        assert json.loads(text)[0]["connection"] is None
        for words in ("trials describe", "trials profile", "trials metrics", "trials timeline", "trials checkpoints"):
            assert main([*words.split(), str(hidden), *at]) == 1
            assert "There is no trial" in capsys.readouterr().err


def test_an_experiment_that_a_reader_may_not_read_does_not_exist(search):
    class NoRights(AllRights):
        def readable(self, store: Store) -> frozenset[str]:
            return frozenset()

        def may_read(self, dag_id: str) -> bool:
            return False

    store, rights = search.store, NoRights()
    store.control.set("experiment", 1, tags=["mine"], by="ann")
    assert experiment_page(store, AllRights(), ExperimentQuery()).tags == ["mine"]
    assert vars(experiment_page(store, rights, ExperimentQuery())) == {
        name: 0 if name == "total" else [] for name in ("rows", "total", "tags", "owners", "projects")
    }
    for query in (experiment_detail, experiment_summary):
        for number in (1, 99, 0, 2**63):
            with pytest.raises(NotFoundError, match=f"There is no experiment {number}"):
                query(store, rights, number)


def test_the_printed_state_of_an_experiment_names_the_request_that_is_in_force(server, search, capsys):
    texts = {"pause": "running, pauses", "stop": "running, stops", "kill": "running, is killed"}
    for request, words in texts.items():
        getattr(search.store.experiments, request)(1, "ann")
        for command in ("list", "describe 1"):
            assert main(["experiments", *command.split(), "--server", server]) == 0
        shown = capsys.readouterr().out
        assert shown.count(words) == 2, shown


def test_a_profile_that_a_reader_may_not_read_does_not_exist(search):
    class NoRights(AllRights):
        def may_read(self, dag_id: str) -> bool:
            return False

    with pytest.raises(NotFoundError, match="There is no trial 1"):
        profile_of(search.store, NoRights(), 1, None)


def test_metrics_come_in_pages(server, search, capsys, monkeypatch):
    from airflow_provider_dtrain.api.routes import trial

    monkeypatch.setattr(trial, "REPORTS_MOST", 1)
    (ticket,) = (one for one in search.store.trials.list() if one.trial_id == 1)
    search.validate(ticket, loss=0.25)
    assert main(["trials", "metrics", "1", "-o", "json", "--server", server]) == 0
    assert [row["loss"] for row in json.loads(capsys.readouterr().out)] == [0.5, 0.25]


def test_a_message_names_the_command_of_this_program(server, capsys):
    assert main(["trials", "describe", "99", "--server", server]) == 1
    assert capsys.readouterr().err == "There is no trial 99. See: dtrain trials list\n"


def test_the_records_of_both_programs_have_the_same_arguments():
    args = parser().parse_args(["trials", "list", "--experiment", "7", "--tag", "a", "-o", "plain"])
    assert isinstance(args, Namespace)
    assert (args.experiment, args.tag, args.limit, args.state, args.output) == (7, ["a"], 50, None, "plain")


def test_views_show_a_trial_an_experiment_and_the_queue_until_they_end(server, search, capsys, monkeypatch):
    for ticket in search.store.trials.list():
        if ticket.state == "running":
            search.end(ticket)
        else:
            search.store.control.kill(ticket.trial_id, "ann")
    assert main(["trials", "watch", "1", "--server", server]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Trial 1 of experiment 1 'e'\nstate")
    assert "validation loss" in shown
    monkeypatch.setattr("airflow_provider_dtrain.terminal.watch.time.sleep", _interrupt)
    for words in ("queue list --watch", "experiments watch 1"):
        assert main([*words.split(), "--server", server]) in {0, 130}
        assert capsys.readouterr().out.split()[0] in {"0", "1", "Experiment"}


def test_a_view_of_a_trial_has_sparklines_slots_and_the_use_of_gpus(server, search, monkeypatch, capsys):
    (ticket,) = (one for one in search.store.trials.list() if one.trial_id == 1)
    for loss in (4.0, 2.0, 1.0):
        search.commit(ticket, {"kind": "report", "step": next(search.steps), "metrics": {"loss": loss}})
    telemetry = of_host("a", START_S, 20, gpus=2)
    assert search.store.telemetry.add(ticket.attempt_id, search.watches[ticket.attempt_id], [telemetry])
    monkeypatch.setattr("airflow_provider_dtrain.terminal.watch.time.sleep", _interrupt)
    assert main(["trials", "watch", "1", "--server", server]) == 130
    shown = capsys.readouterr().out
    assert re.search(r"^slots +2 of gpus on a:0-1$", shown, re.M)
    assert re.search(r"^training loss +█▃▁ +1$", shown, re.M)
    assert re.search(r"^devices +a: GPUs 80 %, 81 %$", shown, re.M)


def test_a_view_of_an_experiment_shows_rungs_as_they_happen(server, search, monkeypatch, capsys):
    (ticket,) = (one for one in search.store.trials.list() if one.trial_id == 1)
    views: list[str] = []

    def sleep(_: float) -> None:
        views.append(capsys.readouterr().out)
        if len(views) == 3:
            raise KeyboardInterrupt
        search.ask(ticket, len(views) - 1, 0.5)

    monkeypatch.setattr("airflow_provider_dtrain.terminal.watch.time.sleep", sleep)
    assert main(["experiments", "watch", "1", "--server", server]) == 130
    rows = [next(line.split() for line in view.splitlines() if line.startswith("1 ")) for view in views]
    assert [row[row.index("running") + 1] for row in rows] == ["-", "0", "1"]


def test_a_view_needs_little_of_a_slow_line(server, search, monkeypatch, capsys):
    (ticket,) = (one for one in search.store.trials.list() if one.trial_id == 1)

    def report(times: int) -> None:
        names, values = ("loss", "accuracy", "norm"), random.Random(1)
        for _ in range(times):
            metrics = {name: values.random() for name in names}
            search.commit(ticket, {"kind": "report", "step": next(search.steps), "metrics": metrics})

    report(400)
    sizes: list[int] = []

    def sleep(_: float) -> None:
        """Count the bytes of a refresh. The third one follows a report."""
        sizes.append(proxy.answered - sum(sizes))
        if len(sizes) == 3:
            raise KeyboardInterrupt
        report(len(sizes) - 1)

    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=sleep))
    with SlowProxy(address(server).port) as proxy:
        assert main(["trials", "watch", "1", "--server", proxy.url]) == 130
    first, unchanged, changed = sizes
    assert (first < 6000, unchanged < 1000, changed < 6000) == (True, True, True), sizes
    assert "training loss" in capsys.readouterr().out


def _interrupt(_: float) -> None:
    raise KeyboardInterrupt


def test_a_host_is_changed_from_any_machine(server, search, capsys, monkeypatch):
    monkeypatch.setenv("DTRAIN_TOKEN", "given")
    monkeypatch.setenv("DTRAIN_SERVER", server)
    assert main(["hosts", "drain", "a", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "draining"
    assert main(["hosts", "enable", "a"]) == 0
    assert main(["hosts", "disable", "a", "--slot", "3"]) == 0
    assert [one.index for one in search.store.hosts.slots() if not one.enabled] == [3]
    monkeypatch.setattr("airflow_provider_dtrain.terminal.control.confirm", lambda question, yes: yes)
    assert main(["hosts", "disable", "a"]) == 0
    assert "trial 1 of 'e' holds slots 0, 1." in "".join(capsys.readouterr())
    assert search.store.hosts.get("a").state == "ready", "the user did not agree"
    assert main(["hosts", "disable", "a", "-y"]) == 0
    assert search.store.hosts.get("a").state == "disabled"


def test_hosts_are_evacuated_from_any_machine(server, search, capsys, monkeypatch):
    monkeypatch.setenv("DTRAIN_TOKEN", "given")
    monkeypatch.setenv("DTRAIN_SERVER", server)
    assert main(["hosts", "drain", "a", "--now", "--dry-run"]) == 0
    assert search.store.hosts.get("a").state == "ready"
    assert main(["hosts", "drain", "a", "--dry-run"]) == 0
    assert search.store.hosts.get("a").state == "ready"
    assert main(["hosts", "drain", "a", "--now", "--by", "2h"]) == 2
    capsys.readouterr()
    assert main(["hosts", "drain", "a", "--by", "2h", "--reason", "fan", "-o", "json"]) == 0
    shown = capsys.readouterr()
    (row,) = json.loads(shown.out)
    assert (row["state"], row["gangs_left"], row["reason"]) == ("draining", 2, "fan")
    assert row["empty_by"]
    assert "Trial 1 of 'e' cannot resume from a checkpoint: it stays until it ends" in shown.err
    assert search.store.hosts.get("a").drain_by is not None


def test_weight_and_cap_of_an_experiment_are_set_from_any_machine(server, search, capsys, monkeypatch):
    monkeypatch.setenv("DTRAIN_TOKEN", "given")
    monkeypatch.setenv("DTRAIN_SERVER", server)
    assert main(["experiments", "set", "1", "--weight", "2.5", "--max-slots", "2", "-o", "json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"experiment_id": 1, "weight": 2.5, "max_slots": 2}
    assert "Experiment 1 has weight 2.5, max_slots 2. Warning: trials that request more slots" in shown.err
    view = search.store.experiments.get(1)
    assert (view.weight, view.max_slots) == (2.5, 2)
    assert main(["experiments", "set", "1", "--max-slots", "0"]) == 0
    assert search.store.experiments.get(1).max_slots is None
    assert main(["experiments", "set", "1"]) == 2
    assert "Give --priority, --weight, --max-slots" in capsys.readouterr().err
