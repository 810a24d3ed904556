"""Description of a Slurm cluster for a pool: facts, findings, and the job that a gang would be."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_dtrain.core.scheduler_facts import from_document, to_document
from airflow_provider_dtrain.core.slurm.cluster import ClusterConfig, Node, Partition
from airflow_provider_dtrain.core.slurm.connection import defaults_of, without_empty
from airflow_provider_dtrain.core.slurm.description import facts_of, findings_of, missing_programs
from airflow_provider_dtrain.core.slurm.options import slurm_options
from airflow_provider_dtrain.core.slurm.user_options import excludes_nodes
from airflow_provider_dtrain.engine.submission.job_outlook import before_submission
from airflow_provider_dtrain.errors import ConfigError, SubmissionRefusedError
from airflow_provider_dtrain.hosts.schedulers.registry import scheduler_kind
from airflow_provider_dtrain.store.records.trials import Pool

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
NODE = Node(name="n1", state="IDLE", cpus=16, memory_mib=4096, gres=(("gpu", "a100", 4),))
GPU = Partition(
    name="gpu", is_default=True, state="UP", max_time_s=86400, default_time_s=None, preempt_mode="REQUEUE",
    grace_time_s=120, nodes=(NODE, replace(NODE, name="n2"), replace(NODE, name="n3", state="DOWN")),
)  # fmt: skip
CONFIG = ClusterConfig(
    cluster="big", version=(23, 11, 4), proctrack="proctrack/cgroup", select="select/cons_tres",
    preempt_mode=frozenset(["REQUEUE"]), preempt_type="preempt/partition_prio", kill_wait_s=30, min_job_age_s=300,
    priority_flags=frozenset(["ACCRUE_ALWAYS"]), has_accounting=True, enforces=frozenset(["LIMITS"]),
    max_job_count=10000, max_array_size=1001, private_data=frozenset(),
)  # fmt: skip
PROGRAMS = dict.fromkeys(["sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun", "sacct"], "/usr/bin/x")


def findings(
    config: ClusterConfig = CONFIG, of: Partition = GPU, programs: Any = PROGRAMS, **options: Any
) -> dict[str, tuple[bool, str]]:
    found = findings_of(slurm_options(options), programs=programs, config=config, partitions=[of])
    return {one.name: (one.is_ok, one.message) for one in found}


def test_a_cluster_that_can_run_jobs_passes_all_checks() -> None:
    found = findings()
    assert all(is_ok for is_ok, _ in found.values()), found
    assert found["partition"][1] == "'gpu' is UP, 2 of 3 nodes can get jobs"
    assert found["nodes"][1] == "slots of nodes: 3 with 4"
    assert "1-00:00:00" in found["time limit"][1]


@pytest.mark.parametrize(
    ("name", "is_ok", "part", "config", "partition", "options"),
    [
        ("version", True, "bug 15857", {"version": (22, 5, 8)}, {}, {}),
        ("version", True, "bug 15857", {"version": (22, 5, 5)}, {}, {}),
        ("version", True, "22.05.9", {"version": (22, 5, 9)}, {}, {}),
        ("version", False, "--overlap", {"version": (20, 2, 7)}, {}, {}),
        ("version", True, "not known", {"version": None}, {}, {}),
        ("partition", False, "is DOWN", {}, {"state": "DOWN"}, {}),
        ("partition", False, "0 of 1 nodes", {}, {"nodes": (replace(NODE, state="DRAINED"),)}, {}),
        ("partition", False, "no partition 'cpu'", {}, {}, {"partition": "cpu"}),
        ("nodes", False, "--gres-name", {}, {"nodes": (replace(NODE, gres=()),)}, {}),
        ("time limit", False, "neither DefaultTime nor MaxTime", {}, {"max_time_s": None}, {}),
        ("time limit", False, "above MaxTime", {}, {}, {"time_limit": "2d"}),
        ("preemption", True, "GraceTime 120 s: a preempted job has 120 s", {}, {}, {}),
        ("preemption", True, "GraceTime 0: a preempted job ends at once", {}, {"grace_time_s": 0}, {}),
        ("preemption", True, "suspended", {}, {"preempt_mode": "SUSPEND"}, {}),
        ("preemption", True, "off", {}, {"preempt_mode": "OFF"}, {}),
        ("preemption", True, "off", {"preempt_type": "preempt/none"}, {}, {}),
        ("process tracking", True, "linuxproc is not proctrack/cgroup", {"proctrack": "proctrack/linuxproc"}, {}, {}),
        ("priority", True, "no ACCRUE_ALWAYS", {"priority_flags": frozenset()}, {}, {}),
        ("max jobs", False, "above the cluster's MaxJobCount 10", {"max_job_count": 10}, {}, {"max_jobs": 11}),
        ("max jobs", True, "sacctmgr show assoc", {}, {}, {"max_jobs": 11}),
        ("ended jobs", False, "may forget", {"min_job_age_s": 10, "has_accounting": False}, {}, {}),
        ("ended jobs", True, "accounting on", {"min_job_age_s": 10}, {}, {}),
    ],
)
def test_findings_name_what_stops_jobs_or_loses_work(
    name: str, is_ok: bool, part: str, config: dict[str, Any], partition: dict[str, Any], options: dict[str, Any]
) -> None:
    found = findings(replace(CONFIG, **config), replace(GPU, **partition), **options)
    assert found[name][0] is is_ok
    assert part in found[name][1]
    for _, message in found.values():
        assert not re.search(r"\.\.|\.$|[^.;,] (Set|See) ", message), message


def test_sacct_is_never_required() -> None:
    without = {**PROGRAMS, "sacct": None}
    needed = [name for name in PROGRAMS if name != "sacct"]
    assert missing_programs(without, needed) is None
    assert findings(programs=without)["programs"][0]
    assert "CPU efficiency" in findings(programs=without)["programs"][1]
    finding = missing_programs({**PROGRAMS, "srun": None}, needed)
    assert finding is not None
    assert not finding.is_ok
    assert "srun" in finding.message


def test_facts_survive_the_store_and_give_the_job_that_a_gang_would_be() -> None:
    facts = facts_of(slurm_options({}), CONFIG, [GPU], AT)
    assert from_document(to_document(facts)) == facts
    kind = scheduler_kind("slurm")
    shape = kind.shape(facts, 8)
    assert (shape.text, shape.partition, shape.time_limit_s) == ("2 nodes with 4 slots each", "gpu", 86400)
    assert kind.shape(facts, 1).text == "1 node with 1 slot"
    assert kind.shape(facts, 0).text == "1 node without a slot"
    with pytest.raises(SubmissionRefusedError, match="Sizes that work near it: 1, 2, 3, 4, 6, 8, 9, 12"):
        kind.shape(facts, 7)
    with pytest.raises(SubmissionRefusedError, match="on one node"):
        kind.shape(facts, 8, is_single_host=True)


def test_without_a_partition_or_a_time_limit_no_job_can_be_submitted() -> None:
    kind = scheduler_kind("slurm")
    for options, partition in (({"partition": "x"}, GPU), ({}, replace(GPU, max_time_s=None))):
        facts = facts_of(slurm_options(options), CONFIG, [partition], AT)
        assert facts.problem
        with pytest.raises(SubmissionRefusedError, match=r"no partition 'x'|neither DefaultTime"):
            kind.shape(facts, 1)


def explained(slots: int, of: Partition = GPU, **options: Any) -> dict[str, Any]:
    facts = facts_of(slurm_options(options), CONFIG, [of], AT)
    pool = Pool(name="hpc", slot_type="cuda", backend="slurm", scheduler=options, facts=facts)
    return before_submission(pool, slots, is_single_host=False)


def test_an_explanation_names_nodes_that_are_away_and_options_that_may_exclude_some() -> None:
    assert "Not known before" in explained(8)["reason"]
    assert "It waits" not in explained(8)["reason"]
    assert "Not considered" not in explained(8)["reason"]
    found = explained(12, sbatch_options=["-C a100", "--nice=3"])
    assert (found["outlook"], found["nodes"]) == ("later", "3 nodes with 4 slots each")
    assert found["reason"].startswith("It waits until nodes come back: 1 of 3 nodes of partition 'gpu' are down")
    assert found["reason"].endswith("Not considered, and possibly fewer nodes or none: -C a100.")
    assert explained(4, replace(GPU, state="DRAIN"))["reason"].startswith("Partition 'gpu' is DRAIN, and starts no job")
    assert explained(16)["outlook"] == "never"


@pytest.mark.parametrize(
    ("option", "is_excluding"),
    [
        ("--constraint=a100", True), ("--constr a100", True), ("-C a100", True), ("-wn1", True),
        ("--nodelist=n1", True), ("--reservation=x", True), ("--nice=3", False), ("--mail-type=END", False),
        ("-D /scratch", False),
    ],
)  # fmt: skip
def test_options_that_may_exclude_nodes_are_known(option: str, is_excluding: bool) -> None:
    assert excludes_nodes(option) is is_excluding


class FakeConnection:
    """Airflow connection, as far as a pool reads it."""

    conn_id = "login"

    def __init__(self, conn_type: str, **extra: Any) -> None:
        self.conn_type, self.extra_dejson = conn_type, extra

    def get_uri(self) -> str:
        return f"{self.conn_type}://login?{self.extra_dejson}"


def test_options_of_a_pool_replace_those_of_its_connection() -> None:
    from airflow_provider_dtrain.hosts.slurm.scheduler import _options

    own = FakeConnection("dtrain_slurm", account="a", partition="p", setup="module load x\r\ny", key_file="")
    found = _options({"partition": "q"}, own, "pool 'hpc'")
    assert (found.account, found.partition, found.setup) == ("a", "q", "module load x\ny")
    plain = _options({"partition": "q"}, FakeConnection("ssh", account="a"), "pool 'hpc'")
    assert (plain.account, plain.partition) == (None, "q")
    with pytest.raises(ConfigError, match="connection 'login'"):
        _options({}, FakeConnection("dtrain_slurm", account="a b; rm"), "pool 'hpc'")


def test_empty_fields_of_a_form_are_no_values() -> None:
    assert defaults_of({"account": "", "partition": None, "setup": "x", "key_file": "k"}) == {"setup": "x"}
    assert without_empty({"private_key": "", "host_key": None, "key_file": "k"}) == {"key_file": "k"}
