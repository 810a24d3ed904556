"""Compression of gradients for the exchange between ranks."""

from __future__ import annotations

import logging
import sys
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError

log = logging.getLogger(__name__)

#: The first steps with powersgd exchange whole gradients, because its error feedback needs settled gradients.
POWERSGD_START = 1000


class Compression:
    """Compression of gradients for the exchange between ranks.

    :param kind: ``fp16``, ``bf16``, ``powersgd``, or False for none
    :param size: number of ranks
    :param rank: global rank; only rank 0 logs
    """

    def __init__(self, kind: Any, *, size: int, rank: int) -> None:
        self.kind = "fp16" if kind is True else kind
        self._size = size
        if self.kind not in {False, None, "fp16", "bf16", "powersgd"}:
            raise SetupError(f"optimizations.gradient_compression must be false, fp16, bf16 or powersgd, got {kind!r}.")
        if self.kind and size == 1 and rank == 0:
            log.info("optimizations.gradient_compression %s has no effect: one rank exchanges no gradients.", self.kind)

    def install(self, model: Any) -> None:
        """Register the hook with a DistributedDataParallel model.

        :raises SetupError: powersgd is configured, and NumPy is missing
        """
        if not self.kind:
            return
        if self.kind == "powersgd":
            self._install_powersgd(model)
            return
        import torch

        # A lambda, because torch refuses a hook whose annotations are not its own types.
        model.register_comm_hook(self._dtype(torch), lambda dtype, bucket: _exchange(dtype, bucket))

    def all_reduce(self, flat: Any) -> Any:
        """Return the mean over all ranks of a flat tensor, packed as in the hook.

        :param flat: 1-D, floating point; its content is overwritten
        """
        import torch
        import torch.distributed as dist

        packed = flat.div_(self._size)
        if self.kind in {"fp16", "bf16"}:
            packed = packed.to(self._dtype(torch))
        dist.all_reduce(packed)
        return packed.to(flat.dtype)

    def _dtype(self, torch: Any) -> Any:
        return torch.float16 if self.kind == "fp16" else torch.bfloat16

    def _install_powersgd(self, model: Any) -> None:
        import torch.distributed as dist
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

        # Source: Vogels et al. 2019, PowerSGD; rank 1 and 1,000 whole exchanges first are torch's defaults.
        try:
            state = powersgd.PowerSGDState(process_group=None, start_powerSGD_iter=POWERSGD_START)
        except ImportError as error:
            raise SetupError(
                "optimizations.gradient_compression is powersgd, for which PyTorch needs NumPy, and it is not "
                f"installed. Where the ranks run: {sys.executable} -m pip install numpy. Or use fp16 or bf16."
            ) from error
        hook = powersgd.powerSGD_hook if "nccl" in dist.get_backend() else _one_by_one
        model.register_comm_hook(state, lambda state, bucket: hook(state, bucket))


def _one_by_one(state: Any, bucket: Any) -> Any:
    """Return a future of the bucket's mean, after its exchange.

    torch's hook waits for messages in a thread of gloo. With a second bucket under way, no thread is left that sends.
    """
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook

    future = powerSGD_hook(state, bucket)
    future.wait()
    return future


def _exchange(dtype: Any, bucket: Any) -> Any:
    """Return a future of the bucket's mean over all ranks, sent as ``dtype``.

    torch's own hooks refuse bfloat16 on gloo, and divide after the conversion, where float16 may have overflowed.
    """
    import torch.distributed as dist

    buffer = bucket.buffer()
    packed = buffer.div_(dist.get_world_size()).to(dtype)
    future = dist.all_reduce(packed, async_op=True).get_future()
    return future.then(lambda done: buffer.copy_(done.value()[0]))
