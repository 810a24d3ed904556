"""Diagnoses on this machine: the engine, a held gang, and real ranks whose bottleneck is built in."""

from __future__ import annotations

import asyncio
import logging
import textwrap
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.diagnosis.runs import Limits
from airflow_provider_dtrain.engine.diagnosis import Diagnosis, DiagnosisRequest
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.errors import ConfigError, DtrainError
from airflow_provider_dtrain.store.records.trials import TrialKey
from tests.support.engines import Engine, held, processes

pytestmark = pytest.mark.torch

SCRIPT = textwrap.dedent(
    """
    import time

    import torch

    import airflow_provider_dtrain.train as dtrain


    class Data(torch.utils.data.Dataset):
        def __init__(self, wait_s):
            self.wait_s = wait_s

        def __len__(self):
            return 64

        def __getitem__(self, index):
            time.sleep(self.wait_s)
            return torch.full((32,), float(index % 7))


    def main():
        with dtrain.init() as ctx:
            torch.set_num_threads(1)
            model = torch.nn.Linear(32, 8)
            model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.001))
            saved = ctx.restore_checkpoint()
            for epoch in ctx.epochs(1000):
                for batch in ctx.loader(Data(ctx.hparams.get("load_s", 0))):
                    time.sleep(ctx.hparams.get("compute_s", 0))
                    if ctx.rank == ctx.hparams.get("slow_rank"):
                        time.sleep(ctx.hparams["slow_s"])
                    ctx.backward(model(batch).square().mean())
                    ctx.step(optimizer)
                    print("batch", ctx.world_size, len(batch), flush=True)
                ctx.report_validation(epoch, {"loss": 1.0})
                ctx.save_checkpoint(epoch)


    main()
    """
)
LIMITS = Limits(steps=15, warm_up=2, most_s=200)


def config(**hyperparameters: Any) -> dict[str, Any]:
    return {
        "name": "case",
        "entrypoint": "python diagnosed_case.py",
        "hyperparameters": {"global_batch_size": 8, **hyperparameters},
        "resources": {"slots_per_trial": 2},
    }


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "diagnosed_case.py").write_text(SCRIPT)
    return folder


def diagnosis(engine: Engine, code: Path, document: dict[str, Any], **options: Any) -> Diagnosis:
    options = {"is_confirming": False, "limits": LIMITS, **options}
    request = DiagnosisRequest(
        key=TrialKey(dag_id="dag", run_id="run", task_id="diagnose"), config=document, template=None, folder=code,
        **options,
    )  # fmt: skip
    log = TaskLog(logging.getLogger("engine"), 10**6)
    return Diagnosis(engine.hook, request, log, logging.getLogger("engine").info, watcher="test")


async def diagnose(engine: Engine, code: Path, document: dict[str, Any], **options: Any) -> dict[str, Any]:
    return await asyncio.wait_for(diagnosis(engine, code, document, **options).run(), 600)


def parts(found: dict[str, Any]) -> dict[str, float]:
    return {run["name"]: run["step_s"] for run in found["runs"]}


