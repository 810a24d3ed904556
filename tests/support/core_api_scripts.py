"""Scripts in the style of the tutorials of Determined's Core API. Only their import line is ours."""

from __future__ import annotations

IMPORT = "from airflow_provider_dtrain.train import determined as det\n"

#: Every rank counts. Rank 0 reports, validates and saves every ten batches, and each of these may be the last.
DISTRIBUTED = (
    IMPORT
    + """
import json
import logging
import pathlib
import sys


def save_state(x, steps_completed, trial_id, checkpoint_directory):
    with checkpoint_directory.joinpath("state").open("w") as f:
        f.write(f"{x},{steps_completed},{trial_id}")


def load_state(trial_id, checkpoint_directory):
    checkpoint_directory = pathlib.Path(checkpoint_directory)
    with checkpoint_directory.joinpath("metadata.json").open("r") as f:
        metadata = json.load(f)
    with checkpoint_directory.joinpath("state").open("r") as f:
        x, steps_completed, ckpt_trial_id = [int(field) for field in f.read().split(",")]
    assert metadata == {"steps_completed": steps_completed}, metadata
    return x, steps_completed if ckpt_trial_id == trial_id else 0


def main(core_context, latest_checkpoint, trial_id, increment_by):
    x, starting_batch = 0, 0
    if latest_checkpoint is not None:
        with core_context.checkpoint.restore_path(latest_checkpoint) as path:
            x, starting_batch = load_state(trial_id, path)
    print("starts at", starting_batch, "with", x, flush=True)
    for batch in range(starting_batch, 100):
        x += sum(core_context.distributed.allgather(increment_by))
        steps_completed = batch + 1
        if steps_completed == CRASH_AT and latest_checkpoint is None:
            raise ValueError("a crash of the script")
        if steps_completed % 10 == 0:
            if core_context.distributed.rank == 0:
                core_context.train.report_training_metrics(steps_completed=steps_completed, metrics={"x": x})
                core_context.train.report_progress(steps_completed / 100)
                core_context.train.report_validation_metrics(
                    steps_completed=steps_completed, metrics={"x": x, "batches": steps_completed}
                )
                with core_context.checkpoint.store_path({"steps_completed": steps_completed}) as (path, uuid):
                    save_state(x, steps_completed, trial_id, path)
            if core_context.preempt.should_preempt():
                print("preempted at", steps_completed, flush=True)
                return
    print("ends with", x, flush=True)


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format=det.LOG_FORMAT)
    info = det.get_cluster_info()
    assert info is not None, "this example only runs on-cluster"
    distributed = det.core.DistributedContext.from_torch_distributed()
    with det.core.init(distributed=distributed) as core_context:
        main(core_context, info.latest_checkpoint, info.trial.trial_id, info.trial.hparams["increment_by"])
"""
)

#: The loop over operations of a search, as scripts have it that are older than Determined 0.38.
SEARCHED = (
    IMPORT
    + """
def main(core_context, increment_by):
    x = batch = 0
    for op in core_context.searcher.operations():
        while batch < op.length:
            x += increment_by
            batch += 1
            steps_completed = batch * BATCHES_PER_UNIT
            if core_context.distributed.rank == 0 and batch % 2 == 0:
                core_context.train.report_training_metrics(steps_completed=steps_completed, metrics={"x": x})
                op.report_progress(batch)
            if batch % 2 == 0 and core_context.preempt.should_preempt():
                print("preempted at", batch, flush=True)
                return
        if core_context.distributed.rank == 0:
            core_context.train.report_validation_metrics(steps_completed=steps_completed, metrics={"x": x})
            op.report_completed(x)
        print("did", op.length, flush=True)
    print("ends at", batch, flush=True)


if __name__ == "__main__":
    info = det.get_cluster_info()
    with det.core.init() as core_context:
        main(core_context, info.trial.hparams["increment_by"])
"""
)
