"""Prepared objects of the running program, whose states are part of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_dtrain.train.errors import CheckpointError, SetupError
from airflow_provider_dtrain.train.process.heartbeat import BUILD, HERE
from airflow_provider_dtrain.train.sharded_tensors import REMEDY, old_kind, sharded_kind
from airflow_provider_dtrain.train.values import StateDict
from airflow_provider_dtrain.train.wrapped_tensors import is_thin, is_unknown, name_of, plain_parts

#: Size of a bucket of DistributedDataParallel, MiB; torch's own default.
DEFAULT_BUCKET_MIB = 25


class Prepared:
    """Objects that were passed to ``ctx.prepare``, in order."""

    def __init__(self) -> None:
        self.models: list[Any] = []
        self.optimizers: list[Any] = []
        self.schedulers: list[Any] = []
        #: Anything else with ``state_dict`` and ``load_state_dict``.
        self.further: list[Any] = []
        #: Position in ``others`` -> name that the program registered the object by.
        self.names: dict[int, str] = {}
        self._on_save: Callable[[StateDict], None] | None = None
        self._on_load: Callable[[StateDict], None] | None = None

    def watch(self, on_save: Callable[[StateDict], None], on_load: Callable[[StateDict], None] | None) -> None:
        """Pass every state to these functions, which may change it, before it is saved and before it is loaded."""
        self._on_save = on_save
        self._on_load = on_load

    def __len__(self) -> int:
        return len(self.models) + len(self.optimizers) + len(self.schedulers) + len(self.further)

    def register(self, name: str, item: Any) -> None:
        """Add one object under a name. It is neither moved nor wrapped.

        :raises SetupError: the name is taken, or the object has no state
        """
        if name in self.names.values():
            raise SetupError(f"ctx.register was given two objects of the name {name!r}. Use another name.")
        if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise SetupError(
                f"ctx.register takes objects with state_dict and load_state_dict, got {type(item).__name__} "
                f"for {name!r}. Give its class both methods. A plain value has none: keep it in an object that returns "
                "it from state_dict()."
            )
        self.names[len(self.further)] = name
        self.further.append(item)

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
            self.further.append(item)
            return "other"
        raise SetupError(
            "ctx.prepare takes models, optimizers, learning rate schedulers and objects with state_dict and "
            f"load_state_dict, got {type(item).__name__}. For data, use ctx.loader(dataset)."
        )

    def refuse_unknown_tensors(self) -> None:
        """Raise when a model has tensors of a class that no checkpoint holds.

        :raises SetupError: names the tensor
        """
        for model in self.models:
            inner = bare(model)
            for name, tensor in (*inner.named_parameters(), *inner.named_buffers()):
                if is_unknown(tensor):
                    kind = type(tensor)
                    raise SetupError(
                        f"{plain_name(name)} of {type(inner).__name__} is a tensor of the class {name_of(kind)}, which "
                        "is not in the list of those that torch may make of a file, so that no checkpoint can be "
                        f"restored. If you trust it, call torch.serialization.add_safe_globals([{kind.__name__}]) "
                        "before ctx.prepare. Without checkpoints, set checkpoint_policy: none."
                    )

    def refuse_whole_averages(self) -> None:
        """Raise when averaged weights are whole and those of their model are sharded, so that none can be averaged.

        :raises SetupError: says how to shard the average
        """
        sharded = [_shapes(model) for model in self.models if sharded_kind(model) is not None]
        if not sharded:
            return
        for item in (*self.models, *self.further):
            if is_average(item) and sharded_kind(item) is None and _shapes(item.module) in sharded:
                raise SetupError(
                    f"An AveragedModel must be sharded as its model is, got whole tensors beside the sharded "
                    f"{type(item.module).__name__}. Create the average before the model is sharded, and shard "
                    "average.module in the same way: fully_shard(average.module)."
                )

    def other_states(self) -> list[Any]:
        """Return the states of the objects that are no model, optimizer or scheduler."""
        return [item.state_dict() for item in self.further]

    def state(self, states: list[Any]) -> StateDict:
        """Return the state of every object. The state of a model is that of its unwrapped module.

        :param states: return value of :meth:`other_states`
        """
        state = self.sharded_state(states)
        if self._on_save is not None:
            self._on_save(state)
        return state

    def sharded_state(self, states: list[Any]) -> StateDict:
        """Return the same without the changes of a callback, for the ranks that save only their shards."""
        names = {"names": dict(self.names)} if self.names else {}
        return {
            "models": self.model_states(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "others": states,
            **names,
        }

    def model_states(self) -> list[Any]:
        """Return the state of each model, with the names of the plain module."""
        return [_as_saved(bare(model).state_dict()) for model in self.models]

    def is_sharded(self) -> bool:
        """Return whether a model, an optimizer or the state of another object has parts on several ranks."""
        return any(sharded_kind(item) is not None for item in (*self.models, *self.optimizers))

    @property
    def has_load_callback(self) -> bool:
        """True if a function that may change a state is called before it is loaded."""
        return self._on_load is not None

    def refuse_old_shards(self) -> None:
        """Raise when a prepared model or optimizer has been sharded in a way that checkpoints do not hold.

        :raises CheckpointError: names the object
        """
        for item in (*self.models, *self.optimizers):
            kind = old_kind(item)
            if kind is not None:
                raise CheckpointError(
                    f"save_checkpoint takes whole tensors or DTensors, got {type(unwrap(item)).__name__} with {kind} "
                    f"parameters. {REMEDY}"
                )

    def form(self) -> str:
        """Return a digest of the names and whole shapes of all parameters and buffers, in order."""
        import hashlib

        digest = hashlib.sha256()
        for number, model in enumerate(self.models):
            for name, value in bare(model).state_dict().items():
                digest.update(f"{number} {plain_name(name)} {tuple(getattr(value, 'shape', ()))}\n".encode())
        return digest.hexdigest()

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the saved state into every object.

        :raises CheckpointError: the checkpoint was written by a program with other objects
        """
        if self._on_load is not None:
            state = dict(state)
            self._on_load(state)
        self.refuse_other_numbers(state)
        further = self._in_my_order(state.get("others", []), state.get("names") or {})
        for kind, items in self.groups().items():
            saved = further if kind == "others" else state.get(kind, [])
            for index, (item, values) in enumerate(zip(items, saved)):
                self._load_one(kind, index, bare(item) if kind == "models" else item, values)

    def refuse_other_numbers(self, state: Mapping[str, Any]) -> None:
        """Raise when a state is of another number of objects than were prepared, or of other names.

        :raises CheckpointError: names the kind of the objects
        """
        self._in_my_order(state.get("others", []), state.get("names") or {})
        for kind, items in self.groups().items():
            saved = state.get(kind, [])
            if len(saved) != len(items):
                raise CheckpointError(
                    f"The checkpoint holds {len(saved)} {kind}, but ctx.prepare was given {len(items)}. Prepare the "
                    "same objects in the same order before ctx.restore_checkpoint()."
                )

    def further_as_saved(self, names: Mapping[int, str], count: int) -> list[Any]:
        """Return the objects of ``others`` in the order of a checkpoint, None for one that is not here.

        :param names: position in the checkpoint -> name of a registered object
        :param count: number of states in the checkpoint
        """
        named = {name: self.further[index] for index, name in self.names.items()}
        unnamed = iter([item for index, item in enumerate(self.further) if index not in self.names])
        return [named.get(names[index]) if index in names else next(unnamed, None) for index in range(count)]

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
        ordered = [by_name[self.names[i]] if i in self.names else next(unnamed, None) for i in range(len(self.further))]
        return ordered if len(saved) == len(self.further) else saved

    def _load_one(self, kind: str, index: int, item: Any, values: Any) -> None:
        try:
            item.load_state_dict(values)
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{kind}[{index}] ({type(item).__name__}) does not fit the checkpoint: {error}"
            ) from error

    def groups(self) -> dict[str, list[Any]]:
        """Return the objects of each kind."""
        return {
            "models": self.models,
            "optimizers": self.optimizers,
            "schedulers": self.schedulers,
            "others": self.further,
        }


