"""The pass over lanes, compared with a pass that examines every request in turn."""

from __future__ import annotations

from hypothesis import given, settings

from airflow_provider_dtrain.core.scheduling.decision import run_pass
from tests.support.budgets import budget
from tests.support.naive_queue import NaiveQueue
from tests.support.situations import Situation, full_pools, situations

#: Few hosts of one size, so that gangs often need hosts of unequal sizes.
MIXED = {"sizes": (4, 2, 2, 1), "most_hosts": 6, "unequal": (False, True)}


def same_as_naive(found: Situation) -> None:
    fast = run_pass(found.hosts, found.requests, found.options, found.running)
    slow = NaiveQueue(found.hosts, found.requests, found.options, found.running).run()
    assert list(fast.grants) == slow.grants
    assert [claimant for _, claimant in fast.preemptions] == [claimant for _, claimant in slow.preemptions]
    assert dict(fast.claims) == slow.claims
    assert fast.reserved == {host: holder for holder, hosts in slow.reserved.items() for host in hosts}
    assert set(fast.reasons) == set(slow.waiting)


@settings(max_examples=budget(150), deadline=None)
@given(situations(single_host=True))
def test_one_host_requests_are_decided_as_by_looking_at_every_one(found):
    same_as_naive(found)


@settings(max_examples=budget(150), deadline=None)
@given(situations(**MIXED, preemption=("off",)))
def test_gangs_of_all_shapes_are_decided_as_by_looking_at_every_one_without_preemption(found):
    same_as_naive(found)


@settings(max_examples=budget(300), deadline=None)
@given(situations(**MIXED, widths=(1,), preemption=("priority", "slices")))
def test_gangs_of_all_shapes_preempt_the_gangs_of_single_hosts_that_brute_force_chooses(found):
    same_as_naive(found)


@settings(max_examples=budget(300), deadline=None)
@given(full_pools(preemption=("slices", "off")))
def test_a_gang_of_whole_hosts_preempts_or_reserves_those_that_brute_force_chooses(found):
    same_as_naive(found)
