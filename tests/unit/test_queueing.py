from __future__ import annotations

from airflow_provider_dtrain.core.scheduling.decision import PassDecision, run_pass
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, PoolOptions


def request(number: int, slots: int, **fields) -> GangRequest:
    return GangRequest(str(number), slots, sequence=number, **fields)


def granted(decision: PassDecision) -> list[str]:
    return [request_id for request_id, _ in decision.grants]


def busy(name: str, held: int, slots: int = 8) -> Host:
    return Host(name, slots, frozenset(range(held)))


def test_requests_start_by_priority_then_submission_then_id():
    queue = [request(2, 8), request(1, 8), GangRequest("b", 8, sequence=0), GangRequest("a", 8, sequence=0)]
    urgent = GangRequest("z", 8, priority=1, sequence=99)
    hosts = [Host(f"h{n}", 8) for n in range(5)]
    assert granted(run_pass(hosts, [*queue, urgent], PoolOptions())) == ["z", "a", "b", "1", "2"]


def test_grants_of_one_pass_see_each_others_slots():
    decision = run_pass([Host("a", 8)], [request(n, 3) for n in range(3)], PoolOptions())
    assert [dict(placement.slots) for _, placement in decision.grants] == [{"a": (0, 1, 2)}, {"a": (3, 4, 5)}]
    assert decision.positions == {"2": 1}


def test_a_host_that_an_earlier_grant_shares_is_not_entirely_free_any_more():
    decision = run_pass([Host("a", 8), Host("b", 8)], [request(1, 1), request(2, 16)], PoolOptions())
    assert granted(decision) == ["1"]
    assert "closest are a and b" in decision.reasons["2"]


def test_a_wide_gang_keeps_hosts_and_narrow_ones_backfill_elsewhere():
    hosts = [busy("a", 1), busy("b", 2), busy("c", 7)]
    decision = run_pass(hosts, [request(1, 16), request(2, 1), request(3, 1)], PoolOptions(reservations=1))
    assert decision.reserved == {"a": "1", "b": "1"}
    assert granted(decision) == ["2"]
    assert decision.grants[0][1].slots == {"c": (7,)}
    assert "closest is c" in decision.reasons["3"]


def test_a_reason_says_that_free_hosts_are_kept_for_requests_before_it():
    decision = run_pass([busy("a", 1)], [request(1, 8), request(2, 1)], PoolOptions())
    assert "Reserved for requests before it: a." in decision.reasons["2"]


def test_without_reservations_narrow_gangs_go_first():
    hosts = [busy("a", 1), busy("b", 2)]
    decision = run_pass(hosts, [request(1, 16), request(2, 1)], PoolOptions(reservations=0))
    assert granted(decision) == ["2"]
    assert decision.reserved == {}


def test_a_wide_gang_starts_although_narrow_ones_keep_coming():
    """Each round one running job ends and one narrow job arrives. Without reservation the wide job starves."""

    def rounds_until_start(reservations: int) -> int | None:
        held = {"a": set(range(8)), "b": set(range(8))}
        queue = [request(0, 16)]
        for number in range(1, 40):
            for slots in held.values():
                if len(slots) and (number % 2 == 0) == (slots is held["a"]):
                    slots.discard(min(slots))
            queue.append(request(number, 1))
            hosts = [Host(name, 8, frozenset(slots)) for name, slots in held.items()]
            decision = run_pass(hosts, queue, PoolOptions(reservations=reservations))
            if "0" in granted(decision):
                return number
            for request_id, placement in decision.grants:
                queue = [waiting for waiting in queue if waiting.request_id != request_id]
                for host, indices in placement.slots.items():
                    held[host] |= set(indices)
        return None

    assert rounds_until_start(0) is None
    assert rounds_until_start(1) is not None


def test_the_reserved_hosts_are_those_with_the_fewest_held_slots():
    hosts = [busy("a", 8), busy("b", 3), busy("c", 1), busy("d", 2)]
    decision = run_pass(hosts, [request(1, 16)], PoolOptions())
    assert set(decision.reserved) == {"c", "d"}
    assert "closest are c and d" in decision.reasons["1"]


