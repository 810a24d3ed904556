"""Dividing a global batch over slots."""

from __future__ import annotations

import logging

import pytest

from airflow_provider_dtrain.train.data.batch_size import Hparams, divide, from_hparams, suggest_weak_scaling
from airflow_provider_dtrain.train.errors import BatchSizeError, HparamError


@pytest.mark.parametrize(
    ("global_batch_size", "slots", "per_slot", "effective"),
    [(64, 1, 64, 64), (64, 4, 16, 64), (65, 4, 16, 64), (67, 4, 16, 64), (4, 4, 1, 4), (7, 4, 1, 4)],
)
def test_the_remainder_of_the_division_is_dropped(global_batch_size, slots, per_slot, effective):
    sizes = divide(global_batch_size, slots)
    assert (sizes.per_slot, sizes.effective, sizes.configured) == (per_slot, effective, global_batch_size)


def test_a_batch_smaller_than_the_gang_is_an_error_with_both_numbers():
    with pytest.raises(BatchSizeError, match="must be at least 4, one sample per slot, got 3"):
        divide(3, 4)


@pytest.mark.parametrize("value", [64.0, "64", True, None])
def test_a_batch_that_is_no_whole_number_is_an_error(value):
    with pytest.raises(BatchSizeError, match="whole number"):
        divide(value, 1)


def test_dropping_a_remainder_names_the_effective_global_batch(caplog):
    with caplog.at_level(logging.WARNING):
        from_hparams({"global_batch_size": 67}, 4, warn=True)
    assert "effective global batch size is 64" in caplog.text


def test_an_even_division_says_nothing(caplog):
    with caplog.at_level(logging.DEBUG):
        from_hparams({"global_batch_size": 64}, 4, warn=True)
    assert caplog.text == ""


def test_a_missing_hyperparameter_is_a_key_error_that_names_what_there_is():
    with pytest.raises(HparamError, match="no hyperparameter 'lr'; there are: depth, width") as caught:
        Hparams({"width": 1, "depth": 2})["lr"]
    assert isinstance(caught.value, KeyError)


def test_weak_scaling_is_suggested_when_slots_grew_and_the_batch_did_not(caplog):
    with caplog.at_level(logging.INFO):
        suggest_weak_scaling({"world_size": 2, "global_batch_size": 64}, 4, 64)
    assert "For weak scaling, set global_batch_size to 128" in caplog.text


@pytest.mark.parametrize(("slots", "batch"), [(2, 64), (1, 64), (4, 128)])
def test_weak_scaling_is_not_suggested_otherwise(caplog, slots, batch):
    with caplog.at_level(logging.INFO):
        suggest_weak_scaling({"world_size": 2, "global_batch_size": 64}, slots, batch)
    assert caplog.text == ""
