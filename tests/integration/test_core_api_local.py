"""Scripts of Determined's Core API as trials: the engine starts them on slots of this machine."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.core_api_scripts import DISTRIBUTED, SEARCHED
from tests.support.engines import Engine
from tests.support.searches import Search, search_config

pytestmark = pytest.mark.nightly


def config(slots: int, searcher: dict[str, Any], **hyperparameters: Any) -> dict[str, Any]:
    return {
        "name": "core-api",
        "entrypoint": "python3 -m determined.launch.torch_distributed -- python3 script.py",
        "model_dir": "code",
        "hyperparameters": hyperparameters,
        "searcher": {"metric": "x", **searcher},
        "max_restarts": 1,
        "resources": {"slots_per_trial": slots},
    }


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    return tmp_path / "code"


async def test_a_script_that_crashes_resumes_from_its_latest_checkpoint_on_two_ranks(
    engine: Engine, code: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (code / "script.py").write_text(DISTRIBUTED.replace("CRASH_AT", "45"))
    ticket = engine.submit(
        config(2, {"name": "single", "smaller_is_better": False}, increment_by=3), folder=code.parent
    )
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed", outcome
    trial = engine.hook.store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (2, 1)
    assert re.findall(r"starts at (\d+) with (\d+)", caplog.text) == [("0", "0"), ("40", "240")]
    assert "ends with 600" in caplog.text
    assert outcome.result is not None
    assert outcome.result["metrics"] == {"x": 600.0, "batches": 100.0}
    assert outcome.result["checkpoint"] is not None
    assert "The script has done 50 % (step 50)" in caplog.text


async def test_a_loop_over_operations_trains_for_the_epochs_of_its_configuration(
    engine: Engine, code: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (code / "script.py").write_text(SEARCHED.replace("BATCHES_PER_UNIT", "5"))
    searcher = {"name": "single", "max_length": {"epochs": 6}}
    ticket = engine.submit(config(1, searcher, increment_by=2), folder=code.parent)
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed", outcome
    assert re.findall(r"did (\d+)", caplog.text) == ["6"]
    assert outcome.result is not None
    assert (outcome.result["steps"], outcome.result["metrics"]) == (30, {"x": 12.0})


@pytest.mark.usefixtures("quick_looks", "searchers_run")
async def test_a_loop_over_operations_takes_part_in_a_search_and_resumes_behind_its_last_decision(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    document = search_config()
    search = Search(engine, {**document, "entrypoint": "python core_operations.py"})
    outcome, ticket = await search.run(0, 0.5)
    assert (outcome.state, outcome.failure) == ("completed", None)
    assert search.told(ticket) == [(0, "continue"), (1, "continue"), (2, "complete")]
    assert search.hook.store.trials.get(ticket.trial_id).restarts == 1
    said = re.findall(r"(?:starts at|operation of) (\d+)", caplog.text)
    assert said == ["0", "2", "4", "2", "4", "8"], "the second attempt starts at 2 and has no operation of length 2"
    caplog.clear()
    worse, ticket = await search.run(1, 0.1)
    assert (worse.state, worse.failure) == ("stopped", None)
    assert search.told(ticket) == [(0, "stop")]
    assert re.findall(r"operation of (\d+)", caplog.text) == ["2"]
