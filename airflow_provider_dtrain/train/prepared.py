"""Prepared objects of the running program, whose states are part of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_dtrain.train.errors import CheckpointError, SetupError
from airflow_provider_dtrain.train.process.heartbeat import BUILD, HERE
from airflow_provider_dtrain.train.sharded_tensors import REMEDY, sharded_kind

#: Size of a bucket of DistributedDataParallel, MiB; torch's own default.
DEFAULT_BUCKET_MIB = 25


class Prepared:
    """Objects that were passed to ``ctx.prepare``, in order."""

    def __init__(self) -> None:
        self.models: list[Any] = []
        self.optimizers: list[Any] = []
        self.schedulers: list[Any] = []
        #: Anything else with ``state_dict`` and ``load_state_dict``.
        self.others: list[Any] = []
        #: Position in ``others`` -> name that the program registered the object by.
        self.names: dict[int, str] = {}
        self._on_save: Callable[[dict[str, Any]], None] | None = None
        self._on_load: Callable[[dict[str, Any]], None] | None = None

    def watch(self, on_save: Callable[[dict[str, Any]], None], on_load: Callable[[dict[str, Any]], None]) -> None:
        """Pass every state to these functions, which may change it, before it is saved and before it is loaded."""
        self._on_save = on_save
        self._on_load = on_load

    def __len__(self) -> int:
        return len(self.models) + len(self.optimizers) + len(self.schedulers) + len(self.others)

    def register(self, name: str, item: Any) -> None:
        """Add one object under a name. It is neither moved nor wrapped.

        :raises SetupError: the name is taken, or the object has no state
        """
        if name in self.names.values():
            raise SetupError(f"ctx.register was given two objects of the name {name!r}. Use another name.")
        if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise SetupError(
                f"ctx.register takes objects with state_dict and load_state_dict, got {type(item).__name__} "
                f"for {name!r}."
            )
        self.names[len(self.others)] = name
        self.others.append(item)

    def add(self, item: Any) -> str:
        """Add one object. Return its kind: model, optimizer, scheduler or other.

        :raises SetupError: its type is not supported, or PyTorch is not installed
        """
        try:
            import torch
        except ImportError as error:
            raise SetupError(
                "ctx.prepare needs PyTorch, which is not installed. Save files of other frameworks with ctx.checkpoint."
            ) from error

        schedulers = (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        if isinstance(item, torch.nn.Module):
            self.models.append(item)
            return "model"
        if isinstance(item, torch.optim.Optimizer):
            self.optimizers.append(item)
            return "optimizer"
        if isinstance(item, schedulers):
            self.schedulers.append(item)
            return "scheduler"
        if hasattr(item, "state_dict") and hasattr(item, "load_state_dict"):
            self.others.append(item)
            return "other"
        raise SetupError(
            "ctx.prepare takes models, optimizers, learning rate schedulers and objects with state_dict and "
            f"load_state_dict, got {type(item).__name__}. For data, use ctx.loader(dataset)."
        )

    def other_states(self) -> list[Any]:
        """Return the states of the objects that are no model, optimizer or scheduler."""
        return [item.state_dict() for item in self.others]

    def state(self, others: list[Any]) -> dict[str, Any]:
        """Return the state of every object. The state of a model is that of its unwrapped module.

        :param others: return value of :meth:`other_states`
        """
        state: dict[str, Any] = {
            kind: [unwrap(item).state_dict() for item in items] if items is not self.others else others
            for kind, items in self._groups().items()
        }
        if self.names:
            state["names"] = dict(self.names)
        if self._on_save is not None:
            self._on_save(state)
        return state

    def refuse_sharded(self) -> None:
        """Raise when a prepared model or optimizer has been sharded since it was prepared.

        :raises CheckpointError: names the object
        """
        for item in (*self.models, *self.optimizers):
            kind = sharded_kind(item)
            if kind is not None:
                raise CheckpointError(
                    f"save_checkpoint takes whole tensors, got {type(unwrap(item)).__name__} with {kind} parameters. "
                    f"{REMEDY}"
                )

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the saved state into every object.

        :raises CheckpointError: the checkpoint was written by a program with other objects
        """
        if self._on_load is not None:
            state = dict(state)
            self._on_load(state)
        others = self._in_my_order(state.get("others", []), state.get("names") or {})
        for kind, items in self._groups().items():
            saved = others if kind == "others" else state.get(kind, [])
            if len(saved) != len(items):
                raise CheckpointError(
                    f"The checkpoint holds {len(saved)} {kind}, but ctx.prepare was given {len(items)}. Prepare the "
                    "same objects in the same order before ctx.restore_checkpoint()."
                )
            for index, (item, values) in enumerate(zip(items, saved)):
                self._load_one(kind, index, unwrap(item), values)

    def _in_my_order(self, saved: list[Any], names: Mapping[int, str]) -> list[Any]:
        """Return the saved states of ``others`` in the order of this program: named ones may have changed places.

        :raises CheckpointError: the names differ
        """
        mine, theirs = set(self.names.values()), set(names.values())
        if mine != theirs:
            differing = ", ".join(sorted(mine ^ theirs))
            raise CheckpointError(
                f"The checkpoint and ctx.register differ in {differing}: registered here are "
                f"{', '.join(sorted(mine)) or 'none'}, saved are {', '.join(sorted(theirs)) or 'none'}. Register the "
                "same names before ctx.restore_checkpoint()."
            )
        by_name = {name: saved[index] for index, name in names.items()}
        unnamed = iter([state for index, state in enumerate(saved) if index not in names])
        ordered = [by_name[self.names[i]] if i in self.names else next(unnamed, None) for i in range(len(self.others))]
        return ordered if len(saved) == len(self.others) else saved

    def _load_one(self, kind: str, index: int, item: Any, values: Any) -> None:
        try:
            item.load_state_dict(values)
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{kind}[{index}] ({type(item).__name__}) does not fit the checkpoint: {error}"
            ) from error

    def _groups(self) -> dict[str, list[Any]]:
        return {
            "models": self.models,
            "optimizers": self.optimizers,
            "schedulers": self.schedulers,
            "others": self.others,
        }