def is_distributed(model: Any) -> bool:
    """Return whether a module is a DistributedDataParallel."""
    return type(model).__name__ == "DistributedDataParallel"


def unwrap(model: Any) -> Any:
    """Return the user's module inside DistributedDataParallel, or the object itself."""
    return model.module if is_distributed(model) else model


def bare(model: Any) -> Any:
    """Return the module inside DistributedDataParallel and ``torch.compile``, whose names a checkpoint has."""
    while True:
        inner = unwrap_compiled(unwrap(model))
        if inner is model:
            return model
        model = inner


def plain_name(name: str) -> str:
    """Return the name of a parameter without the part that ``torch.compile`` of a module inside the model adds."""
    return name.replace("_orig_mod.", "")


def _as_saved(state: Any) -> Any:
    """Return a model's state with the names of the plain module, and tensors without a class of the program's own.

    The model that loads the state has the class: the numbers are copied into its own tensors.
    """
    import torch

    kinds = {type(value): value for value in state.values() if isinstance(value, torch.Tensor)}
    is_usual = not any(is_thin(value) for value in kinds.values())
    if is_usual and not any("_orig_mod." in name for name in state):
        return state
    plain = type(state)(
        (
            plain_name(name),
            value.as_subclass(torch.Tensor) if isinstance(value, torch.Tensor) and is_thin(value) else value,
        )
        for name, value in state.items()
    )
    plain._metadata = {plain_name(name): entry for name, entry in getattr(state, "_metadata", {}).items()}
    return plain


