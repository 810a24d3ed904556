"""Commands that start launchers of ranks, and their contradictions with a gang."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.config.assembly import assemble
from airflow_provider_dtrain.core.config.commands import split_command
from airflow_provider_dtrain.core.config.entry_files import EntryFile, entry_file
from airflow_provider_dtrain.core.launch.plan import HostFacts, LaunchFacts, build_plans
from airflow_provider_dtrain.core.launchers.launcher import launcher_of, launcher_problems
from airflow_provider_dtrain.core.scheduling.model import Placement
from airflow_provider_dtrain.errors import ConfigError, Problem

RUN: dict[str, Any] = {"searcher": {"name": "single", "metric": "loss"}}


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("torchrun train.py --lr 1", "python -m torch.distributed.run train.py --lr 1"),
        ("/opt/env/bin/torchrun train.py", "/opt/env/bin/python -m torch.distributed.run train.py"),
        ("python -m torch.distributed.run a.py", "python -m torch.distributed.run a.py"),
        ("python3.12 -u -m torch.distributed.run a.py", "python3.12 -u -m torch.distributed.run a.py"),
        ("python train.py", None),
        ("python train.py -m torch.distributed.run", None),
        ("python -m torch.distributed.runner", None),
        ("bash torchrun", None),
        ("python -m", None),
        ("mytorchrun a.py", None),
    ],
)
def test_torchrun_is_found_in_a_command_and_belongs_to_an_interpreter(command: str, argv: str | None) -> None:
    found = launcher_of(split_command(command))
    assert (None if found is None else found.argv) == (None if argv is None else tuple(argv.split()))


def contradictions(words: list[str], slots: tuple[int, ...], *, has_cpu_slots: bool = True) -> list[Problem]:
    """Return the contradictions between a command and a gang.

    :param slots: number of slots of each host
    """
    launcher = launcher_of(words)
    assert launcher is not None
    gang = {f"h{number}": count for number, count in enumerate(slots)}
    return launcher_problems(launcher, gang, has_cpu_slots=has_cpu_slots)


def contradiction(words: list[str], slots: tuple[int, ...]) -> str:
    """Return the message of the one contradiction."""
    (problem,) = contradictions(words, slots)
    assert problem.path == "entrypoint"
    return problem.message


COMMANDS = [
    "train.py --nnodes 9 -m",
    "--nnodes 2 --nproc-per-node=4 train.py",
    "--nnodes=2:2 --nproc_per_node 4 train.py --node-rank 3",
    "--nnode 2 --stand train.py",
    "-m package.train a b",
    "--no-python ./run.sh",
    "-t 3 -r 1:2 --rdzv-backend c10d --rdzv_endpoint h:1 --max-restarts 3 train.py",
    "--master-addr 10.0.0.1 --master_port 29500 --node_rank 1 train.py",
    "--log-dir /a --role trainer --start-method fork train.py",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_of_a_command_are_those_that_torchrun_reads(command: str) -> None:
    run = pytest.importorskip("torch.distributed.run")
    theirs = vars(run.get_args_parser().parse_args(command.split()))
    default = vars(run.get_args_parser().parse_args(["train.py"]))
    found = launcher_of(["torchrun", *command.split()])
    assert found is not None
    assert found.script == theirs["training_script"]
    changed = {name: value for name, value in theirs.items() if value != default[name]}
    for name in ("training_script", "training_script_args"):
        changed.pop(name, None)
    assert {name: str(value) for name, value in found.options.items()} == {
        name: str(value) for name, value in changed.items()
    }


def test_every_option_of_torchrun_is_known() -> None:
    run = pytest.importorskip("torch.distributed.run")
    for action in run.get_args_parser()._actions:
        for option in action.option_strings:
            if option not in ("-h", "--help"):
                words = [option, *([] if action.nargs == 0 else ["1"]), "train.py"]
                found = launcher_of(["torchrun", *words])
                assert found is not None
                assert found.script == "train.py", option


#: In place of the module of Accelerate.
SHOW = """
import json, os, sys
ranks = [os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]
print(json.dumps({"words": sys.argv[1:], "ranks": ranks, "flags": sys.flags.dont_write_bytecode}))
"""
PLACE = [
    *("--gpu_ids=all", "--num_machines=2", "--machine_rank=1", "--num_processes=4"),
    *("--main_process_port=29511", "--main_process_ip=[::1]"),
]


def stand_in(folder: Path, module: str, text: str) -> None:
    """Write a module whose packages are found before those of the environment, which have an ``__init__.py`` too."""
    *packages, name = module.split(".")
    for package in packages:
        folder /= package
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
    (folder / f"{name}.py").write_text(text)


def shown(folder: Path, command: str, size: int = 4) -> dict[str, Any]:
    """Run the command of a launcher as the last of two hosts does."""
    stand_in(folder, "accelerate.commands.launch", SHOW)
    launcher = launcher_of(command.split())
    assert launcher is not None
    assert launcher_of(launcher.argv) == launcher
    env = {"GROUP_WORLD_SIZE": "2", "GROUP_RANK": "1", "DTRAIN_WORLD_SIZE": str(size)}
    env |= {"MASTER_ADDR": "::1", "PET_MASTER_ADDR": "[::1]", "MASTER_PORT": "29511"}
    done = subprocess.run(
        [sys.executable, *launcher.argv[1:]], cwd=folder, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("accelerate launch train.py --lr 1", ["--multi_gpu"]),
        ("/opt/env/bin/accelerate launch train.py", ["--multi_gpu"]),
        ("accelerate-launch --num_machines 2 -m package.train", ["--multi_gpu"]),
        ("python -B -m accelerate.commands.launch train.py --use_fsdp", ["--multi_gpu"]),
        ("accelerate launch --multi-gpu train.py", []),
        ("accelerate launch --use_fsdp --fsdp_version 2 train.py", []),
        ("accelerate launch --config_file=fsdp.yaml train.py", []),
    ],
)
def test_the_place_of_a_host_comes_before_the_words_of_accelerate(
    tmp_path: Path, command: str, kind: list[str]
) -> None:
    first = next(index for index, word in enumerate(command.split()) if word.endswith("launch"))
    words = command.split()[first + 1 :]
    expected = {"words": [*PLACE, *kind, *words], "ranks": [None] * 3, "flags": int("-B" in command)}
    assert shown(tmp_path, command) == expected


def test_accelerate_starts_the_rank_of_one_slot_as_it_is(tmp_path: Path) -> None:
    found = shown(tmp_path, "accelerate launch train.py", size=1)
    assert found["ranks"] == ["0", "0", "1"]
    assert "--multi_gpu" not in found["words"]


@pytest.mark.parametrize(
    ("command", "python"),
    [
        ("accelerate launch a.py", "python"),
        ("/opt/env/bin/accelerate launch a.py", "/opt/env/bin/python"),
        ("/opt/env/bin/accelerate-launch a.py", "/opt/env/bin/python"),
        ("accelerate config", None),
        ("accelerate", None),
        ("bash accelerate launch", None),
        ("python -c pass accelerate launch", None),
    ],
)
def test_accelerate_belongs_to_an_interpreter(command: str, python: str | None) -> None:
    found = launcher_of(command.split())
    assert (None if found is None else found.argv[0]) == python


def test_every_option_of_accelerate_is_read_as_by_its_own_parser() -> None:
    launch = pytest.importorskip("accelerate.commands.launch")
    for action in launch.launch_command_parser()._actions:
        value = [] if action.nargs == 0 else [str((action.choices or ["1"])[0])]
        for option in action.option_strings:
            if option not in ("-h", "--help"):
                found = launcher_of(["accelerate", "launch", option, *value, "train.py", "--other", "x"])
                assert found is not None
                assert (found.script, len(found.options)) == ("train.py", 1), option


@pytest.mark.parametrize(
    ("options", "slots", "words"),
    [
        ("--num_machines 3", (4, 4), ["--num_machines 3", "2 hosts"]),
        ("--num-processes=4", (4, 4), ["--num_processes 4", "8 slots"]),
        ("--machine_rank 0", (1, 1), ["--machine_rank 0", "2 hosts"]),
        ("--main_process_ip a", (1, 1), ["--main_process_ip a", "2 hosts"]),
        ("--main_process_port 1", (1, 1), ["--main_process_port 1", "2 hosts"]),
        ("--gpu_ids 0,1", (2,), ["--gpu_ids 0,1", "slots"]),
        ("--cpu", (2,), ["--cpu", "2 slots", "ACCELERATE_USE_CPU"]),
        ("--cpu", (1, 1), ["--cpu", "2 slots"]),
        ("--multi_gpu", (1,), ["--multi_gpu", "1 slot"]),
        ("--mpirun_hostfile hosts", (1,), ["--mpirun_hostfile hosts"]),
        ("--use_deepspeed", (2, 2), ["pdsh", "Set --deepspeed_multinode_launcher standard"]),
        ("--use_deepspeed --deepspeed_multinode_launcher openmpi", (2, 2), ["openmpi", "Set --deepspeed_multinode"]),
        ("", (3, 1), ["3 on 'h0', 1 on 'h1'", "torchrun"]),
    ],
)
def test_a_contradiction_of_accelerate_names_both_values(
    options: str, slots: tuple[int, ...], words: list[str]
) -> None:
    message = contradiction(["accelerate", "launch", *options.split(), "train.py"], slots)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("options", "slots"),
    [
        ("--num_machines 2 --num_processes 8 --gpu_ids all --multi_gpu", (4, 4)),
        ("--machine_rank 0 --main_process_ip 127.0.0.1 --main_process_port 29511", (4,)),
        ("--cpu", (1,)),
        ("--use_deepspeed --deepspeed_multinode_launcher standard", (2, 2)),
        ("--use_deepspeed", (4,)),
        ("--use_deepspeed --config_file a.yaml", (2, 2)),
    ],
)
def test_options_of_accelerate_that_agree_with_the_gang_are_accepted(options: str, slots: tuple[int, ...]) -> None:
    assert (
        contradictions(
            ["accelerate", "launch", *options.split(), "train.py", "--num_machines", "7"], slots, has_cpu_slots=False
        )
        == []
    )


def test_every_option_of_deepspeed_is_read_as_by_its_own_parser() -> None:
    runner = pytest.importorskip("deepspeed.launcher.runner")
    with pytest.MonkeyPatch.context() as patch:
        parsers: list[argparse.ArgumentParser] = []
        patch.setattr(argparse.ArgumentParser, "parse_args", lambda self, args=None: parsers.append(self))
        runner.parse_args([])
    for action in parsers[0]._actions:
        value = [] if action.nargs == 0 else [str((action.choices or ["1"])[0])]
        for option in action.option_strings:
            if option not in ("-h", "--help"):
                found = launcher_of(["deepspeed", option, *value, "train.py", "--other", "x"])
                assert found is not None
                assert (found.script, len(found.options)) == ("train.py", 1), option


#: In place of the modules of DeepSpeed. The real ones are compared in tests/oracle.
RUNNER = """
import argparse
def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_gpus")
    parser.add_argument("--module", action="store_true")
    parser.add_argument("--enable_each_rank_log", default="None")
    parser.add_argument("user_script")
    parser.add_argument("user_args", nargs=argparse.REMAINDER)
    return parser.parse_args()
