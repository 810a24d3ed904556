"""DistributedDataParallel as the library wraps it: with the attributes of the user's module, and with a count."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.nested import map_leaves
from airflow_provider_dtrain.train.process.heartbeat import BACKWARD, HERE

#: A part of torch's message for parameters without a gradient.
_UNUSED = "Expected to have finished reduction in the prior iteration"

#: Where that message lists the parameters, by their positions among those whose gradients are exchanged.
_POSITIONS = re.compile(r"Parameter indices which did not receive grad for rank \d+: ((?:\d+ ?)+)")


class DistributedDataParallel(TorchDDP):
    """DistributedDataParallel that also exposes the attributes of the user's module.

    A method or a layer that is called instead of the model runs outside of the gradient exchange. The library detects
    it by :attr:`passes` at the next optimizer step.
    """

    #: Forward passes so far that will exchange gradients.
    passes = 0
    #: The forward pass was compiled from outside, so that :attr:`passes` does not count.
    traced = False
    #: Set to notice the backward passes that reach the model, and the number of the current one.
    watches = False
    backward_number = 0
    #: The backward pass that has reached the model first since the latest forward pass.
    _reached_by: int | None = None
    #: A further one has reached the model. Its gradients are not exchanged.
    is_reached_again = False

    def __init__(self, module: Any, **options: Any) -> None:
        super().__init__(module, **options)
        #: Identities of the parameters whose gradients are exchanged. The exchange keeps the parameters alive.
        self.exchanged = {id(parameter) for parameter in module.parameters() if parameter.requires_grad}

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the user's module.

        :raises SetupError: parameters had no gradient in the step before
        """
        if torch.compiler.is_compiling():
            self.traced = True
        elif torch.is_grad_enabled():
            self.passes += 1
        try:
            output = super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if _UNUSED not in str(error):
                raise
            raise SetupError(self._unused(str(error))) from error
        if self.watches and torch.is_grad_enabled() and not self.traced:
            self._watch(output)
        return output

    def _watch(self, output: Any) -> None:
        """Notice the backward passes that reach the outputs of a forward pass."""
        tensors: list[Any] = []

        def collect(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.requires_grad:
                tensors.append(value)
            return value

        map_leaves(output, collect)
        self._reached_by = None
        if tensors:
            register_multi_grad_hook(tensors, self._reach, mode="any")

    def _reach(self, _: Any) -> None:
        # torch.autograd.grad may pass the model, too, without gradients of its parameters.
        if HERE.now is BACKWARD and self.require_backward_grad_sync:
            if self._reached_by is None:
                self._reached_by = self.backward_number
            elif self._reached_by != self.backward_number:
                self.is_reached_again = True

    def _unused(self, message: str) -> str:
        """Return what to do about parameters without a gradient. Their names are known from torch's message alone.

        The step has cleared the gradients of all parameters.
        """
        exchanged = [name for name, parameter in self.module.named_parameters() if id(parameter) in self.exchanged]
        found = _POSITIONS.search(message)
        names = [exchanged[int(index)] for index in found[1].split() if int(index) < len(exchanged)] if found else []
        some = f" ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})" if names else ""
        return (
            f"Some parameters of {type(self.module).__name__}{some} had no gradient in the last step, and the other "
            'ranks wait for them. Pass ddp={"find_unused_parameters": True} to ctx.prepare or context.wrap_model, or '
            "freeze parameters that are never used (requires_grad_(False))."
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)
