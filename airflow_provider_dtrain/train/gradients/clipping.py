"""Clipping of gradients before an optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.gradients.kinds import by_kind, total_norm


@dataclass(frozen=True)
class Clip:
    """Limits for the gradients of one optimizer. By default there are none."""

    #: Largest norm of all gradients together.
    norm: float | None = None
    #: Largest absolute value of each element.
    value: float | None = None
    #: Called with the parameters; changes their gradients in place.
    function: Callable[[list[Any]], Any] | None = None

    def __post_init__(self) -> None:
        """Check the limits.

        :raises SetupError: a limit is not a number above 0, or two are given
        """
        for name, limit in (("clip_grad_norm", self.norm), ("clip_grad_value", self.value)):
            if limit is not None and not limit > 0:
                raise SetupError(f"{name} must be a number above 0, got {limit!r}. Leave it out for no clipping.")
        if self.norm is not None and self.value is not None:
            raise SetupError(
                f"ctx.step takes clip_grad_norm or clip_grad_value, got both ({self.norm!r} and {self.value!r})."
            )

    def apply(self, optimizer: Any, on_norm: Callable[[Any, list[Any]], None] | None = None) -> Any:
        """Clip the gradients of an optimizer. Return the norm before clipping, or None without a limit of it.

        :param look: called with the norm and the parameters before the gradients change
        """
        if self.norm is None and self.value is None and self.function is None:
            return None
        import torch

        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if self.function is not None:
            self.function(parameters)
        kinds = by_kind(parameters)
        if self.value is not None:
            for one in kinds:
                torch.nn.utils.clip_grad_value_(one, self.value)
        if self.norm is None:
            return None
        if not hasattr(torch.nn.utils, "get_total_norm"):  # before torch 2.6, which sharded models need
            return torch.nn.utils.clip_grad_norm_(parameters, self.norm)
        norm = total_norm(kinds)
        if on_norm is not None:
            on_norm(norm, parameters)
        for one in kinds:
            torch.nn.utils.clip_grads_with_norm_(one, self.norm, norm)
        return norm


NO_CLIP = Clip()


@lru_cache(maxsize=64)
def clip_of(norm: float | None, value: float | None) -> Clip:
    """Return the limits of a step. A script gives the same ones in each step.

    :raises SetupError: a limit is not valid
    """
    return Clip(norm, value)
