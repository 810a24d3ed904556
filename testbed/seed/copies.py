"""Copies of checkpoints and outputs, as a follower makes them on the machine of the API server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from airflow_provider_dtrain.engine.copies.checkpoints import copy_path, trial_folder
from airflow_provider_dtrain.engine.copies.output_generations import Manifest, OutputFile
from airflow_provider_dtrain.store.store import Store
from testbed.seed.media import media_of

#: Outputs of each trial. One of them would run code if a browser took it for a page.
OUTPUTS: Mapping[str, str] = {
    "work/confusion.csv": "digit,errors\n3,14\n8,11\n",
    "work/report.html": "<script>window.hacked=1</script>\n",
}


#: Layers of the program in the seeded trace, with the microseconds of their operations.
LAYERS: Mapping[str, Mapping[str, int]] = {
    "forward": {"aten::conv2d": 900, "aten::batch_norm": 300, "aten::relu": 80, "aten::linear": 240},
    "loss": {"aten::cross_entropy_loss": 120},
    "backward": {"ConvolutionBackward0": 1900, "NativeBatchNormBackward0": 500, "AddmmBackward0": 480},
    "optimizer": {"Optimizer.step#SGD.step": 420},
}


def trace(batches: int = 3) -> str:
    """Return a trace as the profiler of PyTorch writes it, of a thread and of a stream of a GPU."""
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 4711, "tid": 0, "args": {"name": "python"}}
    ]

    def add(name: str, ts: int, dur: int, cat: str = "cpu_op", pid: int = 4711, tid: int = 4711) -> None:
        events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur})

    at = 1000
    for batch in range(batches):
        began = at
        at += 600
        add("enumerate(DataLoader)#next", began, 600, "user_annotation")
        for layer, operations in LAYERS.items():
            start = at
            for name, dur in operations.items():
                add(name, at, dur)
                add("cudaLaunchKernel", at + dur // 4, dur // 3, "cuda_runtime")
                add(f"kernel of {name}", at + dur // 2, dur // 2, "kernel", pid=0, tid=7)
                at += dur + 20
            add(layer, start, at - start, "user_annotation")
        add(f"ProfilerStep#{batch}", began, at - began, "user_annotation")
    return json.dumps({"schemaVersion": 1, "traceEvents": events})


def copy_files(store: Store, experiment: str, checkpoint_dir: Path) -> None:
    """Copy the existing checkpoints and the outputs of the trials of an experiment.

    :param checkpoint_dir: ``[dtrain] checkpoint_dir`` of the API server
    """
    for trial in store.trials.list(limit=None):
        if trial.experiment != experiment:
            continue
        views = store.checkpoints.of_trial(trial.trial_id)
        for view in views:
            folder = copy_path(checkpoint_dir, trial.experiment_id, view)
            folder.mkdir(parents=True)
            content = f"weights of trial {trial.trial_id} at step {view.step}\n"
            (folder / "weights.pt").write_text(content)
            store.checkpoints.add_copy(view.checkpoint_id, str(folder), size_bytes=len(content))
        if views:
            last = views[-1]
            _write_outputs(
                trial_folder(checkpoint_dir, trial.experiment_id, trial.trial_id),
                Manifest(run=last.run, attempt=1, host=last.host, at=last.at.timestamp(), is_final=True),
                {
                    **{name: text.encode() for name, text in OUTPUTS.items()},
                    "work/traces/rank0-attempt1-batch14.pt.trace.json": trace().encode(),
                    **media_of(trial.trial_id),
                },
            )


def _write_outputs(folder: Path, manifest: Manifest, contents: Mapping[str, bytes]) -> None:
    generation = folder / "outputs-1-1"
    files = {}
    for name, content in contents.items():
        path = generation / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        files[name] = OutputFile(size_bytes=len(content), modified_at=manifest.at, version="1")
    whole = {**asdict(manifest), "files": {name: asdict(file) for name, file in files.items()}}
    (generation / "manifest.json").write_text(json.dumps(whole))
