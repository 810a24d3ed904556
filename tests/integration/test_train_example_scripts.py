"""Scripts of the example DAGs of frameworks on two ranks: killed and started again, or ended by the searcher."""

from __future__ import annotations

import pytest
import yaml

from tests.support.decisions import questions, searcher
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


ASKED = """
    import os, runpy, time
    from airflow_provider_dtrain.train.search.stop_answer import StopAnswer
    ask = StopAnswer.__call__

    def asked(self, step):
        while step == WAITS_AT and not os.path.exists("decisions.json"):
            time.sleep(0.01)
        answer = ask(self, step)
        print("asked", step, answer, flush=True)
        return answer

    StopAnswer.__call__ = asked
    runpy.run_path("EXAMPLE", run_name="__main__")
"""
EXAMPLES = pytest.mark.parametrize(
    ("library", "folder", "metric"),
    [
        ("lightning", "lightning_trainer", "error"),
        ("accelerate", "accelerate_script", "error"),
        ("transformers", "hugging_face", "eval_loss"),
    ],
)


def searched(tmp_path, folder, metric, answers, *, waits_at=-1, rungs=(16, 32, LAST), **config):
    """Run the script of an example, whose searcher asks after 16, 32 and 64 batches, or at other rungs."""
    text = ASKED.replace("EXAMPLE", str(ROOT / "dags" / folder / "train.py")).replace("WAITS_AT", str(waits_at))
    settings = {"name": "async_halving", "metric": metric, "max_length": {"batches": LAST}}
    context = {
        "rungs": list(rungs),
        "config": {"searcher": settings, "scheduling_unit": 1, "decision_timeout": 60, **config},
        "hparams": {"lr": 0.05, "epochs": 8, "global_batch_size": 32},
    }
    environment = {"ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}
    run = tmp_path / "run"
    with searcher(run, answers, after_s=1.0 if waits_at > 0 else 0.0):
        ranks = run_ranks(script(tmp_path, text), run, 2, context=context, env=environment)
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
    return ranks


def steps(rank, kind):
    return [event["step"] for event in rank.events if event["kind"] == kind]


@EXAMPLES
def test_the_searcher_ends_an_example_at_a_rung_on_all_ranks_with_a_checkpoint(tmp_path, library, folder, metric):
    pytest.importorskip(library)
    ranks = searched(tmp_path, folder, metric, {0: "continue", 1: "stop"})
    assert [(event["rung"], event["step"]) for event in questions(ranks[0])] == [(0, 16), (1, 32)]
    assert all(event["metric"] > 0 for event in questions(ranks[0]))
    assert [rank.said(r"asked (\d+) False")[-1] for rank in ranks] == ["32", "32"]
    assert steps(ranks[0], "checkpoint")[-1] == 32
    assert steps(ranks[0], "validation") == [16, 32]
    assert ranks[0].events[-1]["kind"] == "result"


@EXAMPLES
def test_the_searcher_counts_the_epochs_of_an_example(tmp_path, library, folder, metric):
    pytest.importorskip(library)
    length = {"name": "async_halving", "metric": metric, "max_length": {"epochs": 4}}
    ranks = searched(tmp_path, folder, metric, {0: "continue", 1: "stop"}, rungs=[1, 2, 4], searcher=length)
    assert [(event["rung"], event["units"], event["step"]) for event in questions(ranks[0])] == [(0, 1, 16), (1, 2, 32)]
    assert steps(ranks[0], "checkpoint")[-1] == 32


@EXAMPLES
def test_a_late_answer_ends_an_example_at_the_same_step_on_all_ranks(tmp_path, library, folder, metric):
    pytest.importorskip(library)
    ranks = searched(tmp_path, folder, metric, {0: "stop"}, waits_at=20, decision_timeout=0.1)
    ends = [rank.said(r"asked (\d+) True") for rank in ranks]
    assert ends[0] == ends[1]
    assert len(ends[0]) == 1
    # On a slow machine, the answer comes before the script waits for it.
    assert 16 < int(ends[0][0]) < 32
    assert steps(ranks[0], "checkpoint")[-1] == int(ends[0][0])
    assert ranks[0].events[-1]["kind"] == "result"


@EXAMPLES
def test_an_example_ends_at_the_length_of_its_trial(tmp_path, library, folder, metric):
    pytest.importorskip(library)
    ranks = searched(tmp_path, folder, metric, {0: "continue", 1: "continue", 2: "complete"})
    assert [rank.said(r"asked (\d+)")[-1] for rank in ranks] == [str(LAST)] * 2
    assert steps(ranks[0], "checkpoint")[-1] == LAST


def test_the_example_of_loggers_needs_no_server(tmp_path):
    """With its own configuration, on two ranks."""
    mlflow, _, _ = (pytest.importorskip(name) for name in ("mlflow", "wandb", "tensorboard"))
    folder = ROOT / "dags" / "experiment_loggers"
    config = yaml.safe_load((folder / "train.yaml").read_text())
    run = tmp_path / "run"
    ranks = run_ranks(
        folder / "train.py",
        run,
        2,
        context={"config": config, "hparams": config["hyperparameters"]},
        env=config["environment"]["variables"],
    )
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
    assert "gets no" not in ranks[0].output
    error = [event for event in ranks[0].events if event["kind"] == "validation"][-1]["metrics"]["error"]
    assert error < 0.05
    client = mlflow.MlflowClient(f"sqlite:///{run}/mlflow.db")
    (found,) = client.search_runs([client.get_experiment_by_name(config["name"]).experiment_id])
    assert found.data.params == {"lr": "0.05", "epochs": "4", "global_batch_size": "16"}
    assert found.data.metrics["validation/error"] == pytest.approx(error)
    assert len(client.get_metric_history(found.info.run_id, "loss")) == 4 * 512 // 16
    (offline,) = (run / "wandb").glob("offline-run-*/*.wandb")
    assert b"validation/error" in offline.read_bytes()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    written = EventAccumulator(str(run / "tensorboard")).Reload()
    assert [event.step for event in written.Scalars("loss")] == list(range(1, 4 * 512 // 16 + 1))
    assert written.Tags()["histograms"] == ["weights"]
