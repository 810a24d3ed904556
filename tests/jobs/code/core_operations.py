"""A script of Determined's Core API with a loop over operations. Its first attempt crashes after the first of them."""

from airflow_provider_dtrain.train import determined as det


def main(core_context, info):
    quality, batch = info.trial.hparams["quality"], 0
    if info.latest_checkpoint is not None:
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
            batch = int((path / "batch").read_text())
    print("starts at", batch, flush=True)
    for op in core_context.searcher.operations():
        print("operation of", op.length, flush=True)
        while batch < op.length:
            batch += 1
            if batch == 3 and info.latest_checkpoint is None:
                raise ValueError("a crash of the script")
            core_context.train.report_training_metrics(batch, {"loss": 1 / batch})
            with core_context.checkpoint.store_path({"steps_completed": batch}) as (path, _):
                (path / "batch").write_text(str(batch))
            if core_context.preempt.should_preempt():
                return
            value = quality
        # As in many a script, a name that only the loop above sets.
        op.report_completed(value)


if __name__ == "__main__":
    with det.core.init() as core_context:
        main(core_context, det.get_cluster_info())
