"""Ranks of which one fails in a given way, while the other ranks wait for it in a collective.

Arguments: kind of the failure, failing rank, steps before it. The expected causes are in ``tests/support/causes.py``.
"""

import ctypes
import datetime
import errno
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import airflow_provider_dtrain.train as dtrain

kind, failing, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


class Deadly(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


class Greedy(Deadly):
    def __getitem__(self, index):
        enter_group()
        use_up_memory()


def enter_group():
    """Enter a cgroup with a memory limit of its own, as a container does."""
    folder = tempfile.mkdtemp()
    subprocess.run(["mount", "-t", "cgroup", "-o", "memory", "none", folder], check=True)
    with open("/proc/self/cgroup") as file:
        parent = re.search(r"^\d+:memory:(.*)$", file.read(), re.MULTILINE)[1]
    group = f"{folder}{parent}/dtrain-causes-{uuid.uuid4().hex}"
    os.mkdir(group)
    for name, value in (("memory.limit_in_bytes", 600 << 20), ("cgroup.procs", 0)):
        with open(f"{group}/{name}", "w") as file:
            file.write(str(value))


def use_up_memory():
    blocks = []
    while True:
        blocks.append(b"x" * (1 << 20))


def take(name):
    return {"image": 1}[name]


def use_up_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    files = []
    while True:
        files.append(tempfile.TemporaryFile())  # noqa: SIM115 - all of them stay open


def use_up_threads():
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
    threading.stack_size(256 << 20)
    while True:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()


def limit_memory():
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))


def fail(rank, ctx):
    match kind:
        case "exception":
            take("label")
        case "exception_in_thread":
            threading.excepthook = lambda args: (sys.__excepthook__(*args[:3]), sys.stderr.flush(), os._exit(1))
            thread = threading.Thread(target=take, args=("label",))
            thread.start()
            thread.join()
        case "exception_hidden":
            try:
                take("label")
            finally:
                raise RuntimeError("the progress bar cannot be closed")
        case "exit_code":
            sys.exit(3)
        case "hard_exit":
            os._exit(7)
        case "early_end":
            os._exit(0)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "terminated":
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "disk_full":
            with open("/dev/full", "wb", buffering=0) as file:
                file.write(b"x" * 100)
        case "disk_full_in_torch":
            torch.save(torch.ones(100_000), "/dev/full")
        case "quota":
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/home/data/model.pt")
        case "descriptors":
            use_up_descriptors()
        case "threads":
            use_up_threads()
        case "host_memory":
            limit_memory()
            bytearray(8 << 30)
        case "host_memory_in_torch":
            limit_memory()
            torch.ones(8 << 30)
        case "device_memory":
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 79.1 GiB in total."
            )
        case "device_assert":
            raise RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronous")
        case "device_broken":
            raise RuntimeError("CUDA error: uncorrectable NVLink error detected during the execution")
        case "module":
            import a_module_that_is_missing  # noqa: F401
        case "file":
            open("/data/train/part-00017.parquet").close()
        case "not_finite":
            ctx.report(steps, {"loss": float("nan")})
        case "loader_worker":
            list(DataLoader(Deadly(), num_workers=1))
        case "kernel_kill":
            enter_group()
            use_up_memory()
        case "kernel_kill_of_worker":
            list(DataLoader(Greedy(), num_workers=1))
        case "wrapped" | "cleanup":
            try:
                take("label")
            finally:
                if kind == "cleanup":
                    dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))
        case "hang" | "missing":
            time.sleep(1000)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "order":
            ctx.distributed.any(False)
        case _:
            raise SystemExit(f"no kind {kind}")


def exchange():
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        if kind != "wrapped":
            raise
        raise ValueError(f"training cannot go on at step {step}") from error


with dtrain.init(device="cpu", timeout_s=12 if kind == "missing" else 600) as ctx:
    rank = ctx.distributed.get_rank()
    model = torch.nn.Linear(4, 1)
    model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    for step in range(1_000_000):
        if step == steps and rank == failing:
            fail(rank, ctx)
        exchange()
        ctx.backward(model(torch.randn(8, 4)).sum())
        ctx.step(optimizer)
