"""A script that rejects its hyperparameters."""

import airflow_provider_dtrain.train as dtrain

with dtrain.init(hparams={"global_batch_size": 2}) as ctx:
    raise dtrain.InvalidHP(f"lr {ctx.hparams['lr']} is too large")
