"""Initialization: turns a process with some environment variables into a rank that can train."""

from __future__ import annotations

import atexit
import datetime
import importlib.util
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint.saver import Saver
from airflow_provider_dtrain.train.context import Context
from airflow_provider_dtrain.train.data.batch_size import Hparams, constants
from airflow_provider_dtrain.train.data.position import Progress
from airflow_provider_dtrain.train.distributed import Distributed, RankDevice, join
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.gradients.flop_count import FlopCount
from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients
from airflow_provider_dtrain.train.prepared import Prepared
from airflow_provider_dtrain.train.process import config_check, fast_exit, seeding, stacks, worker
from airflow_provider_dtrain.train.process.heartbeat import HERE
from airflow_provider_dtrain.train.process.import_hooks import after_import
from airflow_provider_dtrain.train.process.imported import imported
from airflow_provider_dtrain.train.process.streams import Streams
from airflow_provider_dtrain.train.reports import failure
from airflow_provider_dtrain.train.reports.builtin_metrics import BuiltinMetrics
from airflow_provider_dtrain.train.reports.events import EventWriter
from airflow_provider_dtrain.train.reports.experiment_loggers import open_loggers
from airflow_provider_dtrain.train.reports.memory_snapshot import MemoryHistory
from airflow_provider_dtrain.train.reports.metrics import Reporter
from airflow_provider_dtrain.train.reports.short_run import reduced
from airflow_provider_dtrain.train.reports.timings import open_timings
from airflow_provider_dtrain.train.search.rungs import DEFAULT_TIMEOUT_S as DECISION_TIMEOUT_S
from airflow_provider_dtrain.train.search.rungs import RungQuestions

DEFAULT_TIMEOUT_S = 1800.0
#: Longest text of a fact about this rank that the control side accepts.
_FACT_CHARS = 256
#: Backend of ranks that do not use PyTorch.
SOCKETS = "sockets"

_live: list[Context] = []


def init(
    *,
    hparams: Mapping[str, Any] | None = None,
    seed: int | None = None,
    device: str | None = None,
    backend: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    checkpoint_dir: str | Path | None = None,
    fail_on_nan: bool = True,
    config: Mapping[str, Any] | None = None,
) -> Context:
    """Return this rank's context, joined to its process group, seeded and on its device.

    The same call works as a trial, under torchrun and as ``python train.py`` (one process, no environment). Use it
    in a ``with`` statement, once per process.

    A single rank imports PyTorch only if the program does, before or after this call. Device, seeds and switches take
    effect at the end of that import.

    :param hparams: default hyperparameters; those of the trial override them
    :param seed: off-cluster only, because a trial has its own. Default: ``reproducibility.experiment_seed`` of
        ``config``, else 0
    :param device: e.g. ``cpu``; default: the rank's GPU when one is visible, which becomes the current device
    :param backend: default: ``nccl`` on a GPU, ``gloo`` on the CPU and where ranks share a GPU. ``sockets``: PyTorch is
        not imported, and ``ctx.device`` is None; the default where PyTorch is not installed
    :param timeout_s: time limit of an exchange between the ranks, seconds
    :param checkpoint_dir: off-cluster only: folder or URL such as ``s3://bucket/prefix`` that checkpoints are written
        to and ``restore`` reads. Default: a new folder below ``checkpoints/``, so that a second start begins anew
    :param fail_on_nan: raise when the loss of ``ctx.backward``, or a metric whose name ends in ``loss``, is NaN, and
        when weights are not finite. False: training continues, and a checkpoint of such weights is left out
    :param config: off-cluster only: an experiment configuration. Its hyperparameters must be constants, or be given
        in ``hparams``
    :raises SetupError: the environment or ``config`` is not valid, or the process already has a context
    """
    _log_to_stderr()
    env = reduced(RankEnvironment.read())
    if config and not env.on_cluster:
        config_check.check(config)
        config_check.check_ranges(config.get("hyperparameters") or {}, {**(hparams or {}), **env.hparams})
        env = replace(env, config=config)
        hparams = {**constants(config.get("hyperparameters") or {}), **(hparams or {})}
        seed = (config.get("reproducibility") or {}).get("experiment_seed") if seed is None else seed
    if _live and not (_live[-1].closed and env.world_size == 1):
        raise SetupError("dtrain.init() must be called once per process, and was called before. Pass its context on.")
    worker.begin(env.events_path.parent if env.events_path else None, env.launcher_log)
    failure.install(env.error_path, env.rank)
    # Before the ranks join, where a rank that waits for the others is worth a look.
    stacks.install(env.events_path)
    device_of_rank = _torch_device(env, device, backend)
    distributed = _join(env, device_of_rank, backend, timeout_s)
    trial_seed = env.seed if env.seed is not None else seed or 0
    if device_of_rank is not None and (env.config.get("reproducibility") or {}).get("deterministic"):
        seeding.make_deterministic()
    seeding.seed_everything(trial_seed)
    context = _build(
        env,
        distributed,
        trial_seed,
        device_of_rank or _no_device,
        Hparams({**(hparams or {}), **env.hparams}),
        checkpoint_dir,
        fail_on_nan,
        timeout_s,
    )
    HERE.begin(env.run_dir, env.rank, lambda: context._batches)
    profiling = env.config.get("profiling") or {}
    if device_of_rank is not None and profiling.get("enabled", True):
        context.profiler.configure(profiling.get("trace"))
        if profiling.get("memory_snapshot"):
            history = MemoryHistory(env, context._writer)
            failure.explain_by(history.explain)
            after_import("torch", "memory", history.start)
    _report_runtime(env, context._writer, device_of_rank, backend)
    _live.append(context)
    if env.on_cluster or env.world_size > 1:
        fast_exit.install()
    # Runs before torch's own exit handlers, also if the program imports torch later.
    atexit.register(context.leave)
    return context


