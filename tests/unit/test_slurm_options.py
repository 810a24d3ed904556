"""Options of Slurm pools: all problems at once, and options of ``sbatch`` that users may not add."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from airflow_provider_dtrain.core.slurm.options import SlurmOptions, flag, slurm_options
from airflow_provider_dtrain.core.slurm.user_options import PROTECTED, arguments, option_problem
from airflow_provider_dtrain.errors import ConfigError
from airflow_provider_dtrain.terminal import definition

EVERYTHING: dict[str, Any] = {
    "conn_id": "slurm_login", "partition": "gpu,long", "account": "lab_1", "qos": "high", "clusters": "c1",
    "slots": "gpu", "gres_name": "gpu", "gres_type": "a100", "cpus_per_slot": 8, "memory_per_slot": "32G",
    "slots_per_node": 4, "time_limit": "24h", "time_min": "2:00:00", "setup": "module load cuda\n\tsource x\n",
    "sbatch_options": ["--constraint=a100", "-C fast", "--exclusive"], "without_options": ["mem", "srun:mpi"],
    "max_jobs": 40, "port_range": "40000-40100", "python": "/opt/py/bin/python3.11", "output": "/scratch/%j.out",
}  # fmt: skip


def problems(**document: Any) -> list[tuple[str, str]]:
    """Return arguments of ``pools set`` with the problems of their values."""
    with pytest.raises(ConfigError) as caught:
        slurm_options(document, source="pool 'hpc'")
    return [(problem.path, problem.message) for problem in caught.value.problems]


def test_every_option_survives_json() -> None:
    options = slurm_options(EVERYTHING)
    assert slurm_options(json.loads(json.dumps(options.to_json()))) == options
    assert (options.time_limit_s, options.time_min_s, options.ports) == (86400, 7200, (40000, 40100))
    assert not options.is_local
    assert not options.has("mem")
    assert not options.has("srun:mpi")
    assert options.has("srun:mem")


def test_a_pool_without_options_is_on_this_machine() -> None:
    options = slurm_options({})
    assert options == SlurmOptions()
    assert options.is_local
    assert slurm_options({"conn_id": "local"}).is_local
    assert options.to_json() == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("conn_id", "-x"), ("partition", "a b"), ("partition", "a,,b"), ("account", "x;rm"), ("qos", ""),
        ("clusters", "a,b"), ("slots", "tpu"), ("gres_name", "gpu:a100"), ("gres_type", 3), ("cpus_per_slot", 0),
        ("cpus_per_slot", True), ("memory_per_slot", "much"), ("memory_per_slot", "0G"), ("memory_per_slot", 4),
        ("slots_per_node", 2.5), ("time_limit", "UNLIMITED"), ("time_limit", "30s"), ("time_limit", 60),
        ("time_limit", "infinite"), ("time_min", "x"), ("setup", "a\r\nb"), ("setup", "a\0b"), ("setup", "a\x1bb"),
        ("setup", "x\n  #SBATCH --mem=3"), ("setup", "x" * 300_000), ("setup", 3), ("max_jobs", 0),
        ("port_range", "80-90"), ("port_range", "50000-40000"), ("python", "python3 -u"), ("python", "$(id)"),
        ("python", "~/venv/bin/python"),
        ("output", "out-%j"), ("output", "/x/%u"), ("output", "/x y"), ("nodes", 3),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_used_is_refused(name: str, value: Any) -> None:
    assert [path for path, _ in problems(**{name: value})] == [name if name == "nodes" else flag(name)]


def test_messages_name_options_as_the_command_does() -> None:
    named = {argument.flags[0] for argument in definition.SCHEDULER_OPTIONS}
    assert {flag(field.name) for field in fields(SlurmOptions)} <= named


def test_all_problems_come_at_once_with_their_paths() -> None:
    found = problems(
        slots="tpu", time_limit="x", sbatch_options=["-C ok", "--nodes=2", "-a 1-3"], without_options=["job-name", "z"]
    )
    options = ["--slots", "--time-limit", *["--sbatch-option"] * 2, *["--without-option"] * 2]
    assert [path for path, _ in found] == options
    assert "job arrays are not supported" in found[3][1]
    assert "the name finds the job" in found[4][1]


def test_values_that_exclude_each_other_are_refused() -> None:
    assert problems(memory_per_slot="1G", memory_per_cpu="1G") == [
        ("--memory-per-cpu", "--memory-per-slot is set as well; set one of them")
    ]
    assert [path for path, _ in problems(slots="cpu", gres_type="a100")] == ["--gres-type"]
    assert [path for path, _ in problems(time_limit="1h", time_min="2h")] == ["--time-min"]
    assert [path for path, _ in problems(gres_name="gpu", sbatch_options=["--gres=nvme:1"])] == ["--sbatch-option"]
    assert slurm_options({"sbatch_options": ["--gres=nvme:1"]}).sbatch_options == ("--gres=nvme:1",)


@pytest.mark.parametrize(
    "text",
    [
        "-J x", "-Jx", "--job-name=x", "--job-name x", "--job-n=x", "-o x", "--output=x", "-N2", "-N 2", "--nodes 2",
        "-n4", "--ntasks=4", "--ntasks-per-node=2", "--tasks-per-node=2", "--signal=B:USR1@60", "--sig=USR1",
        "--requeue", "--no-requeue", "--no-req", "-d singleton", "--dependency=afterok:1", "--parsable", "-a1-3",
        "--array=1-3", "--arr=1", "--het-group=0", "--wrap=true", "-W", "--wait", "--test-only", "-H", "-QH", "-HJx",
        "-OJx", "--uid=root", "-k", "--no-kill", "-t 5", "--time=5", "--time-min=5", "-x n1", "--mem=1G", "-G 2",
        "--gpus=2", "-p x", "-A x", "-q x", "-M x", "-c 2", "-e x", "-i x", "-V", "-v", "--help", "-h", "--mem 1G",
        ":", "--constraint=a : --constraint=b", "script.sh", "", " ", "-", "--", "--=x", "-C\nx", "--constraint=a\x00",
        "-?", "--n", 3, None,
    ],
)  # fmt: skip
def test_an_option_that_breaks_the_job_of_a_gang_is_refused(text: Any) -> None:
    assert option_problem(text)


@pytest.mark.parametrize(
    "text",
    [
        "--constraint=a100", "--constraint a100", "-C a100", "-Ca100", "-C a&b|c", "--exclusive", "--exclusive=user",
        "--reservation=maint", "-w n1", "--nodelist=n1", "--nice=100", "--nice", "--licenses=a:1", "-L a:1", "-s",
        "--export=NONE", "--mem-per-gpu=4G", "--switches=1", "--comment=J x -N 2", "--mail-type=END", "--mail-user=a@b",
        "--begin=now+1hour", "--deadline=now+2hours", "--chdir=/scratch", "-D /scratch", "--gres=nvme:1", "-OC x",
        "--tmp=10G", "--contiguous", "--wckey=w", "--hint=nomultithread", "--wait-all-nodes=1", "--cpu-freq=high",
    ],
)  # fmt: skip
def test_other_options_are_passed_on(text: str) -> None:
    assert option_problem(text) is None


def test_a_value_after_a_blank_is_an_argument_of_its_own() -> None:
    assert arguments(["--constraint=a b", "-C a b", "--exclusive", "-Cx"]) == (
        ["--constraint=a b", "-C", "a b", "--exclusive", "-Cx"]
    )


def test_each_protected_option_has_a_reason_for_each_abbreviation() -> None:
    for name in PROTECTED:
        assert f"--{name} cannot be added: " in (option_problem(f"--{name}=x") or "")
        assert option_problem(f"--{name[:-1]}=x")
