"""Health of a training: losses, gradients and weights that are not finite, and the module that made the first one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from airflow_provider_dtrain.train.errors import NonFiniteLossError, NonFiniteWeightsError
from airflow_provider_dtrain.train.prepared import bare, plain_name
from airflow_provider_dtrain.train.sharded_tensors import is_dtensor, local_part
from airflow_provider_dtrain.train.wrapped_tensors import plain_parts

#: Buffers that training computes. Others may have infinite values by design, as masks have.
_COMPUTED = ("running_mean", "running_var")
#: Nodes that give a weight another form before a module uses it.
_OF_WEIGHTS = frozenset({"TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0", "ToCopyBackward0"})
#: Names that an error shows.
_SHOWN = 3
_PLACE = "backward pass"
_NOTHING_SAVED = (
    "No value that the backward pass needs is NaN: see the last module of the model, the loss function and its targets."
)


class Health:
    """Finds the first value of a training that is not finite.

    A loss on the CPU is read at once, before its gradients can reach the weights. One on a GPU is read when the ranks
    synchronize, so that training never waits for the device.

    :param fails: raise; False: weights are looked at for checkpoints only
    """

    def __init__(self, rank: int, *, fails: bool) -> None:
        self._rank = rank
        self.fails = fails
        #: A loss scale leaves out steps whose gradients are not finite.
        self._is_scaled = False
        self._models: list[Any] = []
        #: Names of the weights that have such values from the start, for each model.
        self._meant: list[frozenset[str]] = []
        #: The latest loss and norm on a GPU, with the number of their backward pass.
        self._held: dict[str, tuple[Any, int]] = {}
        #: A value that may have harmed the weights, with the number of its backward pass.
        self._suspect: tuple[str, float, int] | None = None

    def know(self, model: Any) -> None:
        """Add a prepared model. Weights that are not finite already are so by design."""
        self._meant.append(frozenset(_not_finite(_weights(model))))
        self._models.append(model)

    def loss(self, loss: Any, number: int, *, is_scaled: bool = False) -> None:
        """Look at a loss before its backward pass.

        :param number: number of the backward pass
        :param is_scaled: a loss scale leaves out steps whose gradients are not finite
        :raises NonFiniteLossError: it is NaN
        """
        self._is_scaled = is_scaled
        if not self.fails or is_dtensor(loss) or loss.numel() != 1:
            return
        if not loss.is_cpu:
            self._held["loss"] = loss.detach(), number
            return
        value = loss.item()
        if not math.isfinite(value):
            self._judge_loss(value, number, loss)

    def norm(self, norm: Any, parameters: Sequence[Any], number: int) -> None:
        """Look at the norm of the gradients of a step, before they are clipped.

        :raises NonFiniteLossError: a gradient is not finite
        """
        if not self.fails or self._is_scaled:
            return
        if not norm.is_cpu:
            self._held["norm of the gradients"] = norm, number
        elif not math.isfinite(norm.item()):
            modules = self._modules()
            held = [parameter for parameter in parameters if parameter.grad is not None]
            found = _not_finite((modules.get(id(p), "a parameter of no prepared model"), p.grad) for p in held)
            if found:
                # A backward pass begins at the end of the model.
                raise NonFiniteLossError(
                    "A gradient",
                    number,
                    self._rank,
                    value="not finite",
                    place=_PLACE,
                    origin=f"That of {found[-1]} was the first.",
                )

    def check_held(self) -> None:
        """Look at what is held. Called at every synchronization.

        :raises NonFiniteLossError: a loss is NaN
        :raises NonFiniteWeightsError: weights are not finite
        """
        held, self._held = self._held, {}
        for name, (value, number) in held.items():
            read = float(value)
            if math.isfinite(read):
                continue
            if name == "loss":
                self._judge_loss(read, number)
            else:
                self._suspect = name, read, number
        suspect, self._suspect = self._suspect, None
        if suspect is not None:
            dead = self.dead()
            if dead is not None:
                name, read, number = suspect
                raise NonFiniteWeightsError(dead, f"after the {name} was {read} in backward pass {number}")

    def dead(self) -> str | None:
        """Return the names of the first weights of this rank that are not finite, None if all are."""
        for index, (model, meant) in enumerate(zip(self._models, self._meant)):
            found = [name for name in _not_finite(_weights(model)) if name not in meant]
            if found:
                more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
                which = f"model {index + 1}, " if len(self._models) > 1 else ""
                return f"{', '.join(found[:_SHOWN])}{more} of {which}{type(bare(model)).__name__}"
        return None

    def _judge_loss(self, value: float, number: int, loss: Any = None) -> None:
        """Raise for a loss that is not finite, or remember it, if its gradients may be finite.

        :param loss: the loss with its graph, if no backward pass has freed it yet
        """
        if math.isnan(value) and not self._is_scaled:
            raise NonFiniteLossError(
                "The loss of ctx.backward", number, self._rank, place=_PLACE, origin=self._origin(loss)
            )
        self._suspect = "loss", value, number

    def _origin(self, loss: Any) -> str:
        dead = self.dead()
        if dead is not None:
            return f"The first weights that are not finite are {dead}."
        if loss is None:
            return ""
        try:
            return first_nan(loss, self._modules()) or _NOTHING_SAVED
        except Exception:  # the graph of a module of another library may refuse to be read
            return ""

    def _modules(self) -> dict[int, str]:
        """Return the name of the module of each parameter, by the parameter's identity."""
        return {
            id(parameter): plain_name(name).rpartition(".")[0] or type(bare(model)).__name__
            for model in self._models
            for name, parameter in bare(model).named_parameters()
        }


