"""Weights of another checkpoint: check that they fit, and load them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_dtrain.train.checkpoint.state_values import decode, encode, wrapped_shape
from airflow_provider_dtrain.train.checkpoint.targets import Targets
from airflow_provider_dtrain.train.checkpoint.tensor_source import TensorSource
from airflow_provider_dtrain.train.checkpoint.tensor_tree import fill
from airflow_provider_dtrain.train.errors import CheckpointError
from airflow_provider_dtrain.train.prepared import bare, plain_name
from airflow_provider_dtrain.train.values import StateDict

#: Names that schedulers and torch itself add to the groups of any optimizer.
_OF_EVERY_KIND = {"params", "param_names", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"}


def load_weights(models: Sequence[Any], skeleton: Mapping[str, Any], source: TensorSource, name: str) -> None:
    """Load the parameters and buffers of a checkpoint into the prepared models, and nothing else of it.

    :param skeleton: state of the checkpoint without its tensors
    :param name: the checkpoint, for messages
    :raises CheckpointError: the checkpoint is of other models; nothing is loaded
    """
    saved = skeleton.get("models", [])
    refuse_other_models(models, saved, source, name)
    targets = Targets(source)
    states = targets.models(models, saved)
    source.load(targets.wanted)
    for model, state in zip(models, states):
        bare(model).load_state_dict(decode(state))


def refuse_other_models(
    models: Sequence[Any], saved: Sequence[Mapping[str, Any]], source: TensorSource, name: str
) -> None:
    """Raise when saved states do not fit the names and shapes of the models. Nothing is changed.

    :param saved: one state per model, without its tensors
    :param name: the checkpoint, for messages
    :raises CheckpointError: names the first parameter that differs
    """
    if len(saved) != len(models):
        raise CheckpointError(
            f"The checkpoint ({name}) holds {len(saved)} models, but ctx.prepare was given {len(models)}. Prepare "
            "the same models in the same order before ctx.restore_checkpoint()."
        )
    for index, (model, values) in enumerate(zip(models, saved)):
        theirs = fill(values, lambda key: _Shaped(source.shape(key)))
        difference = _first_difference(_plain(encode(bare(model).state_dict())), _plain(theirs))
        if difference:
            raise CheckpointError(
                f"The checkpoint ({name}) is of another model: models[{index}] ({type(bare(model)).__name__}), "
                f"{difference}. Nothing was loaded, and no checkpoint is lost. Build the model with the "
                "hyperparameters that it was trained with, or start without this checkpoint."
            )


@dataclass(frozen=True)
class _Shaped:
    """Stands for a saved tensor."""

    shape: tuple[int, ...]


def refuse_other_optimizers(optimizers: Sequence[Any], saved: Sequence[Mapping[str, Any]], source: str) -> None:
    """Raise when saved states are of other optimizers, because torch would load them and fail in the next step.

    :raises CheckpointError: names the optimizer and what it lacks
    """
    for index, (optimizer, values) in enumerate(zip(optimizers, saved)):
        known = {name for group in values.get("param_groups", ()) for name in group}
        missing = set(optimizer.defaults) - known
        strange = known - set(optimizer.defaults) - _OF_EVERY_KIND
        # A difference on one side only is another version of torch.
        if known and missing and strange:
            raise CheckpointError(
                f"The checkpoint ({source}) is of another optimizer: optimizers[{index}] is "
                f"{type(optimizer).__name__}, and the checkpoint has {', '.join(sorted(strange))} "
                f"instead of {', '.join(sorted(missing))}. No checkpoint is lost. Build the optimizer that it was "
                "trained with, or take its weights alone with searcher.source_checkpoint."
            )


def refuse_other_groups(optimizers: Sequence[Any], saved: Sequence[Mapping[str, Any]], source: str) -> None:
    """Raise when the parameter groups of an optimizer are not those that were saved.

    :raises CheckpointError: says how to add groups before the restore
    """
    for index, (optimizer, values) in enumerate(zip(optimizers, saved)):
        mine = [len(group["params"]) for group in optimizer.param_groups]
        theirs = [len(group["params"]) for group in values.get("param_groups", ())]
        if theirs and mine != theirs:
            raise CheckpointError(
                f"The checkpoint ({source}) has {_groups(theirs)} in optimizers[{index}] ({type(optimizer).__name__}), "
                f"got {_groups(mine)}. No checkpoint is lost. Add the groups that training adds later before "
                "ctx.restore_checkpoint(): ctx.saved_progress() returns the step and the epochs of the checkpoint."
            )


def _groups(sizes: Sequence[int]) -> str:
    counts = " + ".join(map(str, sizes))
    return f"{len(sizes)} parameter group{'' if len(sizes) == 1 else 's'} ({counts} parameters)"


def _first_difference(mine: Mapping[str, Any], saved: Mapping[str, Any]) -> str | None:
    for name, value in mine.items():
        if name not in saved:
            return f"parameter {name} has shape {_shape(value)} here and is not in the checkpoint"
        if _shape(value) != _shape(saved[name]):
            return f"parameter {name} has shape {_shape(value)} here and {_shape(saved[name])} in the checkpoint"
    for name, value in saved.items():
        if name not in mine:
            return f"parameter {name} has shape {_shape(value)} in the checkpoint and is not in the model"
    return None


def _plain(state: Mapping[str, Any]) -> StateDict:
    return {plain_name(name): value for name, value in state.items()}


def _shape(value: Any) -> tuple[int, ...] | None:
    wrapped = wrapped_shape(value)
    if wrapped is not None:
        return wrapped[1]
    # Arrays in the extra state of a module are loaded with any shape.
    return tuple(value.shape) if type(value) is _Shaped or hasattr(value, "data_ptr") else None
