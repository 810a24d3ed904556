"""Search space with each kind of hyperparameter, for the tests of samplers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SPACE: dict[str, Any] = {
    "lr": {"type": "log", "minval": -5, "maxval": -1},
    "net": {
        "width": {"type": "int", "minval": 1, "maxval": 64},
        "drop": {"type": "double", "minval": 0, "maxval": 0.5},
        "act": {"type": "categorical", "vals": ["relu", None, [1, 2], {"gelu": True}]},
    },
    "half": {"type": "log", "minval": 1, "maxval": 4, "base": 0.5},
    "global_batch_size": 64,
    "layers": {"type": "const", "val": [3]},
}


def assert_in_space(values: Mapping[str, Any]) -> None:
    """Check that hyperparameters have the shape of the space and lie in it."""
    assert list(values) == sorted(SPACE)
    assert (values["global_batch_size"], values["layers"]) == (64, [3])
    assert 1e-5 <= values["lr"] <= 0.1
    assert 0.0625 <= values["half"] <= 0.5
    assert isinstance(values["net"]["width"], int)
    assert 1 <= values["net"]["width"] <= 64
    assert 0 <= values["net"]["drop"] <= 0.5
    assert values["net"]["act"] in SPACE["net"]["act"]["vals"]
    assert json.loads(json.dumps(values)) == values
