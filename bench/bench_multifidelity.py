"""Random hyperparameters on the rungs of ASHA, beside models that learn from the rungs: regret against budget.

All methods search the same problems (:mod:`.learning_curves`) with 8 workers, simulated in event time: a trial reports
after each unit, whose duration is the trial's own. Regret is the true loss at the best report so far minus the least
true loss of the problem that any method has seen. The ratio is the part of the budget after which the median regret of
a method is as low as that of ASHA at the whole budget. The goal of a model is 0.7.

- ``random``: every trial is trained to its end.
- ``ASHA``: ours, as ``async_halving`` draws and decides.
- ``ASHA, GP``: the same rungs, and hyperparameters from a Gaussian process, as ``sampler: gp`` draws them.
- ``Optuna``: TPE with a pruner. ``Syne Tune``: BOHB.

All methods run in the environment of the peers, because models of all need the same numerical libraries.
"""

from __future__ import annotations

import heapq
import json
import math
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Protocol

from bench.framework.measuring import Run
from bench.framework.rows import OURS, PEER, Bench, Goal, Row

WORKERS: Final = 8
DIVISOR: Final = 4
RUNGS: Final = (1, 4, 16, 64)
#: Parts of the budget at which regret is read.
PARTS: Final = (0.7, 1.0)


class Method(Protocol):
    def ask(self, trial: int) -> Mapping[str, Any]: ...

    def goes_on(self, trial: int, unit: int, loss: float) -> bool: ...


class Random:
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def ask(self, trial: int) -> Mapping[str, Any]:
        from airflow_provider_dtrain.core.hyperparameters.space import sample
        from bench.learning_curves import SPACE

        return sample(SPACE, experiment_seed=self.seed, trial=trial)

    def goes_on(self, trial: int, unit: int, loss: float) -> bool:
        return True


class Asha(Random):
    def __init__(self, seed: int) -> None:
        from testbed.rungs import Rungs

        super().__init__(seed)
        self.rungs = Rungs(len(RUNGS), RUNGS[-1], DIVISOR)

    def goes_on(self, trial: int, unit: int, loss: float) -> bool:
        return self.rungs.report(trial, unit, loss) == "continue"