def is_parallel(model: Any) -> bool:
    """Return whether a model exchanges its gradients itself, so that it must not be wrapped."""
    return is_distributed(unwrap_compiled(model)) or sharded_kind(model) is not None


def unwrap_compiled(model: Any) -> Any:
    """Return the module inside a compiled one, or the object itself."""
    return getattr(model, "_orig_mod", model)


def is_average(model: Any) -> bool:
    """Return whether a module holds averaged weights, which no optimizer trains."""
    from torch.optim.swa_utils import AveragedModel

    return isinstance(model, AveragedModel)


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    return {plain_name(name): tuple(parameter.shape) for name, parameter in unwrap(model).named_parameters()}


def wrap(model: Any, *, device: Any, size: int, bucket_mib: float, ddp: Mapping[str, Any]) -> Any:
    """Return the model on its device, in DistributedDataParallel when there is more than one rank.

    A model that is parallel already exchanges its gradients itself and is returned unchanged.

    :param bucket_mib: gradients are exchanged in buckets of this size, MiB
    :param ddp: options of DistributedDataParallel
    """
    if is_parallel(model):
        return model
    model.to(device)
    if size == 1 or not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    return distribute(model, device=device, bucket_mib=bucket_mib, **ddp)


def distribute(model: Any, *, device: Any, bucket_mib: float, **options: Any) -> Any:
    """Return a module wrapped in DistributedDataParallel. The module must be on its device.

    Gradients are views of the buckets, which saves a copy of all gradients per exchange, in time and memory.

    :param bucket_mib: size of a bucket, MiB. torch sets its own default itself: its first bucket is smaller
    :param options: further options of DistributedDataParallel
    """
    # Imported here, because the library must be importable without torch.
    from airflow_provider_dtrain.train.distributed_model import DistributedDataParallel

    with HERE.at(BUILD):
        return DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=None if bucket_mib == DEFAULT_BUCKET_MIB else bucket_mib,
            **{"gradient_as_bucket_view": True, **options},
        )


def parameters_sha256(*models: Any) -> str:
    """Return the SHA-256 of all parameters, bit for bit. It is equal on all ranks after each synchronous step."""
    import hashlib

    import torch

    digest = hashlib.sha256()
    for model in models:
        for name, parameter in unwrap(model).named_parameters():
            digest.update(f"{plain_name(name)} {parameter.dtype} {tuple(parameter.shape)}\n".encode())
            for part in plain_parts(parameter.detach()):
                flat = part.cpu().contiguous().reshape(-1).view(torch.uint8)
                try:
                    digest.update(flat.numpy().tobytes())
                except RuntimeError:  # torch without numpy
                    digest.update(bytes(flat.tolist()))
    return digest.hexdigest()
