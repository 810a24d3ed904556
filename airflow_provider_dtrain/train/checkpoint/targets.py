"""Targets of a restore: tensors of the running program that get the numbers of a checkpoint."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_dtrain.train.checkpoint.state_values import encode, made_of_tensors
from airflow_provider_dtrain.train.checkpoint.tensor_source import TensorSource
from airflow_provider_dtrain.train.checkpoint.tensor_tree import fill, key_of, keys
from airflow_provider_dtrain.train.errors import CheckpointError
from airflow_provider_dtrain.train.prepared import bare, plain_name
from airflow_provider_dtrain.train.sharded_tensors import is_dtensor
from airflow_provider_dtrain.train.values import Tensors


class Targets:
    """Builds states from skeletons, and collects the tensors in them that have to be loaded.

    Tensors of models are loaded in place, and those of optimizers into new tensors, sharded as the parameters, unless
    the optimizer has them already. So no rank holds a second copy of its state.

    :param in_place: False: load copies only, because a callback may change the state before it is loaded
    """

    def __init__(self, source: TensorSource, *, in_place: bool = True) -> None:
        self._source = source
        self._in_place = in_place
        #: Keys, and the tensors that get their numbers.
        self.wanted: list[tuple[str, Any]] = []
        self._plain: Tensors = {}

    def plain(self, skeleton: Any) -> Any:
        """Return a state with new tensors on the CPU."""
        return fill(skeleton, self._new)

    def models(self, models: Sequence[Any], saved: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return the states of models that have the same names and shapes."""
        return [self._model(bare(model), skeleton) for model, skeleton in zip(models, saved)]

    def _model(self, model: Any, saved: Mapping[str, Any]) -> Any:
        state: OrderedDict[str, Any] = OrderedDict()
        mine = model.state_dict()
        by_name = {plain_name(name): value for name, value in saved.items()}
        for name, value in mine.items():
            skeleton = by_name[plain_name(name)]
            key = key_of(skeleton)
            state[name] = self.plain(skeleton) if key is None else self._in(name, key, value)
        versions = {plain_name(name): entry for name, entry in getattr(saved, "_metadata", {}).items()}
        known: Mapping[str, Any] = getattr(mine, "_metadata", {})
        state._metadata = {name: versions.get(plain_name(name), entry) for name, entry in known.items()}  # type: ignore[attr-defined]
        return state

    def _in(self, name: str, key: str, value: Any) -> Any:
        """Return the tensor of a model, or a copy of its form."""
        import torch

        if value.is_meta:
            raise CheckpointError(
                f"{name} of the model must have memory, but is on the meta device. Call "
                "model.to_empty(device=ctx.device) before ctx.restore_checkpoint()."
            )
        target = value.detach() if self._in_place else torch.empty_like(value)
        self.wanted.append((key, target))
        return target

    def optimizers(self, optimizers: Sequence[Any], saved: Sequence[Any]) -> list[Any]:
        """Return the states of optimizers. A state that has the shape of its parameter is sharded as this."""
        states = []
        for optimizer, skeleton in zip(optimizers, saved):
            if _is_usual(skeleton):
                by_index = dict(zip(_indexes(skeleton), _parameters(optimizer)))
                entries = {
                    index: self._entry(optimizer, by_index.get(index), entry)
                    for index, entry in skeleton["state"].items()
                }
                rest = {name: item for name, item in skeleton.items() if name != "state"}
                states.append({**self.plain(rest), "state": entries})
            else:
                states.append(self.plain(skeleton))
        return states

    def _entry(self, optimizer: Any, parameter: Any, skeleton: Any) -> Any:
        """Return the state of one parameter. A tensor that the optimizer has already is loaded in place."""
        held = optimizer.state.get(parameter, {}) if parameter is not None else {}
        entry = {}
        for name, item in skeleton.items():
            key = key_of(item)
            if key is not None and self._fits(held.get(name), key):
                entry[name] = held[name]
                self.wanted.append((key, held[name]))
            else:
                entry[name] = self._of_parameter(parameter, item)
        return entry

    def _fits(self, tensor: Any, key: str) -> bool:
        import torch

        if not self._in_place or not isinstance(tensor, torch.Tensor) or tensor.is_meta:
            return False
        if not is_dtensor(tensor) and tensor.stride() != self._source.strides(key):
            return False
        return tuple(tensor.shape) == self._source.shape(key) and tensor.dtype == self._source.dtype(key)

    def _of_parameter(self, parameter: Any, skeleton: Any) -> Any:
        if parameter is None:
            return self.plain(skeleton)
        inner = {key for value in made_of_tensors(skeleton) for key in keys(value)}
        return fill(skeleton, lambda key: self._new(key) if key in inner else self._like(key, parameter))

    def _like(self, key: str, parameter: Any) -> Any:
        """Return a new tensor for a key, which is sharded as a parameter if it has the same shape."""
        import torch

        shape = self._source.shape(key)
        dtype = self._source.dtype(key)
        has_shape = shape == tuple(parameter.shape)
        if has_shape and (is_dtensor(parameter) or self._source.is_sharded(key)):
            target = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        elif has_shape:
            target = torch.empty_strided(shape, self._source.strides(key), dtype=dtype, device=parameter.device)
        elif is_dtensor(parameter) and self._source.is_sharded(key):
            target = _sharded_along(parameter, shape, dtype)
        else:
            return self._new(key)
        self.wanted.append((key, target))
        return target

    def further(self, items: Sequence[Any], saved: Sequence[Any]) -> list[Any]:
        """Return the states of other objects. Sharded tensors get the form that the object's own state has.

        :param items: the object of each state, or None
        """
        states = []
        for item, skeleton in zip(items, saved):
            shards = any(self._source.is_sharded(key) for key in keys(skeleton))
            states.append(self._other(skeleton, encode(item.state_dict()) if shards and item is not None else None))
        return states

    def _other(self, skeleton: Any, mine: Any) -> Any:
        import torch

        key = key_of(skeleton)
        if key is not None:
            if not is_dtensor(mine) or self._source.shape(key) != tuple(mine.shape):
                return self._new(key)
            target = torch.empty_like(mine, requires_grad=False)
            self.wanted.append((key, target))
            return target
        if type(skeleton) in {dict, OrderedDict}:
            named = mine if isinstance(mine, Mapping) else {}
            taken = type(skeleton)((name, self._other(item, named.get(name))) for name, item in skeleton.items())
            if type(skeleton) is OrderedDict:
                taken.__dict__.update(skeleton.__dict__)
            return taken
        if type(skeleton) in {list, tuple}:
            listed = mine if isinstance(mine, (list, tuple)) and len(mine) == len(skeleton) else [None] * len(skeleton)
            return type(skeleton)(self._other(item, own) for item, own in zip(skeleton, listed))
        return skeleton

    def gradients(self, parameters: Sequence[Sequence[Any]], saved: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Return sharded gradients, None where there is none.

        :param parameters: parameters of each optimizer
        """
        return [
            [self._of_parameter(parameter, skeleton) for parameter, skeleton in zip(own, skeletons)]
            for own, skeletons in zip(parameters, saved)
        ]

    def _new(self, key: str) -> Any:
        """Return a new tensor on the CPU, the same for each reference to a key."""
        import torch

        if key not in self._plain:
            strides = self._source.strides(key)
            self._plain[key] = torch.empty_strided(self._source.shape(key), strides, dtype=self._source.dtype(key))
            self.wanted.append((key, self._plain[key]))
        return self._plain[key]


def _is_usual(skeleton: Any) -> bool:
    """Return whether a state has the form of ``torch.optim.Optimizer``."""
    return isinstance(skeleton, Mapping) and isinstance(skeleton.get("state"), dict) and "param_groups" in skeleton


def _indexes(skeleton: Mapping[str, Any]) -> Iterator[Any]:
    for group in skeleton["param_groups"]:
        yield from group["params"]


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _sharded_along(parameter: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a new tensor that is sharded as a parameter in the dimensions that it has in common with it."""
    import torch
    from torch.distributed.tensor import Replicate, empty

    has_same = [n == m for n, m in zip(shape, parameter.shape)]
    placements = [
        placement
        if not placement.is_shard() or (placement.dim < len(has_same) and has_same[placement.dim])
        else Replicate()
        for placement in parameter.placements
    ]
    with torch.no_grad():
        return empty(shape, dtype=dtype, device_mesh=parameter.device_mesh, placements=placements)
