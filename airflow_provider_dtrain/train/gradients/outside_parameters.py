"""Parameters of optimizers that belong to no prepared model, or whose gradients no prepared model exchanges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.prepared import is_distributed, plain_name, unwrap
from airflow_provider_dtrain.train.sharded_tensors import is_sharded, sharded_kind

_SHOWN = 5
#: Replaced parameters are searched at this many synchronizations, and then at each such one: it takes about 1 us each.
_FIRST_INSPECTIONS = 16
#: Equal gradients may differ by this part of their norm, because the ranks' devices may add in another order.
_ROUNDING = 1e-5


@dataclass
class _Watched:
    """Optimizer whose gradients are observed until all is known."""

    optimizer: Any
    #: Parameters with unknown exchange. The ranks have had no gradient of them yet that they could compare.
    left: list[Any]
    #: No parameter belongs to a prepared model.
    is_foreign: bool
    steps: int = 0
    #: The ranks compare at this step. The distance doubles, so that a parameter that is never used costs little.
    compares_at: int = 1
    had_gradient: bool = False

    @property
    def is_settled(self) -> bool:
        return not self.left and (self.had_gradient or not self.is_foreign)


class OutsideParameters:
    """Check that each optimizer trains something, and that all ranks train it alike.

    The library knows who exchanges the gradients of a prepared model and of sharded tensors. Those of any other
    parameter may be exchanged by the program: whether they are, the ranks find out by comparison.
    """

    def __init__(self, distributed: Distributed) -> None:
        self._distributed = distributed
        self._inspections = 0
        self._models: list[Any] = []
        #: For each model that is not sharded, its parameters in ctx.prepare by identity, with their names.
        self._at_prepare: list[dict[int, tuple[str, Any]]] = []
        #: By identity of the optimizer, which the dictionary keeps alive.
        self._watched: dict[int, _Watched] = {}

    def know(self, model: Any) -> None:
        """Add a prepared model, as it is after ``ctx.prepare``."""
        self._models.append(model)
        # FSDP2 replaces the parameters of a sharded model itself, in each pass.
        named = () if sharded_kind(model) is not None else unwrap(model).named_parameters()
        self._at_prepare.append({id(parameter): (plain_name(name), parameter) for name, parameter in named})

    def check(self, optimizer: Any) -> None:
        """Check the gradients of the step that an optimizer is about to take. Called by all ranks.

        :raises SetupError: the ranks have different gradients of parameters that no model exchanges
        """
        watched = self._watched.get(id(optimizer))
        if watched is None:
            watched = self._watched[id(optimizer)] = self._watch(optimizer)
        if watched.is_settled:
            return
        watched.steps += 1
        if not watched.had_gradient:
            watched.had_gradient = any(parameter.grad is not None for parameter in _parameters(optimizer))
        if watched.left and watched.steps >= watched.compares_at:
            watched.compares_at *= 2
            self._compare(watched)

    def inspect(self) -> None:
        """Check that the optimizers which have stepped had gradients. Called at every synchronization.

        :raises SetupError: an optimizer whose parameters belong to no prepared model never had any, or parameters that
            an optimizer trains were replaced in their model
        """
        self._inspections += 1
        is_thorough = self._inspections <= _FIRST_INSPECTIONS or not self._inspections % _FIRST_INSPECTIONS
        for watched in self._watched.values():
            if is_thorough:
                self._refuse_replaced(watched.optimizer)
            if watched.is_foreign and not watched.had_gradient and watched.steps:
                parameters = list(_parameters(watched.optimizer))
                raise SetupError(
                    f"{type(watched.optimizer).__name__} must train parameters of a model, but none of its "
                    f"{len(parameters)} parameters ({self._shown(parameters)}) belongs to a prepared model, and none "
                    f"had a gradient in {watched.steps} steps. Create the optimizer from the parameters of the model "
                    "that computes the loss, after fully_shard, to_empty or a copy has replaced them."
                )

    def _watch(self, optimizer: Any) -> _Watched:
        self._refuse_replaced(optimizer)
        mine = list(_parameters(optimizer))
        known = {id(parameter) for model in self._models for parameter in unwrap(model).parameters()}
        is_foreign = not any(id(parameter) in known for parameter in mine)
        if self._distributed.get_size() == 1:
            return _Watched(optimizer, [], is_foreign)
        exchanged = {key for model in self._models for key in _exchanged(model)}
        left = [p for p in mine if p.requires_grad and id(p) not in exchanged and not is_sharded(p)]
        return _Watched(optimizer, left, is_foreign)

    def _refuse_replaced(self, optimizer: Any) -> None:
        """Raise when an optimizer trains parameters that their model does not have any longer.

        :raises SetupError: names the model and the parameters
        """
        mine = {id(parameter) for parameter in _parameters(optimizer)}
        for model, before in zip(self._models, self._at_prepare):
            now = {id(parameter) for parameter in unwrap(model).parameters()}
            removed = [name for key, (name, _) in before.items() if key in mine and key not in now]
            if removed:
                more = f" and {len(removed) - _SHOWN} more" if len(removed) > _SHOWN else ""
                raise SetupError(
                    f"{type(optimizer).__name__} must train the parameters of {type(unwrap(model)).__name__}, but "
                    f"{', '.join(removed[:_SHOWN])}{more} were replaced or removed since ctx.prepare: the new ones are "
                    "not trained. Change the model before ctx.prepare, and create the optimizer after that."
                )

    def _compare(self, watched: _Watched) -> None:
        ranks = self._distributed.allgather([_figures(parameter.grad) for parameter in watched.left])
        differing = [index for index, values in _by_parameter(ranks) if not _are_equal(values)]
        if differing:
            shown = [watched.left[index] for index in differing if index < len(watched.left)]
            raise SetupError(
                f"The ranks must exchange the gradients of all parameters that {type(watched.optimizer).__name__} "
                f"trains, but those of {self._shown(shown)} differ between the ranks: the parameters belong to no "
                "model that ctx.prepare has distributed. Make them part of a model that ctx.prepare gets, shard the "
                "whole model, or average their gradients over the ranks before ctx.step."
            )
        watched.left = [
            watched.left[index] for index, values in _by_parameter(ranks) if not any(_is_conclusive(v) for v in values)
        ]

    def _shown(self, parameters: Sequence[Any]) -> str:
        names = {
            id(parameter): f"{plain_name(name)} of {type(unwrap(model)).__name__}"
            for model in self._models
            for name, parameter in unwrap(model).named_parameters()
        }
        shown = [names.get(id(p)) or f"one of shape {tuple(p.shape)}" for p in parameters[:_SHOWN]]
        more = len(parameters) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")


def _parameters(optimizer: Any) -> Any:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _exchanged(model: Any) -> set[int]:
    """Return the identities of the parameters whose gradients a prepared model exchanges, or leaves out on purpose."""
    # Parameters that were frozen or replaced are the subject of ExchangedParameters.
    return {id(parameter) for parameter in unwrap(model).parameters()} if is_distributed(model) else set()


def _figures(gradient: Any) -> tuple[float, ...] | None:
    """Return the norm of a gradient, its sum, and the sum of its rows weighted by their place."""
    if gradient is None:
        return None
    import torch

    values = gradient.detach()
    if values.is_complex():
        values = torch.view_as_real(values)
    places = None
    if values.is_sparse:
        values = values.coalesce()
        places = values.indices()[0]
        values = values.values()
    if not values.numel():
        return 0.0, 0.0, 0.0
    norm = torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float32))
    rows = values.reshape(values.shape[0] if values.dim() else 1, -1).sum(1, dtype=torch.float64)
    places = torch.arange(len(rows), device=rows.device) if places is None else places
    return tuple(torch.stack([norm.double(), rows.sum(), (rows * torch.cos(places.double())).sum()]).tolist())


def _by_parameter(ranks: Sequence[Sequence[tuple[float, ...] | None]]) -> list[tuple[int, list[Any]]]:
    """Return the figures of each parameter on all ranks. A rank with fewer parameters has none of the last ones."""
    most = max(len(rank) for rank in ranks)
    return [(index, [rank[index] if index < len(rank) else () for rank in ranks]) for index in range(most)]


def _is_conclusive(value: tuple[float, ...] | None) -> bool:
    """Return whether a gradient would differ from that of other data."""
    return bool(value) and math.isfinite(value[0]) and value[0] > 0  # type: ignore[index]


def _are_equal(values: Sequence[Any]) -> bool:
    if all(value is None for value in values):
        return True
    if not all(values):
        # A rank without a gradient, beside one with a gradient of zeros, trains the same.
        return not any(_is_conclusive(value) for value in values) and () not in values
    if not all(math.isfinite(number) for value in values for number in value):
        return True
    rounding = _ROUNDING * max(value[0] for value in values)
    return all(abs(number - first) <= rounding for value in values for number, first in zip(value, values[0]))