def unwrap(model: Any) -> Any:
    """Return the user's module inside DistributedDataParallel, or the object itself."""
    return model.module if type(model).__name__ == "DistributedDataParallel" else model


def is_average(model: Any) -> bool:
    """Return whether a module holds averaged weights, which no optimizer trains."""
    from torch.optim.swa_utils import AveragedModel

    return isinstance(model, AveragedModel)


def wrap(model: Any, *, device: Any, size: int, bucket_mib: float, find_unused_parameters: bool) -> Any:
    """Return the model on its device, in DistributedDataParallel when there is more than one rank.

    A model whose parameters are already sharded exchanges its gradients itself and is returned unchanged.

    :param bucket_mib: gradients are exchanged in buckets of this size, MiB
    """
    if sharded_kind(model) is not None:
        return model
    model.to(device)
    if size == 1 or not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    return distribute(model, device=device, bucket_mib=bucket_mib, find_unused_parameters=find_unused_parameters)


def distribute(model: Any, *, device: Any, bucket_mib: float, find_unused_parameters: bool, **options: Any) -> Any:
    """Return a module wrapped in DistributedDataParallel. The module must be on its device.

    Gradients are views of the buckets, which saves a copy of all gradients per exchange, in time and memory.

    :param bucket_mib: size of a bucket, MiB. torch sets its own default itself: its first bucket is smaller
    :param options: further options of DistributedDataParallel
    """
    from torch.nn.parallel import DistributedDataParallel

    with HERE.at(BUILD):
        return DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=None if bucket_mib == DEFAULT_BUCKET_MIB else bucket_mib,
            find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=True,
            **options,
        )


def parameters_sha256(*models: Any) -> str:
    """Return the SHA-256 of all parameters, bit for bit. It is equal on all ranks after each synchronous step."""
    import hashlib

    import torch

    digest = hashlib.sha256()
    for model in models:
        for name, parameter in unwrap(model).named_parameters():
            flat = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}\n".encode())
            try:
                digest.update(flat.numpy().tobytes())
            except RuntimeError:  # torch without numpy
                digest.update(bytes(flat.tolist()))
    return digest.hexdigest()
