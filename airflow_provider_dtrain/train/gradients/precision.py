"""Precision policies: 16 bits in the forward pass or in the whole model, and the loss scale of float16."""

from __future__ import annotations

import contextlib
import fnmatch
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.nested import map_leaves
from airflow_provider_dtrain.train.sharded_tensors import is_dtensor

#: Parameters and computations in bfloat16.
BF16_TRUE = "bf16-true"
KINDS = ("none", "fp16", "bf16", BF16_TRUE)
#: Names that Lightning and Accelerate use.
_SYNONYMS = {"bf16-mixed": "bf16", "fp16-mixed": "fp16", "16-mixed": "fp16", None: "none", False: "none"}


class Precision:
    """Precision that ``optimizations.mixed_precision`` configures.

    :param kind: ``fp16``, ``bf16``, ``bf16-true`` or ``none``
    :param device: returns the device that computes
    :param float32_modules: names of modules that stay in float32, with ``*`` and ``?``; the modules inside them too
    :raises SetupError: a value is not valid, or torch cannot compute with it on the device
    """

    def __init__(self, kind: Any, device: Callable[[], Any], float32_modules: Sequence[str] = ()) -> None:
        kind = _SYNONYMS.get(kind, kind) if isinstance(kind, (str, bool, type(None))) else kind
        if kind not in KINDS:
            hint = " float16 parameters lose small updates: use fp16." if kind in ("fp16-true", "16-true") else ""
            raise SetupError(f"optimizations.mixed_precision must be one of {', '.join(KINDS)}, got {kind!r}.{hint}")
        self.kind = kind
        self._device = device
        self._patterns = _patterns(float32_modules)
        self._unused = set(self._patterns)
        #: Names of modules, for the message about a pattern that fits none.
        self._names: list[str] = []
        if self._patterns and not self.mixed:
            raise SetupError("optimizations.float32_modules needs optimizations.mixed_precision, which is none.")
        if self.mixed:
            self._check_device()

    @property
    def mixed(self) -> bool:
        """Return whether the forward pass uses 16 bits."""
        return bool(self.kind != "none")

    @property
    def _device_type(self) -> str:
        return getattr(self._device(), "type", "cpu")

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

        return torch.autocast(self._device_type, dtype=self._dtype())

    def full(self) -> Any:
        """Return a context manager without autocast."""
        import torch

        return torch.autocast(self._device_type, enabled=False)

    def wrap_forward(self, model: Any) -> None:
        """Make each forward pass of a module use the precision. It must not be wrapped for several ranks yet.

        A model of ``fully_shard`` with a MixedPrecisionPolicy keeps this policy.

        :raises SetupError: the policy of the model is another one, or its sharded parameters cannot be converted
        """
        if not self.mixed:
            return
        kept = self._kept(model)
        if self._has_own_policy(model):
            return
        if self.kind == BF16_TRUE:
            _convert(model, kept)
        for module in kept:
            module.forward = Float32Forward(module.forward, self)
        model.forward = (
            Bfloat16Forward(model.forward) if self.kind == BF16_TRUE else AutocastForward(model.forward, self)
        )

    def check_patterns(self) -> None:
        """Raise when a name of ``float32_modules`` fits no module. Called when all models are prepared.

        :raises SetupError: names the patterns, and modules that there are
        """
        if self._unused:
            there = ", ".join(self._names[:10]) or "none"
            raise SetupError(
                f"optimizations.float32_modules: {', '.join(sorted(self._unused))} fits no module of the prepared "
                f"models. Modules: {there}{', ...' if len(self._names) > 10 else ''}."
            )

    def _dtype(self) -> Any:
        import torch

        return torch.float16 if self.kind == "fp16" else torch.bfloat16

    def _check_device(self) -> None:
        with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
            # torch switches autocast off with a warning where the device cannot do it.
            warnings.simplefilter("ignore")
            if getattr(self.autocast(), "_enabled", True):
                return
        import torch

        other = "bf16" if self.kind == "fp16" else "fp16"
        raise SetupError(
            f"optimizations.mixed_precision: {self.kind} is not available on a device of type {self._device_type} with "
            f"torch {torch.__version__}. Use {other} or none."
        )

    def _kept(self, model: Any) -> list[Any]:
        """Return the outermost modules that stay in float32."""
        names: list[str] = []
        kept = []
        for name, module in model.named_modules():
            fitting = [pattern for pattern in self._patterns if name and fnmatch.fnmatchcase(name, pattern)]
            self._unused.difference_update(fitting)
            if fitting and not any(name.startswith(f"{outer}.") for outer in names):
                names.append(name)
                kept.append(module)
            if name:
                self._names.append(name)
        return kept

    def _has_own_policy(self, model: Any) -> bool:
        import torch

        own = _policy_dtype(model)
        if own is not None and own != self._dtype():
            raise SetupError(
                f"optimizations.mixed_precision is {self.kind}, and the MixedPrecisionPolicy of {type(model).__name__} "
                f"computes in {str(own).removeprefix('torch.')}. Make both the same, or remove the field."
            )
        unequal = {p.dtype for p in model.parameters() if is_dtensor(p) and p.is_floating_point()} - {torch.bfloat16}
        if own is None and self.kind == BF16_TRUE and unequal:
            raise SetupError(
                "optimizations.mixed_precision: bf16-true cannot convert sharded parameters. Call "
                "model.to(torch.bfloat16) before fully_shard, or use bf16."
            )
        return own is not None


def _patterns(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(one, str) and one for one in value or ()):
        raise SetupError(f"optimizations.float32_modules must be a list of names of modules, got {value!r}.")
    return tuple(value or ())


def _policy_dtype(model: Any) -> Any:
    """Return the dtype of the MixedPrecisionPolicy that ``fully_shard`` was given, or None."""
    for module in model.modules():
        state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
        own = getattr(getattr(state, "_mp_policy", None), "param_dtype", None)
        if own is not None:
            return own
    return None


def _convert(model: Any, kept: Sequence[Any]) -> None:
    """Convert floating parameters and buffers to bfloat16 in place, except those of some modules."""
    import torch

    left = {id(tensor) for module in kept for tensor in (*module.parameters(), *module.buffers())}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None and parameter.is_floating_point() and id(parameter) not in left:
                parameter.data = parameter.data.to(torch.bfloat16)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point() and id(buffer) not in left:
                module._buffers[name] = buffer.to(torch.bfloat16)


class Bfloat16Forward:
    """A module's ``forward`` that takes floating inputs as bfloat16 and whose outputs are float32."""

    def __init__(self, forward: Any) -> None:
        self._forward = forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output as float32."""
        return to_float32(self._forward(*map_leaves(args, _bfloat16), **map_leaves(kwargs, _bfloat16)))


class Float32Forward:
    """The ``forward`` of a part of a model, in float32. The model around it gets outputs in its own precision."""

    def __init__(self, forward: Any, precision: Precision) -> None:
        self._forward = forward
        self._precision = precision

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output as float32, or bfloat16 in a model that is bfloat16 as a whole."""
        with self._precision.full():
            output = self._forward(*to_float32(args), **to_float32(kwargs))
        return map_leaves(output, _bfloat16) if self._precision.kind == BF16_TRUE else output


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


def _bfloat16(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(torch.bfloat16)
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
