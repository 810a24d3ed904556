"""Built-in metrics and the snapshot of a failed training, from its ranks to the store, the outputs and the command."""

from __future__ import annotations

import pickle
from argparse import Namespace

import pytest

from airflow_provider_dtrain.cli._store_source import StoreSource
from airflow_provider_dtrain.cli.trials_outputs import outputs
from airflow_provider_dtrain.engine.copies.output_generations import OutputCopies
from airflow_provider_dtrain.terminal.trials import metrics
from tests.support.engines import Engine, config

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("quick_looks")]
SNAPSHOT = "work/traces/rank0-attempt1-out-of-memory.pickle"


@pytest.mark.nightly
async def test_a_training_whose_memory_ran_out_leaves_its_metrics_and_a_snapshot(
    engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    profiling = {"memory_snapshot": True, "count_flops": True}
    document = {**config("", slots=1), "entrypoint": "python out_of_memory.py", "profiling": profiling}
    ticket = engine.submit({**document, "scheduling_unit": 2})
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.failure is not None
    assert "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB." in outcome.failure.message
    assert f"Snapshot of GPU memory: {SNAPSHOT}" in outcome.failure.message
    assert "Most memory was allocated by train.py:31 in forward 5 MiB" in outcome.failure.message

    store = engine.hook.store
    assert store.metrics.of_trial(ticket.trial_id) == [], "the program has reported nothing"
    rows = store.metrics.of_trial(ticket.trial_id, "builtin")
    assert [row.step for row in rows] == [2, 4, 6]
    # The gradient of each of four weights is the sum over two samples, and so is that of the bias.
    assert [row.metrics["gradient_norm"] for row in rows] == pytest.approx([20**0.5] * 3)
    assert rows[-1].metrics["flops_per_second"] / rows[-1].metrics["samples_per_second"] == 2 * 4 * 2

    shown = Namespace(trial_id=ticket.trial_id, group="builtin", abandoned=False, csv=True, output="table")
    capsys.readouterr()
    metrics(shown, StoreSource(store))
    header, first, *_ = capsys.readouterr().out.splitlines()
    assert header == "attempt,group,step,epoch,rank,at,flops_per_second,gradient_norm,samples_per_second"
    assert first.startswith("1,builtin,2,,0,")

    folder = engine.hook.settings.checkpoint_dir / f"experiment-{ticket.experiment_id}" / f"trial-{ticket.trial_id}"
    found = OutputCopies(folder).newest()
    assert found is not None
    assert set(found.manifest.files) == {SNAPSHOT}
    assert pickle.loads(found.path(SNAPSHOT).read_bytes())["device_traces"] == []
    monkeypatch.setattr("airflow_provider_dtrain.hooks.dtrain.DtrainHook", lambda: engine.hook)
    outputs(Namespace(trial_id=ticket.trial_id, output="plain", verbose=False))
    assert SNAPSHOT in capsys.readouterr().out