def _torch_device(env: RankEnvironment, device: str | None, backend: str | None) -> RankDevice | None:
    """Return the future device of this rank, or None without PyTorch.

    PyTorch is imported now where it is certain to be used: ranks exchange messages with it, or an argument asks for it.

    :raises SetupError: PyTorch is asked for and not installed
    """
    if backend == SOCKETS or importlib.util.find_spec("torch") is None:
        if backend not in {None, SOCKETS} or device not in {None, "cpu"}:
            raise SetupError(
                f"dtrain.init(device={device!r}, backend={backend!r}) needs PyTorch, which {sys.executable} does not "
                "have. Install torch where the ranks run, or leave both out for another framework."
            )
        return None
    chosen = RankDevice(env, device)
    if env.world_size > 1 or backend is not None or device not in {None, "cpu"}:
        chosen()
    return chosen


def _no_device() -> None:
    return None


def _join(env: RankEnvironment, device: Callable[[], Any] | None, backend: str | None, timeout_s: float) -> Distributed:
    if env.world_size == 1:
        return Distributed(env)
    if device is None:
        # Imported here, because a rank that is alone need not wait for it.
        from airflow_provider_dtrain.train import plain_ranks

        return plain_ranks.join(env, timeout_s=timeout_s)
    return join(env, backend=backend or _default_backend(env, device()), timeout_s=timeout_s)


def _default_backend(env: RankEnvironment, device: Any) -> str:
    return "nccl" if device.type == "cuda" and not env.shares_devices else "gloo"


def _report_runtime(
    env: RankEnvironment, writer: EventWriter, device: Callable[[], Any] | None, backend: str | None
) -> None:
    """Report the facts of this rank, and again when the program has imported torch."""
    if device is None or imported("torch") is None:
        writer.write("init", runtime_facts(None, SOCKETS))
    if device is None:
        return
    process = os.getpid()

    def report() -> None:
        # A process that the script has forked has no events of its own.
        if os.getpid() == process:
            writer.write("init", runtime_facts(device(), backend or _default_backend(env, device())))

    after_import("torch", "report", report)


