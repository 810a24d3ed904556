"""Environment of a rank: what the supervisor derives from the launch plan, and from the trial's context."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.launch.plan import RESERVED_VARIABLES, HostFacts, LaunchFacts, build_plans
from airflow_provider_dtrain.core.scheduling.model import Placement
from airflow_provider_dtrain.supervisor.files.layout import Layout
from airflow_provider_dtrain.supervisor.refusal import Refused
from airflow_provider_dtrain.supervisor.run.plan import check_context, check_plan
from airflow_provider_dtrain.supervisor.run.rank_environment import (
    MAX_VARIABLE_BYTES,
    left_out,
    rank_environment,
    too_large,
    trial_variables,
)

RUN = "t1.2.7"
PLACEMENT = Placement({"b": (0, 1), "a": (4, 6), "c": (0, 1, 2)})
GO = {"master_addr": "10.0.0.1", "master_port": 4000}


def environments(tmp_path: Path, context: Any = None, secrets: Any = None, **facts: Any) -> list[dict[str, str]]:
    """Return the environment of each rank of a gang."""
    launch = LaunchFacts(run=RUN, store="s", token=7, argv=["python", "train.py"], **facts)
    folder = Layout(str(tmp_path)).run(RUN)
    found = []
    for plan in map(check_plan, build_plans(PLACEMENT, launch).values()):
        values = (check_context(context), folder, GO, secrets or {})
        found += [rank_environment(plan, values[0], rank, *values[1:]) for rank in plan["ranks"]]
    return found


def test_every_rank_has_the_contract_of_torchrun(tmp_path: Path) -> None:
    found = environments(tmp_path, {"attempt": 3, "max_restarts": 5})
    expected = {
        "RANK": "0123456", "ROLE_RANK": "0123456", "LOCAL_RANK": "0120101", "LOCAL_WORLD_SIZE": "3332222",
        "GROUP_RANK": "0001122", "WORLD_SIZE": "7777777", "ROLE_WORLD_SIZE": "7777777", "GROUP_WORLD_SIZE": "3333333",
        "TORCHELASTIC_RESTART_COUNT": "2222222", "TORCHELASTIC_MAX_RESTARTS": "5555555",
    }  # fmt: skip
    assert {name: "".join(env[name] for env in found) for name in expected} == expected
    assert [env["DTRAIN_SLOT"] for env in found] == ["0", "1", "2", "4", "6", "0", "1"]
    for env in found:
        assert (env["ROLE_NAME"], env["TORCHELASTIC_USE_AGENT_STORE"]) == ("default", "False")
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.1", "4000")


def test_a_program_without_the_library_finds_the_values_of_its_trial_in_the_environment(tmp_path: Path) -> None:
    env = environments(tmp_path, {"hparams": {"net": {"depth": 3}, "lr": 0.1}, "seed": 9})[0]
    assert env["DTRAIN_HPARAMS"] == '{"lr":0.1,"net":{"depth":3}}'
    assert env["DTRAIN_TRIAL_SEED"] == "9"
    assert env["DTRAIN_CHECKPOINT_DIR"] == f"{env['DTRAIN_RUN_DIR']}/checkpoints"
    assert "DTRAIN_LATEST_CHECKPOINT" not in env
    resumed = environments(tmp_path, {"latest_checkpoint": "../checkpoints/step-10", "checkpoint_dir": "/data"})[0]
    assert resumed["DTRAIN_LATEST_CHECKPOINT"] == "../checkpoints/step-10"
    assert resumed["DTRAIN_CHECKPOINT_DIR"] == "/data"


@pytest.mark.parametrize(("given_", "expected"), [({}, "1"), ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, "3")])
def test_nccl_handles_errors_as_under_torchrun_unless_the_user_says_otherwise(
    tmp_path: Path, given_: dict[str, str], expected: str
) -> None:
    assert environments(tmp_path, variables=given_)[0]["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == expected


def test_every_variable_of_the_rank_and_its_trial_is_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = {"latest_checkpoint": "x", "checkpoint_dir": "y"}
    of_host = {"OMP_NUM_THREADS", "PYTHONIOENCODING", "PYTHONUNBUFFERED", "PYTHONPATH", "DTRAIN_METRICS"}
    for name in RESERVED_VARIABLES:
        monkeypatch.setenv(name, "of the login")
    env = environments(tmp_path, context, {"DTRAIN_SECRETS": "{}"})[0]
    mine = dict.fromkeys(env, "mine")
    replaced = environments(tmp_path, context, {"DTRAIN_SECRETS": "{}"}, variables={
        name: "mine" for name in mine if name not in RESERVED_VARIABLES
    })[0]  # fmt: skip
    assert {name for name in env if replaced[name] == env[name]} <= RESERVED_VARIABLES | of_host
    assert "of the login" not in env.values()


@pytest.mark.parametrize(("more_bytes", "fits"), [(0, True), (1, False)])
def test_hyperparameters_that_linux_would_refuse_are_left_out_with_a_sentence(
    tmp_path: Path, more_bytes: int, fits: bool
) -> None:
    longest = MAX_VARIABLE_BYTES - 1 - len('DTRAIN_HPARAMS={"a":""}')
    context = check_context({"hparams": {"a": "x" * (longest + more_bytes)}})
    variables = trial_variables(context, Layout(str(tmp_path)).run(RUN))
    assert ("DTRAIN_HPARAMS" in variables) == fits
    # The limit is that of Linux.
    started = subprocess.run(["true"], env={"DTRAIN_HPARAMS": variables.get("DTRAIN_HPARAMS", "")})
    assert started.returncode == 0
    sentence = left_out(variables)
    assert (sentence is None) == fits
    assert sentence is None or ("131,072 bytes" in sentence and "DTRAIN_CONTEXT" in sentence)


def test_a_start_that_linux_refuses_names_the_largest_strings_and_no_value() -> None:
    sentence = too_large(["python", "x" * 300], {"A": "secret", "B": "secret" * 100, "C": "secret" * 10})
    assert "variable B (602 bytes), argument 1 (300 bytes), variable C (62 bytes)" in sentence
    assert "secret" not in sentence


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ([1], "context"),
        ({"hparams": [1]}, "context.hparams"),
        ({"seed": "1"}, "context.seed"),
        ({"attempt": 0}, "context.attempt"),
        ({"max_restarts": -1}, "context.max_restarts"),
        ({"latest_checkpoint": "a\0b"}, "context.latest_checkpoint"),
        ({"checkpoint_dir": 3}, "context.checkpoint_dir"),
    ],
)
def test_a_bad_value_of_the_context_is_named(values: Any, field: str) -> None:
    with pytest.raises(Refused) as refused:
        check_context(values)
    assert (refused.value.code, refused.value.details["field"]) == ("bad_plan", field)


def test_the_context_keeps_what_only_the_library_reads() -> None:
    assert json.loads(json.dumps(check_context({"rungs": [1], "trial_id": 5})))["rungs"] == [1]


def test_programs_of_an_environment_come_first_also_before_a_path_of_the_user(tmp_path: Path) -> None:
    hosts = {host: HostFacts(environment="e" * 64) for host in PLACEMENT.slots}
    root = f"{tmp_path}/environments/{'e' * 64}"
    for env in environments(tmp_path, hosts=hosts, variables={"PATH": "/mine", "VIRTUAL_ENV": "/other"}):
        assert (env["VIRTUAL_ENV"], env["PATH"]) == (root, f"{root}/bin:/mine")
    assert "VIRTUAL_ENV" not in environments(tmp_path)[0]


def test_a_launcher_has_the_defaults_of_torchruns_arguments_and_no_number_of_a_rank(tmp_path: Path) -> None:
    hosts = {"c": HostFacts(devices={0: "GPU-0", 1: "GPU-1", 2: "GPU-2"})}
    found = environments(tmp_path, is_per_host=True, hosts=hosts, visible_devices="own")
    first = found[0]
    ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "ROLE_RANK", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID")
    assert not any(name in first for name in ranks)
    assert first["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-1,GPU-2"
    names = ("NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "RDZV_ENDPOINT", "RDZV_ID")
    values = [[env[f"PET_{name}"] for name in names] for env in (found[0], found[3], found[5])]
    places = (("3", "0"), ("2", "1"), ("2", "2"))
    assert values == [["3", *place, "10.0.0.1", "4000", "10.0.0.1:4000", RUN] for place in places]
    assert (first["GROUP_RANK"], first["LOCAL_WORLD_SIZE"], first["DTRAIN_WORLD_SIZE"]) == ("0", "3", "7")
    assert first["TORCHELASTIC_ERROR_FILE"].endswith("/rank0/error.json")