"""
LAUNCH = """
import base64, json, sys
world = json.loads(base64.urlsafe_b64decode(sys.argv[1].removeprefix("--world_info=")))
print(json.dumps({"world": world, "words": sys.argv[2:]}))
"""


@pytest.mark.parametrize(
    ("visible", "ids"), [("GPU-1,GPU-2", ["GPU-1", "GPU-2"]), ("", ["-1", "-1"])], ids=["devices", "cpu"]
)
def test_the_ranks_of_deepspeed_see_the_devices_of_their_host(tmp_path: Path, visible: str, ids: list[str]) -> None:
    stand_in(tmp_path, "deepspeed.launcher.runner", RUNNER)
    stand_in(tmp_path, "deepspeed.launcher.launch", LAUNCH)
    launcher = launcher_of(["deepspeed", "--num_gpus", "2", "--module", "package.train", "--lr", "1"])
    assert launcher is not None
    assert launcher_of(launcher.argv) == launcher
    env = {"GROUP_WORLD_SIZE": "2", "GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": visible}
    env |= {"MASTER_ADDR": "::1", "MASTER_PORT": "29511"}
    done = subprocess.run(
        [sys.executable, *launcher.argv[1:]], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    place = ["--node_rank=1", "--master_addr=::1", "--master_port=29511"]
    options = ["--module", "--enable_each_rank_log=None"]
    words = [*place, *options, "package.train", "--lr", "1"]
    assert json.loads(done.stdout) == {"world": {"0": ids, "1": ids}, "words": words}


#: In place of the program of Ray.
RAY = """
import json, os, sys
print(json.dumps({"words": sys.argv[1:], "path": os.environ["PATH"].split(os.pathsep)}))
"""


def test_ray_gets_the_place_and_the_slots_of_its_host(tmp_path: Path) -> None:
    stand_in(tmp_path, "ray.scripts.scripts", RAY)
    launcher = launcher_of(["ray", "symmetric-run", "--num-cpus", "8", "--", "python", "train.py", "--lr", "1"])
    assert launcher is not None
    assert launcher_of(launcher.argv) == launcher
    env = {"GROUP_WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2", "PATH": "/bin"}
    env |= {"PET_MASTER_ADDR": "[::1]", "MASTER_PORT": "29511"}
    done = subprocess.run(
        [sys.executable, *launcher.argv[1:]], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    place = ["symmetric-run", "--address=[::1]:29511", "--min-nodes=2", "--num-cpus=2", "--num-gpus=2"]
    words = [*place, "--num-cpus", "8", "--", "python", "train.py", "--lr", "1"]
    assert json.loads(done.stdout) == {"words": words, "path": [str(Path(sys.executable).parent), "/bin"]}


@pytest.mark.parametrize(
    ("command", "slots", "words"),
    [
        ("deepspeed --num_nodes 3 a.py", (4, 4), ["--num_nodes 3", "2 hosts"]),
        ("deepspeed --num_gpus=2 a.py", (4,), ["--num_gpus 2", "4 slots on host 'h0'"]),
        ("deepspeed --num_accelerators 2 a.py", (1,), ["--num_accelerators 2", "1 slot on host 'h0'"]),
        ("deepspeed -H hosts a.py", (1,), ["--hostfile hosts", "the trial's slots"]),
        ("deepspeed --include localhost:1 a.py", (1,), ["--include localhost:1", "the trial's slots"]),
        ("ds -e h1 a.py", (1,), ["--exclude h1", "the trial's slots"]),
        ("deepspeed --autotuning run a.py", (1,), ["--autotuning run", "Use a searcher"]),
        ("deepspeed --save_pid a.py", (1,), ["--save_pid", "Remove the option"]),
        ("deepspeed --venv_script a b.py", (1,), ["--venv_script a", "Set environment.setup"]),
        ("deepspeed --node_rank 0 a.py", (1, 1), ["--node_rank 0", "2 hosts"]),
        ("deepspeed --master_addr a b.py", (1, 1), ["--master_addr a", "2 hosts"]),
        ("deepspeed a.py", (3, 1), ["3 on 'h0', 1 on 'h1'", "torchrun"]),
        ("ray symmetric-run --address a:1 -- python a.py", (1,), ["--address a:1", "Remove the option"]),
        ("ray symmetric-run --min-nodes=2 -- python a.py", (1,), ["--min-nodes 2", "Remove the option"]),
        ("ray symmetric-run --num-gpus 2 -- python a.py", (1,), ["--num-gpus 2", "Remove the option"]),
    ],
)
def test_a_contradiction_of_deepspeed_or_ray_is_named(command: str, slots: tuple[int, ...], words: list[str]) -> None:
    message = contradiction(command.split(), slots)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("command", "slots"),
    [
        ("deepspeed --num_nodes 2 --num_gpus 4 --no_ssh a.py --hostfile x", (4, 4)),
        ("deepspeed --node_rank 0 --master_addr 127.0.0.1 --master_port 1 a.py", (4,)),
        ("ray symmetric-run --num-cpus 9 --resources {} -- python a.py --address x", (4, 2)),
    ],
)
def test_options_of_deepspeed_and_ray_that_agree_with_the_gang_are_accepted(
    command: str, slots: tuple[int, ...]
) -> None:
    assert contradictions(command.split(), slots, has_cpu_slots=False) == []


@pytest.mark.parametrize(
    ("options", "slots", "words"),
    [
        ("--nnodes 3", (4, 4), ["--nnodes 3", "2 hosts"]),
        ("--nnodes 1:4", (4, 4), ["--nnodes 1:4", "2 hosts"]),
        ("--nproc-per-node 8", (4,), ["--nproc-per-node 8", "4 slots", "'h0'"]),
        ("--nproc-per-node 3", (3, 1), ["--nproc-per-node 3", "1 slot ", "'h1'"]),
        ("--nproc-per-node gpu", (2,), ["--nproc-per-node gpu", "2 slots"]),
        ("--standalone", (4, 4), ["--standalone", "2 hosts"]),
        ("--node-rank 0", (1, 1), ["--node-rank 0", "2 hosts"]),
        ("--rdzv-endpoint a:1", (1, 1), ["--rdzv-endpoint a:1", "2 hosts"]),
    ],
)
def test_a_contradiction_names_both_values(options: str, slots: tuple[int, ...], words: list[str]) -> None:
    message = contradiction(["torchrun", *options.split(), "train.py"], slots)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("options", "slots", "has_cpu_slots"),
    [
        ("", (3, 1), True),
        ("--nnodes 2 --nproc-per-node 4", (4, 4), True),
        ("--nnodes=2:2", (4, 4), True),
        ("--standalone --master-port 29511", (4,), True),
        ("--nproc-per-node gpu", (4, 2), False),
        ("--nproc-per-node auto", (4,), False),
    ],
)
def test_options_that_agree_with_the_gang_are_accepted(
    options: str, slots: tuple[int, ...], has_cpu_slots: bool
) -> None:
    assert (
        contradictions(["torchrun", *options.split(), "train.py", "--nnodes", "7"], slots, has_cpu_slots=has_cpu_slots)
        == []
    )


@pytest.mark.parametrize(
    ("document", "is_per_host"),
    [
        ({"entrypoint": "torchrun train.py"}, True),
        ({"entrypoint": ["python", "-m", "torch.distributed.run", "train.py"]}, True),
        ({"entrypoint": "accelerate launch train.py"}, True),
        ({"entrypoint": "deepspeed train.py --deepspeed"}, True),
        ({"entrypoint": "ray symmetric-run -- python train.py"}, True),
        ({"entrypoint": "python train.py"}, False),
        ({"entrypoint": "bash run.sh", "launch": "per_host"}, True),
    ],
)
def test_a_launcher_implies_one_process_per_host(document: dict[str, Any], is_per_host: bool) -> None:
    assert assemble(None, {**RUN, **document}).config.is_per_host is is_per_host


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"entrypoint": "torchrun train.py", "launch": "per_slot"}, "per_slot contradicts the entrypoint"),
        ({"entrypoint": "accelerate launch train.py", "launch": "per_slot"}, "whose accelerate launch starts"),
        ({"entrypoint": "model:Trial", "launch": "per_host", "searcher": {"max_length": 1}}, "need per_slot"),
    ],
)
def test_a_launch_that_contradicts_the_entrypoint_is_refused(document: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        assemble(None, {**RUN, **document})
    assert [problem.path for problem in raised.value.problems if words in problem.message] == ["launch"]


@pytest.mark.parametrize("entrypoint", ["ray start --head", "/opt/env/bin/ray start"])
def test_a_program_that_starts_ray_and_no_script_is_refused_with_the_fix(entrypoint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        assemble(None, {**RUN, "entrypoint": entrypoint, "launch": "per_host"})
    (problem,) = raised.value.problems
    assert problem.path == "entrypoint"
    assert "ray symmetric-run -- python train.py" in problem.message


def test_the_script_of_a_launcher_must_be_in_the_code() -> None:
    assert entry_file("deepspeed --num_gpus 2 a.py --deepspeed_config ds.json") == EntryFile(
        paths=("a.py",), is_required=True
    )
    assert entry_file("ray symmetric-run --num-cpus 4 -- python -u a.py") == EntryFile(
        paths=("a.py",), is_required=True
    )
    assert entry_file("ray symmetric-run -- ./run") is None
    assert entry_file("ray symmetric-run python a.py") is None
    assert entry_file("torchrun --nproc-per-node 2 a/train.py x.py") == EntryFile(
        paths=("a/train.py",), is_required=True
    )
    assert entry_file("torchrun -m package.train") is None
    assert entry_file("accelerate launch --same_network --mixed_precision no a.py") == EntryFile(
        paths=("a.py",), is_required=True
    )


def test_a_contradiction_and_several_mig_instances_are_refused_with_the_plan() -> None:
    argv = launcher_of(["torchrun", "--nnodes", "3", "train.py"]).argv  # type: ignore[union-attr]
    hosts = {"a": HostFacts(devices={0: "MIG-1", 1: "MIG-2"})}
    facts = LaunchFacts(run="t1.1.7", store="s", token=7, argv=argv, is_per_host=True, hosts=hosts)
    with pytest.raises(ConfigError) as raised:
        build_plans(Placement({"a": (0, 1), "b": (0, 1)}), facts)
    assert [problem.path for problem in raised.value.problems] == ["launch", "entrypoint"]
    assert build_plans(Placement({"a": (0, 1)}), replace(facts, hosts={}, argv=("torchrun", "a.py")))["a"]["per_host"]
