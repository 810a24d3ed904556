"""Linear regression by gradient descent, with the training library."""

import torch

import airflow_provider_dtrain.train as dtrain

with dtrain.init(hparams={"lr": 0.1, "global_batch_size": 32}) as ctx:
    random = torch.Generator().manual_seed(1)
    points, noise = torch.randn(1024, 4, generator=random), torch.randn(1024, 1, generator=random)
    data = torch.utils.data.TensorDataset(points, points.sum(1, keepdim=True) + noise)
    model = torch.nn.Linear(4, 1)
    model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=ctx.hparams["lr"]))
    step = ctx.restore_checkpoint()
    for _epoch in ctx.epochs(2):
        for batch in ctx.loader(data):
            values, sums = ctx.to_device(batch)
            loss = torch.nn.functional.mse_loss(model(values), sums)
            ctx.backward(loss)
            ctx.step(optimizer)
            step += 1
            ctx.report(step, {"loss": loss})
        ctx.report_validation(step, {"loss": loss})
        ctx.save_checkpoint(step)