class AshaGp(Asha):
    """``sampler: gp``."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.known: dict[int, Any] = {}

    def ask(self, trial: int) -> Mapping[str, Any]:
        from airflow_provider_dtrain.search.rung_sampler import KnownTrial, draw
        from bench.learning_curves import SPACE

        values = draw(SPACE, seed=self.seed, trial=trial, rungs=RUNGS, history=list(self.known.values()))
        self.known[trial] = KnownTrial(values, {}, is_open=True)
        return values

    def goes_on(self, trial: int, unit: int, loss: float) -> bool:
        going = super().goes_on(trial, unit, loss)
        if unit in RUNGS:
            known = self.known[trial]
            is_open = going and unit < RUNGS[-1]
            self.known[trial] = known._replace(metrics={**known.metrics, unit: loss}, is_open=is_open)
        return going


class Optuna:
    def __init__(self, seed: int, pruner: str) -> None:
        import optuna

        pruners = {
            "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=DIVISOR),
            "hyperband": lambda: optuna.pruners.HyperbandPruner(
                min_resource=1, max_resource=RUNGS[-1], reduction_factor=DIVISOR
            ),
        }
        sampler = optuna.samplers.TPESampler(seed=seed)
        self.study = optuna.create_study(study_name=str(seed), sampler=sampler, pruner=pruners[pruner]())
        self.trials: dict[int, Any] = {}

    def ask(self, trial: int) -> Mapping[str, Any]:
        self.trials[trial] = self.study.ask(distributions())
        return dict(self.trials[trial].params)

    def goes_on(self, trial: int, unit: int, loss: float) -> bool:
        from optuna.trial import TrialState

        known = self.trials[trial]
        known.report(loss, unit)
        if unit == RUNGS[-1]:
            is_finite = math.isfinite(loss)
            self.study.tell(known, loss if is_finite else None, TrialState.COMPLETE if is_finite else TrialState.FAIL)
        elif known.should_prune():
            self.study.tell(known, state=TrialState.PRUNED)
            return False
        return True


class SyneTune:
    def __init__(self, seed: int, name: str) -> None:
        import numpy as np
        from syne_tune.optimizer import baselines

        np.random.seed(seed)
        random.seed(seed)
        self.scheduler = getattr(baselines, name)(
            _syne_tune_space(),
            metric="loss",
            time_attr="unit",
            max_t=RUNGS[-1],
            grace_period=1,
            reduction_factor=DIVISOR,
            random_seed=seed,
        )
        self.trials: dict[int, Any] = {}

    def ask(self, trial: int) -> Mapping[str, Any]:
        from syne_tune.backend.trial_status import Trial

        values = self.scheduler.suggest().config
        self.trials[trial] = Trial(trial, values, datetime(2020, 1, 1))
        self.scheduler.on_trial_add(self.trials[trial])
        return dict(values)

    def goes_on(self, trial: int, unit: int, loss: float) -> bool:
        # It takes finite numbers only.
        result = {"loss": loss if math.isfinite(loss) else 1e3, "unit": unit}
        answer = self.scheduler.on_trial_result(self.trials[trial], result)
        if unit == RUNGS[-1]:
            self.scheduler.on_trial_complete(self.trials[trial], result)
        return bool(answer == "CONTINUE")


def distributions() -> dict[str, Any]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    from bench.learning_curves import SPACE

    found: dict[str, Any] = {}
    for name, leaf in SPACE.items():
        if leaf["type"] == "categorical":
            found[name] = CategoricalDistribution(leaf["vals"])
        elif leaf["type"] == "int":
            found[name] = IntDistribution(leaf["minval"], leaf["maxval"])
        else:
            low, high = _ends(leaf)
            found[name] = FloatDistribution(low, high, log=leaf["type"] == "log")
    return found


def _syne_tune_space() -> dict[str, Any]:
    from syne_tune.config_space import choice, loguniform, randint, uniform

    from bench.learning_curves import SPACE

    kinds = {"log": loguniform, "double": uniform, "int": randint}
    return {
        name: choice(leaf["vals"]) if leaf["type"] == "categorical" else kinds[leaf["type"]](*_ends(leaf))
        for name, leaf in SPACE.items()
    }


def _ends(leaf: Mapping[str, Any]) -> tuple[Any, Any]:
    if leaf["type"] != "log":
        return leaf["minval"], leaf["maxval"]
    base = float(leaf.get("base", 10))
    return base ** leaf["minval"], base ** leaf["maxval"]


def search(method: Method, problem: Callable[[Mapping[str, Any]], Any], units: int, seed: int, noise: float) -> Any:
    """Return the true loss at the best report so far, after each unit, and the number of trials."""
    import numpy as np

    chance = random.Random(seed)
    events: list[tuple[float, int, int]] = []
    curves: list[Any] = []
    speeds: list[float] = []
    now, best, true = 0.0, math.inf, math.nan
    trace = np.empty(units)

    def start() -> None:
        trial = len(curves)
        curves.append(problem(method.ask(trial)))
        speeds.append(chance.lognormvariate(0, 0.3))
        heapq.heappush(events, (now + speeds[trial], trial, 1))

    for _ in range(WORKERS):
        start()
    for done in range(units):
        now, trial, unit = heapq.heappop(events)
        loss = float(curves[trial][unit - 1])
        report = loss + chance.gauss(0, noise)
        if report < best:
            best, true = report, loss
        trace[done] = true
        if method.goes_on(trial, unit, report) and unit < RUNGS[-1]:
            heapq.heappush(events, (now + speeds[trial], trial, unit + 1))
        else:
            start()
    return trace, len(curves)


METHODS: dict[str, Callable[[int], Method]] = {
    "ASHA": Asha,
    "random": Random,
    "ASHA, GP": AshaGp,
    "Optuna, TPE, halving": lambda seed: Optuna(seed, "halving"),
    "Optuna, TPE, Hyperband": lambda seed: Optuna(seed, "hyperband"),
    "Syne Tune, BOHB": lambda seed: SyneTune(seed, "BOHB"),
}
FAMILIES: Final = ("bowl", "fourier", "crossing", "training", "digits")
BUDGET: Final = "part of the budget"


def part_until(mine: Any, goal: float) -> float:
    """Return the part of the budget after which a median regret is at most a goal, or infinity."""
    reached = (mine <= goal).nonzero()[0]
    return float((reached[0] + 1) / len(mine)) if len(reached) else math.inf


def compare(family: str, seeds: int, budget: int) -> dict[str, dict[str, list[float]]]:
    """Return row -> method -> values of a family."""
    import numpy as np

    from bench import learning_curves

    noise = 0.0 if family == "digits" else learning_curves.NOISE
    of_family = getattr(learning_curves, family)
    traces = {
        name: np.array(
            [search(method(seed), of_family(seed), budget * RUNGS[-1], seed, noise)[0] for seed in range(seeds)]
        )
        for name, method in METHODS.items()
    }
    least = np.nanmin([np.nanmin(found, axis=1) for found in traces.values()], axis=0)
    regrets = {name: found - least[:, None] for name, found in traces.items()}
    goal = float(np.median(regrets["ASHA"], axis=0)[-1])
    rows = {
        f"{family} at {part:.0%}": {
            name: [float(value) for value in found[:, round(part * found.shape[1]) - 1]]
            for name, found in regrets.items()
        }
        for part in PARTS
    }
    return {**rows, BUDGET: {name: [part_until(np.median(one, axis=0), goal)] for name, one in regrets.items()}}


def measure(run: Run) -> None:
    if (python := run.peer("models")) is None:
        return
    seeds, budget = run.size(30, 2), run.size(15, 2)
    run.note(f"{seeds} seeds, {budget} full trainings of {RUNGS[-1]} units, {WORKERS} workers.")
    for family in run.size(FAMILIES, FAMILIES[:2]):
        command = [python, "-m", "bench.bench_multifidelity", family, str(seeds), str(budget)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        for row, by_method in json.loads(done.stdout.splitlines()[-1]).items():
            for name, values in by_method.items():
                run.add(row, name, *(value for value in values if value < math.inf))


SIDES = {name: PEER if name.startswith(("Optuna", "Syne")) else OURS for name in METHODS}
BENCH = Bench(
    what="Models that learn from the rungs of ASHA, on made-up learning curves and a data set of digits",
    rows=(
        *(
            Row(name=f"{family} at {part:.0%}", what="Regret", unit="loss", sides=SIDES, base="ASHA")
            for family in FAMILIES
            for part in PARTS
        ),
        Row(
            name=BUDGET,
            what="Until the median regret of a method is that of ASHA; one value per family in which it gets there",
            unit="of the budget",
            sides=SIDES,
            base="ASHA",
            goals=(Goal(side="ASHA, GP", at_most=0.7),),
        ),
    ),
    measure=measure,
    rounds=(1, 1),
)


def main(family: str, seeds: int, budget: int) -> None:
    """Print the values of a family, in the environment of the peers."""
    import optuna

    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print(json.dumps(compare(family, seeds, budget)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
