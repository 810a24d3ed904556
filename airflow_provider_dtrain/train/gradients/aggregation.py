"""Groups of batches whose gradients become one optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from airflow_provider_dtrain.train.errors import CheckpointError, SetupError
from airflow_provider_dtrain.train.gradients.kinds import by_kind
from airflow_provider_dtrain.train.sharded_tensors import is_dtensor, sharded_as

#: :meth:`Group.exchange` sends gradients in pieces of at most this many numbers.
PIECE_NUMBERS = 8 * 1024 * 1024


class GradientGroup:
    """Unfinished group of one optimizer, with the number of batches in its gradients."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.count = 0
        #: DistributedDataParallel models that hold parameters of the optimizer.
        self.models: list[Any] = []
        #: The step of the announced last batch of training was taken.
        self.closed = False
        self._seen = self._checked_at = -1
        #: id of model -> its forward passes at the last step.
        self._passes: dict[int, int] = {}
        self._probe: Any = None

    def parameters(self) -> Iterator[Any]:
        """Yield the optimizer's parameters."""
        for group in self.optimizer.param_groups:
            yield from group["params"]

    def link(self, models: Sequence[Any]) -> None:
        """Find the models that exchange gradients for this optimizer."""
        mine = {id(parameter) for parameter in self.parameters()}
        self.models = [model for model in models if any(id(parameter) in mine for parameter in model.parameters())]

    def is_fresh(self, backwards: int) -> bool:
        """Return whether there was a backward pass since the optimizer's batch was counted.

        :param backwards: number of backward passes so far
        """
        return self._seen != backwards

    def count_batch(self, backwards: int) -> None:
        """Count a batch, unless no backward pass has run since the last one."""
        if self.is_fresh(backwards):
            self._seen = backwards
            self.count += 1

    def check_exchanged(self, backwards: int) -> None:
        """Raise when a model has gradients although it was not called since the last check.

        Its methods and layers can be called by themselves, but then the ranks do not exchange their gradients.

        :param backwards: number of backward passes so far
        :raises SetupError: names the model
        """
        # In an unfinished group, there are gradients of earlier batches, which were checked.
        is_due = backwards > max(self._checked_at, 0) and not self.count
        for model in self.models:
            if not hasattr(model, "passes"):  # wrapped by the program itself
                continue
            if is_due and model.passes == self._passes.get(id(model), 0) and not model.traced:
                self._refuse_bypass(model)
            self._passes[id(model)] = model.passes
        self._checked_at = backwards

    def _refuse_bypass(self, model: Any) -> None:
        mine = {id(parameter) for parameter in self.parameters()}
        if any(p.grad is not None and id(p) in mine for p in model.parameters()):
            raise SetupError(
                f"{type(model.module).__name__} must be called as model(...) with more than one rank, got gradients "
                "of a method, a layer or the unwrapped module: the ranks do not exchange them. Call it in the model's "
                "forward."
            )

    def close(self, *, last: bool) -> None:
        """Start a new group."""
        self.count = 0
        self._probe = None
        self.closed = last

    def remember_probe(self) -> None:
        """Remember a parameter whose gradient must still exist when the group continues."""
        if self._probe is None and self.count:
            self._probe = next((parameter for parameter in self.parameters() if parameter.grad is not None), None)

    def check_not_cleared(self) -> None:
        """Raise when the program has cleared the gradients of the unfinished group.

        :raises SetupError: says how to fix it
        """
        if self.count and self._probe is not None and self._probe.grad is None:
            raise SetupError(
                f"The gradients of {self.count} batches were cleared before their step: with aggregation_frequency "
                "above 1 the program must not call zero_grad() itself. Remove the call; ctx.step clears after each "
                "step."
            )

    def has_gradients(self) -> bool:
        """Return whether any parameter has a gradient."""
        return any(parameter.grad is not None for parameter in self.parameters())

    def divide(self) -> None:
        """Turn sums over the group's batches into means."""
        if self.count < 2:
            return
        import torch

        for parameters in by_kind(self.parameters()):
            dense = [parameter.grad for parameter in parameters if not parameter.grad.is_sparse]
            if dense:
                torch._foreach_div_(dense, float(self.count))
            for parameter in parameters:
                if parameter.grad.is_sparse:
                    parameter.grad.div_(self.count)

    def exchange(self, models: Sequence[Any], all_reduce: Callable[[Any], Any]) -> None:
        """Average the gradients over the ranks, as a DistributedDataParallel model would have done.

        :param models: models that are distributed over several ranks
        :param all_reduce: flat tensor -> its mean over the ranks
        """
        import torch

        shared = {id(parameter) for model in models for parameter in model.parameters() if parameter.requires_grad}
        mine = [parameter for parameter in self.parameters() if id(parameter) in shared]
        if not mine:
            return
        used = torch.tensor([float(p.grad is not None) for p in mine], device=mine[0].device)
        torch.distributed.all_reduce(used)
        wanted = [parameter for parameter, count in zip(mine, used.tolist()) if count]
        for piece in _pieces(wanted):
            flat = torch.cat([_dense(parameter).reshape(-1) for parameter in piece])
            mean = all_reduce(flat)
            for parameter, part in zip(piece, mean.split([parameter.numel() for parameter in piece])):
                parameter.grad = part.view_as(parameter).clone()

    def gradients(self) -> list[Any]:
        """Return copies of the plain gradients on the CPU, None for any other, in the optimizer's order."""
        return [
            None if p.grad is None or is_dtensor(p.grad) else p.grad.detach().cpu().clone() for p in self.parameters()
        ]

    def sharded_gradients(self) -> list[Any]:
        """Return the sharded gradients, None for any other, in the optimizer's order."""
        return [p.grad.detach() if p.grad is not None and is_dtensor(p.grad) else None for p in self.parameters()]

    def take(self, count: int, gradients: Sequence[Any]) -> None:
        """Resume a group of a checkpoint.

        :raises CheckpointError: the optimizer has other parameters than the checkpoint
        """
        parameters = list(self.parameters())
        fits = len(parameters) == len(gradients) and all(
            gradient is None or gradient.shape == parameter.shape for parameter, gradient in zip(parameters, gradients)
        )
        if not fits:
            raise CheckpointError(
                f"The checkpoint holds an unfinished group of {count} batches for {type(self.optimizer).__name__} with "
                f"{len(gradients)} gradients, which do not fit its {len(parameters)} parameters. Prepare the same "
                "optimizers in the same order."
            )
        for parameter, gradient in zip(parameters, gradients):
            if gradient is not None and is_dtensor(parameter) and not is_dtensor(gradient):
                parameter.grad = sharded_as(gradient, parameter)
            else:
                parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
        self.count = count
        self.remember_probe()


