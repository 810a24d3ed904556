"""The same search by Optuna and by Ray Tune, run by the interpreter of their environment for bench_mapped."""

from __future__ import annotations

import subprocess
import sys
import time

SLOTS = 2
TRIAL = "import time; time.sleep(1); print(0.5)"
WITH_TORCH = "import torch; " + TRIAL


def optuna_search(trials: int, program: str) -> None:
    """Run each trial as a process, two at a time."""
    import optuna

    def objective(trial: optuna.Trial) -> float:
        trial.suggest_float("lr", 0, 1)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        return float(done.stdout)

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    optuna.create_study(sampler=optuna.samplers.RandomSampler()).optimize(objective, n_trials=trials, n_jobs=SLOTS)


def ray_search(trials: int, program: str) -> None:
    """Run each trial as a function in an actor, two at a time."""
    import ray
    from ray import tune

    def trainable(_: dict) -> dict:
        if "torch" in program:
            import torch  # noqa: F401
        time.sleep(1)
        return {"score": 0.5}

    ray.init(num_cpus=SLOTS, include_dashboard=False, log_to_driver=False)
    config = tune.TuneConfig(num_samples=trials, metric="score", mode="max")
    found = tune.Tuner(trainable, param_space={"lr": tune.uniform(0, 1)}, tune_config=config).fit()
    assert len(found) == trials
    assert not found.errors


if __name__ == "__main__":
    search = {"optuna": optuna_search, "ray": ray_search}[sys.argv[1]]
    search(int(sys.argv[2]), {"plain": TRIAL, "torch": WITH_TORCH}[sys.argv[3]])