def test_the_second_holder_reserves_other_hosts_and_the_third_none():
    hosts = [busy(name, 4) for name in "abcdef"]
    decision = run_pass(hosts, [request(n, 16) for n in (1, 2, 3)], PoolOptions(reservations=2))
    assert len(decision.reserved) == 4
    assert sorted(set(decision.reserved.values())) == ["1", "2"]


def test_hosts_are_not_kept_for_a_gang_that_also_needs_one_that_is_not_ready():
    hosts = [busy("a", 4), Host("b", 8, state="unreachable")]
    decision = run_pass(hosts, [request(1, 16), request(2, 4)], PoolOptions())
    assert decision.reserved == {}
    assert granted(decision) == ["2"]
    assert "Unreachable: b." in decision.reasons["1"]


def test_an_excluded_host_is_not_kept():
    hosts = [busy("a", 6), busy("b", 7)]
    decision = run_pass(hosts, [request(1, 4, excluded_hosts=frozenset({"a"}))], PoolOptions())
    assert decision.reserved == {"b": "1"}


def test_what_can_never_run_is_told_apart_from_what_waits():
    decision = run_pass([busy("a", 8), busy("b", 8)], [request(1, 12), request(2, 16)], PoolOptions())
    assert set(decision.unplaceable) == {"1"}
    assert decision.unplaceable["1"].never
    assert set(decision.reasons) == {"2"}
    assert decision.positions == {"2": 1}


def test_a_reason_says_what_is_missing_the_position_and_the_reserved_hosts():
    decision = run_pass([busy("a", 8), busy("b", 6)], [request(1, 4), request(2, 8)], PoolOptions(reservations=1))
    assert decision.reasons["1"] == (
        "Position 1. 2 of 4 slots missing. 4 slots on one host needed, closest is b. Reserved for it: b."
    )
    assert decision.reasons["2"] == ("Position 2. 8 of 8 slots missing. 8 slots on one host needed, closest is a.")


def test_a_reason_names_the_hosts_where_only_a_reservation_is_in_the_way():
    hosts = [Host("a", 4), busy("b", 3, 4), Host("c", 4)]
    decision = run_pass(hosts, [request(1, 12), request(2, 2), request(3, 8)], PoolOptions(reservations=1))
    assert decision.reserved == {"a": "1", "b": "1", "c": "1"}
    assert decision.reasons["2"] == (
        "Position 2. 2 slots on one host: free on a and c. Reserved for requests before it: a and c."
    )
    assert decision.reasons["3"] == (
        "Position 3. 8 slots on 2 whole hosts: free on a and c. Reserved for requests before it: a and c."
    )


def test_a_reason_names_a_host_that_others_keep_beside_the_one_that_comes_closest():
    hosts = [busy("a", 8), Host("b", 8), busy("c", 4, 4)]
    decision = run_pass(hosts, [request(1, 16), request(2, 4)], PoolOptions(reservations=1))
    assert decision.reserved == {"a": "1", "b": "1"}
    assert decision.reasons["2"] == (
        "Position 2. 4 of 4 slots missing. 4 slots on one host needed, closest is c. "
        "Free, but reserved for requests before it: b."
    )


def test_a_reason_counts_slots_that_were_granted_in_the_same_pass():
    decision = run_pass([Host("a", 8)], [request(1, 5), request(2, 4)], PoolOptions())
    assert "closest is a. 5 slots just granted to other requests." in decision.reasons["2"]


def test_a_request_without_slots_starts_even_where_hosts_are_reserved():
    decision = run_pass([busy("a", 1)], [request(1, 8), request(2, 0)], PoolOptions())
    assert granted(decision) == ["2"]
    assert decision.reserved == {"a": "1"}


def test_a_pool_without_hosts_makes_everything_unplaceable():
    decision = run_pass([], [request(1, 0), request(2, 4)], PoolOptions())
    assert set(decision.unplaceable) == {"1", "2"}
    assert decision.reasons == {}
