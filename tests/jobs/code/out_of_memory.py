"""A training whose GPU memory runs out. A stand-in takes the place of PyTorch's recorder, which needs a GPU."""

import torch

import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.train.reports import builtin_metrics

FRAME = {"filename": "/code/train.py", "line": 31, "name": "forward"}
BLOCK = {"state": "active_allocated", "size": 5 << 20, "frames": [FRAME]}
torch.cuda.is_available = lambda: True
torch.cuda.memory._record_memory_history = lambda **_: None
torch.cuda.memory._snapshot = lambda: {"segments": [{"blocks": [BLOCK]}], "device_traces": []}
# Each synchronization of the ranks records.
builtin_metrics.EARLY_S = 0.0

with dtrain.init(hparams={"global_batch_size": 2}, device="cpu") as ctx:
    net = torch.nn.Linear(4, 1)
    net, optimizer = ctx.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for _step in range(6):
        ctx.backward(net(torch.ones(2, 4)).sum())
        ctx.step(optimizer, clip_grad_norm=1.0)
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
