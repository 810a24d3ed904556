"""Search methods: budget until a trial of the best 5 % is fully trained, regret, and time of a large plan.

Every method has the same curves in the same order and 16 workers, simulated in event time: a trial reports after each
unit, whose duration is the trial's own. Curves are power laws, loss(t) = floor + gain * t^-rate + noise, with different
rates, so that they cross. The noise of a report is a tenth of the spread of the floors. Budgets are counted in full
trainings (64 units). A seed in which a method reached no such trial has no value. Regret is compared at equal budgets.
The peers run in an environment of their own.
"""

from __future__ import annotations

import heapq
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

from bench.framework.measuring import Run
from bench.framework.rows import OURS, PEER, Bench, Goal, Row

LENGTH, DIVISOR, TRIALS, WORKERS = 64, 4, 512, 16
#: Full trainings after which a run ends, and after which regret is read.
CAP, READ_AT = 300.0, (8, 16, 32)
BEST = 0.05


@dataclass(frozen=True)
class Curve:
    floor: float
    gain: float
    rate: float
    #: Time of one unit.
    speed: float
    noise: tuple[float, ...]

    def final(self) -> float:
        return self.floor + self.gain * LENGTH**-self.rate

    def loss(self, unit: int) -> float:
        return self.floor + self.gain * unit**-self.rate + self.noise[unit - 1]


class Method(Protocol):
    """A scheduler, which decides after each report whether a trial continues."""

    def goes_on(self, trial: int, unit: int, loss: float) -> bool: ...


@dataclass(frozen=True)
class Outcome:
    #: Full trainings until a trial of the best 5 % was fully trained; None: never.
    reached: float | None
    #: At each of ``READ_AT``: true final loss of the trial with the best report so far, minus the best of all.
    regret: tuple[float, ...]


def curves(seed: int) -> list[Curve]:
    chance = random.Random(seed)
    made = []
    for _ in range(TRIALS):
        floor = chance.betavariate(2, 3)
        # Slow starters are slightly better in the end, so curves cross.
        rate = max(0.15, chance.gauss(0.4 + 0.5 * floor, 0.2))
        noise = tuple(chance.gauss(0, 0.02) for _ in range(LENGTH))
        made.append(Curve(floor, chance.uniform(0.5, 1.5), rate, chance.lognormvariate(0, 0.3), noise))
    return made


def limit() -> float:
    """Return the true final loss that 5 % of all trials beat."""
    finals = sorted(curve.final() for seed in range(1000, 1020) for curve in curves(seed))
    return finals[int(BEST * len(finals))]


def run_search(method: Method, pool: list[Curve], good: float) -> Outcome:
    """Simulate one search."""
    events = [(curve.speed, trial, 1) for trial, curve in enumerate(pool[:WORKERS])]
    heapq.heapify(events)
    begun, units, reached = len(events), 0, None
    best, regrets, incumbent = min(curve.final() for curve in pool), [], (float("inf"), 0)
    while events and units < CAP * LENGTH:
        now, trial, unit = heapq.heappop(events)
        units += 1
        loss = pool[trial].loss(unit)
        incumbent = min(incumbent, (loss, trial))
        while len(regrets) < len(READ_AT) and units >= READ_AT[len(regrets)] * LENGTH:
            regrets.append(pool[incumbent[1]].final() - best)
        if unit == LENGTH and reached is None and pool[trial].final() <= good:
            reached = units / LENGTH
        if method.goes_on(trial, unit, loss) and unit < LENGTH:
            heapq.heappush(events, (now + pool[trial].speed, trial, unit + 1))
        elif begun < TRIALS:
            heapq.heappush(events, (now + pool[begun].speed, begun, 1))
            begun += 1
        if reached is not None and len(regrets) == len(READ_AT):
            break
    regrets += [pool[incumbent[1]].final() - best] * (len(READ_AT) - len(regrets))
    return Outcome(reached, tuple(regrets))


class Ours:
    def __init__(self, searcher: dict[str, Any], seed: int) -> None:
        from airflow_provider_dtrain.core.search.plan import plan

        self.trials = plan(config(searcher), seed)
        self.rungs: dict[int, Any] = {}

    def goes_on(self, trial: int, unit: int, loss: float) -> bool:
        from testbed.rungs import Rungs

        spec = self.trials[trial]
        if not spec["rungs"]:
            return True
        rungs = self.rungs.setdefault(spec["bracket"], Rungs(len(spec["rungs"]), LENGTH, DIVISOR))
        return rungs.report(trial, unit, loss) == "continue"


class SyneTune:
    def __init__(self, seed: int, brackets: int = 1) -> None:
        import numpy as np
        from syne_tune.config_space import uniform
        from syne_tune.optimizer.schedulers.asha import AsynchronousSuccessiveHalving

        np.random.seed(seed)
        self.scheduler = AsynchronousSuccessiveHalving(
            {"x": uniform(0, 1)},
            metric="loss",
            time_attr="unit",
            max_t=LENGTH,
            grace_period=1,
            reduction_factor=DIVISOR,
            brackets=brackets,
            random_seed=seed,
        )
        self.known: dict[int, Any] = {}

    def goes_on(self, trial: int, unit: int, loss: float) -> bool:
        from datetime import datetime

        from syne_tune.backend.trial_status import Trial

        if trial not in self.known:
            self.known[trial] = Trial(trial, {"x": 0.5}, datetime(2020, 1, 1))
            self.scheduler.on_trial_add(self.known[trial])
        return bool(self.scheduler.on_trial_result(self.known[trial], {"loss": loss, "unit": unit}) == "CONTINUE")


