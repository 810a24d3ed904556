"""One training loop per harness, each run with the bare loop in one process. Started by bench_harness.py.

Prints one line of JSON. Every loop is that of the training page: it clips gradients and reports the loss of each batch,
where the harness can. All have the same samples in the same order (no shuffling, one process) and start with the same
weights. Bare loop and harness alternate every 20 batches, in two threads of which one waits. CPU times are a thread's.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

BATCH, BLOCK, NORM = 64, 20, 1.0


class Samples(Dataset):
    """Random samples, fetched one batch at a time."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(count, 64, generator=generator)
        self.labels = torch.randint(0, 2, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple:
        return self.inputs[index], self.labels[index]

    def __getitems__(self, indices: list) -> tuple:
        return self.inputs[indices], self.labels[indices]


def whole(batch: tuple) -> tuple:
    """Return the result of ``__getitems__`` unchanged, without collation."""
    return batch


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2))


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def now() -> tuple[float, float]:
    """Return the wall clock and the CPU time of this thread, seconds."""
    return time.perf_counter(), time.thread_time()


class Relay:
    """Lets two threads alternate, so that both see the same load on the machine."""

    def __init__(self) -> None:
        self.turns = [threading.Semaphore(1), threading.Semaphore(0)]

    def wait(self, side: int) -> None:
        self.turns[side].acquire()

    def pass_on(self, side: int) -> None:
        self.turns[1 - side].release()


class Meter:
    """Records every loss and the time of each block of batches, and yields to the other loop after each block."""

    def __init__(self, batches: int, relay: Relay, side: int) -> None:
        self.batches, self.relay, self.side = batches, relay, side
        self.losses, self.blocks, self.started = [], [], (0.0, 0.0)

    def batch(self, loss: torch.Tensor) -> None:
        self.losses.append(loss.detach())
        if len(self.losses) % BLOCK == 0:
            ended = now()
            self.blocks.append([(end - start) / BLOCK * 1e6 for start, end in zip(self.started, ended, strict=True)])
            self.relay.pass_on(self.side)
            if len(self.losses) < self.batches:
                self.relay.wait(self.side)
            self.started = now()

    def digest(self) -> str:
        assert len(self.losses) == self.batches, f"{len(self.losses)} batches instead of {self.batches}"
        return hashlib.sha256(torch.stack(self.losses).numpy().tobytes()).hexdigest()


def race(loop: Callable, data: Samples, batches: int) -> dict:
    """Run the bare loop and another one in turns.

    :return: microseconds per batch of each block of both, wall and CPU time, and whether their losses are equal
    """
    relay = Relay()
    meters = [Meter(batches, relay, side) for side in (0, 1)]

    def other_side() -> None:
        relay.wait(0)
        bare(data, meters[0])

    thread = threading.Thread(target=other_side, daemon=True)
    thread.start()
    relay.wait(1)
    loop(data, meters[1])  # in the main thread: harnesses install signal handlers
    thread.join()
    # The first block includes the start of the loop.
    return {
        "bare": meters[0].blocks[1:], "loop": meters[1].blocks[1:], "equal": meters[0].digest() == meters[1].digest()
    }  # fmt: skip


def bare(data: Samples, meter: Meter) -> None:
    model = network()
    optimizer = sgd(model)
    for inputs, labels in DataLoader(data, batch_size=BATCH, collate_fn=whole):
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        meter.batch(loss)


def loop_of_script(data: Samples, meter: Meter, *, report: bool = True, config: dict | None = None) -> None:
    import airflow_provider_dtrain.train as dtrain

    with dtrain.init(hparams={"global_batch_size": BATCH}, config=config) as ctx:
        model = network()
        model, optimizer = ctx.prepare(model, sgd(model))
        for step, batch in enumerate(ctx.loader(data, shuffle=False, collate_fn=whole), start=1):
            inputs, labels = ctx.to_device(batch)
            loss = cross_entropy(model(inputs), labels)
            ctx.backward(loss)
            ctx.step(optimizer, clip_grad_norm=NORM)
            if report:
                ctx.report(step, {"loss": loss})
            if config:
                ctx.count(tokens=BATCH)
            meter.batch(loss)


def script(data: Samples, meter: Meter) -> None:
    """Train with the plain script, outside a trial."""
    loop_of_script(data, meter)


