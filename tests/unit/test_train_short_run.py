"""Short runs of a diagnosis, as a rank sees them: steps are counted, data is repeated, other ranks end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_dtrain.train.data.first_batches import FirstBatches
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.reports.short_run import STEPS_LEAST, ShortRun, StepLimit, reduced

SECTION = {"steps": 20, "warm_up": 3, "most_s": 100.0, "synthetic": False, "alone": False}


class Ranks:
    """Messages of a rank whose peers have values of their own."""

    def __init__(self, *, peer_step_us: int = 0, peer_is_long: Callable[[], bool] = lambda: False) -> None:
        self.peer_step_us, self.peer_is_long = peer_step_us, peer_is_long
        self.exchanges = 0

    def any(self, flag: bool) -> bool:
        self.exchanges += 1
        return flag or self.peer_is_long()

    def largest(self, number: int) -> int:
        self.exchanges += 1
        return max(number, self.peer_step_us)


class Timings:
    def __init__(self) -> None:
        self.now = 0.0
        self.discarded_at: list[float] = []

    def clock(self) -> float:
        return self.now

    def discard(self) -> None:
        self.discarded_at.append(self.now)

    def of(self, name: str) -> Any:
        import contextlib

        assert name == "from_device"
        return contextlib.nullcontext()


def steps_of(ranks: Ranks, step_s: float, check: Callable[[], None] = lambda: None, **section: Any) -> tuple[int, Any]:
    """Return the number of steps until the program ends, and the timings."""
    run = ShortRun.of({"diagnosis": {**SECTION, **section}})
    assert run is not None
    timings = Timings()
    limit = StepLimit(run, ranks, timings, settle=lambda: None, check=check)  # type: ignore[arg-type]
    for batch in range(1, 10_000):
        timings.now += step_s
        try:
            limit(batch, timings.now)
        except SystemExit as end:
            return (batch, timings) if end.code == 0 else (-1, timings)
    raise AssertionError("it never ended")


def test_a_program_ends_after_its_warm_up_and_its_steps() -> None:
    # The first step is the start of the warm-up.
    steps, timings = steps_of(Ranks(), 0.01)
    assert steps == 1 + 3 + 20
    assert timings.discarded_at == [pytest.approx(0.04)]


def test_fewer_steps_are_measured_if_they_take_long_on_any_rank() -> None:
    # 35 s of 100 s are for the measured steps, 15 s for the warm-up.
    assert steps_of(Ranks(), 3.0)[0] == 1 + 3 + 11
    assert steps_of(Ranks(peer_step_us=5_000_000), 0.01)[0] == 1 + 3 + 7
    assert steps_of(Ranks(peer_step_us=10**9), 0.01)[0] == 1 + 3 + STEPS_LEAST


def test_a_long_warm_up_ends_early_on_all_ranks() -> None:
    assert steps_of(Ranks(), 20.0)[0] == 2 + STEPS_LEAST
    assert steps_of(Ranks(peer_is_long=lambda: True), 0.01)[0] == 2 + 20


def test_nothing_is_exchanged_between_the_warm_up_and_the_end() -> None:
    short, long = Ranks(), Ranks()
    steps_of(short, 0.01, steps=5)
    steps_of(long, 0.01, steps=500)
    assert short.exchanges == long.exchanges == 3


def test_settings_without_effect_fail_the_run_instead_of_its_figures() -> None:
    def check() -> None:
        raise ValueError("ctx.backward was never called")

    with pytest.raises(ValueError, match="never called"):
        steps_of(Ranks(), 0.01, check)


def test_a_usual_run_has_no_limits() -> None:
    assert ShortRun.of({}) is None
    assert ShortRun.of({"diagnosis": None}) is None


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_but_one_end_when_it_trains_alone(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    env = RankEnvironment(
        rank=rank, world_size=2, local_world_size=2, run="t1.1.1", config={"diagnosis": {**SECTION, "alone": True}}
    )
    if rank:
        with pytest.raises(SystemExit) as end:
            reduced(env)
        assert end.value.code == 0
    else:
        found = reduced(env)
        assert (found.world_size, found.local_world_size) == (1, 1)


def test_an_environment_stays_as_it_is_without_the_section_and_off_the_cluster() -> None:
    alone = {"diagnosis": {**SECTION, "alone": True}}
    for env in (
        RankEnvironment(rank=1, world_size=2, run="t1.1.1"),
        RankEnvironment(rank=1, world_size=2, run="t1.1.1", config={"diagnosis": SECTION}),
        RankEnvironment(rank=1, world_size=2, config=alone),
    ):
        assert reduced(env) is env


def test_the_first_batch_of_each_data_set_is_read_once_and_repeated() -> None:
    first, data, other = FirstBatches(), object(), object()
    reads: list[int] = []

    def batches(start: int) -> Any:
        for number in range(start, start + 3):
            reads.append(number)
            yield number

    repeated = first.of(data, batches(10))
    assert [next(repeated) for _ in range(5)] == [10] * 5
    assert next(first.of(data, batches(20))) == 10
    assert next(first.of(other, batches(30))) == 30
    assert reads == [10, 30]
    assert list(FirstBatches().of(data, iter(()))) == []
