"""A loss that becomes NaN on rank 1. The library reports it without a check by torch."""

import airflow_provider_dtrain.train as dtrain

with dtrain.init(hparams={"global_batch_size": 2}) as ctx:
    for step in range(1, 30):
        bad = step == 17 and ctx.distributed.get_rank() == 1
        ctx.report(step, {"train_loss": float("nan") if bad else 0.5})
    ctx.distributed.barrier()
