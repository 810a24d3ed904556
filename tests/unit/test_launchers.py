"""Commands that start launchers of ranks, and their contradictions with a gang."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dtrain.core.config.assembly import assemble
from airflow_provider_dtrain.core.config.commands import split_command
from airflow_provider_dtrain.core.config.entry_files import EntryFile, entry_file
from airflow_provider_dtrain.core.config.launchers import launcher_of, launcher_problems
from airflow_provider_dtrain.core.launch.plan import HostFacts, LaunchFacts, build_plans
from airflow_provider_dtrain.core.scheduling.model import Placement
from airflow_provider_dtrain.errors import ConfigError

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
    launcher = launcher_of(["torchrun", *options.split(), "train.py"])
    assert launcher is not None
    gang = {f"h{number}": count for number, count in enumerate(slots)}
    (problem,) = launcher_problems(launcher, gang, has_cpu_slots=True)
    assert problem.path == "entrypoint"
    assert all(word in problem.message for word in words)


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
    launcher = launcher_of(["torchrun", *options.split(), "train.py", "--nnodes", "7"])
    assert launcher is not None
    gang = {f"h{number}": count for number, count in enumerate(slots)}
    assert launcher_problems(launcher, gang, has_cpu_slots=has_cpu_slots) == []


@pytest.mark.parametrize(
    ("document", "is_per_host"),
    [
        ({"entrypoint": "torchrun train.py"}, True),
        ({"entrypoint": ["python", "-m", "torch.distributed.run", "train.py"]}, True),
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
        ({"entrypoint": "model:Trial", "launch": "per_host", "searcher": {"max_length": 1}}, "need per_slot"),
    ],
)
def test_a_launch_that_contradicts_the_entrypoint_is_refused(document: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        assemble(None, {**RUN, **document})
    assert [problem.path for problem in raised.value.problems if words in problem.message] == ["launch"]


def test_the_script_of_a_launcher_must_be_in_the_code() -> None:
    assert entry_file("torchrun --nproc-per-node 2 a/train.py x.py") == EntryFile(
        paths=("a/train.py",), is_required=True
    )
    assert entry_file("torchrun -m package.train") is None


def test_a_contradiction_and_several_mig_instances_are_refused_with_the_plan() -> None:
    argv = launcher_of(["torchrun", "--nnodes", "3", "train.py"]).argv  # type: ignore[union-attr]
    hosts = {"a": HostFacts(devices={0: "MIG-1", 1: "MIG-2"})}
    facts = LaunchFacts(run="t1.1.7", store="s", token=7, argv=argv, is_per_host=True, hosts=hosts)
    with pytest.raises(ConfigError) as raised:
        build_plans(Placement({"a": (0, 1), "b": (0, 1)}), facts)
    assert [problem.path for problem in raised.value.problems] == ["launch", "entrypoint"]
    assert build_plans(Placement({"a": (0, 1)}), replace(facts, hosts={}, argv=("torchrun", "a.py")))["a"]["per_host"]
