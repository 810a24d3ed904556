"""The scene ``failures``: trials that failed in training or could not start, and a search that mostly failed alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from airflow_provider_dtrain.core.lifecycle.failure_cause import CauseKind
from airflow_provider_dtrain.core.lifecycle.rank_text import clock
from airflow_provider_dtrain.engine.attempt.outcome import Failure
from airflow_provider_dtrain.errors import DtrainError, HostSilentError, ImageError, RankFailedError, UnplaceableError
from testbed.seed.experiments import Planned
from testbed.seed.run import PACKAGES, Run
from testbed.seed.scenes import key, log_of, searched
from testbed.seed.simulation import Life, Simulation
from testbed.seed.small import document, hosts
from testbed.seed.training import Course, Progress, train

HOURS = 40.0
#: Trials of the search that have no memory left, and the one that reads a wrong column.
NO_MEMORY, NO_LABEL = frozenset({0, 1, 3, 4, 5, 7, 8, 9}), 6
WORK = "/var/tmp/dtrain/runs/s-t1.1.1/work/"
LIBRARY = "/opt/venvs/train/lib/python3.12/site-packages/torch/"
#: File, line, function and code of the frames of a traceback, the innermost one last.
Frames = Sequence[tuple[str, int, str, str]]
STEP: Frames = (
    (f"{WORK}train.py", 132, "<module>", "main(ctx)"),
    (f"{WORK}train.py", 88, "main", "loss = step(model, batch)"),
    (f"{WORK}model.py", 41, "step", "return self.head(self.blocks(x))"),
    (f"{LIBRARY}nn/modules/module.py", 1773, "_wrapped_call_impl", "return self._call_impl(*args, **kwargs)"),
    (f"{LIBRARY}nn/modules/module.py", 1784, "_call_impl", "return forward_call(*args, **kwargs)"),
    (f"{LIBRARY}nn/functional.py", 2371, "linear", "return torch._C._nn.linear(input, weight, bias)"),
)
LOAD: Frames = (
    (f"{WORK}train.py", 132, "<module>", "main(ctx)"),
    (f"{WORK}train.py", 84, "main", "for batch in loader:"),
    (f"{LIBRARY}utils/data/dataloader.py", 733, "__next__", "data = self._next_data()"),
    (f"{WORK}data.py", 34, "collate", 'labels = [row["label"] for row in rows]'),
)


def failures(site: Simulation) -> None:
    """Let the scene happen, up to now."""
    site.at(HOURS, hosts(site))
    site.at(30, nightly(site, 30, lr=0.1))
    site.at(6, nightly(site, 6, lr=0.4, rank=5))
    site.at(20, sweep(site))
    site.at(3, without_start(site, "own-image", ImageError(NO_IMAGE)))
    site.at(2.5, without_start(site, "too-large", UnplaceableError(TOO_LARGE)))
    site.at(4, silent_host(site))
    site.run()


NO_IMAGE = (
    "Host 'a100-02' cannot download image 'registry.example.com/vision:2.9': manifest unknown. Check its name, or log "
    "in with a connection of the registry.\ntrying to pull registry.example.com/vision:2.9...\nError: initializing "
    "source docker://registry.example.com/vision:2.9: reading manifest 2.9: manifest unknown"
)
TOO_LARGE = "Pool 'a100' has 40 slots on 5 hosts, and the request needs 64 slots."


def raised(run: Run, rank: int, kind: CauseKind, message: str, frames: Frames, lines: Sequence[str]) -> dict[str, Any]:
    """Report that a rank raised and that the other ranks were ended, and return the failure."""
    texts = (f'  File "{file}", line {line}, in {name}\n    {code}\n' for file, line, name, code in frames)
    trace = f"Traceback (most recent call last):\n{''.join(texts)}{message}\n"
    host = next(name for name, ranks in run.ranks.items() if rank in ranks)
    codes = {one: -15 for ranks in run.ranks.values() for one in ranks} | {rank: 1}
    logs = {one: f"rank {one}: waiting in all_reduce\n" for one in codes}
    logs[rank] = "\n".join([*lines, trace])
    run.exits(codes, logs, {rank: {"message": message, "traceback": trace}}, sent_signal=True)
    file, line, name, _ = next(one for one in reversed(frames) if one[0].startswith(WORK))
    error = RankFailedError(
        rank=rank,
        host=host,
        exit_code=1,
        traceback=trace,
        message=f"{message}, at {file.removeprefix(WORK)}:{line} in {name}",
        when=clock(run.site.clock.unix),
        advice=kind.advice,
        cause_kind=kind.value,
    )
    return asdict(Failure.of(error))


def nightly(site: Simulation, hours: float, *, lr: float, rank: int | None = None) -> Life:
    """A training that a DAG runs each night. The latest one got a newer PyTorch, another rate, and other hosts.

    :param rank: the rank that fails; None = none
    """
    described = document(
        "segmentation-nightly",
        hyperparameters={"lr": lr, "epochs": 12},
        max_restarts=1,
        resources={"slots_per_trial": 8, "pool": "h100"},
    )
    planned = Planned(site.store, key(site, "segmentation_nightly", hours, "train"), described)
    course = Course(epochs=12, batches=500, epoch_s=300, quality=0.8)
    run = Run(site, planned.submission())
    if rank is not None:
        run.packages = {**PACKAGES, "torch": "2.9.0", "torchvision": "0.24.0"}
    run.submit()
    progress = Progress()
    yield from run.start()
    if rank is None:
        yield from train(run, course, progress)
        every = [one for ranks in run.ranks.values() for one in ranks]
        run.exits({}, {one: log_of(course, progress, one) for one in every})
        return run.finish()
    for attempt in range(2):
        yield from train(run, course, progress, until=progress.epoch + 2)
        lines = [*log_of(course, progress, rank).splitlines(), "\x1b[33mWARNING\x1b[0m shard 17 of 64 has no labels"]
        failure = raised(run, rank, CauseKind.EXCEPTION, "KeyError: 'label'", LOAD, lines)
        yield 10.0
        if attempt == 0:
            run.restart(failure)
            yield 5.0
            run.launch()
    run.finish("errored", failure)


def sweep(site: Simulation) -> Life:
    """A random search of which eight of ten trials have no memory left."""
    space = {"lr": {"type": "log", "minval": -4, "maxval": -1}, "width": {"type": "int", "minval": 512, "maxval": 4096}}
    searcher = {"name": "random", "max_trials": 10, "max_length": {"epochs": 8}}
    described = document("width-sweep", hyperparameters=space, searcher=searcher, max_restarts=0)
    planned = Planned(site.store, key(site, "width_sweep", 20, "plan"), described)
    course = Course(epochs=8, batches=390, epoch_s=300, quality=0.5)
    for number in range(len(planned.specs)):
        fails = number in NO_MEMORY or number == NO_LABEL
        site.soon(broken(site, planned, number) if fails else searched(site, planned, number, course), 20.0 * number)
    yield 12 * 3600.0
    site.store.searches.end(planned.search_id or 0)


def broken(site: Simulation, planned: Planned, number: int) -> Life:
    """A trial of the search that fails in its first step."""
    run = Run(site, planned.submission(number))
    run.submit()
    yield from run.start()
    yield 30.0
    kind, message, frames = CauseKind.EXCEPTION, "KeyError: 'label'", LOAD
    if number in NO_MEMORY:
        kind, frames = CauseKind.DEVICE_MEMORY, STEP
        message = (
            f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {2 + number / 4:.2f} GiB. GPU {number % 8} "
            f"has a total capacity of 79.15 GiB of which {100 + 7 * number}.00 MiB is free"
        )
    failure = raised(run, 0, kind, message, frames, [f"model has {37 + number} million parameters"])
    yield 5.0
    run.finish("errored", failure)


def without_start(site: Simulation, name: str, error: DtrainError) -> Life:
    """A trial whose ranks are never started."""
    described = document(name, resources={"slots_per_trial": 8})
    planned = Planned(site.store, key(site, name.replace("-", "_"), 3, "train"), described)
    run = Run(site, planned.submission())
    run.submit()
    yield 60.0
    run.finish("errored", asdict(Failure.of(error)))


def silent_host(site: Simulation) -> Life:
    """A training whose host stopped answering, which had no restart left."""
    planned = Planned(site.store, key(site, "night_train", 4, "train"), document("night-train"))
    run = Run(site, planned.submission())
    run.submit()
    yield from run.start()
    yield from train(run, Course(epochs=10, batches=390, epoch_s=300, quality=0.5), Progress(), until=3)
    host = run.first_host
    message = f"Host '{host}' did not answer for 180 s: ssh: connect to host {host} port 22: Connection timed out."
    run.finish("errored", asdict(Failure.of(HostSilentError(host, message))))
