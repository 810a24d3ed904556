"""Program that measures rates of this host: matrix products, copies of memory, and a disk.

Its text is run by the interpreter of the ranks, so it imports nothing of the package. It prints a line for each
result, and an interrupted measurement leaves no file and no process.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

#: Length of a window. It has several of the periods by which the kernel enforces a quota of CPU time (0.1 s).
WINDOW_S = 0.2
#: Side of the square matrices on CPUs and on GPUs, and bytes of a copy there.
CPU_SIDE, GPU_SIDE = 384, 8192
CPU_BYTES, GPU_BYTES = 32 << 20, 1 << 30
#: Bytes of one write call.
BLOCK = 1 << 20


def report(**result: Any) -> None:
    """Print a result."""
    sys.stdout.write("DTRAIN " + json.dumps(result) + "\n")
    sys.stdout.flush()


def median(values: Iterable[float]) -> float:
    """Return the median."""
    # Every channel imports this module, and few measure. That one takes 2 ms.
    import statistics

    return statistics.median(values)


def upper(rates: list[float]) -> float:
    """Return the median of the better half: a window that was disturbed does not count."""
    return median(sorted(rates)[len(rates) // 2 :])


def spread(rates: list[float]) -> float:
    """Return the relative deviation of the better half, as a robust standard deviation."""
    half = sorted(rates)[len(rates) // 2 :]
    middle = median(half)
    return 1.4826 * median(abs(rate - middle) for rate in half) / middle if middle > 0 else 0.0


def result_of(rates: list[float]) -> dict[str, float]:
    """Return value and spread of repeated measurements."""
    return {"value": upper(rates), "spread": spread(rates)}


def throttled_s() -> float | None:
    """Return the time for which a quota has stopped this process's cgroups, None if it is not known."""
    total = 0.0
    is_known = False
    try:
        with open("/proc/self/cgroup") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return None
    for number, controllers, path in lines:
        if number == "0":
            root = "/sys/fs/cgroup"
        elif "cpu" in controllers.split(","):
            root = "/sys/fs/cgroup/" + ("cpu" if os.path.isdir("/sys/fs/cgroup/cpu") else controllers)
        else:
            continue
        while True:
            try:
                with open(root + path.rstrip("/") + "/cpu.stat") as file:
                    found = dict(line.split() for line in file if len(line.split()) == 2)
            except OSError:
                found = {}
            total += float(found.get("throttled_usec", 0)) / 1e6 + float(found.get("throttled_time", 0)) / 1e9
            is_known = is_known or bool(found)
            if path in ("", "/"):
                break
            path = os.path.dirname(path)
    return total if is_known else None


