"""Moves: gangs that stop so that a request fits on their host, and continue on free slots of others."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.core.scheduling.decision import run_pass
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, PoolOptions, RunningGang
from airflow_provider_dtrain.core.simulation.queue_policy import SimulatedQueue
from airflow_provider_dtrain.core.simulation.simulator import SimulatedJob, hosts_of, simulate

HOUR = 3600.0
SLICES = PoolOptions(preemption="slices", min_run_s=1800.0)
WIDE = GangRequest("wide", 8, sequence=9)


def gang(name: str, host: str, slots: range, **fields) -> RunningGang:
    values = {"ran_s": HOUR, "held_s": HOUR, "is_preemptible": True, "sequence": 1, **fields}
    return RunningGang(request_id=name, placement=Placement({host: tuple(slots)}), owner=name, **values)


def moved(running: list[RunningGang], options=SLICES, request=WIDE) -> tuple[list[str], set[str]]:
    """Return the gangs that stop on the hosts a and b, and the hosts that the request gets."""
    held = {name: {i for g in running for i in g.placement.slots.get(name, ())} for name in ("a", "b")}
    hosts = [Host(name, 8, frozenset(indices)) for name, indices in held.items()]
    decision = run_pass(hosts, [request], options, running)
    claims = {name for claim in decision.claims.values() for name in claim.slots}
    return sorted(victim for victim, _ in decision.preemptions), claims


def fixed(slots: int) -> RunningGang:
    return gang("fixed", "b", range(slots), is_preemptible=False)


def test_a_gang_of_the_same_class_moves_to_free_slots_of_another_host():
    assert moved([gang("g", "a", range(2)), fixed(6)]) == (["g"], {"a"})


def test_several_gangs_move_if_all_of_them_fit():
    two = [gang("g", "a", range(2)), gang("h", "a", range(2, 4))]
    assert moved([*two, fixed(4)]) == (["g", "h"], {"a"})
    assert moved([*two, fixed(5)]) == ([], set())


@pytest.mark.parametrize("rule", ["off", "priority"])
def test_only_slices_moves_gangs(rule):
    assert moved([gang("g", "a", range(2)), fixed(6)], PoolOptions(preemption=rule)) == ([], set())


@pytest.mark.parametrize(
    "fields",
    [{"is_preemptible": False}, {"ran_s": 1799.0}, {"is_ending": True}, {"priority": 41}, {"waited_s": 40 * HOUR}],
    ids=["not preemptible", "min_run", "ending", "better priority", "oldest that waited max_wait"],
)
def test_which_gangs_are_not_moved(fields):
    assert moved([gang("g", "a", range(2), **fields), fixed(6)]) == ([], set())


def test_a_protected_gang_moves_unless_it_is_the_oldest():
    waited = {"waited_s": 40 * HOUR}
    oldest = gang("oldest", "b", range(6), is_preemptible=False, sequence=0, **waited)
    assert moved([gang("g", "a", range(2), **waited), oldest]) == (["g"], {"a"})


def test_a_gang_of_several_hosts_is_not_moved():
    both = RunningGang(
        request_id="both", placement=Placement({"a": (0,), "b": (0,)}), owner="both", ran_s=HOUR, is_preemptible=True
    )
    assert moved([both]) == ([], set())


def test_no_gang_moves_to_a_reserved_host():
    running = [gang("g", "a", range(2)), fixed(6)]
    hosts = [Host("a", 8, frozenset(range(2))), Host("b", 8, frozenset(range(6)))]
    holder = GangRequest("holder", 8, sequence=0, reserved_hosts=("b",))
    decision = run_pass(hosts, [holder, WIDE], SLICES, running)
    assert decision.preemptions == ()


def test_a_moved_job_loses_only_the_cost_and_the_wide_one_starts_at_once():
    jobs = [
        SimulatedJob(job_id="filler", submit_s=0, slots=6, duration_s=400),
        SimulatedJob(job_id="small", submit_s=1, slots=2, duration_s=9000),
        SimulatedJob(job_id="narrow", submit_s=2, slots=6, duration_s=9000),
        SimulatedJob(job_id="wide", submit_s=2000, slots=8, duration_s=600),
    ]
    hosts = hosts_of([(2, 8)])
    ends = {
        each.job.job_id: each.end_s
        for each in simulate(
            jobs, hosts, SimulatedQueue(hosts, PoolOptions(preemption="slices")), cost_s=60
        ).completions
    }
    assert ends["wide"] == 2000 + 30 + 600
    assert ends["narrow"] == 9002
    assert ends["small"] == 9001 + 60
