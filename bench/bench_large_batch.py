"""Accuracy on the handwritten digits by batch size and learning rate: what linear scaling and its warm-up bring.

One process, so it measures the mathematics and not the machine. The rate is the best for batches of 16.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from typing import Any

from bench.framework.measuring import Run
from bench.framework.rows import FOLDER, LIMIT, OURS, Bench, Goal, Row

EPOCHS, SMALL, LARGE = 20, 16, 128
#: Name -> batch size, and the length of the warm-up in epochs: None leaves the rate as it is.
VARIANTS: dict[str, tuple[int, float | None]] = {
    "batch 16": (SMALL, None),
    "batch 128": (LARGE, None),
    "scaled": (LARGE, 0.0),
    "scaled, warm-up": (LARGE, 3.0),
}


def train(batch_size: int, warmup_epochs: float | None, seed: int) -> float:
    """Return the accuracy on the validation data after the last epoch."""
    import torch
    from torch.nn.functional import cross_entropy

    import airflow_provider_dtrain.train as dtrain

    program: Any = importlib.import_module("dags.digits.train")
    training, held_back = program.digits()
    with dtrain.init(hparams={"global_batch_size": batch_size, "lr": 0.02}) as ctx:
        torch.manual_seed(seed)  # init seeds with the seed of the trial
        model = program.network(0.1)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=ctx.hparams["lr"], momentum=0.9)
        prepared = [model, optimizer]
        if warmup_epochs is not None:
            steps = max(1, round(warmup_epochs * len(ctx.loader(training))))
            prepared.append(dtrain.optim.linear_scaling(optimizer, ctx, reference_batch_size=SMALL, warmup_steps=steps))
        model, optimizer, *_ = ctx.prepare(*prepared)
        for _ in ctx.epochs(EPOCHS):
            for images, labels in ctx.loader(training):
                ctx.backward(cross_entropy(model(images), labels))
                ctx.step(optimizer)
        return float(program.validate(ctx, model, held_back)[0]["accuracy"])


def accuracy(name: str, seed: int) -> float:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(FOLDER.parent)}
    argv = [sys.executable, "-m", "bench.bench_large_batch", json.dumps([*VARIANTS[name], seed])]
    done = subprocess.run(argv, env=env, cwd=FOLDER.parent, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return 100 * float(done.stdout.splitlines()[-1].removeprefix("ACCURACY "))


def measure(run: Run) -> None:
    for seed in range(run.rounds):
        for name in VARIANTS:
            run.add("accuracy", name, accuracy(name, seed))


BENCH = Bench(
    what=f"1,437 digits, SGD with momentum, {EPOCHS} epochs",
    rows=(
        Row(
            name="accuracy",
            what="Accuracy after training",
            unit="%",
            sides={name: LIMIT if name == "batch 16" else OURS for name in VARIANTS},
            base="batch 16",
            goals=(Goal(side="scaled, warm-up", at_least=0.99, of="batch 16"),),
        ),
    ),
    measure=measure,
    rounds=(10, 2),
)


if __name__ == "__main__":
    print("ACCURACY", train(*json.loads(sys.argv[1])))
