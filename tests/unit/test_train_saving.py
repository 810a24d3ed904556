"""Snapshots, background writing, secrets, options of buckets, warm starts."""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict

import pytest

from airflow_provider_dtrain.train import environment
from airflow_provider_dtrain.train.checkpoint.async_writer import Background
from airflow_provider_dtrain.train.checkpoint.retention import policy_of
from airflow_provider_dtrain.train.checkpoint.snapshot import Snapshots
from airflow_provider_dtrain.train.environment import RankEnvironment, put_secrets
from airflow_provider_dtrain.train.errors import CheckpointError, SetupError
from airflow_provider_dtrain.train.files import file_systems

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_a_snapshot_does_not_change_with_the_state_it_was_taken_of():
    weights = torch.ones(4)
    state = {"models": [OrderedDict(w=weights)], "numbers": [1, 2.5, None, "x"], "pair": (weights, True)}
    taken = Snapshots().take(state)
    weights.add_(1)
    state["numbers"].append(3)
    assert taken["models"][0]["w"].tolist() == [1.0] * 4
    assert taken["numbers"] == [1, 2.5, None, "x"]
    assert type(taken["models"][0]) is OrderedDict
    assert taken["pair"][1] is True


def test_tensors_that_are_one_stay_one_in_a_snapshot():
    tied = torch.ones(4)
    taken = Snapshots().take({"a": tied, "b": tied, "c": torch.ones(4)})
    assert taken["a"] is taken["b"]
    assert taken["c"] is not taken["a"]


def test_the_next_snapshot_uses_the_same_memory_again():
    snapshots, model = Snapshots(), torch.nn.Linear(8, 8)
    first = snapshots.take(model.state_dict())
    places = {name: tensor.data_ptr() for name, tensor in first.items()}
    second = snapshots.take(model.state_dict())
    assert {name: tensor.data_ptr() for name, tensor in second.items()} == places
    assert snapshots.take({"small": torch.ones(1)})["small"].tolist() == [1.0]
    assert len(snapshots._buffers) == 1


def test_a_state_of_a_model_keeps_the_versions_of_its_modules():
    taken = Snapshots().take(torch.nn.BatchNorm1d(2).state_dict())
    assert taken._metadata[""]["version"] == 2


def test_what_needs_a_pickle_is_refused_at_once_and_named():
    class Clever:
        pass

    globals()["Clever"], Clever.__qualname__ = Clever, "Clever"
    with pytest.raises(CheckpointError, match="Clever"):
        Snapshots().take({"others": [{"x": Clever()}]})
    with pytest.raises(CheckpointError, match="<lambda>"):
        Snapshots().take({"f": lambda: None})


def test_the_background_runs_one_piece_at_a_time_and_raises_its_error_once():
    background, gate = Background(), threading.Event()
    done = []

    def work():
        gate.wait(10)
        done.append(1)
        raise CheckpointError("disk full")

    background.start("work", work)
    assert done == []
    with pytest.raises(RuntimeError, match="wait"):
        background.start("more", work)
    gate.set()
    with pytest.raises(CheckpointError, match="disk full"):
        background.wait()
    background.wait()


def test_a_running_trial_keeps_what_its_experiment_may_still_want():
    policy = policy_of(
        {"checkpoint_storage": {"save_experiment_best": 3, "save_trial_best": 1, "save_trial_latest": 0}}
    )
    assert (policy["save_trial_best"], policy["save_trial_latest"]) == (3, 1)


SECRETS = {
    "checkpoint_storage.secret_key": "s3cr3t", "data.secrets.token": "t0ken", 'data.secrets."a.b"': "dotted",
    "checkpoint_storage.session_token": "new",
}  # fmt: skip
CONFIG = {
    "checkpoint_storage": {"type": "s3", "secret_key": "********"},
    "data": {"path": "/data", "secrets": {"token": "********", "a.b": "********"}},
}


def test_secrets_go_to_their_places():
    whole = put_secrets(CONFIG, SECRETS)
    assert whole["checkpoint_storage"] == {"type": "s3", "secret_key": "s3cr3t", "session_token": "new"}
    assert whole["data"] == {"path": "/data", "secrets": {"token": "t0ken", "a.b": "dotted"}}
    assert CONFIG["data"]["secrets"]["token"] == "********"
    assert put_secrets({"a": [{"secret_key": "*"}]}, {"a.0.secret_key": "x"}) == {"a": [{"secret_key": "x"}]}


def test_secrets_leave_the_environment_and_are_never_shown(tmp_path, monkeypatch):
    context = tmp_path / "context.json"
    context.write_text(json.dumps({"config": CONFIG}))
    monkeypatch.setenv("DTRAIN_CONTEXT", str(context))
    monkeypatch.setenv("DTRAIN_SECRETS", json.dumps(SECRETS))
    monkeypatch.setattr(environment, "_taken", [])
    env = RankEnvironment.read()
    assert env.config["data"]["secrets"]["token"] == "t0ken"
    assert "DTRAIN_SECRETS" not in os.environ
    assert "t0ken" not in repr(env)
    assert RankEnvironment.read().config["data"]["secrets"]["token"] == "t0ken"


def test_secrets_that_are_no_json_are_refused_without_being_shown():
    with pytest.raises(SetupError) as caught:
        RankEnvironment.read({"DTRAIN_SECRETS": "{s3cr3t"})
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("protocol", "config", "options"),
    [
        ("s3", {"type": "s3", "access_key": "a", "secret_key": "b", "endpoint_url": "http://x", "region_name": "eu"},
         {"key": "a", "secret": "b", "endpoint_url": "http://x", "client_kwargs": {"region_name": "eu"}}),
        ("s3", {"type": "s3"}, {}),
        ("gcs", {"type": "gcs", "token": {"type": "service_account"}, "project": "p"},
         {"token": {"type": "service_account"}, "project": "p"}),
        ("abfs", {"type": "azure", "connection_string": "AccountName=x"}, {"connection_string": "AccountName=x"}),
        ("abfs", {"type": "azure", "account_url": "https://acc.blob.core.windows.net/", "credential": "key"},
         {"account_name": "acc", "account_host": "acc.blob.core.windows.net", "credential": "key"}),
        ("gcs", {"type": "s3", "access_key": "a"}, {}),
    ],
)  # fmt: skip
def test_fields_become_options_of_the_file_system(protocol, config, options):
    found, technical = file_systems.options_for(protocol, config), {"use_listings_cache", "config_kwargs"}
    assert {name: value for name, value in found.items() if name not in technical} == options


def test_a_module_that_is_missing_is_named_with_the_command(monkeypatch):
    import fsspec

    monkeypatch.setattr(fsspec, "filesystem", lambda *_, **__: (_ for _ in ()).throw(ImportError("No module s3fs")))
    with pytest.raises(SetupError, match="pip install s3fs"):
        file_systems.file_system("s3://b/x", {"type": "s3"})
