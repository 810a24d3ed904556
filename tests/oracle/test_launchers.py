"""A launcher as the entrypoint: one process per host, and ranks like those of the launcher by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.launchers.launcher import launcher_of
from tests.support.torchrun import as_gang, under_accelerate, under_deepspeed, under_torchrun

#: A training without the library, whose losses depend on each bit of the exchanged gradients.
TRAIN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
random = torch.Generator().manual_seed(100 + dist.get_rank())
losses = []
for _ in range(10):
    points = torch.randn(16, 8, generator=random)
    loss = ((model(points) - points.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "OMP_NUM_THREADS")
report(losses=losses, env={name: os.environ[name] for name in names})
dist.destroy_process_group()
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def as_launched(
    folder: Path, program: str, hosts: int, per_host: int | Sequence[int], *arguments: str, **facts: Any
) -> dict[int, Any]:
    return as_command(folder, program, hosts, per_host, ["torchrun", *arguments, "program.py"], **facts)


def as_command(
    folder: Path, program: str, hosts: int, per_host: int | Sequence[int], command: list[str], **facts: Any
) -> dict[int, Any]:
    launcher = launcher_of(command)
    assert launcher is not None
    return as_gang(folder, program, hosts, per_host, argv=launcher.argv, is_per_host=True, **facts)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("hosts", "per_host", "options"),
    [
        (1, 2, ()),
        (2, 2, ("--nnodes", "2", "--nproc-per-node=2")),
        (1, 1, ()),
        (1, 4, ("--standalone",)),
        (2, 1, ("--rdzv-backend", "c10d")),
    ],
)
def test_ranks_of_torchrun_as_the_entrypoint_train_as_under_torchrun(
    tmp_path: Path, hosts: int, per_host: int, options: tuple[str, ...]
) -> None:
    theirs = under_torchrun(tmp_path / "torchrun", TRAIN, hosts, per_host, env=ONE_THREAD)
    ours = as_launched(tmp_path / "gang", TRAIN, hosts, per_host, *options, env=ONE_THREAD)
    assert list(ours) == list(range(hosts * per_host))
    assert ours == theirs


@pytest.mark.nightly
def test_hosts_with_different_numbers_of_slots_train_as_under_torchrun(tmp_path: Path) -> None:
    theirs = under_torchrun(tmp_path / "torchrun", TRAIN, 2, (2, 1), env=ONE_THREAD)
    ours = as_launched(tmp_path / "gang", TRAIN, 2, (2, 1), env=ONE_THREAD)
    assert list(ours) == [0, 1, 2]
    assert ours == theirs


#: Adds what Accelerate finds to the variables of its ranks.
WITH_ACCELERATOR = TRAIN.replace(
    'dist.init_process_group("gloo")',
    "from accelerate import Accelerator\naccelerator = Accelerator()",
).replace(
    "report(losses=losses,",
    "report(places=[accelerator.num_processes, accelerator.process_index, accelerator.local_process_index], "
    'address=os.environ["MASTER_ADDR"], losses=losses,',
)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("hosts", "per_host", "options"),
    [
        (1, 2, ["--multi_gpu", "--num_processes", "2"]),
        (2, 1, ["--same_network"]),
        (2, 2, ["--num-machines=2", "--mixed_precision", "no"]),
        (2, 1, ["--config_file=other.yaml"]),
    ],
)
def test_ranks_of_accelerate_as_the_entrypoint_train_as_by_hand(
    tmp_path: Path, hosts: int, per_host: int, options: list[str]
) -> None:
    pytest.importorskip("accelerate")
    env = {**ONE_THREAD, "ACCELERATE_USE_CPU": "true", "HF_HOME": str(tmp_path / "settings")}
    theirs = under_accelerate(tmp_path / "accelerate", WITH_ACCELERATOR, hosts, per_host, env=env)
    command = ["accelerate", "launch", *options, "program.py"]
    # Its numbers are those of other machines.
    other = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "use_cpu": False}
    other |= {"num_machines": 3, "machine_rank": 2, "num_processes": 9, "main_process_ip": "192.0.2.1"}
    other |= {"main_process_port": 1, "gpu_ids": "7", "mixed_precision": "no"}
    (tmp_path / "other.yaml").write_text(json.dumps(other))
    command = [word.replace("other.yaml", str(tmp_path / "other.yaml")) for word in command]
    ours = as_command(tmp_path / "gang", WITH_ACCELERATOR, hosts, per_host, command, env=env)
    assert list(ours) == list(range(hosts * per_host))
    assert ours == theirs


@pytest.mark.nightly
def test_accelerate_starts_one_slot_as_a_rank(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    program = """
from accelerate import Accelerator
import airflow_provider_dtrain.train as dtrain
with dtrain.init() as ctx:
    report(size=ctx.distributed.size, processes=Accelerator().num_processes)
