"""Time for which a save of 200 MB blocks training: background save against synchronous save.

Synchronous: the same save, with training blocked until it is complete. Both saves write, hash, fsync and rename the
same state. During a background save, training continues.
"""

from __future__ import annotations

import time

from bench.framework.measuring import Run
from bench.framework.rows import LIMIT, OURS, PEER, Bench, Row

WIDTH, LAYERS = 2048, 4


def build():
    """Return a model and an SGD optimizer with momentum, with about 200 MB of state in total."""
    import torch

    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, WIDTH * 2))
    return model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


class Training:
    """Training of one model, with timed steps and saves."""

    def __init__(self, ctx):
        import torch

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


STALL, FIRST, WHOLE = "background save", "first background save (new buffers)", "synchronous save"
ALONE, MEANWHILE = "without a save", "while a save is written"


def measure(run: Run) -> None:
    import torch

    import airflow_provider_dtrain.train as dtrain

    torch.set_num_threads(1)
    with dtrain.init(hparams={"global_batch_size": 16}, device="cpu", checkpoint_dir=run.folder) as ctx:
        training = Training(ctx)
        training.step()
        run.add("blocked", FIRST, 1e3 * training.save(wait=False))
        training.steps_while_saving()
        for _ in range(run.rounds):
            run.add("blocked", WHOLE, 1e3 * training.save(wait=True))
            run.add("step", ALONE, *(1e3 * training.step() for _ in range(10)))
            run.add("blocked", STALL, 1e3 * training.save(wait=False))
            run.add("step", MEANWHILE, *(1e3 * seconds for seconds in training.steps_while_saving()))
        run.note(f"State of {ctx._saver.home.latest.size_bytes / 1e6:.0f} MB.")


BENCH = Bench(
    what="Saves of a checkpoint of 200 MB",
    rows=(
        Row(
            name="blocked",
            what="Time for which training is blocked",
            unit="ms",
            sides={STALL: OURS, FIRST: OURS, WHOLE: PEER},
            base=WHOLE,
        ),
        Row(name="step", what="A step of training", unit="ms", sides={ALONE: LIMIT, MEANWHILE: OURS}, base=ALONE),
    ),
    measure=measure,
    rounds=(7, 2),
)
