"""The view of a rank here and under the real torchrun: environment, process, devices, rendezvous."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.torchrun import as_gang, under_torchrun

pytestmark = pytest.mark.torch

DUMP = """
import signal
names = {name: getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGCHLD", "SIGPIPE")}
report(
    env=dict(os.environ),
    process={
        "argv": sys.argv,
        "script folder is first on the path": sys.path[0] == os.getcwd(),
        "flags": {n: getattr(sys.flags, n) for n in dir(sys.flags) if not n.startswith(("n_", "_", "count", "index"))},
        "handlers": {name: str(signal.getsignal(item)) for name, item in names.items()},
        "blocked signals": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "stdin": os.readlink("/proc/self/fd/0"),
        "one output": os.readlink("/proc/self/fd/1") == os.readlink("/proc/self/fd/2"),
        "leads a session": os.getsid(0) == os.getpid(),
        "leads a group": os.getpgid(0) == os.getpid(),
        "name of the code folder": os.path.basename(os.getcwd()),
        "error file can be written": os.access(os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"]), os.W_OK),
    },
    umask=os.umask(0),
    locks=sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2)[:-1],
)
"""

#: Variable -> reason. Everything else is equal, names and values.
ONLY_UNDER_TORCHRUN = {
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "read by the agent itself, and there is no agent here",
}
ONLY_HERE = {
    "CUDA_VISIBLE_DEVICES": "torchrun's ranks see all devices of the machine; these see those of the gang",
    "CUDA_DEVICE_ORDER": "numbers of devices are those of nvidia-smi, also in programs that unset the list",
    "PYTHONPATH": "the training library, and the code folder for scripts in its subfolders",
    "PYTHONIOENCODING": "the log is UTF-8 in any locale",
    "PYTHONUNBUFFERED": "lines reach the task log when they are printed",
    "DTRAIN_*": "the trial: its files, hyperparameters, seed and slot",
}
OTHER_VALUE = {
    "OMP_NUM_THREADS": "torchrun uses one thread per rank; here the cores of the host are divided by its ranks",
    "MASTER_PORT": "any free port",
    "MASTER_ADDR": "a name of this machine under --standalone; here always the address of rank 0's host",
    "TORCHELASTIC_RUN_ID": "any name of the run",
    "TORCHELASTIC_ERROR_FILE": "any file that the rank can write",
    "TORCHELASTIC_USE_AGENT_STORE": "'True' as soon as PyTorch is imported, which this program does not do",
    "TEST_REPORTS": "of this test",
}


def assert_same_environment(theirs: dict[str, str], ours: dict[str, str]) -> None:
    ours = {("DTRAIN_*" if name.startswith("DTRAIN_") else name): value for name, value in ours.items()}
    assert theirs.keys() - ours.keys() == ONLY_UNDER_TORCHRUN.keys()
    assert ours.keys() - theirs.keys() == ONLY_HERE.keys()
    differing = {name for name in theirs.keys() & ours.keys() if theirs[name] != ours[name]}
    assert differing <= OTHER_VALUE.keys(), {name: (theirs[name], ours[name]) for name in differing}


@pytest.mark.parametrize(
    ("hosts", "per_host"),
    [(1, 2), pytest.param(1, 4, marks=pytest.mark.nightly), pytest.param(2, 2, marks=pytest.mark.nightly)],
    ids=["2 ranks", "4 ranks", "2 hosts x 2 ranks"],
)
def test_the_environment_and_the_process_of_each_rank_are_those_of_torchrun(
    tmp_path: Path, hosts: int, per_host: int
) -> None:
    arguments = ("--lr", "0.1", "a b")
    theirs = under_torchrun(tmp_path / "torchrun", DUMP, hosts, per_host, arguments=arguments)
    ours = as_gang(tmp_path / "gang", DUMP, hosts, per_host, arguments=arguments)
    assert list(theirs) == list(ours) == list(range(hosts * per_host))
    for rank in theirs:
        assert_same_environment(theirs[rank]["env"], ours[rank]["env"])
        assert ours[rank]["process"] == theirs[rank]["process"]
        # Files of a run are private: the umask of torchrun's ranks is that of its shell.
        assert ours[rank]["umask"] == 0o077
        # Open locks prove that the rank lives: of its slot, for this account and for the machine.
        assert (theirs[rank]["locks"], ours[rank]["locks"]) == ([], [3, 4])


#: The lines of PyTorch's documentation, and what follows from them.
CHOOSE_DEVICE = """
import cuda_stand_in, torch
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
report(device=cuda_stand_in.current_uuid(), count=torch.cuda.device_count(), current=torch.cuda.current_device())
"""


def devices_of(count: int) -> list[str]:
    return [f"GPU-{number}" for number in range(count)]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_a_script_of_pytorchs_documentation_gets_the_device_that_it_gets_under_torchrun(
    tmp_path: Path, ranks: int
) -> None:
    devices = devices_of(ranks)
    env = {"TEST_DEVICES": ",".join(devices)}
    theirs = under_torchrun(tmp_path / "torchrun", CHOOSE_DEVICE, 1, ranks, env=env)
    ours = as_gang(tmp_path / "gang", CHOOSE_DEVICE, 1, ranks, env=env, devices=devices)
    assert ours == theirs
    assert [one["device"] for one in ours.values()] == devices


def test_a_gang_sees_its_own_devices_of_a_larger_machine_only(tmp_path: Path) -> None:
    env = {"TEST_DEVICES": "GPU-other,GPU-1,GPU-0,GPU-another"}
    ours = as_gang(tmp_path / "gang", CHOOSE_DEVICE, env=env, devices=devices_of(2))
    assert [one["device"] for one in ours.values()] == ["GPU-0", "GPU-1"]
    assert {one["count"] for one in ours.values()} == {2}


#: The device that the training library chooses, and the backend.
LIBRARY = """
import cuda_stand_in
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.initialization import _default_backend, _torch_device
env = RankEnvironment.read()
device = _torch_device(env, None, None)()
report(chosen=str(device), device=cuda_stand_in.current_uuid(), backend=_default_backend(env, device))
"""


@pytest.mark.parametrize(
    ("mode", "devices", "chosen", "backend"),
    [
        ("all", ["GPU-0", "GPU-1"], ["cuda:0", "cuda:1"], "nccl"),
        pytest.param("own", ["GPU-0", "GPU-1"], ["cuda:0", "cuda:0"], "nccl", marks=pytest.mark.nightly),
        ("all", ["MIG-1", "MIG-2"], ["cuda:0", "cuda:0"], "gloo"),
    ],
    ids=["all", "own", "MIG instances"],
)
def test_the_library_makes_the_device_of_its_rank_the_current_one(
    tmp_path: Path, mode: str, devices: list[str], chosen: list[str], backend: str
) -> None:
    env = {"TEST_DEVICES": ",".join(devices)}
    found = as_gang(tmp_path / "gang", LIBRARY, env=env, devices=devices, visible_devices=mode)
    assert found == {rank: {"chosen": chosen[rank], "device": devices[rank], "backend": backend} for rank in range(2)}


#: Uses of the store that work under torchrun, because another process than the ranks serves it.
STORE = """
import datetime, time, torch, torch.distributed as dist
rank, limit = int(os.environ["RANK"]), datetime.timedelta(seconds=60)
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
seen = []

def exchange(store, key):
    store.set(f"{key}/{rank}", str(rank))
    seen.append(store.get(f"{key}/{1 - rank}").decode())

exchange(dist.TCPStore(*address, is_master=False, timeout=limit), "a client before any process group")
exchange(dist.TCPStore(*address, 2, is_master=rank == 0, timeout=limit), "a server of the script's own")
for group in range(int(sys.argv[1])):
    dist.init_process_group("gloo", timeout=limit)
    total = torch.ones(1) * (group + 1)
    dist.all_reduce(total)
    seen.append(total.item())
    last = dist.distributed_c10d._get_default_store()
    # PyTorch aborts now and then in a process whose gloo loses its peer.
    dist.destroy_process_group()
if rank == 1:
    while os.path.exists(f"/proc/{last.get('pid').decode()}"):
        time.sleep(0.01)
    last.set("after the end of rank 0", "1")
    seen.append(last.get("after the end of rank 0").decode())
else:
    last.set("pid", str(os.getpid()))
report(seen=seen, told=os.environ["TORCHELASTIC_USE_AGENT_STORE"])
"""
SEEN = {0: ["1", "1"], 1: ["0", "0"]}


def test_the_store_of_the_rendezvous_outlives_and_precedes_the_ranks_as_under_torchrun(tmp_path: Path) -> None:
    # Three groups one after the other: under torchrun, the second one hangs now and then, because it reads old keys.
    ours = as_gang(tmp_path / "gang", STORE, arguments=["3"])
    assert {rank: one["seen"] for rank, one in ours.items()} == {
        0: [*SEEN[0], 2.0, 4.0, 6.0],
        1: [*SEEN[1], 2.0, 4.0, 6.0, "1"],
    }
    assert {one["told"] for one in ours.values()} == {"True"}


@pytest.mark.nightly
def test_torchrun_serves_the_store_so(tmp_path: Path) -> None:
    theirs = under_torchrun(tmp_path / "torchrun", STORE, arguments=["1"])
    assert theirs == as_gang(tmp_path / "gang", STORE, arguments=["1"])
    assert theirs[1] == {"seen": [*SEEN[1], 2.0, "1"], "told": "True"}


#: Processes of the script's own, at an address of its own, as in PyTorch's tutorials.
SPAWN = """
import torch, torch.distributed as dist, torch.multiprocessing as mp

def main(rank, port, queue):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    total = torch.ones(1)
    dist.all_reduce(total)
    queue.put(total.item())
    dist.destroy_process_group()

if __name__ == "__main__":
    import socket
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    queue = mp.get_context("spawn").Queue()
    mp.spawn(main, args=(port, queue), nprocs=2)
    report(totals=[queue.get(), queue.get()])
"""


@pytest.mark.nightly
def test_processes_that_a_script_starts_itself_form_a_group_at_their_own_address(tmp_path: Path) -> None:
    assert as_gang(tmp_path / "gang", SPAWN, per_host=1) == {0: {"totals": [2.0, 2.0]}}


#: A launcher inside the ranks of a gang with one rank per host.
NESTED = """
import subprocess
open("inner.py", "w").write('''
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
open(os.environ["TEST_REPORTS"] + "/inner" + os.environ["RANK"], "w").write(str(total.item()))
dist.destroy_process_group()
''')
where = ["--nnodes", os.environ["WORLD_SIZE"], "--node-rank", os.environ["RANK"]]
where += ["--master-addr", os.environ["MASTER_ADDR"], "--master-port", os.environ["MASTER_PORT"]]
where = where if sys.argv[1] == "at the address of the gang" else ["--standalone"]
command = [sys.executable, "-m", "torch.distributed.run", *where, "--nproc-per-node", "2", "inner.py"]
done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
names = sorted(name for name in os.listdir(os.environ["TEST_REPORTS"]) if name.startswith("inner"))
sums = [open(os.path.join(os.environ["TEST_REPORTS"], name)).read() for name in names]
for name in names:
    os.unlink(os.path.join(os.environ["TEST_REPORTS"], name))
report(code=done.returncode, sums=sums, errors=done.stderr[-2000:] if done.returncode else "")
"""


@pytest.mark.nightly
@pytest.mark.parametrize("where", ["standalone", "at the address of the gang"])
def test_torchrun_runs_inside_a_rank(tmp_path: Path, where: str) -> None:
    found = as_gang(tmp_path / "gang", NESTED, per_host=1, arguments=[where])
    assert found == {0: {"code": 0, "sums": ["2.0", "2.0"], "errors": ""}}


#: A rank that fails while the other one waits, and what the other one is told.
FAILURE = """
import signal, time
rank, got = int(os.environ["RANK"]), []
flag = os.path.join(os.environ["TEST_REPORTS"] + "-ready")
if rank == 1:
    while not os.path.exists(flag):
        time.sleep(0.01)
    raise SystemExit(3)
signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
open(flag, "w").close()
while not got:
    time.sleep(0.01)
report(signals=got)
"""


@pytest.mark.nightly
def test_the_other_ranks_of_one_that_fails_get_sigterm_and_time_to_end_as_under_torchrun(tmp_path: Path) -> None:
    theirs = under_torchrun(tmp_path / "torchrun", FAILURE, fails=True)
    assert theirs == {0: {"signals": [15]}}
    assert as_gang(tmp_path / "gang", FAILURE, fails=True) == theirs


#: Ranks that exchange messages without PyTorch, in a program that uses it for something else.
SOCKETS = """
import torch
import airflow_provider_dtrain.train as dtrain
with dtrain.init(backend="sockets") as ctx:
    report(ranks=ctx.distributed.allgather(ctx.distributed.rank))
"""


def test_ranks_without_pytorch_use_the_port_of_the_store_also_where_pytorch_was_imported(tmp_path: Path) -> None:
    assert as_gang(tmp_path / "gang", SOCKETS) == {rank: {"ranks": [0, 1]} for rank in range(2)}
