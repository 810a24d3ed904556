"""Scripts of the example DAGs for Lightning and Accelerate on two ranks: killed in the middle, started again."""

from __future__ import annotations

import pytest

from tests.support.ranks import ROOT, run_ranks, script

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.nightly]

KILLED = """
    import os, runpy
    from airflow_provider_dtrain.train.search.stop_answer import StopAnswer
    ask = StopAnswer.__call__

    def asked(self, step):
        if step == KILL_AT and os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)
        return ask(self, step)

    StopAnswer.__call__ = asked
    runpy.run_path("EXAMPLE", run_name="__main__")
"""
#: 16 batches per epoch on each of two ranks, 4 epochs.
LAST = 64


@pytest.mark.parametrize(
    ("library", "folder"), [("lightning", "lightning_trainer"), ("accelerate", "accelerate_script")]
)
def test_an_example_that_was_killed_resumes_and_ends(tmp_path, library, folder):
    pytest.importorskip(library)
    text = KILLED.replace("EXAMPLE", str(ROOT / "dags" / folder / "train.py"))
    environment = {"ACCELERATE_USE_CPU": "true"}
    killed = run_ranks(script(tmp_path, text.replace("KILL_AT", "40")), tmp_path / "run", 2, env=environment)
    assert killed[1].exit_code == -9, killed[1].output
    assert [event["step"] for event in killed[0].events if event["kind"] == "validation"] == [16, 32]
    again = run_ranks(script(tmp_path, text.replace("KILL_AT", "-1")), tmp_path / "run", 2, env=environment)
    assert [rank.exit_code for rank in again] == [0, 0], again[0].output + again[1].output
    validations = [event for event in again[0].events if event["kind"] == "validation"]
    assert [event["step"] for event in validations][-2:] == [48, LAST]
    assert validations[-1]["metrics"]["error"] < validations[0]["metrics"]["error"]
