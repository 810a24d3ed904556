"""States of prepared objects that differ between the ranks, in a checkpoint."""

from __future__ import annotations

import copy
import logging
from collections import deque

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from airflow_provider_dtrain.train.checkpoint import rank_states  # noqa: E402
from airflow_provider_dtrain.train.checkpoint.saver import Saver  # noqa: E402
from airflow_provider_dtrain.train.checkpoint.state_values import encode  # noqa: E402
from airflow_provider_dtrain.train.data.position import Progress  # noqa: E402
from airflow_provider_dtrain.train.errors import CheckpointError  # noqa: E402
from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients  # noqa: E402
from airflow_provider_dtrain.train.prepared import Prepared  # noqa: E402
from airflow_provider_dtrain.train.process.streams import Streams  # noqa: E402
from tests.support.rank_threads import in_ranks  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


class Files:
    """A data loader with a state, which reads its rank's files."""

    def __init__(self, rank=None):
        self.state = {"files": deque([f"shard{rank}"], 9), "seen": torch.full((3,), rank or 0), "epoch": {4}}

    def state_dict(self):
        return dict(self.state)

    def load_state_dict(self, state):
        self.state = dict(state)


class Alike(Files):
    """An object whose state is the same on all ranks."""


class Own(Files):
    """An object with one value, and a number that differs between the ranks."""

    def __init__(self, rank, value=None):
        self.state = {"own": value or (frozenset({1}) if rank else 1), "rank": rank}


class NoEvents:
    """Event writer that writes nothing."""

    def write(self, *_, **__):
        pass


def saver(distributed, folder, *objects):
    """Return a saver of these objects."""
    prepared = Prepared()
    for item in objects:
        prepared.add(item)
    gradients = Gradients(distributed, lambda: CPU, {})
    streams = Streams(1, distributed.rank)
    state = (prepared, Progress(), gradients, streams)
    return Saver(distributed._env, distributed, NoEvents(), *state, where=folder, has_earlier=True)


def save(folder, size, make=Files):
    """Save a checkpoint of ranks with one object that differs and one that does not. Return its file names."""

    def body(distributed):
        saved = saver(distributed, folder, Alike(), make(distributed.rank))
        saved.write(saved.copy(1, {}), 1, {})
        saved.finish()

    assert in_ranks(size, body) == [None] * size
    return {path.name for path in folder.glob("step-*/*")}


def restored(folder, size):
    """Return the files that each of the ranks resumes with."""

    def body(distributed):
        mine = Files()
        saver(distributed, folder, Alike(), mine).restore()
        assert (mine.state["files"].maxlen, mine.state["epoch"]) == (9, {4})
        return list(mine.state["files"]), mine.state["seen"].tolist()

    return in_ranks(size, body)


def test_each_rank_resumes_with_its_own_state_of_a_prepared_object(tmp_path):
    assert "others.pt" in save(tmp_path, 2)
    assert restored(tmp_path, 2) == [(["shard0"], [0, 0, 0]), (["shard1"], [1, 1, 1])]


def test_a_value_that_no_checkpoint_holds_is_refused_with_its_path_on_each_rank(tmp_path):
    def body(distributed):
        saver(distributed, tmp_path, Files(), Own(distributed.rank, value=print)).copy(1, {})

    for error in in_ranks(2, body):
        assert "The state of others[1] (Own) holds builtins.print at state_dict()['own'], which" in str(error)


@pytest.mark.parametrize("size", [1, 3])
def test_another_number_of_ranks_gets_rank_zeros_state_and_a_warning_that_names_the_object(tmp_path, caplog, size):
    save(tmp_path, 2)
    with caplog.at_level(logging.WARNING):
        assert restored(tmp_path, size) == [(["shard0"], [0, 0, 0])] * size
    assert caplog.text.count("Files (files, seen) had a state of its own on each of the 2 ranks") == 1
    assert "Alike" not in caplog.text


def test_states_that_are_equal_on_all_ranks_are_saved_once(tmp_path):
    assert save(tmp_path, 2, make=lambda rank: Files(7)) == {
        "state.pt",
        "rng.pt",
        "metadata.json",
        "tensors.json",
        "rank-00000.safetensors",
    }
    assert restored(tmp_path, 3) == [(["shard7"], [7, 7, 7])] * 3


@pytest.mark.parametrize(
    "values",
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])),
        (torch.tensor([1, 2]), torch.tensor([[1, 2]])),
        (torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
        (torch.ones(2).to_sparse(), torch.zeros(2).to_sparse()),
        ({"a": [1, 2]}, {"a": [1], "b": 2}),
        ([["a"], "b"], [["a", "b"]]),
        (1, True),
        (torch.Size([1]), torch.Size([2])),
        (np.zeros(2), np.array([0.0, -0.0])),
        (np.zeros(2, "<f4"), np.zeros(2, ">f4")),
        (deque([1], 2), deque([1], 3)),
    ],
    ids=str,
)
def test_any_difference_between_states_is_seen(values):
    def apart(*states):
        return in_ranks(2, lambda distributed: rank_states.gather(distributed, encode([states[distributed.rank]])))[0]

    first, second = values
    assert [set(states) for states in apart(first, second)] == [{0}, {0}]
    assert apart(first, copy.deepcopy(first)) == [{}, {}]


def test_models_that_differ_between_the_ranks_are_refused_at_the_first_save(tmp_path):
    def body(distributed):
        stage = torch.nn.Linear(2, 2 + distributed.rank)
        saver(distributed, tmp_path, stage).copy(1, {})

    results = in_ranks(3, body)
    assert all(isinstance(error, CheckpointError) for error in results)
    assert "those of rank 1 have other names or shapes than those of rank 0" in str(results[2])
    assert "ctx.checkpoint(step)" in str(results[0])
