"""Values by path that replace those of a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_dtrain.core.config.overrides import with_overrides
from airflow_provider_dtrain.engine.submission.submit import overridden
from airflow_provider_dtrain.errors import ConfigError


def test_texts_are_read_as_yaml_scalars_and_missing_maps_are_made() -> None:
    before = {"hyperparameters": {"lr": 0.1, "epochs": 3}, "name": "a"}
    after = with_overrides(
        before,
        {"hyperparameters.epochs": "8", "hyperparameters.lr": "1e-3", "resources.pool": "null", "name": "8 of them"},
    )
    assert after == {"hyperparameters": {"lr": 0.001, "epochs": 8}, "name": "8 of them", "resources": {"pool": None}}
    assert before == {"hyperparameters": {"lr": 0.1, "epochs": 3}, "name": "a"}


def test_other_values_replace_as_they_are() -> None:
    after = with_overrides({"searcher": {"name": "random"}}, {"searcher": {"name": "grid"}, "labels": ["a"]})
    assert after == {"searcher": {"name": "grid"}, "labels": ["a"]}


def test_paths_through_values_that_are_no_maps_are_named_together() -> None:
    with pytest.raises(ConfigError) as raised:
        with_overrides({"a": 1, "b": [1]}, {"a.x": 1, "b.0.y": 2, "c.d": 3})
    assert "a.x" in str(raised.value)
    assert "b.0.y" in str(raised.value)
    assert "c.d" not in str(raised.value)


def test_a_file_is_read_from_the_folder_of_the_dag(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("name: a\nresources: {slots_per_trial: 1}\n")
    assert overridden("x.yaml", {"resources.slots_per_trial": "2"}, tmp_path) == {
        "name": "a",
        "resources": {"slots_per_trial": 2},
    }
    assert overridden("x.yaml", None, tmp_path) == "x.yaml"


def test_a_rendered_configuration_takes_no_overrides(tmp_path: Path) -> None:
    rendered = {"config_id": 1, "digest": "0" * 64}
    assert overridden(rendered, {}, tmp_path) == rendered
    with pytest.raises(ConfigError, match="belong to the task that renders"):
        overridden(rendered, {"name": "b"}, tmp_path)