def cpu_times() -> tuple[float, float]:
    """Return the seconds for which this thread has had a CPU, and for which it has waited for one."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            words = file.read().split()
        return int(words[0]) / 1e9, int(words[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0, 0.0


def windows(work: Callable[[], float], count: int) -> list[float]:
    """Return the rates of some windows, in units of work per second.

    The time in which other processes had the CPU does not count. The time in which a quota or the hypervisor stopped
    this one counts.

    :param work: does some milliseconds of work and returns its amount
    """
    rates = []
    work()
    for _ in range(count):
        begun, queued, throttled, done = time.monotonic(), cpu_times()[1], throttled_s(), 0.0
        while time.monotonic() - begun < WINDOW_S:
            done += work()
        waited_s = cpu_times()[1] - queued
        stopped = throttled_s()
        waited_s = 0.0 if throttled is None or stopped is None else max(0.0, waited_s - (stopped - throttled))
        passed_s = time.monotonic() - begun
        rates.append(done / max(passed_s - waited_s, passed_s / 100))
    return rates


def on_cpus(work: Callable[[], float], cpus: int, count: int) -> list[float]:
    """Return the rates of a process on each of some CPUs together. The processes end with this one."""
    readers = []
    parent = os.getpid()
    for _ in range(cpus):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(reader)
                if os.getppid() == parent:
                    with os.fdopen(writer, "w") as file:
                        json.dump(windows(work, count), file)
            finally:
                os._exit(0)
        os.close(writer)
        readers.append((pid, reader))
    each = []
    for pid, reader in readers:
        with os.fdopen(reader) as file:
            each.append(json.load(file))
        os.waitpid(pid, 0)
    return [sum(rates) for rates in zip(*each)]


def memory_rates(count: int) -> list[float]:
    """Return rates of copies of memory by one CPU, in bytes per second."""
    source, target = memoryview(bytearray(CPU_BYTES)), memoryview(bytearray(CPU_BYTES))

    def copy() -> float:
        target[:] = source
        return float(CPU_BYTES)

    return windows(copy, count)


def measure_cpus(torch: Any, cpus: int, count: int) -> None:
    """Measure the CPUs of the slots."""
    report(metric="memory", slot=None, kind=cpu_model(), **result_of(memory_rates(count)))
    if torch is None:
        return
    torch.set_num_threads(1)
    left = torch.rand(CPU_SIDE, CPU_SIDE)
    out = torch.empty(CPU_SIDE, CPU_SIDE)

    def multiply() -> float:
        torch.mm(left, left, out=out)
        return 2.0 * CPU_SIDE**3

    rates = on_cpus(multiply, cpus, count)
    kind = f"{cpu_model()}, {cpus} CPUs, float32, torch {release(torch)}"
    report(metric="matmul", slot=None, kind=kind, **result_of(rates))


def measure_gpus(torch: Any, slots: list[int], count: int) -> None:
    """Measure the GPUs of the slots one after the other. They are visible in the order of the slots."""
    for index, slot in enumerate(slots):
        try:
            measure_gpu(torch, index, slot, count)
        except Exception as error:
            report(problem=f"slot {slot}: {type(error).__name__}: {str(error)[:300]}")


def measure_gpu(torch: Any, index: int, slot: int, count: int) -> None:
    """Measure one GPU."""
    device = torch.device("cuda", index)
    name = torch.cuda.get_device_name(index)
    half = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    free_bytes = torch.cuda.mem_get_info(index)[0]
    side, size = GPU_SIDE, GPU_BYTES
    # Three matrices of two bytes per value, and two buffers.
    while side > 1024 and 6 * side * side + 2 * size > 0.8 * free_bytes:
        side, size = side // 2, size // 4
    left = torch.randn(side, side, device=device, dtype=half)
    out = torch.empty_like(left)
    source = torch.zeros(size, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)

    def multiply() -> float:
        for _ in range(10):
            torch.mm(left, left, out=out)
        torch.cuda.synchronize(device)
        return 10 * 2.0 * side**3

    def copy() -> float:
        for _ in range(10):
            target.copy_(source)
        torch.cuda.synchronize(device)
        # Each byte is read and written.
        return 10 * 2.0 * size

    kind = "{}, {}, {}, torch {}".format(name, str(half).rpartition(".")[2], side, release(torch))
    # The clocks of an idle GPU rise within the first window.
    report(metric="matmul", slot=slot, kind=kind, **result_of(windows(multiply, count + 1)[1:]))
    report(metric="memory", slot=slot, kind=f"{name}, {size >> 20} MiB", **result_of(windows(copy, count)))


def measure_disk(folder: str, size: int, count: int) -> None:
    """Measure sequential writes with their flush, and reads, in a file without a name."""
    writes, reads = [], []
    block = os.urandom(BLOCK)
    for _ in range(count):
        fd = nameless_file(folder)
        try:
            begun = time.monotonic()
            for _ in range(size // BLOCK):
                os.write(fd, block)
            os.fsync(fd)
            writes.append(size / (time.monotonic() - begun))
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.lseek(fd, 0, os.SEEK_SET)
            begun, total = time.monotonic(), 0
            while data := os.read(fd, BLOCK):
                total += len(data)
            reads.append(total / (time.monotonic() - begun))
        finally:
            os.close(fd)
    kind = f"{disk_of(folder)}, {size >> 20} MiB"
    report(metric="disk_write", slot=None, kind=kind, **result_of(writes))
    report(metric="disk_read", slot=None, kind=kind, **result_of(reads))


def disk_of(folder: str) -> str:
    """Return type of file system and model of the disk of a folder, as far as they are known."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    model = ""
    path = os.path.realpath(f"/sys/dev/block/{number}")
    for name in ("device/model", "../device/model"):
        try:
            with open(os.path.join(path, name)) as file:
                model = file.read().strip()
                break
        except OSError:
            continue
    kind = "disk"
    try:
        with open("/proc/self/mountinfo") as file:
            for line in file:
                words = line.split()
                if words[2] == number and "-" in words:
                    kind = words[words.index("-") + 1]
    except (OSError, IndexError):
        pass
    return f"{kind} {model}".strip()[:100]


def nameless_file(folder: str) -> int:
    """Return a descriptor of a new file that disappears with it, also if this process is killed."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
            raise
    path = os.path.join(folder, f".dtrain-check-{os.getpid()}")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.unlink(path)
    return fd


def cpu_model() -> str:
    """Return the name of the CPUs."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in ("model name", "cpu model", "CPU part"):
                    return value.strip()[:100]
    except OSError:
        pass
    return os.uname().machine


def release(torch: Any) -> str:
    """Return the first two numbers of PyTorch's version, on which its rates depend."""
    return ".".join(str(torch.__version__).split(".")[:2])


def main() -> None:
    """Measure what the argument, a JSON object, requests."""
    request = json.loads(sys.argv[1])
    count = request["windows"]
    if request["disk_bytes"]:
        try:
            measure_disk(request["folder"], request["disk_bytes"], max(3, count // 2))
        except OSError as error:
            report(problem=f"disk: {error.strerror or error}")
    torch = None
    try:
        torch = importlib.import_module("torch")
    except Exception as error:
        is_missing = isinstance(error, ModuleNotFoundError)
        text = "is missing" if is_missing else f"cannot be imported: {str(error)[:200]}"
        report(problem=f"PyTorch {text} in {sys.executable}, so no matrix products were measured")
    if request["gpus"]:
        if torch is not None and torch.cuda.is_available():
            measure_gpus(torch, request["slots"], count)
        elif torch is not None:
            report(problem=f"PyTorch of {sys.executable} has no CUDA, so no GPU was measured")
    elif request["cpus"]:
        measure_cpus(torch, request["cpus"], count)


if __name__ == "__main__":
    main()
