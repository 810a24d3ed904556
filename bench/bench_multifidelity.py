"""Random hyperparameters on the rungs of ASHA, beside models that learn from the rungs: regret against budget.

All methods search the same problems (:mod:`.learning_curves`) with 8 workers, simulated in event time: a trial reports
after each unit, whose duration is the trial's own. Regret is the true loss at the best report so far minus the least
true loss of the problem that any method has seen. The ratio is the part of the budget after which the median regret of
a method is as low as that of ASHA at the whole budget. The goal of a model is 0.7.

- ``random``: every trial is trained to its end.
- ``ASHA``: ours, as ``async_halving`` draws and decides.
- ``ASHA, TPE``: the rungs of ASHA, and hyperparameters from Optuna's TPE. Stopped trials and running ones with an entry
  are its pruned trials, so that a higher rung ranks before a lower one. A fifth of the trials counts as good.
- ``ASHA, TPE, window``: the same, and a trial must also be among the best of the last 16 entries of a rung. A model
  improves its trials, so that too many of them beat the older entries.
- ``Optuna``: TPE with a pruner. ``Syne Tune``: BOHB, and ASHA with BORE if ``--slow`` is given.

Run: python -m bench.bench_multifidelity [--quick] [--venv DIR]. With ``--venv``, it installs Optuna and Syne Tune into
a new virtual environment and runs there. Without it, Syne Tune is compared if it is installed with its dependencies.
"""

from __future__ import annotations

import argparse
import heapq
import importlib.util
import math
import os
import random
import subprocess
import sys
import time
import venv
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Protocol

WORKERS: Final = 8
DIVISOR: Final = 4
RUNGS: Final = (1, 4, 16, 64)
WINDOW: Final = 16
#: Trials that have reported at a rung before a model draws.
STARTUP: Final = 10
#: Parts of the budget at which regret is printed.
PARTS: Final = (0.35, 0.7, 1.0)
PACKAGES: Final = ("numpy", "scipy", "scikit-learn", "optuna", "syne-tune", "pydantic", "msgspec", "pyyaml")


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


class AshaTpe(Asha):
    """Draws as a provider without a second database does: each time from the history alone."""

    window: int | None = None

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.history: dict[int, Any] = {}
        self.recent: dict[int, list[float]] = {}

    def ask(self, trial: int) -> Mapping[str, Any]:
        import optuna
        from optuna.trial import TrialState, create_trial

        if sum(one.state != TrialState.RUNNING for one in self.history.values()) < STARTUP:
            values = super().ask(trial)
        else:
            sampler = optuna.samplers.TPESampler(seed=self.seed * 100_003 + trial, gamma=_fifth)
            own = create_trial(state=TrialState.RUNNING)
            own.number = trial
            # A real study copies all trials for each draw, which takes most of the time.
            study = SimpleNamespace(
                direction=optuna.study.StudyDirection.MINIMIZE,
                directions=[optuna.study.StudyDirection.MINIMIZE],
                _get_trials=lambda states, **_: [one for one in self.history.values() if one.state in states],
                _is_multi_objective=lambda: False,
            )
            values = sampler._sample(study, own, distributions())
        self.history[trial] = create_trial(state=TrialState.RUNNING, params=dict(values), distributions=distributions())
        self.history[trial].number = trial
        return values

    def goes_on(self, trial: int, unit: int, loss: float) -> bool:
        from optuna.trial import TrialState

        going = super().goes_on(trial, unit, loss)
        if unit in RUNGS:
            known = self.history[trial]
            known.intermediate_values[unit] = loss
            known.state = TrialState.PRUNED
            recent = self.recent.setdefault(unit, [])
            recent.append(loss if math.isfinite(loss) else math.inf)
            if self.window is not None and unit < RUNGS[-1]:
                last = recent[-self.window :]
                going = going and sum(one <= last[-1] for one in last[:-1]) < max(1, len(last) // DIVISOR)
        return going


class AshaTpeWindow(AshaTpe):
    window = WINDOW


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


def _fifth(trials: int) -> int:
    return max(3, min(math.ceil(0.2 * trials), 60))


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


def methods(arguments: argparse.Namespace) -> dict[str, Callable[[int], Method]]:
    found: dict[str, Callable[[int], Method]] = {"ASHA": Asha, "random": Random}
    if importlib.util.find_spec("optuna"):
        found["ASHA, TPE"] = AshaTpe
        found["ASHA, TPE, window"] = AshaTpeWindow
        found["Optuna, TPE, halving"] = lambda seed: Optuna(seed, "halving")
        found["Optuna, TPE, Hyperband"] = lambda seed: Optuna(seed, "hyperband")
    if importlib.util.find_spec("syne_tune") and importlib.util.find_spec("statsmodels"):
        found["Syne Tune, BOHB"] = lambda seed: SyneTune(seed, "BOHB")
        if arguments.slow:
            found["Syne Tune, ASHA with BORE"] = lambda seed: SyneTune(seed, "ASHABORE")
    return {name: found[name] for name in arguments.methods or found}


def rows(arguments: argparse.Namespace, family: str) -> Iterator[tuple[str, Any, float, float]]:
    """Yield name, traces, median number of trials and CPU seconds of each method."""
    import numpy as np

    for name, method in methods(arguments).items():
        found = [kept(arguments, family, name, method, seed) for seed in range(arguments.seeds)]
        traces = np.array([one["trace"] for one in found])
        yield name, traces, float(np.median([one["trials"] for one in found])), sum(one["cpu_s"] for one in found)


def kept(
    arguments: argparse.Namespace, family: str, name: str, method: Callable[[int], Method], seed: int
) -> dict[str, Any]:
    """Return the result of one search, from the folder of results if it is there."""
    import numpy as np

    from bench import learning_curves

    file = arguments.results / f"{family}, {name}, {arguments.budget}, {seed}.npz" if arguments.results else None
    if file is not None and file.exists():
        with np.load(file) as stored:
            return dict(stored)
    noise = 0.0 if family == "digits" else learning_curves.NOISE
    problem = getattr(learning_curves, family)(seed)
    started = time.process_time()
    trace, trials = search(method(seed), problem, arguments.budget * RUNGS[-1], seed, noise)
    result = {"trace": trace, "trials": trials, "cpu_s": time.process_time() - started}
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, **result)
    return result