"""
    env = {"ACCELERATE_USE_CPU": "true", "HF_HOME": str(tmp_path / "settings")}
    found = as_command(tmp_path, program, 1, 1, ["accelerate", "launch", "program.py"], env=env)
    assert found == {0: {"size": 1, "processes": 1}}


#: Adds the variables and the argument that ``deepspeed`` gives to its ranks.
UNDER_DEEPSPEED = TRAIN.replace(
    '"LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"', '"CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE"'
).replace("report(losses=losses,", "report(arguments=sys.argv[1:], address=os.environ['MASTER_ADDR'], losses=losses,")


@pytest.mark.nightly
@pytest.mark.parametrize(("hosts", "per_host"), [(1, 2), (2, 1), (2, 2)])
def test_ranks_of_deepspeed_as_the_entrypoint_train_as_by_hand(tmp_path: Path, hosts: int, per_host: int) -> None:
    pytest.importorskip("deepspeed")
    arguments = ["--other", "3"]
    theirs = under_deepspeed(
        tmp_path / "deepspeed", UNDER_DEEPSPEED, hosts, per_host, arguments=arguments, env=ONE_THREAD
    )
    command = ["deepspeed", "--num_gpus", str(per_host), "program.py", *arguments]
    ours = as_command(tmp_path / "gang", UNDER_DEEPSPEED, hosts, per_host, command, env=ONE_THREAD)
    assert list(ours) == list(range(hosts * per_host))
    assert ours == theirs


#: A training with the library in the ranks of torchrun.
WITH_LIBRARY = """
import airflow_provider_dtrain.train as dtrain
print("before init of", os.environ["RANK"], flush=True)
with dtrain.init() as ctx:
    print("line of rank", ctx.rank, flush=True)
    latest = ctx.latest_checkpoint()
    step = latest.step if latest else 0
    while step < 3:
        step += 1
        ctx.report(step, {"loss": 1.0 / step})
    with ctx.checkpoint(step) as folder:
        (folder / f"part-{ctx.rank}").write_text(str(step))
    report(size=ctx.distributed.size, local_rank=ctx.distributed.local_rank, hosts=ctx.distributed.num_agents)
"""


@pytest.mark.nightly
def test_ranks_that_torchrun_starts_have_files_of_their_own(tmp_path: Path) -> None:
    found = as_launched(tmp_path, WITH_LIBRARY, 2, 2)
    assert found == {rank: {"size": 4, "local_rank": rank % 2, "hosts": 2} for rank in range(4)}
    for rank in range(4):
        (folder,) = tmp_path.glob(f"h*/state/runs/*/rank{rank}")
        assert f"h{rank // 2}" in folder.parts
        log = (folder / "log").read_text()
        assert f"line of rank {rank}" in log
        others = [other for other in range(4) if other != rank and f"line of rank {other}" in log]
        assert others == []
        assert ("before init" in log) is (rank % 2 == 0)
        events = (folder / "events").read_text()
        assert '"kind":"init"' in events
        assert ('"kind":"report"' in events) is (rank == 0)


def test_a_rank_that_fails_below_torchrun_is_the_failure_of_the_run(tmp_path: Path) -> None:
    program = """
import time
import airflow_provider_dtrain.train as dtrain
with dtrain.init() as ctx:
    if ctx.rank == 1:
        raise ValueError("of rank 1")
    time.sleep(60)
"""
    assert as_launched(tmp_path, program, 1, 2, fails=True) == {}
    (events,) = tmp_path.glob("h0/state/runs/*/events.supervisor")
    exits = {}
    for line in events.read_text().splitlines():
        if '"kind":"exit"' in line:
            event = json.loads(line.partition(" ")[2])
            exits[event["rank"]] = event
    assert exits[1]["error"]["message"] == "ValueError: of rank 1"
    assert [exits[rank]["sent_signal"] for rank in (0, 1)] == [True, False]


#: The script starts ranks of its own, although each slot has a rank.
SPAWN = """
import torch.multiprocessing as mp

def main(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    import airflow_provider_dtrain.train as dtrain
    dtrain.init(timeout_s=20)

if __name__ == "__main__":
    try:
        mp.spawn(main, nprocs=2)
    except Exception as error:
        report(error=str(error))
"""


@pytest.mark.nightly
def test_processes_that_a_rank_starts_as_ranks_end_with_the_fix(tmp_path: Path) -> None:
    found = as_gang(tmp_path, SPAWN, 1, 1)
    assert "Set launch: per_host" in found[0]["error"]


#: Ray's own program starts this on the first host only.
WITH_RAY = """
import ray
os.environ["RANK"] = "0"
ray.init()

@ray.remote
def squared(number):
    return number * number

report(
    squares=ray.get([squared.remote(number) for number in range(4)]),
    nodes=len(ray.nodes()), slots=ray.cluster_resources()["CPU"], arguments=sys.argv[1:],
)
"""


@pytest.mark.nightly
def test_ray_has_the_slots_of_the_trial(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    command = ["ray", "symmetric-run", "--include-dashboard=false", "--", "python", "program.py", "--other", "3"]
    found = as_command(tmp_path, WITH_RAY, 1, 2, command)
    assert found == {0: {"squares": [0, 1, 4, 9], "nodes": 1, "slots": 2.0, "arguments": ["--other", "3"]}}
