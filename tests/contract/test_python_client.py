"""The Python client on the API behind a real HTTP server."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_dtrain.client import Client
from airflow_provider_dtrain.client.main import main
from airflow_provider_dtrain.errors import ConflictError, NotFoundError, UsageError, UserError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from testbed import notebook
from testbed.seed.copies import copy_files
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.http_api import HttpApi
from tests.support.search_world import Search

pytestmark = pytest.mark.airflow


@pytest.fixture
def search(store):
    store.hosts.add(host("a", slots=4))
    found = Search(store)
    found.plan(max_trials=2)
    first, second = found.start(0, slots=1), found.start(1, slots=1)
    found.validate(first, loss=0.5)
    found.validate(second, loss=0.25)
    return found


@pytest.fixture
def server(api: Api) -> Iterator[HttpApi]:
    with HttpApi(api) as found:
        yield found


@pytest.fixture
def client(server, tmp_path, monkeypatch) -> Client:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Client(server.url, "given")


def test_trials_are_a_data_frame_with_a_column_per_hyperparameter(client):
    frame = client.experiments.get(1).trials.frame()
    assert list(frame.index) == [1, 2]
    assert list(frame["hparams.lr"]) == [0, 1]
    assert list(client.trials.get(2).frame("validation")["loss"]) == [0.25]


def test_an_experiment_is_waited_for_and_named_by_its_dag_run(client, server, search, monkeypatch, tmp_path):
    monkeypatch.setattr("airflow_provider_dtrain.api.routes.configs.trigger", lambda conf, user, run_id: "r")
    (tmp_path / "train.py").touch()
    config = {"name": "e", "entrypoint": "python train.py", "resources": {"pool": "gpus", "slots_per_trial": 1}}
    started = client.experiments.create(config, tmp_path)
    assert repr(started) == "Experiment('r')"
    started.dag = "d"
    assert started.id == 1
    with pytest.raises(TimeoutError, match="running"):
        started.wait(0)
    for ticket in list(search.store.trials.list()):
        search.end(ticket, state="errored", failure={"kind": "user", "error": "E", "message": "my mistake"})
    with pytest.raises(UserError, match=r"Experiment 1 ended errored\. Trial 1: my mistake"):
        started.wait(10, poll_s=0.01)


def test_the_only_trial_of_an_experiment_without_a_metric_is_its_best(client, store):
    alone = Search(store, name="alone", run="alone")
    number = alone.plan(method="single", metric=None, rungs={}, max_trials=2).experiment_id
    with pytest.raises(NotFoundError, match=r"no best trial: its configuration has no searcher\.metric"):
        _ = client.experiments.get(number).best
    trial = alone.start(0, slots=1).trial_id
    assert client.experiments.get(number).best.id == trial
    alone.start(1, slots=1)
    with pytest.raises(NotFoundError, match=r"has no searcher\.metric"):
        _ = client.experiments.get(number).best


def test_an_experiment_that_is_not_planned_yet_has_no_id(client, server):
    from airflow_provider_dtrain.client.client import Experiment

    planned = Experiment(client, "dtrain_experiment", "later")
    assert planned.state == "running"
    with pytest.raises(ConflictError, match="has not planned"):
        _ = planned.id


def test_a_trial_is_run_again_and_what_it_was_made_of_is_read_and_compared(client, store, monkeypatch):
    runs = []
    monkeypatch.setattr(
        "airflow_provider_dtrain.api.routes.reproductions.trigger",
        lambda conf, user, run_id: runs.append(run_id) or "r",
    )
    store.payloads.put("c" * 64, b"code")
    numbers = []
    for name in ("one", "two"):
        found = Search(store, name=name, run=name)
        numbers.append(found.plan(max_trials=1).experiment_id)
        ticket = found.start(0, slots=1, payload="c" * 64)
        found.end(ticket)
    trial = client.trials.get(ticket.trial_id)
    assert trial.provenance().code == "c" * 64
    assert (trial.reproductions().of, trial.reproductions().by) == (None, [])
    assert repr(trial.reproduce()) == "Experiment('r')"
    assert len(runs) == 1
    assert "code" in client.experiments.diff(*numbers).same
    with pytest.raises(ConflictError, match="its code was removed from the store"):
        client.trials.get(1).reproduce()


class Files(Api):
    """The API of a machine with copies of checkpoints in a folder."""

    def __init__(self, store, folder):
        super().__init__(store)
        self.options = dataclasses.replace(settings(), checkpoint_dir=folder)

    def _hook(self):
        hook = DtrainHook(self.options)
        hook.__dict__["store"] = self.store
        return hook


def test_files_are_downloaded_whole_and_never_over_others(search, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    ticket = next(one for one in search.store.trials.list() if one.trial_id == 1)
    search.commit(ticket, {"kind": "checkpoint", "step": 1, "path": "checkpoints/step-1", "removed": []})
    copy_files(search.store, "e", tmp_path / "copies")
    with HttpApi(Files(search.store, tmp_path / "copies")) as found:
        client = Client(found.url, "given")
        with pytest.raises(NotFoundError, match="no checkpoint"):
            _ = client.trials.get(2).checkpoint
        checkpoint = client.trials.get(1).checkpoint
        target = checkpoint.download(tmp_path / "best")
        assert [path.name for path in target.iterdir()] == ["weights.pt"]
        with pytest.raises(ConflictError, match="exists"):
            checkpoint.download(tmp_path / "best")
        at = ["--server", found.url]
        assert main(["trials", "download-checkpoint", "1", "best", "--to", str(tmp_path / "again"), *at]) == 0
        assert (tmp_path / "again" / "weights.pt").read_bytes() == (target / "weights.pt").read_bytes()
        assert main(["trials", "outputs", "1", "-o", "json", *at]) == 0
        listed = [row["path"] for row in json.loads(capsys.readouterr().out)]
        assert main(["trials", "download", "1", "--to", str(tmp_path / "files"), *at]) == 0
        kept = [path for path in (tmp_path / "files").rglob("*") if path.is_file()]
        assert sorted(str(path.relative_to(tmp_path / "files")) for path in kept) == listed
        assert main(["trials", "download", "1", "--to", str(tmp_path / "files"), *at]) == 1
        assert not list(tmp_path.rglob(".download-*"))


def test_a_token_is_never_shown(client):
    assert "given" not in repr(client)
    with pytest.raises(NotFoundError) as caught:
        client.experiments.get(99)
    assert "given" not in str(caught.value)


def test_actions_reach_the_store(client, search):
    client.trials.get(1).kill()
    client.experiments.get(1).stop()
    assert search.store.trials.get(1).kill_requested_by == "ann"
    assert search.store.experiments.get(1).control_request == "stop"
    assert [one.trial_id for one in client.queue()] == [1, 2]
    (host,) = client.cluster().hosts
    assert (host.name, len(host.slots)) == ("a", 4)


def test_the_notebook_of_the_documentation_runs(store, tmp_path, monkeypatch):
    store.hosts.add(host("a", slots=4))
    search = Search(store, dag="dtrain_experiment", run="r")
    search.plan(max_trials=2)
    for number, loss in ((0, 0.5), (1, 0.25)):
        ticket = search.start(number, slots=1)
        search.validate(ticket, loss=loss)
        search.commit(ticket, {"kind": "checkpoint", "step": 1, "path": "checkpoints/step-1", "removed": []})
        search.end(ticket)
    copy_files(store, "e", tmp_path / "copies")
    monkeypatch.setattr("airflow_provider_dtrain.api.routes.configs.trigger", lambda conf, user, run_id: "r")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(notebook.FOLDER / "code", tmp_path / "code")
    shutil.copy(notebook.FOLDER / "search.yaml", tmp_path)
    names: dict[str, Any] = {}
    with HttpApi(Files(store, tmp_path / "copies")) as found:
        monkeypatch.setenv("DTRAIN_SERVER", found.url)
        monkeypatch.setenv("DTRAIN_TOKEN", "given")
        for cell in notebook.cells():
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)
    assert list(names["trials"]["best_metric"]) == [0.5, 0.25]
    assert list(names["curve"]["loss"]) == [0.25]
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["weights.pt"]


def test_frames_name_what_to_install(client, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    for frame in (client.experiments.get(1).trials.frame, client.trials.get(2).frame):
        with pytest.raises(UsageError, match="pip install pandas"):
            frame()


def test_experiments_are_found_by_owner_and_are_moved_archived_and_deleted(client, search):
    own = Search(search.store, name="own", dag="d2")
    own.plan(max_trials=1, owner="ann")
    own.end(own.start(0, slots=0))
    found = client.experiments.get(own.view.experiment_id)
    assert [one.name for one in client.experiments.list(mine=True)] == ["own"]
    assert client.experiments.list(owner="zoe") == []
    found.move("vision")
    found.archive()
    assert (found.describe().project, client.experiments.list(mine=True)) == ("vision", [])
    assert [one.name for one in client.experiments.list(project="vision", archived="only")] == ["own"]
    found.unarchive()
    assert found.delete().trials == 1
    assert client.experiments.list(mine=True, archived="all") == []
    with pytest.raises(ConflictError, match="has not ended"):
        client.experiments.get(1).delete()
