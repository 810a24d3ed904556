"""Ranks over DistributedDataParallel, of which the last one can be slow: by a CPU quota, other processes, its loader.

Arguments: ``healthy``, ``quota``, ``busy`` or ``loader``; seconds; folder of a control group with a quota.
"""

import os
import subprocess
import sys
import time

import torch

from airflow_provider_dtrain import train as dtrain

KIND, SECONDS, FOLDER = sys.argv[1], float(sys.argv[2]), sys.argv[3]
#: CPU time of a forward pass, and steps between two questions whether to go on.
WORK_S, ASK_STEPS = 0.01, 20
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


class Net(torch.nn.Module):
    """A layer behind some work for a CPU."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, inputs):
        """Return the output after the work."""
        until = time.thread_time() + WORK_S
        while time.thread_time() < until:
            sum(range(200))
        return self.layer(inputs)


class Data(torch.utils.data.Dataset):
    """Samples, which one rank reads slowly."""

    def __init__(self, sleep_s):
        self.sleep_s = sleep_s

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        time.sleep(self.sleep_s)
        return torch.full((8,), float(index % 7)), torch.tensor([1.0])


def limit(folder):
    """Move this rank into a control group."""
    with open(f"{folder}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))


def slow_down():
    """Make this rank slow."""
    if KIND == "quota":
        limit(FOLDER)
    elif KIND == "busy":
        cpu = max(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpu})
        for _ in range(2):
            subprocess.Popen([sys.executable, "-c", BUSY])
        # On a busy machine the kernel moves other processes away from this CPU. Without a lower priority, the rank
        # would get as much CPU time as the other one.
        os.nice(10)


torch.set_num_threads(1)
with dtrain.init() as ctx:
    is_slow = ctx.rank == ctx.distributed.size - 1
    model, optimizer = ctx.prepare(net := Net(), torch.optim.SGD(net.parameters(), lr=1e-6))
    loader = ctx.loader(Data(0.5 if is_slow and KIND == "loader" else 0.0))
    if is_slow:
        slow_down()
    until = time.monotonic() + SECONDS
    for step, (inputs, targets) in enumerate(loader, 1):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        ctx.backward(loss)
        ctx.step(optimizer)
        if step % ASK_STEPS == 0 and ctx.distributed.any(ctx.rank == 0 and time.monotonic() > until):
            break
    if is_slow and KIND == "quota":
        limit(os.path.dirname(FOLDER))