def script_silent(data: Samples, meter: Meter) -> None:
    """Train without reports."""
    loop_of_script(data, meter, report=False)


def script_in_trial(data: Samples, meter: Meter, *, config: dict | None = None) -> None:
    """Train with an events file, timings and built-in metrics, as in a trial."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DTRAIN_EVENTS"] = f"{folder}/events"
        try:
            loop_of_script(data, meter, config=config)
        finally:
            del os.environ["DTRAIN_EVENTS"]


def script_measured(data: Samples, meter: Meter) -> None:
    """Train as in a trial, with tokens and operations counted."""
    script_in_trial(data, meter, config={"profiling": {"count_flops": True, "device_peak_flops": 1e12}})


def fabric(data: Samples, meter: Meter) -> None:
    from lightning.fabric import Fabric

    runner = Fabric(accelerator="cpu", devices=1)
    runner.launch()
    model, optimizer = runner.setup(model := network(), sgd(model))
    for inputs, labels in runner.setup_dataloaders(DataLoader(data, batch_size=BATCH, collate_fn=whole)):
        loss = cross_entropy(model(inputs), labels)
        runner.backward(loss)
        runner.clip_gradients(model, optimizer, max_norm=NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        meter.batch(loss)


def accelerate(data: Samples, meter: Meter) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network()
    loader = DataLoader(data, batch_size=BATCH, collate_fn=whole)
    model, optimizer, loader = accelerator.prepare(model, sgd(model), loader)
    for inputs, labels in loader:
        loss = cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        meter.batch(loss)


def lightning(data: Samples, meter: Meter) -> None:
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def training_step(self, batch: tuple, index: int) -> torch.Tensor:
            inputs, labels = batch
            loss = cross_entropy(self.model(inputs), labels)
            self.log("loss", loss)
            # Lightning steps after this call, so a turn has 20 steps here, too.
            meter.batch(loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self.model)

    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=NORM,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(data, batch_size=BATCH, collate_fn=whole))


def clip(parameters: object) -> None:
    torch.nn.utils.clip_grad_norm_(parameters, NORM)


def trial_of(pytorch: object, data: Samples, meter: Meter) -> type:
    """Return a trial class for ``pytorch``, which is determined.pytorch or this package's module."""

    class Trial(pytorch.PyTorchTrial):  # type: ignore[name-defined]
        def __init__(self, context: object) -> None:
            self.context = context
            model = network()
            self.model = context.wrap_model(model)
            self.optimizer = context.wrap_optimizer(sgd(model))

        def train_batch(self, batch: tuple, epoch_idx: int, batch_idx: int) -> dict:
            inputs, labels = batch
            loss = cross_entropy(self.model(inputs), labels)
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer, clip_grads=clip)
            meter.batch(loss)
            return {"loss": loss}

        def evaluate_batch(self, batch: tuple) -> dict:
            return {"loss": 0.0}

        def build_training_data_loader(self) -> object:
            return pytorch.DataLoader(data, batch_size=BATCH, shuffle=False, collate_fn=whole)

        def build_validation_data_loader(self) -> object:
            return pytorch.DataLoader(torch.utils.data.Subset(data, range(BATCH)), batch_size=BATCH, collate_fn=whole)

    return Trial


def determined(data: Samples, meter: Meter) -> None:
    from determined import pytorch

    with pytorch.init(hparams={"global_batch_size": BATCH}) as context:
        trainer = pytorch.Trainer(trial_of(pytorch, data, meter)(context), context)
        trainer.fit(max_length=pytorch.Batch(meter.batches), checkpoint_policy="none")


def trial(data: Samples, meter: Meter) -> None:
    from airflow_provider_dtrain.train import pytorch

    with pytorch.init(hparams={"global_batch_size": BATCH}) as context:
        trainer = pytorch.Trainer(trial_of(pytorch, data, meter)(context), context)
        trainer.fit(max_length=pytorch.Batch(meter.batches), checkpoint_policy="none")


