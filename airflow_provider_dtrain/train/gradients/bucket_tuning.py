"""Tuning of the bucket size for gradient exchange, on the first steps of training."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.gradients.ddp_options import has_option
from airflow_provider_dtrain.train.prepared import distribute

log = logging.getLogger(__name__)

CANDIDATES_MIB = (1, 5, 25, 100)
#: A new bucket size takes two steps to settle, because torch rebuilds the buckets after the first.
SETTLE = 2
MEASURED = 5
#: A candidate replaces the configured size if it takes less than this share of its time. Less is noise.
WORTH = 0.97
MIB = 1024 * 1024


class FusionTuner:
    """Times the backward passes that exchange gradients with several bucket sizes, and keeps the fastest.

    Every rank counts the same passes, so all ranks change the size at the same step. At the end, they share their
    times and make the same choice: the configured size, unless another one is clearly faster. Gradients are the same
    sums with every bucket size, but more than two ranks may add them in another order.

    :param configured_mib: ``optimizations.tensor_fusion_threshold``, which is also a candidate
    """

    def __init__(self, distributed: Distributed, device: Any, configured_mib: float) -> None:
        self._distributed = distributed
        self._device = device
        self.chosen_mib = self._configured_mib = configured_mib
        #: Models, and the options that they were wrapped with.
        self._models: list[tuple[Any, Mapping[str, Any]]] = []
        self._handles: list[Any] = []
        #: id of model -> bucket size that it gets in its next forward pass.
        self._wanted: dict[int, float] = {}
        self._left: list[float] = []
        self._times: dict[float, list[float]] = {}
        self._passes = 0
        self.running = True

    def add_model(self, model: Any, options: Mapping[str, Any]) -> None:
        """Add a DistributedDataParallel model to the tuning.

        :param options: of DistributedDataParallel
        """
        self._models.append((model, options))
        self._handles.append(model.register_forward_pre_hook(self._change_over))

    def backward(self, loss: Any, **options: Any) -> None:
        """Run a backward pass that exchanges gradients, and time it."""
        self._wait_for_device()
        self._distributed.barrier()  # the time must not include the wait for a late rank
        begin = time.perf_counter()
        loss.backward(**options)
        self._wait_for_device()
        self._passes += 1
        if self._passes > SETTLE * len(self._models):
            self._times.setdefault(self.chosen_mib, []).append(time.perf_counter() - begin)

    def step_done(self) -> None:
        """Change to the next candidate when this one is measured. Called by all ranks after a step."""
        if self._passes == 0:
            return
        if not self._times and not self._plan():
            return
        if len(self._times.get(self.chosen_mib, ())) < MEASURED * len(self._models):
            return
        if self._left:
            self._set(self._left.pop(0))
        else:
            self._choose()

    def _plan(self) -> bool:
        """Return whether there are candidates to try. The first call lists them."""
        if self._left:
            return True
        largest = max(_gradient_bytes(model) for model, _ in self._models) / MIB
        self._left = [mib for mib in candidates(self.chosen_mib, largest) if mib != self.chosen_mib]
        if self._left:
            return True
        if self._distributed.get_rank() == 0:
            log.info(
                "auto_tune_tensor_fusion: %.3g MiB of gradients fit into one bucket with any candidate; "
                "tensor_fusion_threshold stays at %g MiB.",
                largest,
                self.chosen_mib,
            )
        self._finish()
        return False

    def _choose(self) -> None:
        mine = {mib: score(times, len(self._models)) for mib, times in self._times.items()}
        everyone = self._distributed.allgather(mine)
        chosen, slowest = fastest(everyone, self._configured_mib)
        if self._distributed.get_rank() == 0:
            listed = ", ".join(f"{mib:g} MiB {seconds * 1e3:.2f} ms" for mib, seconds in sorted(slowest.items()))
            log.info(
                "auto_tune_tensor_fusion chose %g MiB: median backward pass with gradient exchange, slowest rank: %s.",
                chosen,
                listed,
            )
        if chosen != self.chosen_mib:
            self._set(chosen)
        self._finish()

    def _set(self, mib: float) -> None:
        self.chosen_mib = mib
        self._passes = 0
        self._wanted = {id(model): mib for model, _ in self._models}

    def _finish(self) -> None:
        self.running = False
        if not self._wanted:
            self._remove_hooks()

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _change_over(self, model: Any, _: Any) -> None:
        """Rebuild a model's buckets when that is due.

        Runs at the start of a forward pass and not after the step, because another model's step must not change the
        buckets of a graph that waits for its backward pass.
        """
        mib = self._wanted.pop(id(model), None)
        if mib is None:
            return
        options = next(options for known, options in self._models if known is model)
        rebucket(model, mib, device=self._device, options=options)
        if not self.running and not self._wanted:
            self._remove_hooks()

    def _wait_for_device(self) -> None:
        if self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)


def candidates(configured_mib: float, gradients_mib: float) -> list[float]:
    """Return the bucket sizes worth trying, ascending, with only one of those that hold all gradients.

    :param gradients_mib: gradients of the largest model, MiB
    """
    wanted = sorted({configured_mib, *CANDIDATES_MIB})
    small = [mib for mib in wanted if mib < gradients_mib]
    large = [mib for mib in wanted if mib >= gradients_mib]
    return small + ([configured_mib] if configured_mib in large else large[:1])


def score(times: Sequence[float], models: int) -> float:
    """Return the median seconds of one pass over all models. ``times`` alternates between the models."""
    rounds = [sum(times[start : start + models]) for start in range(0, len(times) - models + 1, models)]
    return statistics.median(rounds)


def fastest(everyone: Sequence[Mapping[float, float]], configured_mib: float) -> tuple[float, dict[float, float]]:
    """Return the candidate whose slowest rank is fastest, and each candidate's slowest rank. A tie: the smaller one.

    :param everyone: per rank: candidate -> seconds
    :param configured_mib: the choice if no candidate is clearly faster
    """
    slowest = {mib: max(times.get(mib, math.inf) for times in everyone) for mib in everyone[0]}
    best = min(slowest, key=lambda mib: (slowest[mib], mib))
    return (best if slowest[best] < WORTH * slowest[configured_mib] else configured_mib), slowest


def rebucket(model: Any, mib: float, *, device: Any, options: Mapping[str, Any]) -> None:
    """Give a live DistributedDataParallel model buckets of another size. The object stays the same.

    A second wrapper of the same module is created and its parts are moved over. State that the user may have changed
    stays: hooks of the module, training mode, ``require_backward_grad_sync``, communication hooks. Called by all ranks,
    not between a forward pass and its backward pass.
    """
    import torch

    # torch 2.4 has no such option, and sends the buffers of rank 0 to all ranks.
    unsynced = {"init_sync": False} if has_option("init_sync") else {}
    buffers = [] if unsynced else [(buffer, buffer.clone()) for buffer in model.module.buffers()]
    fresh = distribute(model.module, device=device, bucket_mib=mib, **{**options, **unsynced})
    for buffer, value in buffers:
        buffer.copy_(value)
    for hook, state in getattr(model, "_comm_hooks", ()):
        fresh.register_comm_hook(state, hook)
    kept = {*torch.nn.Module().__dict__, "require_backward_grad_sync", "require_forward_param_sync", "passes", "traced"}
    for name, value in fresh.__dict__.items():
        if name not in kept:
            model.__dict__[name] = value


def _gradient_bytes(model: Any) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