def first_nan(loss: Any, modules: dict[int, str]) -> str | None:
    """Return which module has computed the first NaN that the graph of a loss holds, None if it holds none.

    :param modules: identity of a parameter -> name of its module
    """
    behind = None
    for node in _in_order(loss):
        if node.name() in _OF_WEIGHTS and all(hasattr(leaf, "variable") for leaf, _ in node.next_functions):
            continue
        own = _module_of(node, modules)
        results, inputs = _nan_values(node)
        if results or (inputs and own is None and behind is not None):
            at = own or behind
            where = f"in {at}" if own else f"behind {at}"
            return f"The first NaN was computed {where} ({node.name()})." if at else f"It began in {node.name()}."
        if inputs:
            if behind is None:
                return f"The first NaN was in the input of {own or 'the model'}, so in the batch."
            return f"The first NaN was computed behind {behind}, in front of {own}."
        behind = own or behind
    return None


def _in_order(loss: Any) -> list[Any]:
    """Return the nodes of a graph in the order of the forward pass."""
    seen: dict[Any, None] = {}
    waiting = [loss.grad_fn] if loss.grad_fn is not None else []
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen[node] = None
        waiting += [following for following, _ in node.next_functions if following is not None]
    return sorted((node for node in seen if not hasattr(node, "variable")), key=lambda node: node._sequence_nr())


def _module_of(node: Any, modules: dict[int, str]) -> str | None:
    """Return the module whose parameters a node uses, itself or through a transposed view."""
    own: dict[str, None] = {}
    for following, _ in node.next_functions:
        if following is not None and following.name() in _OF_WEIGHTS:
            following = following.next_functions[0][0]
        name = modules.get(id(getattr(following, "variable", None)))
        if name is not None:
            own[name] = None
    # A compiled model is one node.
    return " or ".join(own) or None


def _nan_values(node: Any) -> tuple[bool, bool]:
    """Return whether a result that a node has saved is NaN somewhere, and whether an input is."""
    import torch

    results = inputs = False
    # A function of a program's own, or a compiled model: what it has saved may be anything from inside of it.
    for value in getattr(node, "saved_tensors", ()):
        results = results or _has_nan(value)
    for name in dir(node):
        if not name.startswith("_saved_"):
            continue
        value = getattr(node, name)
        if isinstance(value, torch.Tensor) and _has_nan(value):
            is_result = name.removeprefix("_saved_") in {"result", "output", "out", "grad_input"}
            results, inputs = results or is_result, inputs or not is_result
    return results, inputs


def _has_nan(tensor: Any) -> bool:
    return tensor is not None and tensor.is_floating_point() and bool(tensor.isnan().any())


def _weights(model: Any) -> Iterator[tuple[str, Any]]:
    inner = bare(model)
    for name, parameter in inner.named_parameters():
        yield plain_name(name), parameter
    for name, buffer in inner.named_buffers():
        if name.rpartition(".")[2] in _COMPUTED:
            yield plain_name(name), buffer


def _not_finite(named: Iterable[tuple[str, Any]]) -> list[str]:
    """Return the names of tensors that have values which are not finite, with one copy from each device."""
    import torch

    kinds = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}
    by_device: dict[Any, list[tuple[str, Any]]] = {}
    for name, tensor in named:
        if torch.nn.parameter.is_lazy(tensor):
            continue
        for part in plain_parts(local_part(tensor)):
            has_numbers = part.layout is torch.strided and not part.is_meta and part.numel() > 0
            if has_numbers and part.dtype in kinds:
                # The largest value needs no room for a mask, and it is NaN if any value is.
                largest = torch.linalg.vector_norm(part, ord=math.inf)
                by_device.setdefault(part.device, []).append((name, largest.to(torch.float32)))
    bad: set[str] = set()
    order: list[str] = []
    for found in by_device.values():
        order += [name for name, _ in found]
        finite = torch.stack([largest for _, largest in found]).isfinite().tolist()
        bad.update(name for (name, _), is_finite in zip(found, finite) if not is_finite)
    return [name for name in dict.fromkeys(order) if name in bad]
