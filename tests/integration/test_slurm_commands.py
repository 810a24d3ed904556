"""Commands, records and the timeline of a pool of Slurm, on a real cluster."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.engine.upkeep.recovery import recover
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from testbed.programs import install_programs
from testbed.slurm.cluster import SlurmCluster
from testbed.standalone import wait_until
from tests.support import counting
from tests.support.cli_world import World
from tests.support.counting import running
from tests.support.engines import Engine

pytest_plugins = ["tests.support.cli_world", "testbed.slurm.plugin"]
pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.usefixtures("quick_looks")]
PARTITIONS = {"main": {"Default": "YES", "MaxTime": "2:00:00"}, "closed": {"State": "DOWN", "MaxTime": "UNLIMITED"}}


@pytest.fixture(scope="module")
def slurm(slurm_clusters: Callable[..., SlurmCluster]) -> SlurmCluster:
    """Two nodes with 8 CPUs each."""
    return slurm_clusters(nodes=2, partitions=PARTITIONS)


@pytest.fixture(scope="module")
def commands(world: World, slurm: SlurmCluster) -> World:
    """Commands of an Airflow with the pool ``hpc`` of the cluster."""
    world.own.update(slurm.environment)
    options = ["--slots", "cpu", "--slots-per-node", "4", "--python", sys.executable, "--time-limit", "60m"]
    done = world("pools", "set", "hpc", "--backend", "slurm", "--conn", "local", *options)
    assert done.code == 0, done.err
    assert "Warning" not in done.err
    return world


@pytest.fixture
def pool(commands: World, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine on the store of the commands."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    install_programs(Path.home())
    home = Path(commands.environment["AIRFLOW_HOME"])
    options = dataclasses.replace(
        settings(), sql_alchemy_conn=f"sqlite:///{home / 'dtrain.db'}", checkpoint_dir=home / "c", kill_grace_s=2.0
    )
    hook = DtrainHook(options)
    yield Engine(hook)
    subprocess.run(["scancel", "-u", "root"], timeout=20)
    hook.links.close_all()


def document(slots: int = 4, **more: Any) -> dict[str, Any]:
    found = counting.config("library", 10**6, pause_s=0.05, **more)
    found["resources"] = {"pool": "hpc", "slots_per_trial": slots}
    return found


def lines(world: World) -> dict[str, dict[str, Any]]:
    """Return the lines of doctor about the pool, by check."""
    done = world("doctor", "-o", "json")
    return {one["check"]: one for one in done.json if one["check"].startswith("pool hpc")}


def explained(world: World, tmp_path: Path, slots: int, **resources: Any) -> tuple[int, dict[str, Any]]:
    config = document(slots)
    config["resources"] |= resources
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config))
    done = world("explain", str(path), "-o", "json")
    assert done.code in (0, 1, 3), done.err
    return done.code, done.json


def restart(slurm: SlurmCluster) -> None:
    """Start the controller again, and wait until it has heard of its nodes."""
    slurm.start_controller()
    wait_until(lambda: set(slurm.node_states().values()) == {"idle"}, timeout_s=90, what="idle nodes", poll_s=0.5)


def test_describe_shows_partitions_sizes_and_limits(commands: World) -> None:
    row = commands("pools", "describe", "hpc", "-o", "json").json
    facts = row["scheduler"]
    assert facts["cluster"] == "testbed"
    assert facts["program"].startswith("Slurm ")
    by_name = {one["name"]: one for one in facts["partitions"]}
    assert by_name["main"]["is_used"]
    assert by_name["main"]["sizes"] == [{"slots": 4, "nodes": 2}]
    assert by_name["main"]["max_time_s"] == 7200
    assert by_name["closed"]["state"] == "DOWN"
    assert by_name["closed"]["max_time_s"] is None
    assert facts["time_limit_s"] == 3600
    table = commands("pools", "describe", "hpc").out
    assert "main (of this pool): UP, 2 of 2 nodes usable, slots: 2 with 4, jobs of at most 2 h" in table


def test_list_names_the_scheduler_of_a_pool(commands: World) -> None:
    (row,) = [one for one in commands.rows("pools", "list") if one["name"] == "hpc"]
    assert (row["backend"], row["fit"], row["slots"]) == ("slurm", None, 0)


def test_an_option_of_the_scheduler_can_be_unset(commands: World) -> None:
    commands("pools", "set", "hpc", "--sbatch-option=--nice=1", "--max-jobs", "9")
    row = commands.rows("pools", "describe", "hpc")
    assert (row["sbatch_options"], row["max_jobs"], row["slot_kind"]) == (["--nice=1"], 9, "cpu")
    commands("pools", "set", "hpc", "--unset", "sbatch-option", "--unset", "max-jobs")
    row = commands.rows("pools", "describe", "hpc")
    assert "max_jobs" not in row
    assert "sbatch_options" not in row
    refused = commands("pools", "set", "hpc", "--unset", "qos")
    assert refused.code == 2
    assert "has no option --qos that is set" in refused.err


@pytest.mark.parametrize(
    ("option", "value", "part"),
    [
        ("--partition", "nowhere", "The cluster has no partition 'nowhere'"),
        ("--time-limit", "3h", "--time-limit 3h is above MaxTime of partition 'main', which is 120 minutes"),
    ],
)
def test_options_that_the_cluster_does_not_have_are_refused_at_once(
    commands: World, option: str, value: str, part: str
) -> None:
    before = commands.rows("pools", "describe", "hpc")
    done = commands("pools", "set", "hpc", option, value)
    assert done.code == 2
    assert part in done.err
    after = commands.rows("pools", "describe", "hpc")
    assert {**after, "scheduler": None} == {**before, "scheduler": None}


@pytest.mark.nightly
def test_options_are_set_with_a_warning_while_the_cluster_does_not_answer(commands: World, slurm: SlurmCluster) -> None:
    slurm.stop_controller()
    try:
        done = commands("pools", "set", "hpc", "--partition", "nowhere")
        assert done.code == 0, done.err
        assert "Warning: the scheduler of pool 'hpc' cannot be asked now." in done.err
        assert commands("pools", "set", "hpc", "--unset", "partition").code == 0
    finally:
        restart(slurm)


@pytest.mark.nightly
def test_doctor_checks_the_cluster(commands: World, slurm: SlurmCluster) -> None:
    found = lines(commands)
    assert all(one["ok"] for one in found.values()), found
    assert "sbatch" in found["pool hpc: programs"]["message"]
    assert "proctrack/linuxproc is not proctrack/cgroup" in found["pool hpc: process tracking"]["message"]
    assert "off" in found["pool hpc: preemption"]["message"]
    assert "no ACCRUE_ALWAYS" in found["pool hpc: priority"]["message"]
    assert "MaxJobCount of the cluster is" in found["pool hpc: max jobs"]["message"]
    assert "Python of the login node does not matter" in found["pool hpc: python"]["message"]
    slurm.stop_controller()
    try:
        away = lines(commands)
    finally:
        restart(slurm)
    assert {name: one["ok"] for name, one in away.items()} == {"pool hpc": False, "pool hpc: states of jobs": True}
    assert "does not answer" in away["pool hpc"]["message"]


def test_explain_says_which_job_a_configuration_would_be(commands: World, tmp_path: Path) -> None:
    code, row = explained(commands, tmp_path, 8)
    assert code == 3
    assert row["nodes"] == "2 nodes with 4 slots each"
    assert row["partition"] == "main"
    assert row["longest_job"] == "2 h"
    assert row["reason"].startswith("Not known before the job is submitted: slurm decides when it starts.")
    code, row = explained(commands, tmp_path, 7)
    assert (code, row["outlook"]) == (1, "never")
    assert "Sizes that work near it: 1, 2, 3, 4, 6, 8" in row["reason"]
    code, row = explained(commands, tmp_path, 8, is_single_host=True)
    assert code == 1
    assert "on one node" in row["reason"]


@pytest.mark.nightly
async def test_a_waiting_trial_shows_slurms_reason_and_its_expected_start(pool: Engine, commands: World) -> None:
    submitted = ["sbatch", "--parsable", "-N2", "-n16", "-t", "30", "--wrap", "sleep 1000", "-o", "/dev/null"]
    blocker = subprocess.run(submitted, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    ticket = pool.submit(document(4))
    carrying = asyncio.ensure_future(pool.carry(ticket, most_s=400))
    store = pool.hook.store

    def is_expected() -> bool:
        gang = store.attempts.get(store.trials.get(ticket.trial_id).attempt_id)
        job = store.external_jobs.of_allocation(gang.allocation_id)
        return job is not None and job.expected_at is not None

    await counting.until(is_expected, carrying)
    row = (await asyncio.to_thread(commands, "explain", str(ticket.trial_id), "-o", "json")).json
    (gang,) = await asyncio.to_thread(commands.rows, "queue", "list")
    assert row["outlook"] == "later"
    assert row["job"] == gang["job"]["number"]
    assert "Resources" in row["reason"]
    assert "Resources" in gang["reason"]
    assert row["expected"].endswith("as its scheduler estimates")
    assert gang["expected_at"] == gang["job"]["expected_at"]
    assert (gang["position"], gang["queue_class"], row.get("position")) == (None, None, None)
    listed = (await asyncio.to_thread(commands, "queue", "list")).out
    assert f"job {row['job']}" in listed.replace("\n", " ")
    subprocess.run(["scancel", blocker], check=True, timeout=20)
    await running(pool, ticket, carrying)
    await _shows_a_running_job(commands, ticket.trial_id, row["job"])
    killed = await asyncio.to_thread(commands, "trials", "kill", str(ticket.trial_id), "-y")
    assert killed.code == 0, killed.err
    outcome = await carrying
    assert outcome is not None
    assert outcome.state == "killed"
    await _shows_the_timeline(pool, commands, ticket.trial_id, row["job"])


async def _shows_a_running_job(commands: World, trial_id: int, number: str) -> None:
    found = await asyncio.to_thread(commands.rows, "hosts", "list")
    assert [one["job"] for one in found] == [number]
    described = (await asyncio.to_thread(commands, "pools", "describe", "hpc")).out
    assert f"{number}: running on n1 since" in described
    (row,) = [one for one in await asyncio.to_thread(commands.rows, "pools", "list") if one["name"] == "hpc"]
    assert (row["slots"], row["held"], row["running"]) == (4, 4, 1)
    host = found[0]["name"]
    for refused in (
        ("hosts", "drain", host), ("hosts", "disable", host, "-y"), ("hosts", "disable", host, "--slot", "0"),
        ("hosts", "remove", host, "--force", "-y"), ("hosts", "probe", host), ("hosts", "set", host, "--env", "A=b"),
    ):  # fmt: skip
        done = await asyncio.to_thread(commands, *refused)
        assert done.code != 0, refused
        assert f"is a node of job {number} of pool 'hpc'" in done.err, refused
        assert f"airflow dtrain trials kill {trial_id}" in done.err, refused
    for harmless in (("hosts", "probe"), ("gc", "--older-than", "1", "--hosts"), ("maintenance", "show")):
        done = await asyncio.to_thread(commands, *harmless)
        assert done.code in (0, 3), (harmless, done.err)
        assert host not in done.out + done.err
    removed = await asyncio.to_thread(commands, "pools", "remove", "hpc", "-y")
    assert removed.code == 3
    assert f"job {number}" in removed.err


async def _shows_the_timeline(pool: Engine, commands: World, trial_id: int, number: str) -> None:
    for _ in range(100):
        await recover(pool.hook)
        kinds = {one.kind for one in pool.hook.store.timeline.of_trial(trial_id)}
        if "job_ended" in kinds:
            break
        await asyncio.sleep(0.3)
    entries = {one.kind: one for one in pool.hook.store.timeline.of_trial(trial_id)}
    assert entries["job_submitted"].text == f"Job {number} of slurm was submitted to pool 'hpc'."
    assert entries["job_started"].text.startswith(f"Job {number} of slurm started on n1, ")
    assert entries["job_started"].until is not None
    assert "Resources" in next(
        one.text for one in pool.hook.store.timeline.of_trial(trial_id) if one.kind == "waited" and "Res" in one.text
    )
    assert number in entries["job_ended"].text
    node_hours = entries["job_ended"].detail["node_hours"]
    assert isinstance(node_hours, float)
    row = (await asyncio.to_thread(commands, "trials", "describe", str(trial_id), "-o", "json")).json
    assert row["job_use"]["jobs"] == 1
    assert 0 < row["job_use"]["node_hours"] < 0.1
    assert row["job_use"]["waited_s"] > 0
    assert [one["end_kind"] for one in row["jobs"]] == ["completed"]
    table = (await asyncio.to_thread(commands, "trials", "describe", str(trial_id))).out
    assert "node hours" in table
