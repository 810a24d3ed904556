"""Environment variables of a rank."""

from __future__ import annotations

import json

import pytest

from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import SetupError


def test_an_empty_environment_is_one_process_off_the_cluster():
    env = RankEnvironment.read({})
    assert (env.rank, env.world_size, env.on_cluster, env.hparams, env.seed) == (0, 1, False, {}, None)


def test_torchrun_gives_ranks_but_is_not_the_cluster():
    env = RankEnvironment.read(
        {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}
    )
    assert (env.rank, env.local_rank, env.world_size, env.local_world_size, env.group_rank) == (3, 1, 4, 2, 1)
    assert not env.on_cluster


def test_the_values_of_a_trial_come_from_the_context_file_alone(tmp_path):
    context = tmp_path / "context.json"
    context.write_text(json.dumps({
        "trial_id": 5, "attempt": 2, "hparams": {"lr": 0.1}, "seed": 11, "config": {"data": {"a": 1}},
        "latest_checkpoint": str(tmp_path / "c"), "checkpoint_dir": "/shared/trial-5",
    }))  # fmt: skip
    derived = {
        "DTRAIN_HPARAMS": '{"lr": 9}', "DTRAIN_TRIAL_SEED": "3", "DTRAIN_LATEST_CHECKPOINT": "/c/1",
        "DTRAIN_CHECKPOINT_DIR": "/c", "DTRAIN_RUN": "t5.2.7",
    }  # fmt: skip
    env = RankEnvironment.read({"DTRAIN_CONTEXT": str(context), **derived})
    assert (env.hparams, env.seed, env.trial_id, env.attempt) == ({"lr": 0.1}, 11, 5, 2)
    assert env.config == {"data": {"a": 1}}
    assert (env.latest_checkpoint, str(env.checkpoint_dir)) == (tmp_path / "c", "/shared/trial-5")
    assert env.on_cluster
    alone = RankEnvironment.read(derived)
    assert (alone.hparams, alone.seed, alone.latest_checkpoint, alone.checkpoint_dir) == ({}, None, None, None)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "below WORLD_SIZE, got 2 with WORLD_SIZE 2"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be a whole number, got 'two'"),
        ({"DTRAIN_CONTEXT": "/nowhere/context.json"}, "/nowhere/context.json"),
    ],
)
def test_what_cannot_be_understood_is_named(environ, words):
    with pytest.raises(SetupError, match=words):
        RankEnvironment.read(environ)
