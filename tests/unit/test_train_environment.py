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


def test_the_context_file_wins_over_single_variables(tmp_path):
    context = tmp_path / "context.json"
    context.write_text(json.dumps({
        "trial_id": 5, "attempt": 2, "hparams": {"lr": 0.1}, "seed": 11, "config": {"data": {"a": 1}},
        "latest_checkpoint": str(tmp_path / "c"),
    }))  # fmt: skip
    env = RankEnvironment.read({
        "DTRAIN_CONTEXT": str(context), "DTRAIN_HPARAMS": '{"lr": 9}', "DTRAIN_TRIAL_SEED": "3", "DTRAIN_RUN": "t5.2.7",
    })  # fmt: skip
    assert (env.hparams, env.seed, env.trial_id, env.attempt) == ({"lr": 0.1}, 11, 5, 2)
    assert env.config == {"data": {"a": 1}}
    assert env.latest_checkpoint == tmp_path / "c"
    assert env.on_cluster


def test_without_a_context_file_single_variables_count():
    env = RankEnvironment.read(
        {"DTRAIN_HPARAMS": '{"lr": 9}', "DTRAIN_TRIAL_SEED": "0", "DTRAIN_LATEST_CHECKPOINT": "/c/1"}
    )
    assert (env.hparams, env.seed, str(env.latest_checkpoint)) == ({"lr": 9}, 0, "/c/1")


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "below WORLD_SIZE, got 2 with WORLD_SIZE 2"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be a whole number, got 'two'"),
        ({"DTRAIN_HPARAMS": "[1]"}, "DTRAIN_HPARAMS must be a JSON object, got list"),
        ({"DTRAIN_HPARAMS": "{"}, "DTRAIN_HPARAMS must be a JSON object"),
        ({"DTRAIN_CONTEXT": "/nowhere/context.json"}, "/nowhere/context.json"),
    ],
)
def test_what_cannot_be_understood_is_named(environ, words):
    with pytest.raises(SetupError, match=words):
        RankEnvironment.read(environ)
