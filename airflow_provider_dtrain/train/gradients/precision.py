"""Mixed precision: forward pass in 16 bits, outputs and parameters in 32 bits, float16 with a loss scale."""

from __future__ import annotations

import contextlib
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.nested import map_leaves


class Precision:
    """Precision that ``optimizations.mixed_precision`` configures.

    :param kind: ``fp16``, ``bf16`` or ``none``
    """

    def __init__(self, kind: Any, device: Any) -> None:
        if kind not in {None, False, "none", "fp16", "bf16"}:
            raise SetupError(f"optimizations.mixed_precision must be none, fp16 or bf16, got {kind!r}.")
        self.kind = kind if kind else "none"
        self._device_type = getattr(device, "type", "cpu")

    @property
    def mixed(self) -> bool:
        """Return whether the forward pass uses 16 bits."""
        return self.kind != "none"

    def scaler(self) -> Any:
        """Return a new loss scaler for float16, else None, because bfloat16 has the range of float32."""
        if self.kind != "fp16":
            return None
        import torch

        return torch.amp.GradScaler(self._device_type)

    def autocast(self) -> Any:
        """Return a context manager. Operations inside it run in 16 bits where that is safe."""
        if not self.mixed:
            return contextlib.nullcontext()
        import torch

        return torch.autocast(self._device_type, dtype=torch.float16 if self.kind == "fp16" else torch.bfloat16)

    def wrap_forward(self, model: Any) -> None:
        """Make each forward pass of a module use autocast. The module must not be wrapped for several ranks yet."""
        if self.mixed:
            model.forward = AutocastForward(model.forward, self)


class AutocastForward:
    """A module's ``forward`` under autocast whose outputs are float32 again.

    A class and not a closure: a deep copy of the module (e.g. an average of its weights) gets its own ``forward``. A
    closure would continue to use the parameters of the original.
    """

    def __init__(self, forward: Any, precision: Precision) -> None:
        self._forward = forward
        self._precision = precision

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output as float32."""
        with self._precision.autocast():
            output = self._forward(*args, **kwargs)
        return to_float32(output)


def to_float32(output: Any) -> Any:
    """Return the output with each 16-bit tensor as float32, also in mappings, sequences and dataclasses."""
    return map_leaves(output, _float32)


def _float32(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor) and value.dtype in {torch.float16, torch.bfloat16}:
        return value.float()
    return value


class LossScale:
    """Drives a GradScaler for one or more optimizers.

    The scale changes only between a step and the next backward pass, so that several optimizers can step on the
    gradients of one loss. Gradients of an unfinished group are carried over to the new scale.

    :param scaler: ``torch.amp.GradScaler``
    """

    def __init__(self, scaler: Any) -> None:
        self.scaler = scaler
        self._stepped: set[int] = set()

    def step(self, optimizer: Any) -> bool:
        """Step unless a gradient is not finite. Return whether the step was taken. Gradients must be unscaled."""
        finite = not any(value.item() for value in self.scaler._found_inf_per_device(optimizer).values())
        self.scaler.step(optimizer)
        self._stepped.add(id(optimizer))
        return finite

    def has_stepped(self, optimizer: Any) -> bool:
        """Return whether the optimizer stepped since the last update."""
        return id(optimizer) in self._stepped

    def update(self, pending: Any = ()) -> None:
        """Update the scale from the steps taken.

        :param pending: parameters whose gradients have the old scale and are still needed
        """
        if not self._stepped:
            return
        self._stepped.clear()
        parameters = [parameter for parameter in pending if parameter.grad is not None]
        before = self.scaler.get_scale() if parameters else 0.0
        self.scaler.update()
        if not parameters:
            return
        ratio = self.scaler.get_scale() / before
        if ratio != 1:
            for parameter in parameters:
                parameter.grad.mul_(ratio)
