"""The scene ``small``: three days of a site with ten hosts, with something of everything that the pages show."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from airflow_provider_dtrain.store.records.gangs import GangSubmission
from airflow_provider_dtrain.store.records.trials import HostRecord, SlotRecord
from testbed.seed.experiments import Planned
from testbed.seed.logs import HOSTILE, logged, steps, write_log
from testbed.seed.run import Run
from testbed.seed.scenes import TEMPLATE, key, raises, searched, trained
from testbed.seed.simulation import Awaits, Life, Simulation
from testbed.seed.telemetry import Machines, recorded
from testbed.seed.training import Course, Progress, train

HOURS = 76.0
#: Names that break a page which inserts them as HTML.
HOSTILE_NAME = 'sweep <b>bold</b> & "quoted" <script>window.hacked=1</script>'
HOSTILE_METRIC = "<img src=x onerror=window.hacked=1>"
HOSTILE_HPARAM = "<script>window.hacked=1</script>"
#: Experiment whose trials have copies of checkpoints and outputs, with the option ``--copies``.
WITH_COPIES = "mnist-grid"
#: Experiment -> name, description and tags that users gave it.
LABELS: dict[str, dict[str, Any]] = {
    "cifar10-asha": {"description": "Baseline of the paper, section 4.2", "tags": ["paper", "vision"]},
    "gpt2-finetune": {"display_name": "GPT-2 on support tickets", "tags": ["language"]},
    HOSTILE_NAME: {"description": "<img src=x onerror=window.hacked=1>", "tags": ["<u>tag</u>"]},
}
#: Experiment -> comments on it, each with its user.
COMMENTS: dict[str, tuple[tuple[str, str], ...]] = {
    "cifar10-asha": (
        (
            "bob",
            "Dropout above 0.3 **never helps** here, see the contour.\n\n- next: a cosine schedule\n- `warmup` of 500",
        ),
        ("alice", "Agreed. The best trial is the one that we deploy."),
    ),
    HOSTILE_NAME: (("<b>eve</b>", "<script>window.hacked=1</script> ![x](javascript:hacked) [y](javascript:hacked)"),),
}
SPACE = {
    "lr": {"type": "log", "minval": -4, "maxval": -1},
    "dropout": {"type": "double", "minval": 0, "maxval": 0.5},
    "global_batch_size": {"type": "categorical", "vals": [32, 64, 128]},
    "optimizer": {"type": "categorical", "vals": ["adamw", "sgd"]},
}
FILES = ("/run/dtrain/code/train.py", "/run/dtrain/code/data.py")


def small(site: Simulation) -> None:
    """Let the scene happen, up to now."""
    site.at(HOURS, hosts(site))
    site.at(70, grid(site))
    site.at(58, asha(site))
    site.at(31, broken(site))
    site.at(27, killed_sweep(site))
    site.at(22, not_numbers(site))
    site.at(18, hostile(site))
    site.at(9, finetune(site))
    site.at(4.5, resnet(site))
    site.at(3.2, urgent(site))
    site.at(2.6, pretrain(site))
    site.at(2.2, paused_sweep(site))
    site.at(0.7, distill(site))
    site.at(1.4, held_gangs(site))
    site.at(0.9, host_states(site))
    site.at(0.2, labels(site))
    site.run()


# -- machines ---------------------------------------------------------------------------------------
def host(name: str, pool: str, device_name: str | None, slots: int) -> HostRecord:
    """Return a host with GPUs, or with CPU slots without a device name."""
    kind = "cuda" if device_name else "cpu"
    memory = 80 * 2**30 if device_name else None
    records = tuple(
        SlotRecord(index=i, device=f"GPU-{name}-{i}" if device_name else None, device_name=device_name,
                   memory_bytes=memory) for i in range(slots)
    )  # fmt: skip
    return HostRecord(
        name=name, pool=pool, slot_type=kind, slots=records, conn_id=f"ssh_{name}", address=f"{name}.example.net",
        machine_id=f"machine-{name}", boot_id=f"boot-{name}", pid_ns="4026531836",
        facts={"hostname": name, "cpus": 96, "memory_bytes": 1024 * 2**30, "driver": "580.65.06"},
    )  # fmt: skip


def hosts(site: Simulation) -> Life:
    """Register the hosts, and set pools and the template."""
    for number in range(1, 6):
        site.store.hosts.add(host(f"a100-0{number}", "a100", "NVIDIA A100-SXM4-80GB", 8), by="admin")
    for number in range(1, 4):
        site.store.hosts.add(host(f"h100-0{number}", "h100", "NVIDIA H100 80GB HBM3", 8), by="admin")
    for number in range(1, 3):
        site.store.hosts.add(host(f"cpu-0{number}", "cpu", None, 4), by="admin")
    site.store.pools.set("a100", min_run_s=600, by="admin")
    site.store.templates.set("vision", TEMPLATE, by="admin")
    site.store.hosts.set_slot_enabled("a100-03", 7, False, by="admin")
    site.store.hosts.mark_slot("cpu-02", 3, "stuck", "process 4711 (python) is in uninterruptible sleep")
    yield 1.0


def host_states(site: Simulation) -> Life:
    """Drain, lose and disable hosts."""
    site.store.hosts.set_state("a100-05", "draining", "replace the fan of GPU 3", by="admin")
    site.store.hosts.mark_slot("h100-01", 7, "busy_elsewhere", "process 31337 (jupyter) of user carol")
    yield 600.0
    site.store.hosts.set_state("h100-03", "disabled", "reserved for the course on Friday", by="admin")
    words = "no answer for 120 s: ssh: connect to host h100-02.example.net port 22: Connection timed out"
    site.store.hosts.set_state("h100-02", "unreachable", words)
    site.store.hosts.set_state("a100-04", "draining", "driver update", by="op")
    yield 1.0


def labels(site: Simulation) -> Life:
    """Annotate experiments and trials."""
    for experiment in site.store.experiments.list():
        if experiment.name in LABELS:
            site.store.control.set("experiment", experiment.experiment_id, **LABELS[experiment.name], by="alice")
            for by, text in COMMENTS.get(experiment.name, ()):
                site.store.comments.add("experiment", experiment.experiment_id, text, user_id=by, by=by)
        if experiment.name == "cifar10-asha" and experiment.best_trial is not None:
            words = {"description": "Deployed on Monday", "tags": ["deployed"]}
            site.store.control.set("trial", experiment.best_trial, **words, by="alice")
    yield 1.0


# -- experiments that have ended --------------------------------------------------------------------
def document(name: str, **more: Any) -> dict[str, Any]:
    """Return a configuration as a user writes it."""
    resources = {"slots_per_trial": 1, "pool": "a100", **more.pop("resources", {})}
    return {"name": name, "template": "vision", "entrypoint": "python train.py", "resources": resources, **more}


def grid(site: Simulation) -> Life:
    """A grid search that completed, in another pool."""
    space = {
        "lr": {"type": "categorical", "vals": [0.0003, 0.003, 0.03]},
        "seed": {"type": "categorical", "vals": [1, 2]},
    }
    described = document("mnist-grid", hyperparameters=space, searcher={"name": "grid"},
                         description="Baseline for the digits", labels=["baseline"],
                         resources={"pool": "cpu", "slots_per_trial": 2})  # fmt: skip
    planned = Planned(site.store, key(site, "mnist_grid", 70, "plan"), described)
    course = Course(epochs=6, batches=300, epoch_s=240, quality=0.5, seed=400)
    for number in range(len(planned.specs)):
        site.soon(searched(site, planned, number, course), 5.0 * number)
    yield 5 * 3600.0
    site.store.searches.end(planned.search_id or 0)


def asha(site: Simulation) -> Life:
    """An adaptive ASHA search that completed. Two of its trials failed."""
    searcher = {"name": "adaptive_asha", "max_trials": 32, "max_length": {"epochs": 16}, "divisor": 4,
                "mode": "conservative", "max_rungs": 3, "max_concurrent_trials": 10}  # fmt: skip
    described = document("cifar10-asha", hyperparameters=SPACE, searcher=searcher, labels=["cifar10", "search"],
                         description="Learning rate, dropout and batch size of the small network")  # fmt: skip
    planned = Planned(site.store, key(site, "cifar10_asha", 58, "plan"), described)
    course = Course(epochs=16, batches=390, epoch_s=420, quality=0.5,
                    more=lambda progress: {"top5": 0.5 + 0.49 * (1 - math.exp(-5 * progress))})  # fmt: skip
    for number in range(len(planned.specs)):
        fails = out_of_memory if number in {7, 21} else None
        site.soon(searched(site, planned, number, course) if fails is None else
                  failing(site, planned.submission(number), fails, course), 8.0 * number)  # fmt: skip
    yield 24 * 3600.0
    site.store.searches.end(planned.search_id or 0)


def out_of_memory(run: Run) -> dict[str, Any]:
    """Report that a rank has no memory left."""
    message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.1 GiB in use."
    return dict(raises(run, 0, message, [(FILES[0], 88, "loss.backward()")]))


def missing_shard(run: Run) -> dict[str, Any]:
    """Report that a rank does not find a file of the data set."""
    message = "FileNotFoundError: [Errno 2] No such file or directory: '/data/imagenet/shard-017.tar'"
    where = [(FILES[0], 41, "for batch in loader:"), (FILES[1], 19, "return open(path, 'rb')")]
    return dict(raises(run, 1 if sum(map(len, run.ranks.values())) > 1 else 0, message, where))


def failing(site: Simulation, submission: Any, fails: Any, course: Course) -> Life:
    """A trial that fails in each of its attempts until its restarts are used up."""
    run = Run(site, submission)
    run.submit()
    progress = Progress()
    yield from run.start()
    for restarts in range(submission.max_restarts + 1):
        yield from train(run, course, progress, until=progress.epoch + 1)
        failure = fails(run)
        yield 20.0
        if restarts < submission.max_restarts:
            run.restart(failure)
            yield 15.0
            run.launch()
    run.finish("errored", failure)


def broken(site: Simulation) -> Life:
    """An experiment whose only trial failed."""
    described = document("imagenet-resnet50", hyperparameters={"lr": 0.1, "epochs": 90}, max_restarts=2,
                         resources={"slots_per_trial": 4}, labels=["imagenet"])  # fmt: skip
    planned = Planned(site.store, key(site, "imagenet_resnet50", 31, "train"), described)
    course = Course(epochs=90, batches=5004, epoch_s=900, quality=0.8)
    yield from failing(site, planned.submission(), missing_shard, course)


def killed_sweep(site: Simulation) -> Life:
    """A random search that a user killed."""
    searcher = {"name": "random", "max_trials": 4, "max_length": {"epochs": 40}}
    described = document("wrong-dataset", hyperparameters=SPACE, searcher=searcher)
    planned = Planned(site.store, key(site, "wrong_dataset", 27, "plan"), described)
    course = Course(epochs=40, batches=390, epoch_s=420, quality=0.5)
    for number in range(4):
        site.soon(searched(site, planned, number, course), 5.0 * number)
    yield 5400.0
    experiment = site.store.searches.get(planned.search_id or 0).experiment_id
    site.store.experiments.kill(experiment, "alice")
    yield 1200.0
    site.store.searches.end(planned.search_id or 0)


def not_numbers(site: Simulation) -> Life:
    """A trial whose metrics become NaN and infinite."""
    described = document("lr-too-high", hyperparameters={"lr": 10.0})
    planned = Planned(site.store, key(site, "lr_too_high", 22, "train"), described)
    run = Run(site, planned.submission())
    run.submit()
    yield from run.start()
    for step in range(1, 61):
        yield 20.0
        loss = 2.3 * 1.3**step if step < 25 else math.inf if step < 30 else math.nan
        report = {"kind": "report", "step": 10 * step, "metrics": {"loss": loss, "grad_norm": -loss}}
        run.commit([{**report, "epoch": step / 10}])
        if step % 10 == 0:
            values = {"accuracy": 0.1 if step < 30 else math.nan, "loss": loss}
            run.commit([{"kind": "validation", "step": 10 * step, "metrics": values, "epoch": step / 10}])
    write_log(run, 0, steps(0, 0, 600) + HOSTILE + b"loss is nan\n", run.started_s, is_complete=True)
    run.exits({}, {0: "loss is nan\n"})
    run.finish("completed")


def hostile(site: Simulation) -> Life:
    """A search whose names are HTML, and whose log is too."""
    space = {
        "lr": {"type": "log", "minval": -4, "maxval": -1},
        HOSTILE_HPARAM: {"type": "categorical", "vals": ["<i>a</i>", "b"]},
    }
    searcher = {"name": "random", "metric": HOSTILE_METRIC, "smaller_is_better": True, "max_trials": 3,
                "max_length": {"epochs": 4}}  # fmt: skip
    described = document(HOSTILE_NAME, hyperparameters=space, searcher=searcher,
                         description="<img src=x onerror=window.hacked=1>", labels=["<u>tag</u>"])  # fmt: skip
    planned = Planned(site.store, key(site, "hostile_names", 18, "plan"), described)
    course = Course(epochs=4, batches=100, epoch_s=120, quality=0.5, metric=HOSTILE_METRIC)
    for number in range(2):
        site.soon(searched(site, planned, number, course), 5.0 * number)
    site.soon(failing(site, planned.submission(2, max_restarts=0), hostile_failure, course), 10.0)
    yield 2 * 3600.0
    site.store.searches.end(planned.search_id or 0)


def hostile_failure(run: Run) -> dict[str, Any]:
    """Report a failure whose message is HTML."""
    return dict(raises(run, 0, "ValueError: <script>window.hacked=1</script>", [(FILES[0], 7, "raise error")]))


# -- experiments that have not ended ----------------------------------------------------------------
def finetune(site: Simulation) -> Life:
    """A training on two hosts that lost a host, made way for an urgent trial, and runs again."""
    described = document("gpt2-finetune", hyperparameters={"lr": 0.0003, "context": 1024, "warmup": 200},
                         resources={"slots_per_trial": 16, "priority": 60}, labels=["language", "long"],
                         description="Fine-tuning on the support tickets", max_restarts=3,
                         searcher={"name": "single", "metric": "loss", "smaller_is_better": True})  # fmt: skip
    planned = Planned(site.store, key(site, "gpt2_finetune", 9, "train"), described)
    run = Run(site, planned.submission())
    run.submit()
    site.soon(recorded(run, Machines(every_s=20, slow_rank=11)))
    site.soon(logged(run, ranks=4))
    course = Course(
        epochs=40,
        batches=500,
        epoch_s=900,
        quality=0.9,
        metric="accuracy",
        reports=20,
        saves_every=3,
        lr=3e-4,
        more=lambda progress: {"perplexity": 18 + 60 * math.exp(-4 * progress)},
    )
    progress = Progress()
    yield from run.start()
    yield from train(run, course, progress, until=5)
    lost = list(run.placement)[-1]
    failure = {"error": "HostLostError", "kind": "infra", "host": lost, "rank": None,
               "message": f"Host '{lost}' rebooted while the trial ran there."}  # fmt: skip
    former = run.ticket.attempt_id, run.watch
    run.move_on(failure, lost)
    site.soon(returns(site, former, lost), 300)
    yield from run.start()
    yield from trained(run, course, progress)


def returns(site: Simulation, of: tuple[int, int], name: str) -> Life:
    """A host that rebooted answers again, so that the slots of its former run are free."""
    site.store.hosts.update_facts(name, {"hostname": name, "cpus": 96}, boot_id=f"boot-2-{name}")
    site.store.queue.release(*of, name, proof="reboot")
    yield 1.0


def resnet(site: Simulation) -> Life:
    """A search that runs now: trials in every state, one of them paused by a user."""
    searcher = {"name": "async_halving", "max_trials": 36, "max_length": {"epochs": 16}, "divisor": 2, "num_rungs": 4,
                "max_concurrent_trials": 5}  # fmt: skip
    described = document("resnet-asha", hyperparameters=SPACE, searcher=searcher, labels=["cifar100", "search"],
                         description="ResNet-18 on CIFAR-100")  # fmt: skip
    planned = Planned(site.store, key(site, "resnet_asha", 4.5, "plan"), described)
    course = Course(epochs=16, batches=390, epoch_s=700, quality=0.5, seed=200)
    for number in range(len(planned.specs)):
        life = searched(site, planned, number, course, machines=Machines(every_s=60, has_timings=False))
        if number == 5:
            life = failing(site, planned.submission(number), out_of_memory, course)
        site.soon(life, 4.0 * number)
    yield 3600.0
    waiting = [one for one in site.store.trials.list(state="queued") if one.experiment == "resnet-asha"]
    site.store.control.pause(waiting[0].trial_id, "bob")
    site.store.control.set("trial", waiting[1].trial_id, priority=30, by="op")
    running = [one for one in site.store.trials.list(state="running") if one.experiment == "resnet-asha"]
    site.store.control.kill(running[0].trial_id, "op")
    yield 1800.0
    running = [one for one in site.store.trials.list(state="running") if one.experiment == "resnet-asha"]
    site.store.control.stop(running[0].trial_id, "alice")


def urgent(site: Simulation) -> Life:
    """An urgent trial that preempts another one, and completes."""
    described = document("hotfix-eval", hyperparameters={"lr": 0.001}, labels=["urgent"],
                         resources={"slots_per_trial": 24, "priority": 5})  # fmt: skip
    planned = Planned(site.store, key(site, "hotfix_eval", 3.2, "train"), described)
    run = Run(site, planned.submission())
    run.submit()
    yield from run.start()
    yield from trained(run, Course(epochs=3, batches=200, epoch_s=300, quality=0.8), Progress())


def pretrain(site: Simulation) -> Life:
    """A trial that waits for more slots than are free."""
    described = document("llama-pretrain", hyperparameters={"lr": 0.0002, "layers": 32}, labels=["language"],
                         resources={"pool": "h100", "slots_per_trial": 24}, on_unplaceable="wait",
                         description="Waits until all three hosts are there")  # fmt: skip
    planned = Planned(site.store, key(site, "llama_pretrain", 2.6, "train"), described)
    blocker = document("eval-harness", hyperparameters={"tasks": 12}, resources={"pool": "h100", "slots_per_trial": 4})
    first = Run(site, Planned(site.store, key(site, "eval_harness", 2.6, "train"), blocker).submission())
    first.submit()
    site.soon(recorded(first, Machines(every_s=60, has_timings=False)))
    site.soon(whole(first, Course(epochs=30, batches=100, epoch_s=400, quality=0.6)))
    second = Run(site, replace(planned.submission(), preemptible=True))
    yield 60.0
    second.submit()
    yield from whole(second, Course(epochs=100, batches=1000, epoch_s=900, quality=0.9))


def distill(site: Simulation) -> Life:
    """A trial that waits for the hosts of another one."""
    described = document(
        "bert-distill",
        hyperparameters={"lr": 0.0005, "temperature": 2.0},
        labels=["language"],
        resources={"slots_per_trial": 16, "priority": 60},
    )
    run = Run(site, Planned(site.store, key(site, "bert_distill", 0.7, "train"), described).submission())
    run.submit()
    yield from whole(run, Course(epochs=20, batches=500, epoch_s=600, quality=0.7))


def whole(run: Run, course: Course) -> Life:
    """A submitted trial, from its start to its end."""
    yield from run.start()
    yield from trained(run, course, Progress())


def paused_sweep(site: Simulation) -> Life:
    """A search that a user paused."""
    searcher = {"name": "random", "max_trials": 6, "max_length": {"epochs": 12}}
    described = document("augmentation-study", hyperparameters=SPACE, searcher=searcher,
                         resources={"pool": "cpu", "slots_per_trial": 1})  # fmt: skip
    planned = Planned(site.store, key(site, "augmentation_study", 2.2, "plan"), described)
    course = Course(epochs=12, batches=390, epoch_s=500, quality=0.5, seed=300)
    for number in range(len(planned.specs)):
        site.soon(searched(site, planned, number, course), 6.0 * number)
    yield 3600.0
    experiment = site.store.searches.get(planned.search_id or 0).experiment_id
    site.store.experiments.pause(experiment, "bob")
    site.store.control.set("experiment", experiment, weight=2.0, max_slots=4, by="bob")


def held_gangs(site: Simulation) -> Life:
    """A held gang between two tasks, and a request for another one."""
    for task, slots, pool, wait in (("gang", 2, "h100", 0), ("big_gang", 16, "h100", 0)):
        submission = GangSubmission(
            key=key(site, "nightly_eval", 1.4, task), pool=pool, slots=slots, hold_for_s=7200, on_unplaceable="wait"
        )
        site.soon(held(site, submission), wait)
    yield 1.0


def held(site: Simulation, submission: GangSubmission) -> Life:
    """A gang that is held, or waits."""
    gang = site.store.gangs.submit(submission)
    watch = site.store.gangs.watch(gang.allocation_id, watcher="triggerer on airflow-1")
    yield Awaits(gang.allocation_id, submission.pool, lambda: site.store.gangs.renew(gang.allocation_id, watch))
    site.store.gangs.take_up(gang.allocation_id, watch)


__all__ = ["HOSTILE_HPARAM", "HOSTILE_METRIC", "HOSTILE_NAME", "small"]