class Optuna:
    def __init__(self, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=DIVISOR)
        self.study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed), pruner=pruner)
        self.known: dict[int, Any] = {}

    def goes_on(self, trial: int, unit: int, loss: float) -> bool:
        if trial not in self.known:
            self.known[trial] = self.study.ask()
        self.known[trial].report(loss, unit)
        return not self.known[trial].should_prune()


class Ray:
    def __init__(self, seed: int, brackets: int = 1) -> None:
        import numpy as np
        from ray.tune.schedulers import AsyncHyperBandScheduler

        np.random.seed(seed)
        self.scheduler = AsyncHyperBandScheduler(
            time_attr="unit",
            metric="loss",
            mode="min",
            max_t=LENGTH,
            grace_period=1,
            reduction_factor=DIVISOR,
            brackets=brackets,
        )
        self.known: dict[int, Any] = {}

    def goes_on(self, trial: int, unit: int, loss: float) -> bool:
        if trial not in self.known:
            self.known[trial] = SimpleNamespace(trial_id=str(trial))
            self.scheduler.on_trial_add(None, self.known[trial])
        answer = self.scheduler.on_trial_result(None, self.known[trial], {"loss": loss, "unit": unit})
        return bool(answer == "CONTINUE")


def config(searcher: dict[str, Any]) -> Any:
    from airflow_provider_dtrain.core.config import ExperimentConfig

    space = {name: {"type": "log", "minval": -5, "maxval": -1} for name in ("lr", "decay")}
    space |= {"width": {"type": "int", "minval": 8, "maxval": 512}, "batch": 64}
    common = {"metric": "loss", "max_trials": TRIALS, "max_length": {"epochs": LENGTH}}
    return ExperimentConfig.model_validate({"hyperparameters": space, "searcher": {**common, **searcher}})


#: Method -> how it is made for a seed. The modules of peers exist in their environment only.
METHODS: dict[str, Callable[[int], Method]] = {
    "random": lambda seed: Ours({"name": "random"}, seed),
    "ours, async_halving": lambda seed: Ours({"name": "async_halving", "num_rungs": 4}, seed),
    "ours, adaptive_asha": lambda seed: Ours({"name": "adaptive_asha"}, seed),
    "ours, adaptive_asha conservative": lambda seed: Ours({"name": "adaptive_asha", "mode": "conservative"}, seed),
}
PEER_METHODS: dict[str, Callable[[int], Method]] = {
    "Syne Tune, ASHA": SyneTune,
    "Syne Tune, ASHA, 3 brackets": lambda seed: SyneTune(seed, 3),
    "Optuna, SuccessiveHalvingPruner": Optuna,
    "Ray Tune, ASHA": Ray,
    "Ray Tune, ASHA, 3 brackets": lambda seed: Ray(seed, 3),
}


def outcomes(make: Callable[[int], Method], seeds: int) -> list[tuple[float | None, tuple[float, ...]]]:
    """Return of each seed the budget until a good trial, and the regrets."""
    good, found = limit(), []
    for seed in range(seeds):
        outcome = run_search(make(seed), curves(seed), good)
        found.append((outcome.reached, outcome.regret))
    return found


def measure(run: Run) -> None:
    python, seeds = run.peer("ray"), run.size(20, 2)
    by_method = {name: outcomes(make, seeds) for name, make in METHODS.items()}
    for name in PEER_METHODS if python else ():
        command = [python, "-m", "bench.bench_search", name, str(seeds)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
        if done.returncode:
            run.note(f"{name} failed: {done.stderr.strip()[-500:]}")
            continue
        by_method[name] = json.loads(done.stdout.splitlines()[-1])
    for name, seeds_of_method in by_method.items():
        for reached, regrets in seeds_of_method:
            if reached is not None:
                run.add("budget", name, reached)
            for budget, regret in zip(READ_AT, regrets, strict=True):
                run.add(f"regret at {budget}", name, regret)
    searcher = config({"name": "adaptive_asha", "max_trials": 10_000})
    for _ in range(run.size(7, 1)):
        run.add("plan", "ours", seconds_of_plan(searcher))


def seconds_of_plan(searcher: Any) -> float:
    from airflow_provider_dtrain.core.search.plan import plan

    started = time.process_time()
    plan(searcher, 1)
    return time.process_time() - started


SIDES = {**dict.fromkeys(METHODS, OURS), **dict.fromkeys(PEER_METHODS, PEER)}
BENCH = Bench(
    what="Search methods on simulated curves",
    rows=(
        Row(
            name="budget",
            what="Until a trial of the best 5 % is fully trained; n is the number of seeds that reached one",
            unit="full trainings",
            sides=SIDES,
            base="random",
        ),
        *(
            Row(
                name=f"regret at {budget}",
                what="True final loss of the incumbent, above the best",
                unit="loss",
                sides=SIDES,
                base="random",
            )
            for budget in READ_AT
        ),
        Row(
            name="plan",
            what="Plan of 10,000 trials",
            unit="s of CPU",
            sides={"ours": OURS},
            goals=(Goal(side="ours", at_most=1),),
        ),
    ),
    measure=measure,
    rounds=(1, 1),
)


if __name__ == "__main__":
    print(json.dumps(outcomes(PEER_METHODS[sys.argv[1]], int(sys.argv[2]))))