class UnfinishedGroup:
    """Groups of a checkpoint that wait for their optimizers."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        #: Rank that saved -> optimizer -> parameter -> plain gradient or None.
        self.ranks: list[Sequence[Sequence[Any]]] = []
        #: The saved rank whose gradients this rank gets; None: it gets the mean over all of them.
        self.own: int | None = None
        #: Optimizer -> parameter -> sharded gradient or None.
        self.sharded: Sequence[Sequence[Any]] = ()

    def give(self, index: int, group: GradientGroup) -> None:
        """Restore the group of the optimizer with this index, once counts and gradients are known."""
        if index >= len(self.counts) or not self.ranks or index >= len(self.ranks[0]):
            return
        count = self.counts[index]
        if count and self.ranks[0][index]:
            group.take(count, self._gradients(index, group))
            self.counts[index] = 0

    def _gradients(self, index: int, group: GradientGroup) -> list[Any]:
        """Return the gradients of one optimizer. Those of a sharded parameter are means over the ranks."""
        saved = [rank[index] for rank in self.ranks]
        parameters = list(group.parameters())
        shards = self.sharded[index] if index < len(self.sharded) else ()
        gradients = []
        for place in range(len(saved[0])):
            shard = shards[place] if place < len(shards) else None
            is_sharded = place < len(parameters) and is_dtensor(parameters[place])
            if shard is not None:
                gradients.append(shard)
            elif self.own is None or is_sharded:
                gradients.append(_mean([rank[place] for rank in saved]))
            else:
                gradients.append(saved[self.own][place])
        return gradients


def _mean(ranks: Sequence[Any]) -> Any:
    """Return the mean of a gradient over the ranks, or None. A rank without one counts as zero."""
    held = [gradient for gradient in ranks if gradient is not None]
    return sum(held[1:], held[0]) / len(ranks) if held else None


def _dense(parameter: Any) -> Any:
    import torch

    if parameter.grad is None:
        return torch.zeros_like(parameter, memory_format=torch.contiguous_format).detach()
    gradient = parameter.grad.detach()
    return gradient.to_dense() if gradient.is_sparse else gradient


def _pieces(parameters: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield runs of parameters of one dtype, on one device, and of a limited total size."""
    piece: list[Any] = []
    size = 0
    for parameter in parameters:
        is_other = piece and (parameter.dtype, parameter.device) != (piece[0].dtype, piece[0].device)
        if piece and (is_other or size + parameter.numel() > PIECE_NUMBERS):
            yield piece
            piece = []
            size = 0
        piece.append(parameter)
        size += parameter.numel()
    if piece:
        yield piece
