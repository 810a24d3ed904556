"""Limit of concurrent trials of a search: max_concurrent_trials in the queue."""

from __future__ import annotations

from airflow_provider_dtrain.core.scheduling.cycle import step
from airflow_provider_dtrain.core.scheduling.decision import run_pass
from airflow_provider_dtrain.core.scheduling.estimated_start import NO_FOLLOWER
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, PoolOptions, RunningGang
from airflow_provider_dtrain.core.scheduling.pool_state import PoolState

OPTIONS = PoolOptions()


def trial(number: int, slots: int = 1, most: int | None = 2, **fields) -> GangRequest:
    values = {"sequence": number, "group": "e", "crowd": "s", "max_gangs": most, **fields}
    return GangRequest(str(number), slots, **values)


def runs(name: str, *indices: int, crowd: str = "s", **fields) -> RunningGang:
    placement = Placement({"a": indices} if indices else {})
    return RunningGang(request_id=name, placement=placement, owner=f"trial {name}", group="e", crowd=crowd, **fields)


def granted(requests, running=(), held=()) -> list[str]:
    decision = run_pass([Host("a", 8, frozenset(held))], requests, OPTIONS, running)
    return [request_id for request_id, _ in decision.grants]


def test_no_more_trials_of_a_search_start_than_may_run_at_once():
    assert granted([trial(1), trial(2), trial(3), trial(4)]) == ["1", "2"]
    assert granted([trial(1), trial(2)], [runs("9", 0)], {0}) == ["1"]
    assert granted([trial(1)], [runs("8", 0), runs("9", 1)], {0, 1}) == []


def test_trials_without_slots_count_as_well():
    assert granted([trial(1, 0), trial(2, 0), trial(3, 0)]) == ["1", "2"]
    assert granted([trial(1, 0), trial(2, 4)], [runs("9")]) == ["1"]


def test_what_is_no_trial_of_the_search_is_neither_counted_nor_kept_waiting():
    others = [trial(3, crowd="t", most=None), trial(4, crowd="", most=None), GangRequest("5", 1, sequence=5)]
    running = [runs("8", 0, crowd="t"), runs("9", 1, crowd="")]
    assert granted([trial(1, most=1), trial(2, most=1), *others], running, {0, 1}) == ["5", "1", "3", "4"]


def test_those_that_wait_say_how_many_run_and_their_waiting_does_not_count():
    decision = run_pass([Host("a", 8)], [trial(number, 0, 16) for number in range(17)], OPTIONS)
    assert decision.ineligible == {"16": "16 of 16 trials of the experiment run (max_concurrent_trials)."}
    words = "Position 1. 16 of 16 trials of the experiment run (max_concurrent_trials)."
    assert decision.reasons["16"] == words
    assert decision.expected["16"].text == "not known; its experiment is at max_concurrent_trials"


def test_a_cap_of_slots_and_one_of_trials_hold_together():
    queue = [trial(number, 2, 3, max_slots=4) for number in range(5)]
    assert granted(queue) == ["0", "1"]
    assert granted([trial(number, 1, 3, max_slots=4) for number in range(5)]) == ["0", "1", "2"]


def test_a_slot_goes_to_the_first_trial_that_has_a_follower_and_the_trial_before_it_is_next():
    queue = [trial(1, 8, is_followed=False), trial(2, 8), trial(3, 8)]
    decision = run_pass([Host("a", 8)], queue, OPTIONS)
    assert [request_id for request_id, _ in decision.grants] == ["2"]
    assert decision.reasons["1"] == f"Position 1. {NO_FOLLOWER}"
    assert granted([trial(1, 8), trial(3, 8)]) == ["1"]


def test_a_trial_without_a_follower_at_the_cap_of_its_search_ends_the_pass():
    assert granted([trial(1, is_followed=False), trial(2)], [runs("8", 0), runs("9", 1)], {0, 1}) == []


def test_hosts_and_slots_that_are_kept_for_a_gang_wait_for_its_follower():
    hosts = [Host("a", 8, frozenset({0})), Host("b", 8)]
    wide = trial(1, 16, None, reserved_hosts=("a", "b"), is_followed=False)
    running = [runs("9", 0, crowd="")]
    decision = run_pass(hosts, [wide, trial(2, 1, None)], OPTIONS, running)
    assert (decision.grants, set(decision.reserved.values())) == ((), {"1"})
    claimed = trial(1, 8, None, claim=Placement({"b": tuple(range(8))}), is_followed=False)
    decision = run_pass(hosts, [claimed, trial(2, 8, None)], OPTIONS, running)
    assert (decision.grants, decision.claims) == ((), {"1": claimed.claim})


def test_slots_that_are_coming_for_a_trial_count_it_and_it_does_not_wait_for_itself():
    claim = Placement({"a": (0, 1)})
    ending = [runs("9", 0, 1, crowd="", is_ending=True)]
    queue = [trial(1, 2, 1, claim=claim), trial(2, 1, 1)]
    decision = run_pass([Host("a", 8, frozenset({0, 1}))], queue, OPTIONS, ending)
    assert (decision.grants, dict(decision.claims)) == ((), {"1": claim})
    assert list(decision.ineligible) == ["2"]
    assert granted(queue) == ["1"]


def test_a_trial_starts_when_another_one_of_its_search_has_ended():
    state = PoolState([Host("a", 8)], OPTIONS)
    for number in range(3):
        state.submit(trial(number, 1, 1))
    started = []
    for moment in range(3):
        started += [request_id for request_id, _ in step(state, float(moment)).grants]
        assert step(state, moment + 0.5).grants == ()
        state.end(started[-1])
    assert started == ["0", "1", "2"]
