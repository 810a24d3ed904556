"""Measures how long a save of 200 MB blocks training: background save against synchronous save, in one run.

    OMP_NUM_THREADS=1 python bench/bench_checkpoint.py [--rounds 7] [--folder DIR]

Synchronous: the same save, with training blocked until it is complete. Stall: time inside ``save``. Both saves write,
hash, fsync and rename the same state. During a background save, training continues.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch

import airflow_provider_dtrain.train as dtrain

WIDTH, LAYERS = 2048, 4


def build():
    """Return a model and an SGD optimizer with momentum, with about 200 MB of state in total."""
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, WIDTH * 2))
    return model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


class Training:
    """Training of one model, with timed steps and saves."""

    def __init__(self, ctx):
        self.ctx = ctx
        self.model, self.optimizer = ctx.prepare(*build())
        self.batch = torch.randn(16, WIDTH)
        self.steps = 0

    def step(self):
        """Run one step and return its seconds."""
        before = time.perf_counter()
        self.ctx.backward(self.model(self.batch).square().mean())
        self.ctx.step(self.optimizer)
        self.steps += 1
        return time.perf_counter() - before

    def save(self, *, wait):
        """Save and return the seconds for which training was blocked."""
        before = time.perf_counter()
        self.ctx.save_checkpoint(self.steps)
        if wait:
            self.ctx._saver.finish()
        return time.perf_counter() - before

    def steps_while_saving(self):
        """Run steps until the save is on the disk, and return the seconds of each."""
        thread, taken = self.ctx._saver._background._thread, []
        while thread.is_alive():
            taken.append(self.step())
        return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-checkpoint-", dir=args.folder))
    try:
        measure(folder, args.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(folder, rounds):
    stalls, synchronous, alone, meanwhile = [], [], [], []
    with dtrain.init(hparams={"global_batch_size": 16}, device="cpu", checkpoint_dir=folder) as ctx:
        training = Training(ctx)
        training.step()
        first = training.save(wait=False)
        training.steps_while_saving()
        for _ in range(rounds):
            synchronous.append(training.save(wait=True))
            alone += [training.step() for _ in range(10)]
            stalls.append(training.save(wait=False))
            meanwhile += training.steps_while_saving()
        size = ctx._saver.home.latest.size_bytes / 1e6
    show(size, first, stalls, synchronous, alone, meanwhile)


def show(size, first, stalls, synchronous, alone, meanwhile):
    stall, whole = statistics.median(stalls), statistics.median(synchronous)
    step, slowed = statistics.median(alone), statistics.median(meanwhile)
    print(f"state {size:.0f} MB, {len(stalls)} rounds, torch threads {torch.get_num_threads()}, medians")
    print(f"{'':34}{'ms':>9}")
    for words, value in (
        ("synchronous save", whole), ("stall of a background save", stall),
        ("stall of the first save (new buffers)", first), ("step without a save", step),
        ("step while a save is written", slowed),
    ):  # fmt: skip
        print(f"{words:36}{value * 1e3:>7.1f}")
    print(f"stall / synchronous save: {stall / whole:.1%}; step time during a save: {slowed / step - 1:+.1%}")


if __name__ == "__main__":
    main()
