"""Batch inference on one rank: from the configuration to the published folder."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.context import Context
from airflow_provider_dtrain.train.errors import OtherRunError, SetupError, UnusableFolderError
from airflow_provider_dtrain.train.files.file_systems import is_url
from airflow_provider_dtrain.train.files.lease import Lease
from airflow_provider_dtrain.train.files.place import Place
from airflow_provider_dtrain.train.inference import batch_size, fingerprint, processor_loader, publication
from airflow_provider_dtrain.train.inference.adapters import Processor
from airflow_provider_dtrain.train.inference.collected import CollectedLedger, collected_folder
from airflow_provider_dtrain.train.inference.inputs import Input, open_input
from airflow_provider_dtrain.train.inference.ledger import COMMON, Ledger
from airflow_provider_dtrain.train.inference.metrics import ShardMetrics
from airflow_provider_dtrain.train.inference.output_folder import OWN, open_folder
from airflow_provider_dtrain.train.inference.outputs.options import OutputOptions
from airflow_provider_dtrain.train.inference.owner import owner_of
from airflow_provider_dtrain.train.inference.processor import InferenceContext
from airflow_provider_dtrain.train.inference.read_files import ReadFiles
from airflow_provider_dtrain.train.inference.run import BegunFolder, InferenceRun
from airflow_provider_dtrain.train.inference.shard_loop import ShardLoop
from airflow_provider_dtrain.train.inference.weights import Weights
from airflow_provider_dtrain.train.inference.work_queue import WorkQueue
from airflow_provider_dtrain.train.reports import failure
from airflow_provider_dtrain.train.values import JsonObject

log = logging.getLogger(__name__)

#: Pauses between looks for a file that rank 0 has written, seconds.
SEES_AFTER_S = (0.2, 0.5, 1.0, 3.0)


def infer(ctx: Context, settings: Mapping[str, Any]) -> JsonObject | None:
    """Compute what is missing in the output folder, and publish it. Called by all ranks.

    :param settings: the section ``inference`` of the configuration
    :return: the manifest; None on the other ranks, and when the run was asked to stop before its end
    :raises SetupError: the settings do not fit
    :raises OutputFolderError: the folder cannot be written, is in use, or holds results of something else
    :raises BadShardError: a shard failed too often
    """
    run = InferenceRun.of(ctx, settings)
    weights = Weights(_source(ctx, settings), ctx.distributed, run.storage)
    context = InferenceContext(ctx, weights, compiles=bool(settings.get("compile")))
    inputs = settings.get("inputs")
    read = ReadFiles(os.getcwd())
    with read.recording():
        name, needs_data = str(settings.get("processor")), not (inputs or {}).get("path")
        found = processor_loader.load(name, context, needs_data=needs_data)
    used = weights.identity()
    weights.release()
    on_bad_row = settings.get("on_bad_row") or "fail"
    options = OutputOptions.parse(run.outputs, marks=on_bad_row == "mark")
    source = open_input(
        inputs,
        storage=run.storage,
        dataset=found.dataset,
        collate=found.collate,
        passed=options.columns,
        batch_size=batch_size.configured(settings.get("batch_size")),
        skips_bad_rows=on_bad_row != "fail",
        writes_json=options.format == "jsonl",
    )
    ledger = _ledger(run)
    folder = ledger.folder
    with _owned(run, folder, ledger) as owner:
        if run.collected_in is None:
            _check_common(run, folder)
        begun: BegunFolder = ctx.distributed.on_chief(lambda: _begin(run, ledger, source, used, read))
        source.prepare(begun.shards)
        with found.running():
            size = ctx.distributed.on_chief(lambda: _batch_size(run, ledger, source, begun, found, context))
            options.expect(begun.schema or {})
            queue = WorkQueue(ctx.distributed, begun.missing)
            progress = publication.announce(run, folder, queue, begun, size)
            loop = ShardLoop(run, queue, ledger, source, found, context, options, begun.shards, size, owner)
            loop.work()
        found.finish()
        manifest = publication.end(run, queue, ledger, owner, begun, stopped=loop.stopped)
        if progress is not None:
            progress.end()
        return manifest


def _source(ctx: Context, settings: Mapping[str, Any]) -> Path | str | None:
    """Return the folder or URL of the checkpoint that ``inference.weights`` names.

    :raises SetupError: it needs the control side, and this process runs off-cluster
    """
    known, named = ctx._env.source_checkpoint, settings.get("weights")
    if known is not None or named is None or os.environ.get("DTRAIN_RUN"):
        return known
    if not isinstance(named, str) or named.startswith("trial:"):
        raise SetupError(
            f"inference.weights is {named}, and only a run of airflow dtrain infer or of a DAG finds that checkpoint. "
            "Off-cluster, give the folder or URL of a checkpoint."
        )
    return named if is_url(named) else Path(named)


def _ledger(run: InferenceRun) -> Ledger:
    path = str(run.outputs["path"])
    if run.collected_in is not None:
        own = collected_folder(run.collected_in, path, run.name)
        return CollectedLedger(own, run=run.name, key=run.key, suffix=run.kind)
    return Ledger(open_folder(path, run.storage, run.name), run=run.name, key=run.key, suffix=run.kind)


@contextlib.contextmanager
def _owned(run: InferenceRun, folder: Place, ledger: Ledger) -> Iterator[Lease | None]:
    """Own the folder for the duration of the block, unless the control side owns it. Called by all ranks."""
    if run.collected_in is not None:
        yield None
        return
    owner = owner_of(folder, run=run.name, key=run.key) if run.is_chief else None

    def acquire() -> None:
        assert owner is not None
        ledger.refuse_foreign()
        owner.acquire()

    try:
        run.ctx.distributed.on_chief(acquire)
        yield owner
    except Exception as error:
        # At once: ranks that wait for rank 0 may end first, and their supervisor then ends this process.
        failure.record(error)
        raise
    finally:
        if owner is not None:
            owner.release()


def _check_common(run: InferenceRun, folder: Place) -> None:
    """Raise when the hosts do not see the same folder. Called by all ranks.

    :raises UnusableFolderError: names the hosts that do not see what rank 0 wrote
    """
    distributed = run.ctx.distributed
    name = f"{OWN}/{COMMON}{run.name}"
    distributed.on_chief(lambda: folder.write(name, b"x"))
    answers = distributed.allgather((_sees(folder, name), socket.gethostname()))
    if run.is_chief:
        folder.remove(name)
    apart = sorted({host for sees, host in answers if not sees})
    if apart:
        raise UnusableFolderError(
            f"The output folder {folder.location} is not the same on all hosts: {', '.join(apart)} did not see a file "
            f"that {answers[0][1]} wrote into it. Use shared storage or a URL, or set inference.collect: true."
        )


def _sees(folder: Place, name: str) -> bool:
    """Return whether a file is there. Network file systems may show it late."""
    for pause_s in SEES_AFTER_S:
        if folder.read(name) is not None:
            return True
        time.sleep(pause_s)
    return folder.read(name) is not None


def _begin(run: InferenceRun, ledger: Ledger, source: Input, weights: Any, read: ReadFiles) -> BegunFolder:
    """Plan, and open the ledger. Rank 0 alone calls it."""
    ledger.sweep()
    plan = source.plan()
    facts = fingerprint.facts(run.ctx._env, run.settings, plan.identity, weights, read.paths())
    known = ledger.open(facts, plan.shards, overwrite=bool(run.outputs.get("overwrite")))
    shards = tuple(ledger.planned())
    entries = ledger.entries()
    ledger.tidy(entries.values())
    skipped = ledger.skipped(entries)
    missing = tuple(shard.index for shard in shards if shard.index not in entries and shard.index not in skipped)
    return BegunFolder(
        facts, known.get("batch_size"), shards, tuple(entries.values()), tuple(skipped.values()), missing
    )


def _batch_size(
    run: InferenceRun, ledger: Ledger, source: Input, begun: BegunFolder, found: Processor, context: Any
) -> int:
    """Return the batch size: that of earlier runs into the folder, else the configured or the best one.

    Rank 0 alone calls it.
    """
    wanted = batch_size.configured(run.settings.get("batch_size"))
    if begun.batch_size is not None:
        if wanted not in {None, begun.batch_size}:
            raise OtherRunError(
                f"The output folder {ledger.folder.location} holds results of batches of {begun.batch_size} rows, and "
                f"inference.batch_size is {wanted}. Use another folder, or set inference.outputs.overwrite: true."
            )
        return begun.batch_size
    size = wanted or _grown(run, source, begun, found, context)
    ledger.set_batch_size(size)
    return size


def _grown(run: InferenceRun, source: Input, begun: BegunFolder, found: Processor, context: Any) -> int:
    """Return the best batch size for the first shard. Its rows and metrics are discarded."""
    import torch

    device = run.ctx.device
    first = begun.shards[begun.missing[0] if begun.missing else 0]

    def compute(batch: Any) -> None:
        context._begin(ShardMetrics(), batch.rows)
        found.process(run.ctx.to_device(batch.data), 0)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    most = max((shard.rows or batch_size.MOST for shard in begun.shards), default=1)
    size = batch_size.grown(lambda size: source.batches(first, size), compute, most=most)
    log.info("inference.batch_size: auto is %d rows", size)
    return size
