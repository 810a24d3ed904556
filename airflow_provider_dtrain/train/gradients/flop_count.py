"""Floating-point operations of one batch, counted once by ``torch.utils.flop_counter.FlopCounterMode``.

The counter sees each operation of PyTorch before it runs, and changes none: results stay bit for bit the same.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from airflow_provider_dtrain.train.process.imported import imported
from airflow_provider_dtrain.train.sharded_tensors import sharded_kind

log = logging.getLogger(__name__)

#: Batch of this attempt that is counted, from 1. The first ones choose kernels and allocate memory.
BATCH = 4
#: Time after which a count is given up, seconds.
MOST_S = 10.0
_HINT = "Set profiling.flops_per_sample to get the utilization."


class FlopCount:
    """Counter of the prepared models' forward passes, and of the backward passes of the library, in one batch.

    :param gradients: its ``backward`` runs the backward passes
    :param models: prepared models, also those that are added later
    :param device: returns the device of this rank
    :param precision: ``mixed_precision`` of the configuration
    :param counts: False: the configuration gives the number, or nothing needs it
    """

    def __init__(
        self, gradients: Any, models: Sequence[Any], device: Callable[[], Any], precision: str, *, counts: bool
    ) -> None:
        self._gradients = gradients
        self._models = models
        self._device = device
        self._precision = precision
        #: Whether each batch calls :meth:`after_batch`.
        self.pending = counts
        #: Operations of a batch of this rank; None: not counted.
        self.of_batch: int | None = None
        self._seen = 0
        self._total = 0
        #: Time of the passes that were counted, seconds, and perf_counter() at which to give up.
        self._took_s = self._until = 0.0
        #: (type of the numbers, whether by a convolution) -> operations.
        self._kinds: Counter[tuple[str, bool]] = Counter()
        self._backwards = 0
        self._is_inside = False
        #: The batch is not counted to its end.
        self.is_broken = False
        self._undo: list[Callable[[], None]] = []

    def after_batch(self) -> None:
        """Begin to count before batch :data:`BATCH`, and end after it."""
        self._seen += 1
        if self._seen < BATCH - 1:
            return
        if self._seen >= BATCH:
            self._end()
        elif (reason := self._obstacle()) is not None:
            self.pending = False
            self._give_up(reason)
        else:
            self._begin()

    def kind(self) -> tuple[str, str]:
        """Return the name of the device, and the type of numbers that it multiplies most."""
        import torch

        device = self._device()
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        dtype, is_convolution = self._kinds.most_common(1)[0][0] if self._kinds else (self._usual_dtype(), False)
        if dtype == "float32" and (_allows_tf32() or (is_convolution and torch.backends.cudnn.allow_tf32)):
            return name, "tf32"
        return name, dtype

    def _usual_dtype(self) -> str:
        if self._precision != "none":
            return "float16" if self._precision == "fp16" else "bfloat16"
        found = (p.dtype for model in self._models for p in model.parameters() if p.is_floating_point())
        return str(next(found, "torch.float32")).removeprefix("torch.")

    def _obstacle(self) -> str | None:
        """Return why the counter would be wrong, None if it would not."""
        import torch

        if not self._models:
            return "no model is prepared"
        for model in self._models:
            if sharded_kind(model) is not None:
                return f"{type(model).__name__} has sharded parameters, of which a rank sees only its own part"
            for module in model.modules():
                if isinstance(module, torch.jit.ScriptModule):
                    return "a part of the model is a TorchScript module, whose operations the counter does not see"
                if getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod"):
                    return "a part of the model is compiled, and the counter does not see operations of its kernels"
        dynamo = imported("torch._dynamo.utils")
        if dynamo is not None and dynamo.counters["frames"]["total"]:
            return "the program has compiled functions, and the counter does not see operations of their kernels"
        return None

    def _begin(self) -> None:
        self._backwards = self._gradients.backwards
        for model in self._models:
            self._undo.append(_replaced(model, "forward", self._counted(model.forward)))
        self._undo.append(_replaced(self._gradients, "backward", self._counted(self._gradients.backward)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that also counts its operations, if they are part of training."""

        def call(*args: Any, **kwargs: Any) -> Any:
            import torch

            if self._is_inside or self.is_broken or not torch.is_grad_enabled():
                return function(*args, **kwargs)
            try:
                mode = _mode(self)
            except Exception as error:
                self.stop(f"{type(error).__name__}: {error}")
                return function(*args, **kwargs)
            self._is_inside = True
            began = perf_counter()
            self._until = began + MOST_S - self._took_s
            try:
                with mode:
                    return function(*args, **kwargs)
            finally:
                self._is_inside = False
                self._took_s += perf_counter() - began
                self._total += mode.get_total_flops()

        return call

    def note(self, kind: tuple[str, bool], operations: int) -> None:
        """Add operations of one kind: type of the numbers, and whether they are of a convolution."""
        self._kinds[kind] += operations
        if perf_counter() > self._until:
            self.stop(f"it took longer than {MOST_S:.0f} s")

    def stop(self, reason: str) -> None:
        """Count nothing further."""
        self.is_broken = True
        self._give_up(reason)

    def _end(self) -> None:
        self.pending = False
        while self._undo:
            self._undo.pop()()
        if self.is_broken:
            return
        if self._gradients.backwards == self._backwards:
            self._give_up("the loop does not call ctx.backward")
        elif not self._total:
            self._give_up("the batch has no matrix product, convolution or attention")
        else:
            self.of_batch = self._total
            log.info(
                "A batch of this rank takes %.4g floating-point operations, counted in %.2f s.",
                self._total,
                self._took_s,
            )

    def _give_up(self, reason: str) -> None:
        self._kinds.clear()
        log.info("The operations of a batch are not counted: %s. %s", reason, _HINT)


def _replaced(owner: Any, name: str, function: Callable[..., Any]) -> Callable[[], None]:
    """Set an attribute of one object, and return a function that restores it."""
    had = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, function)

    def restore() -> None:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)

    return restore


def _allows_tf32() -> bool:
    import torch

    return torch.get_float32_matmul_precision() != "highest"


class _NoModules:
    """Stands in for the tracker of modules, whose hooks only a table by module needs."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _mode(count: FlopCount) -> Any:
    """Return a FlopCounterMode that raises nothing, gives up after a while, and notes the type of the numbers."""
    from torch.utils.flop_counter import FlopCounterMode

    class Mode(FlopCounterMode):
        def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
            if func_packet in self.flop_registry and not count.is_broken:
                try:
                    before = self.get_total_flops()
                    super()._count_flops(func_packet, out, args, kwargs)  # type: ignore[no-untyped-call]
                    operations = self.get_total_flops() - before
                    tensor = next(one for one in args if hasattr(one, "dtype"))
                    kind = str(tensor.dtype).removeprefix("torch."), "convolution" in str(func_packet)
                    count.note(kind, operations)
                except Exception as error:
                    count.stop(f"{type(error).__name__}: {error}")
            return out

    mode = Mode(display=False)
    mode.mod_tracker = _NoModules()  # type: ignore[assignment]
    return mode
