"""Gangs whose ranks take generated times, for the watch over slow ranks."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_dtrain.core.series.points import Key, Points
from airflow_provider_dtrain.core.series.slow_causes import SlowCause
from airflow_provider_dtrain.core.series.step_times import SlowRule
from airflow_provider_dtrain.core.series.stragglers import Changes, Place, StragglerWatch

START_S = 1_700_000_000
#: Forward pass of a rank at a second of the run.
Forward = Callable[[int, int], float]


def usual(_: int, __: int) -> float:
    return 0.1


class Gang:
    """A gang whose ranks are on hosts of their own and exchange gradients in each step."""

    def __init__(self, ranks: int = 4, rule: SlowRule | None = None, named: dict[int, SlowCause] | None = None) -> None:
        self.places = {rank: Place(host=f"h{rank}", device=f"GPU-{rank}") for rank in range(ranks)}
        self.watch = StragglerWatch(self.places, rule or SlowRule(), named)
        self.now = 0

    def run(
        self, seconds: int, forward: Forward = usual, facts: dict[int, dict[str, float]] | None = None
    ) -> list[tuple[int, Changes]]:
        """Let the ranks work, and return the changes with the second at which a check found them."""
        found = []
        for start in range(self.now, self.now + seconds, 10):
            for rank, place in self.places.items():
                self.watch.add(place.host, self.measured(rank, start, forward, (facts or {}).get(rank, {})))
            changes = self.watch.check()
            if changes != Changes():
                found.append((start + 10, changes))
        self.now += seconds
        return found

    def measured(self, rank: int, start: int, forward: Forward, facts: dict[str, float]) -> dict[Key, Points]:
        series: dict[Key, Points] = {}
        for second in (start + 4, start + 9):
            busy = {one: forward(one, second) for one in self.places}
            step = max(busy.values()) + 0.05
            count = max(1, int(5 / step))
            values = {"train_batch": step, "forward": busy[rank], "backward": step - busy[rank]}
            for name, value in (*values.items(), ("gradient_exchange", step - busy[rank] - 0.01)):
                of = 1 if name == "gradient_exchange" else count
                series.setdefault(Key(name, "", rank), Points()).add(START_S + second, of, value, value, value)
            for name, value in facts.items():
                key = Key(name, f"GPU-{rank}") if name.startswith("gpu_") else Key(name)
                key = Key(name, "", rank) if name in ("cpu_wait", "cpu_throttled") else key
                series.setdefault(key, Points()).add(START_S + second, 1, value, value, value)
        return series