def ratio(mine: Any, goal: float) -> float:
    """Return the part of the budget after which a median regret is at most a goal, or infinity."""
    reached = (mine <= goal).nonzero()[0]
    return float((reached[0] + 1) / len(mine)) if len(reached) else math.inf


def compare(arguments: argparse.Namespace, family: str) -> dict[str, float]:
    """Print the table of a family, and return the ratio of each method."""
    import numpy as np

    found = list(rows(arguments, family))
    least = np.nanmin([np.nanmin(traces, axis=1) for _, traces, _, _ in found], axis=0)
    regrets = {name: np.median(traces - least[:, None], axis=0) for name, traces, _, _ in found}
    heads = "".join(f"{f'at {part:.0%}':>10}" for part in PARTS)
    print(f"\n{family + ': median regret':<30}{heads}{'ratio':>8}{'trials':>8}{'CPU s':>8}")
    ratios = {}
    for name, _, trials, seconds in found:
        mine = regrets[name]
        ratios[name] = ratio(mine, regrets["ASHA"][-1])
        at = "".join(f"{mine[round(part * len(mine)) - 1]:>10.4f}" for part in PARTS)
        print(f"{name:<30}{at}{ratios[name]:>8.2f}{trials:>8.0f}{seconds:>8.0f}", flush=True)
    return ratios


def in_venv(folder: Path) -> None:
    """Run this benchmark again in a virtual environment with the packages that it compares."""
    python = folder.absolute() / "bin/python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    # Also when it exists: the installation may have been cut off.
    subprocess.run([folder / "bin/pip", "install", "-q", *PACKAGES], check=True)
    rest = [one for one in sys.argv[1:] if one not in ("--venv", str(folder))]
    os.execv(python, [str(python), "-m", "bench.bench_multifidelity", *rest])


def main() -> None:
    families = ("bowl", "fourier", "crossing", "training", "digits")
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--budget", type=int, default=15, help="full trainings per search")
    parser.add_argument("--families", nargs="+", choices=families, default=families)
    parser.add_argument("--methods", nargs="+", help="names of the table, ASHA first")
    parser.add_argument("--quick", action="store_true", help="3 seeds, 4 full trainings")
    parser.add_argument("--slow", action="store_true", help="also ASHA with BORE, half a minute per search")
    parser.add_argument("--venv", type=Path)
    parser.add_argument("--results", type=Path, help="folder of results, from which a run that was cut off resumes")
    arguments = parser.parse_args()
    if arguments.venv is not None:
        in_venv(arguments.venv)
    if arguments.quick:
        arguments.seeds, arguments.budget = 3, 4
    warnings.simplefilter("ignore")
    if importlib.util.find_spec("optuna"):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
    print(f"{arguments.seeds} seeds, {arguments.budget} full trainings of {RUNGS[-1]} units, {WORKERS} workers")
    found = {family: compare(arguments, family) for family in arguments.families}
    print(f"\n{'median ratio of the families':<30}")
    for name in methods(arguments):
        ratios = sorted(ratios[name] for ratios in found.values())
        print(f"{name:<30}{ratios[(len(ratios) - 1) // 2]:>8.2f}")


if __name__ == "__main__":
    main()