def _build(
    env: RankEnvironment,
    distributed: Distributed,
    seed: int,
    device: Callable[[], Any],
    hparams: Hparams,
    checkpoint_dir: str | Path | None,
    fail_on_nan: bool,
    timeout_s: float,
) -> Context:
    writer = EventWriter(env.events_path)
    prepared = Prepared()
    progress = Progress()
    optimizations = env.config.get("optimizations") or {}
    average = optimizations.get("average_training_metrics", True)
    timings = open_timings(env.events_path, env.config, writer, env.rank)
    reporter = Reporter(distributed, writer, average=average, fail_on_nan=fail_on_nan, timings=timings)
    reporter.loggers = open_loggers(env, hparams)
    profiling = env.config.get("profiling") or {}
    records = bool(profiling.get("enabled", True) and profiling.get("builtin_metrics", True) and env.events_path)
    norm_every = int(profiling.get("gradient_norm_every") or 0) if records else 0
    gradients = Gradients(distributed, device, optimizations, fail_on_nan=fail_on_nan, norm_every=norm_every)
    is_recorder = records and env.rank == 0
    builtin = BuiltinMetrics(
        profiling,
        ranks=env.world_size,
        records=is_recorder,
        norms=gradients.norms,
        flops=FlopCount(
            gradients,
            prepared.models,
            device,
            str(optimizations.get("mixed_precision") or "none"),
            counts=is_recorder and bool(profiling.get("count_flops")),
        ),
        has_devices=not env.shares_devices,
    )
    where, has_earlier = _checkpoint_place(env, distributed, checkpoint_dir)
    progress.work = gradients
    progress.is_chief = distributed.get_rank() == 0
    streams = Streams(seed, distributed.get_rank())
    state = (prepared, progress, gradients, streams)
    saver = Saver(env, distributed, writer, *state, where=where, has_earlier=has_earlier)
    # The other ranks wait for rank 0 in an exchange, which has its own time limit.
    patience_s = min(float(env.config.get("decision_timeout") or DECISION_TIMEOUT_S), timeout_s / 3)
    rungs = RungQuestions(env.rungs, writer, env.run_dir, timeout_s=patience_s)
    return Context(
        env,
        distributed,
        writer,
        reporter,
        saver,
        prepared,
        progress,
        gradients,
        streams,
        timings,
        rungs,
        builtin,
        hparams=hparams,
        seed=seed,
        device=device,
    )


def _checkpoint_place(
    env: RankEnvironment, distributed: Distributed, wanted: str | Path | None
) -> tuple[Path | str, bool]:
    """Return the folder or URL for checkpoints, and whether ``restore`` may read it."""
    if env.checkpoint_url is not None:
        return env.checkpoint_url, True
    if env.checkpoint_dir is not None:
        return env.checkpoint_dir, True
    if env.run_dir is not None:
        return env.run_dir / "checkpoints", True
    if wanted is not None:
        return (str(wanted), True) if "://" in str(wanted) else (_writable(Path(wanted).absolute(), env.rank), True)
    started = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return Path(distributed.broadcast(str(Path("checkpoints", f"{started}-{os.getpid()}").absolute()))), False


def _writable(folder: Path, rank: int) -> Path:
    """Return the folder. Rank 0 creates it, so that a wrong one fails before training and not at the first save.

    :raises SetupError: the folder cannot be created or written to
    """
    if rank == 0:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise SetupError(f"checkpoint_dir {folder} is not writable: {error}. Use another folder.") from error
    return folder


def runtime_facts(device: Any, backend: str) -> dict[str, str]:
    """Return device and backend of this rank, its interpreter, and the versions of its libraries as they are loaded.

    :param device: of torch, None without PyTorch
    """
    facts = {
        "device": str(device or "cpu"),
        "backend": backend,
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "executable": sys.executable or "",
    }
    if device is not None:
        import torch

        facts |= {"torch": str(torch.__version__), "cuda": torch.version.cuda or "none"}
        if device.type == "cuda" and (cudnn := _cudnn_version()) is not None:
            facts["cudnn"] = cudnn
        if backend == "nccl":
            facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return {name: value[:_FACT_CHARS] for name, value in facts.items()}


def _cudnn_version() -> str | None:
    """Return the version of cuDNN, e.g. 9.10.2, None without a usable one."""
    import torch

    try:
        version = torch.backends.cudnn.version()
    except RuntimeError:
        # Of another version than PyTorch needs. Programs without convolutions work with it.
        return None
    if version is None:
        return None
    # Source: cudnn_version.h. Until 8 a major version counts 1,000, from 9 on 10,000.
    major = 10_000 if version >= 90_000 else 1000
    return f"{version // major}.{version % major // 100}.{version % 100}"


def _log_to_stderr() -> None:
    """Log the library's messages to stderr when the script has configured no logging."""
    logger = logging.getLogger("airflow_provider_dtrain.train")
    if logging.getLogger().handlers or logger.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("dtrain: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