@pytest.mark.nightly
async def test_slow_data_is_the_limit_and_the_runs_leave_nothing_but_their_figures(
    engine: Engine, code: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    found = await diagnose(engine, code, config(load_s=0.02))
    assert found["limit"] == "input", found
    assert found["shares"]["input"] > 0.5
    assert parts(found)["synthetic"] < 0.5 * parts(found)["real"]
    assert held(engine) == []
    store = engine.hook.store
    trials = store.trials.list(experiment_id=found["experiment_id"], limit=100)
    assert [trial.state for trial in trials] == ["completed"] * 5
    assert all(run["steps"] == LIMITS.steps for run in found["runs"])
    assert [checkpoint for trial in trials for checkpoint in store.checkpoints.of_trial(trial.trial_id)] == []
    labels = store.labels.get("experiment", found["experiment_id"])
    assert labels.tags == ("diagnosis",)
    assert labels.description.startswith("The input data limits the training: communication ")
    assert store.labels.get("trial", trials[0].trial_id).display_name
    # One rank alone has the batch that each rank of the gang has, and all runs have used one gang.
    assert "[rank 0] batch 1 4" in caplog.text
    assert "batch 1 8" not in caplog.text
    assert {store.attempts.get(trial.attempt_id).allocation_id for trial in trials} == {1}


@pytest.mark.nightly
async def test_computing_is_the_limit_of_a_program_that_only_computes(engine: Engine, code: Path) -> None:
    found = await diagnose(engine, code, config(compute_s=0.1))
    assert found["limit"] == "compute", found
    assert found["efficiency"] > 0.7
    assert held(engine) == []


@pytest.mark.nightly
async def test_a_slow_rank_is_named(engine: Engine, code: Path) -> None:
    found = await diagnose(engine, code, config(compute_s=0.03, slow_rank=1, slow_s=0.1))
    assert found["limit"] == "imbalance", found
    assert found["slow_ranks"][0].startswith("rank 1 on host 'local' needs ")
    assert found["slow_ranks"][0].endswith("for computing")


@pytest.mark.nightly
async def test_an_exchange_of_many_gradients_is_the_limit_and_suggestions_are_tried(engine: Engine, code: Path) -> None:
    text = (code / "diagnosed_case.py").read_text()
    hook = "model.register_comm_hook(None, slow_exchange)\n        "
    text = text.replace("saved = ctx.restore", f"{hook}saved = ctx.restore").replace("def main", f"{EXCHANGE}def main")
    (code / "diagnosed_case.py").write_text(text)
    found = await diagnose(engine, code, config(), is_confirming=True)
    assert found["limit"] == "communication", found
    tried = {one["changes"][path]: one for one in found["suggestions"] for path in one["changes"]}
    assert tried[4]["measured"] > 0.3, found
    # PyTorch accepts one hook, and the program has one.
    assert "register_comm_hook" in tried["fp16"]["problem"]
    assert [run["name"] for run in found["runs"]][5:] == ["aggregation", "fp16", "powersgd"]
    assert held(engine) == []


EXCHANGE = """def slow_exchange(state, bucket):
    time.sleep(0.2)
    return torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])


"""


TRIAL = """
import time

import torch

from airflow_provider_dtrain.train import pytorch


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.full((32,), float(index % 7))


class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        torch.set_num_threads(1)
        self.model = context.wrap_model(torch.nn.Linear(32, 8))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.001))

    def build_training_data_loader(self):
        return pytorch.DataLoader(Data(), batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self):
        return pytorch.DataLoader(Data(), batch_size=4)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        raise RuntimeError("a short run never validates")
"""


@pytest.mark.nightly
async def test_a_trial_class_of_a_search_repeats_its_first_batch_and_never_validates(
    engine: Engine, code: Path
) -> None:
    (code / "model_def.py").write_text(TRIAL)
    document = config(lr={"type": "categorical", "vals": [0.1, 0.2]})
    document |= {
        "entrypoint": "model_def:Trial",
        "searcher": {"name": "grid", "metric": "loss", "max_length": {"epochs": 1}},
        "min_validation_period": {"batches": 1},
        "perform_initial_validation": True,
    }
    found = await diagnose(engine, code, document)
    assert found["limit"] == "input", found
    trials = engine.hook.store.trials.list(experiment_id=found["experiment_id"], limit=100)
    assert {trial.hparams["lr"] for trial in trials} == {0.1}


@pytest.mark.nightly
async def test_one_slot_has_nothing_to_exchange(engine: Engine, code: Path) -> None:
    document = config(load_s=0.02)
    document["resources"] = {"slots_per_trial": 1}
    found = await diagnose(engine, code, document)
    assert [run["name"] for run in found["runs"]] == ["real", "synthetic", "again"]
    assert found["limit"] == "input"
    assert found["shares"]["communication"] == found["shares"]["imbalance"] == 0
    assert found["efficiency"] is None


@pytest.mark.nightly
async def test_a_program_that_fails_is_the_cause_and_frees_its_slots(engine: Engine, code: Path) -> None:
    (code / "diagnosed_case.py").write_text("raise ValueError('no such data set')")
    with pytest.raises(DtrainError, match=r"The run as configured \(trial 1\) failed.*no such data set"):
        await diagnose(engine, code, config())
    assert held(engine) == []


@pytest.mark.nightly
async def test_a_program_without_the_library_has_no_steps_but_a_use_of_its_hosts(engine: Engine, code: Path) -> None:
    (code / "diagnosed_case.py").write_text("import time\ntime.sleep(300)")
    with pytest.raises(DtrainError, match=r"does not call dtrain.init\(\).*cpu_util \d"):
        await diagnose(engine, code, config(), limits=Limits(steps=5, most_s=45))
    assert processes("diagnosed_case.py") == []
    assert held(engine) == []


@pytest.mark.nightly
async def test_a_diagnosis_that_is_cancelled_ends_its_run_and_frees_its_slots(engine: Engine, code: Path) -> None:
    running = asyncio.ensure_future(diagnosis(engine, code, config(compute_s=600)).run())
    async with asyncio.timeout(60):
        while len([slot for slot in held(engine) if slot.trial_id is not None]) < 2 or not processes(
            "diagnosed_case.py"
        ):
            assert not running.done(), running.result()
            await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 60)
    assert processes("diagnosed_case.py") == []
    assert held(engine) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {
                "inference": {"processor": "m:P", "inputs": {"path": "/i"}, "outputs": {"path": "/o"}},
                "entrypoint": None,
            },
            "batch inference",
        ),
        ({"diagnosis": {"steps": 7}}, "set by the diagnosis itself"),
        ({"resources": {"slots_per_trial": "many"}}, "slots_per_trial"),
    ],
)
async def test_a_configuration_that_is_no_training_is_refused_before_anything_is_requested(
    engine: Engine, code: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        await diagnose(engine, code, {**config(), **changes})
    assert engine.hook.store.experiments.list() == []
