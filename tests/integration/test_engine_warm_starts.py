"""Trials whose ranks are forked from a warm parent of their host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind
from tests.support.engines import Engine

#: Only a forked program finds a module that it has not imported.
PROGRAM = """
import os, sys
found = "torch" in sys.modules
import airflow_provider_dtrain.train as dtrain
with dtrain.init() as ctx:
    import torch
    values = {"found": int(found), "draw": torch.rand(1).item(), "length": len(os.environ["TOKEN"])}
    ctx.report_validation(1, values)
"""

pytestmark = pytest.mark.torch


def document(**fields: Any) -> dict[str, Any]:
    return {
        "name": "warm",
        "entrypoint": "python train.py",
        "model_dir": "code",
        "max_restarts": 0,
        "environment": {"variables": {"TOKEN": "x" * 9}},
        "searcher": {"name": "single", "metric": "found", "smaller_is_better": False},
        "reproducibility": {"experiment_seed": 5},
        **fields,
    }


@pytest.mark.nightly
async def test_later_trials_of_a_program_are_forked_from_one_parent_with_the_same_random_numbers(
    engine: Engine, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(PROGRAM)
    reported = []
    parents = []
    launches = []
    for options in ({}, {}, {}, {}, {"warm_start": False}):
        ticket = engine.submit(document(**options), folder=tmp_path)
        outcome = await engine.carry(ticket)
        assert outcome is not None
        assert outcome.failure is None
        (row,) = engine.hook.store.metrics.of_trial(ticket.trial_id, "validation")
        reported.append(row.metrics)
        entries = engine.hook.store.timeline.of_trial(ticket.trial_id)
        launches.append(next(one.text for one in entries if one.kind is TimelineKind.LAUNCHED))
        parents.append({file.read_text() for file in tmp_path.rglob("warm/*.pid")})
    assert [one["found"] for one in reported] == [0, 0, 1, 1, 0]
    assert parents[3], "a parent serves the fourth trial"
    assert parents[3] <= parents[2], "it is that of the third one"
    assert len({one["draw"] for one in reported}) == 1
    assert {one["length"] for one in reported} == {9}
    assert "Executed on 1 host(s): the first launch of this code" in launches[0]
    assert [text.endswith("Forked from a warm parent on 1 of 1 host(s).") for text in launches[1:]] == [True] * 3 + [
        False
    ]