def first(kind: str) -> None:
    """Train one batch and print how long this process has run, wall and CPU seconds."""
    data = Samples(BATCH * 4)
    if kind == "bare":
        model = network()
        optimizer = sgd(model)
        inputs, labels = next(iter(DataLoader(data, batch_size=BATCH, collate_fn=whole)))
        cross_entropy(model(inputs), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
        optimizer.step()
    else:
        import airflow_provider_dtrain.train as dtrain

        with dtrain.init(hparams={"global_batch_size": BATCH}) as ctx:
            model = network()
            model, optimizer = ctx.prepare(model, sgd(model))
            inputs, labels = ctx.to_device(next(iter(ctx.loader(data, shuffle=False, collate_fn=whole))))
            loss = cross_entropy(model(inputs), labels)
            ctx.backward(loss)
            ctx.step(optimizer, clip_grad_norm=NORM)
            ctx.report(1, {"loss": loss})
            print(json.dumps({"cpu": time.process_time(), "at": time.time()}), flush=True)
            return
    print(json.dumps({"cpu": time.process_time(), "at": time.time()}), flush=True)


def ddp(step_ms: float, pairs: int) -> dict:
    """Run bare DDP and the plain script in turns on this rank, with the same process group, weights and samples.

    The batch is chosen so that a step of bare DDP takes about ``step_ms``. Each turn takes about half a second.
    """
    from torch.nn.parallel import DistributedDataParallel

    import airflow_provider_dtrain.train as dtrain

    def large() -> torch.nn.Module:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, 384), torch.nn.ReLU(), torch.nn.Linear(384, 384), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers, torch.nn.Linear(384, 2))

    def samples(count: int) -> list:
        return [(torch.randn(count, 64), torch.randint(0, 2, (count,))) for _ in range(5)]

    with dtrain.init(hparams={"global_batch_size": 1024}) as ctx:
        plain = DistributedDataParallel(large())
        model = large()
        model, optimizer = ctx.prepare(model, sgd(model))
        plain_optimizer = sgd(plain)
        torch.manual_seed(ctx.distributed.get_rank())

        def bare_turn(batches: list, rounds: int) -> None:
            for inputs, labels in batches * rounds:
                cross_entropy(plain(inputs), labels).backward()
                torch.nn.utils.clip_grad_norm_(plain.parameters(), NORM)
                plain_optimizer.step()
                plain_optimizer.zero_grad(set_to_none=True)

        def our_turn(batches: list, rounds: int) -> None:
            for step, batch in enumerate(batches * rounds):
                inputs, labels = ctx.to_device(batch)
                loss = cross_entropy(model(inputs), labels)
                ctx.backward(loss)
                ctx.step(optimizer, clip_grad_norm=NORM)
                ctx.report(step, {"loss": loss})

        def timed(turn: Callable, batches: list, rounds: int) -> float:
            ctx.distributed.barrier()
            started = time.perf_counter()
            turn(batches, rounds)
            return (time.perf_counter() - started) / (len(batches) * rounds) * 1e6

        count = 512
        for _ in range(3):
            batches = samples(count)
            # Both models take the same steps, so that their weights can be compared.
            our_turn(batches, 2)
            taken = ctx.distributed.broadcast(timed(bare_turn, batches, 2))
            count = max(64, int(count * step_ms * 1e3 / taken))
        batches = samples(count)
        rounds = max(1, round(500 / step_ms / len(batches)))
        blocks: list = [[], []]
        for number in range(pairs + 1):
            turns = [(0, bare_turn), (1, our_turn)]
            for side, turn in turns if number % 2 else reversed(turns):
                blocks[side].append(timed(turn, batches, rounds))
        equal = dtrain.parameters_sha256(plain) == dtrain.parameters_sha256(model)
    return {"bare": blocks[0][1:], "loop": blocks[1][1:], "equal": equal, "samples": count}


LOOPS = {
    loop.__name__: loop
    for loop in (
        bare,
        script,
        script_silent,
        script_in_trial,
        script_measured,
        trial,
        determined,
        accelerate,
        fabric,
        lightning,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=[*LOOPS, "ddp", "first_bare", "first_script"])
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--step-ms", type=float, default=15)
    parser.add_argument("--pairs", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    if arguments.name == "ddp":
        print(json.dumps(ddp(arguments.step_ms, arguments.pairs)), flush=True)
        return
    if arguments.name.startswith("first_"):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            first(arguments.name.removeprefix("first_"))
            os.chdir("/")
        return
    data = Samples(BATCH * arguments.batches)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        os.chdir(folder)
        result = race(LOOPS[arguments.name], data, arguments.batches)
        os.chdir("/")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
