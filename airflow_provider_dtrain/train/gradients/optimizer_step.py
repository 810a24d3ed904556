"""Gradients: from a loss to an optimizer step, as ``optimizations`` of the configuration says."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.gradients import aggregation
from airflow_provider_dtrain.train.gradients.aggregation import GradientGroup
from airflow_provider_dtrain.train.gradients.clipping import NO_CLIP, Clip
from airflow_provider_dtrain.train.gradients.common_weights import refuse_different
from airflow_provider_dtrain.train.gradients.compression import Compression
from airflow_provider_dtrain.train.gradients.ddp_options import check_options
from airflow_provider_dtrain.train.gradients.exchanged_parameters import ExchangedParameters
from airflow_provider_dtrain.train.gradients.health import Health
from airflow_provider_dtrain.train.gradients.kinds import by_kind, total_norm, unscale
from airflow_provider_dtrain.train.gradients.leaks import Leaks
from airflow_provider_dtrain.train.gradients.outside_parameters import OutsideParameters
from airflow_provider_dtrain.train.gradients.precision import BF16_TRUE, LossScale, Precision
from airflow_provider_dtrain.train.gradients.second_passes import SecondPasses
from airflow_provider_dtrain.train.prepared import DEFAULT_BUCKET_MIB, is_distributed, wrap
from airflow_provider_dtrain.train.process.heartbeat import BACKWARD, COMPUTE, HERE
from airflow_provider_dtrain.train.sharded_tensors import sharded_kind
from airflow_provider_dtrain.train.values import StateDict

if TYPE_CHECKING:
    from airflow_provider_dtrain.train.gradients.bucket_tuning import FusionTuner

log = logging.getLogger(__name__)

#: Fields that :class:`Gradients` implements, with their defaults. Reports implement average_training_metrics.
DEFAULTS: Mapping[str, Any] = {
    "aggregation_frequency": 1,
    "average_aggregated_gradients": True,
    "gradient_compression": False,
    "tensor_fusion_threshold": DEFAULT_BUCKET_MIB,
    "auto_tune_tensor_fusion": False,
    "mixed_precision": "none",
    "float32_modules": [],
}


#: Fields that an optimizer with a closure cannot have: it computes all gradients of a step itself.
_NOT_WITH_CLOSURE = ("aggregation_frequency", "mixed_precision", "auto_tune_tensor_fusion")


class Gradients:
    """Backward passes and optimizer steps of one rank's models and optimizers.

    With ``aggregation_frequency`` k, each optimizer steps on every k-th of its batches. Groups of k continue from one
    epoch into the next. Only the k-th batch exchanges gradients, those of the whole group at once.

    :param device: returns the device of this rank, and imports torch for it
    :param optimizations: section ``optimizations`` of the configuration; empty off-cluster
    :param fail_on_nan: raise for a loss that is NaN, and for gradients and weights that are not finite
    :param norm_every: steps of an optimizer between two norms of gradients that are not clipped by their norm; 0: none
    """

    def __init__(
        self,
        distributed: Distributed,
        device: Callable[[], Any],
        optimizations: Mapping[str, Any],
        *,
        fail_on_nan: bool = True,
        norm_every: int = 0,
    ) -> None:
        given = {name: optimizations.get(name) for name in DEFAULTS}
        chosen = {name: DEFAULTS[name] if value is None else value for name, value in given.items()}
        self._distributed = distributed
        self._device = device
        #: Fields that differ from their defaults.
        self.changed = [name for name, value in chosen.items() if value != DEFAULTS[name]]
        self._every = int(chosen["aggregation_frequency"])
        self._average = bool(chosen["average_aggregated_gradients"])
        self._bucket_mib = chosen["tensor_fusion_threshold"]
        rank = distributed.get_rank()
        size = distributed.get_size()
        self._compression = Compression(chosen["gradient_compression"], size=size, rank=rank)
        self._precision = Precision(chosen["mixed_precision"], device, chosen["float32_modules"])
        if self._compression.kind and self._precision.kind == BF16_TRUE:
            raise SetupError(
                "optimizations.gradient_compression cannot be used with mixed_precision: bf16-true. Its gradients "
                "have 16 bits already. Remove gradient_compression."
            )
        scaler = self._precision.scaler()
        self._loss_scale = LossScale(scaler) if scaler is not None else None
        self.health = Health(rank, fails=fail_on_nan)
        tunes = chosen["auto_tune_tensor_fusion"] and size > 1
        self._tuner: FusionTuner | None = None
        if tunes:
            # Imported here, because few trials tune and each would wait for it.
            from airflow_provider_dtrain.train.gradients.bucket_tuning import FusionTuner

            self._tuner = FusionTuner(distributed, device(), self._bucket_mib)
        #: DistributedDataParallel models.
        self._models: list[Any] = []
        self._exchanged = ExchangedParameters()
        self._outside = OutsideParameters(distributed)
        self._groups: dict[int, GradientGroup] = {}
        self._second_passes = SecondPasses()
        self._waiting = aggregation.UnfinishedGroup()
        #: Only with several optimizers.
        self._leaks: Leaks | None = None
        #: id of an optimizer -> norm of its latest gradients before clipping, as a tensor that no step waits for.
        self.norms: dict[int, Any] = {}
        self._norm_every = norm_every
        self._norm_steps: dict[int, int] = {}
        #: Backward passes and calls of :meth:`step` so far.
        self.backwards = self.steps = 0
        self._stepped = False
        self._warned = False
        self._last = self._boundary = False
        #: Activity of a rank in a backward pass. A single rank waits for no other rank.
        self._in_backward = BACKWARD if size > 1 else COMPUTE
        self.plain = self._is_plain()

    # -- one batch -------------------------------------------------------------------------------------------------

    def wrap_model(self, model: Any, ddp: Mapping[str, Any] | None = None) -> Any:
        """Return the model on its device, in DistributedDataParallel when there are several ranks.

        :param ddp: options of DistributedDataParallel
        :raises SetupError: an option is not valid, or the compression does not work over the ranks' backend
        """
        ddp = ddp or {}
        check_options(ddp, every=self._every, mixed_precision=self._precision.kind)
        self._precision.wrap_forward(model)
        wrapped = wrap(
            model,
            device=self._device(),
            size=self._distributed.get_size(),
            bucket_mib=self._bucket_mib,
            ddp=ddp,
        )
        if self._compression.kind and sharded_kind(model) is not None:
            raise SetupError(
                "optimizations.gradient_compression works with DistributedDataParallel only, got "
                f"{type(model).__name__} with sharded parameters. Remove the field."
            )
        if self._distributed.get_size() > 1 and sharded_kind(model) is None:
            self._exchanged.watch(wrapped)
        self._outside.know(wrapped)
        self.health.know(wrapped)
        if wrapped is not model or is_distributed(model):
            self._compression.install(wrapped)
            self._models.append(wrapped)
            if self._tuner is not None and wrapped is not model:
                self._tuner.add_model(wrapped, ddp)
            for group in self._groups.values():
                group.link(self._models)
            self._set_exchange()
        return wrapped

    def know_model(self, model: Any) -> None:
        """Add a model that is prepared and stays as it is."""
        self._outside.know(model)
        self.health.know(model)

    def refuse_different(self, models: Sequence[Any]) -> None:
        """Raise when models that the ranks do not exchange differ between them. Called by all ranks.

        :raises SetupError: names the model and the tensor
        """
        refuse_different(models, self._distributed)

    def add_optimizer(self, optimizer: Any) -> None:
        """Add an optimizer. Checkpoints identify unfinished groups by the order of these calls."""
        if id(optimizer) in self._groups:
            return
        group = GradientGroup(optimizer)
        group.link(self._models)
        # An optimizer of a second training in the same program is independent of the last batch of the first one.
        group.closed = any(other.closed for other in self._groups.values())
        self._groups[id(optimizer)] = group
        if len(self._groups) == 2:
            self._leaks = Leaks(self._distributed.get_rank())
        self._give_restored()

    def backward(self, loss: Any, **options: Any) -> None:
        """Compute gradients. On the last batch of a group, they are averaged over the ranks.

        :param options: options of ``Tensor.backward``
        :raises SetupError: the gradients of an unfinished group were cleared, or those of a second backward pass
            through a model are not exchanged
        :raises NonFiniteLossError: the loss is NaN
        """
        self.backwards += 1
        self.health.loss(loss, self.backwards, is_scaled=self._loss_scale is not None)
        HERE.now = self._in_backward
        if self._leaks is not None:
            self._leaks.check(self._groups.values())
        if self._models:
            self._second_passes.begin(self._models)
        if self.plain:
            if options:
                loss.backward(**options)
            else:
                loss.backward()
            self._end_backward()
            return
        for group in self._groups.values():
            group.check_not_cleared()
        self._boundary = self._at_boundary()
        if self._loss_scale is not None:
            self._settle_scale()
            loss = self._loss_scale.scaler.scale(loss)
        if self._tuner is not None and self._boundary and self._models:
            self._tuner.backward(loss, **options)
        else:
            loss.backward(**options)
        self._end_backward()

    def step(
        self,
        optimizer: Any,
        *,
        clip: Clip = NO_CLIP,
        closure: Callable[[], Any] | None = None,
        zero_grad: bool = True,
        flush: bool = False,
    ) -> tuple[bool, Any]:
        """Take an optimizer step if one is due. Return whether it was taken, and the norm before clipping.

        :param closure: clears nothing, computes a loss and its gradients, and returns the loss. Optimizers such as
            LBFGS call it several times in a step
        :param zero_grad: clear the gradients after a step
        :param flush: end the group here: exchange gradients that are not exchanged yet, and step if there are any
        :raises SetupError: the gradients were not exchanged, or ``closure`` is used with options that it cannot have
        """
        self.steps += 1
        if not self._stepped:
            self._begin(closure)
        if closure is not None:
            return self._step_closure(optimizer, closure, clip)
        if self._models:
            self.add_optimizer(optimizer)
            self._groups[id(optimizer)].check_exchanged(self.backwards)
        self._exchanged.check_once(optimizer)
        if self.plain and not flush:
            self._outside.check(optimizer)
            norm = self._clip(optimizer, clip, self._check_norm)
            optimizer.step()
            if zero_grad:
                optimizer.zero_grad()  # sets to None since torch 2.0; an argument costs 0.1 µs
            stepped = True
        else:
            stepped, norm = self._step_group(optimizer, clip, zero_grad, flush)
        if stepped and self._leaks is not None:
            self._leaks.stepped(optimizer, self._groups)
        return stepped, norm

    @contextlib.contextmanager
    def toggle(self, optimizer: Any) -> Iterator[None]:
        """Let only the parameters of one optimizer take gradients, for the duration of the block.

        :raises SetupError: the optimizer is not prepared
        """
        if id(optimizer) not in self._groups:
            raise SetupError(f"toggle takes a prepared optimizer, got {type(optimizer).__name__}. Prepare it first.")
        mine = {id(parameter) for parameter in self._groups[id(optimizer)].parameters()}
        by_id = {id(p): p for group in self._groups.values() for p in group.parameters()}
        frozen = [p for key, p in by_id.items() if key not in mine and p.requires_grad]
        for parameter in frozen:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)

    def announce_last(self) -> None:
        """Mark the batch that begins now as the last of training. It ends its group. Called by all ranks."""
        self._last = True
        for group in self._groups.values():
            group.closed = False
        self._set_exchange()

    def autocast(self) -> Any:
        """Return a context manager for computations outside a model's forward pass, with the same precision."""
        return self._precision.autocast()

    @property
    def scaler(self) -> Any:
        """The ``torch.amp.GradScaler`` of ``mixed_precision: fp16``, else None."""
        return self._loss_scale.scaler if self._loss_scale is not None else None

    # -- checkpoints and the end -----------------------------------------------------------------------------------

    def state_dict(self) -> StateDict:
        """Return the state that is the same on all ranks: batches in each unfinished group, and the loss scale."""
        self._settle_scale()
        scaler = self._loss_scale.scaler.state_dict() if self._loss_scale is not None else None
        return {"counts": [group.count for group in self._groups.values()], "scaler": scaler}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned. Called after everything is prepared."""
        if self._loss_scale is not None and state.get("scaler"):
            self._loss_scale.scaler.load_state_dict(state["scaler"])
        self._waiting.counts = list(state.get("counts") or ())
        self._give_restored()

    def rank_state(self) -> StateDict | None:
        """Return copies of this rank's gradients of unfinished groups, or None if there are none."""
        self._settle_scale()
        if not any(group.count for group in self._groups.values()):
            return None
        return {"gradients": [group.gradients() if group.count else [] for group in self._groups.values()]}

    def sharded_gradients(self) -> list[list[Any]]:
        """Return the sharded gradients of unfinished groups: for each optimizer, None where there is none."""
        return [group.sharded_gradients() if group.count else [] for group in self._groups.values()]

    def parameters(self) -> list[list[Any]]:
        """Return the parameters of each optimizer."""
        return [list(group.parameters()) for group in self._groups.values()]

    def load_rank_states(
        self, states: Sequence[Mapping[str, Any] | None], sharded: Sequence[Sequence[Any]] = ()
    ) -> None:
        """Restore the gradients of unfinished groups.

        With the same number of ranks, each rank gets its own gradients. With another number, all ranks get the mean, as
        parameters do that were plain and are sharded now. Sharded gradients are means over the ranks already.

        :param states: return values of :meth:`rank_state` on all ranks, in order of rank
        :param sharded: return value of :meth:`sharded_gradients`
        """
        held = [state for state in states if state is not None]
        if not held:
            return
        self._waiting.ranks = [state["gradients"] for state in held]
        self._waiting.sharded = sharded
        if len(held) == self._distributed.get_size():
            self._waiting.own = self._distributed.get_rank()
        elif self._distributed.get_rank() == 0:
            log.info(
                "The checkpoint has gradients of an unfinished group from %d ranks, and this run has %d: each rank "
                "resumes with their mean.",
                len(states),
                self._distributed.get_size(),
            )
        self._give_restored()

    def inspect(self) -> None:
        """Warn once about a program that steps without the library. Called at every synchronization.

        :raises SetupError: parameters were unfrozen or replaced, so that the ranks do not exchange their gradients, or
            an optimizer trains nothing
        :raises NonFiniteLossError: a loss on a GPU is NaN
        :raises NonFiniteWeightsError: weights are not finite
        """
        self.health.check_held()
        self._exchanged.check()
        self._outside.inspect()
        if self.backwards and not self._stepped and not self._warned and self._distributed.get_rank() == 0:
            self._warned = True
            log.warning(
                "ctx.backward was called %d times and ctx.step never: gradients add up, are never cleared, and "
                "schedulers do not advance. Call ctx.step(optimizer) instead of optimizer.step().",
                self.backwards,
            )

    def check_end(self, *, trained_before: bool) -> None:
        """Check at the end of the program that ``optimizations`` had an effect, and that no batches are left.

        :param trained_before: True: after a restored checkpoint, the program may have had nothing to train
        :raises SetupError: names the fields that differ from their default and had no effect
        """
        if not trained_before:
            self.check_effect()
        pending = max((group.count for group in self._groups.values()), default=0)
        if pending and self._distributed.get_rank() == 0:
            log.warning(
                "The last %d batches are not in the weights: their group of %d (aggregation_frequency) was not "
                "finished. End your own loop with ctx.step(optimizer, flush=True).",
                pending,
                self._every,
            )

    def check_effect(self) -> None:
        """Check after some training that ``optimizations`` had an effect.

        :raises SetupError: names the fields that differ from their default and had no effect
        """
        if self.changed and not (self.backwards and self._stepped):
            calls = (("ctx.backward", self.backwards), ("ctx.step", self._stepped))
            missing = " and ".join(name for name, done in calls if not done)
            raise SetupError(
                f"{self._fields()} had no effect: the program never called {missing}. Call ctx.backward(loss) and "
                "ctx.step(optimizer) instead of loss.backward() and optimizer.step(), or reset these fields to their "
                "defaults."
            )

    # -- inside ----------------------------------------------------------------------------------------------------

    def _step_group(self, optimizer: Any, clip: Clip, zero_grad: bool, flush: bool) -> tuple[bool, Any]:
        self.add_optimizer(optimizer)
        group = self._groups[id(optimizer)]
        if self.plain and not group.has_gradients():
            return False, None
        exchanged = self._is_due(group) and group.is_fresh(self.backwards)
        group.count_batch(self.backwards)
        if group.count == 0 or not (flush or self._is_due(group, 0)):
            group.remember_probe()
            self._set_exchange()
            return False, None
        if flush and not exchanged:
            group.exchange(self._models, self._compression.all_reduce)
        if self._average:
            group.divide()
        self._outside.check(optimizer)
        if self._loss_scale is not None:
            taken, norm = self._scaled_step(group, clip)
        else:
            norm = self._clip(optimizer, clip, self._check_norm)
            optimizer.step()
            taken = True
        if zero_grad:
            optimizer.zero_grad(set_to_none=True)
        group.close(last=self._last)
        self._after_step()
        return taken, norm

    def _scaled_step(self, group: GradientGroup, clip: Clip) -> tuple[bool, Any]:
        assert self._loss_scale is not None
        optimizer = group.optimizer
        if not group.has_gradients():
            return False, None
        if self._loss_scale.has_stepped(optimizer):
            self._settle_scale()
        unscale(self._loss_scale.scaler, optimizer)
        norm = self._clip(optimizer, clip)
        return self._loss_scale.step(optimizer), norm

    def _step_closure(self, optimizer: Any, closure: Callable[[], Any], clip: Clip) -> tuple[bool, Any]:
        """Take a step that evaluates the loss itself. All ranks see the mean loss, so that they decide alike."""
        if not self.plain:
            refused = [name for name in _NOT_WITH_CLOSURE if name in self.changed]
            raise SetupError(
                "ctx.step(optimizer, closure) must have one batch per step and no loss scale, got "
                f"{', '.join(f'optimizations.{name}' for name in refused)}. Reset these fields to their defaults."
            )
        norm = None

        def evaluate() -> Any:
            nonlocal norm
            optimizer.zero_grad()
            loss = closure()
            self._outside.check(optimizer)
            norm = self._clip(optimizer, clip)
            return self._mean(loss)

        optimizer.step(evaluate)
        optimizer.zero_grad()
        return True, norm

    def _clip(self, optimizer: Any, clip: Clip, on_norm: Callable[[Any, list[Any]], None] | None = None) -> Any:
        """Clip gradients and keep their norm. Return it, or None without clipping by norm."""
        if self._norm_every and clip.norm is None:
            self._measure_norm(optimizer)
        norm = clip.apply(optimizer, on_norm)
        if norm is not None:
            self.norms[id(optimizer)] = norm.detach() if norm.requires_grad else norm
        return norm

    def _measure_norm(self, optimizer: Any) -> None:
        steps = self._norm_steps[id(optimizer)] = self._norm_steps.get(id(optimizer), 0) + 1
        if steps % self._norm_every:
            return
        import torch

        if hasattr(torch.nn.utils, "get_total_norm"):  # torch 2.6
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            self.norms[id(optimizer)] = total_norm(by_kind(parameters)).detach()

    def _check_norm(self, norm: Any, parameters: list[Any]) -> None:
        self.health.norm(norm, parameters, self.backwards)

    def _mean(self, loss: Any) -> Any:
        if self._distributed.get_size() == 1:
            return loss
        import torch

        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        return mean / self._distributed.get_size()

    def _end_backward(self) -> None:
        HERE.now = COMPUTE
        if self._models:
            self._second_passes.end(self._models)

    def _settle_scale(self) -> None:
        if self._loss_scale is not None:
            self._loss_scale.update(p for group in self._groups.values() if group.count for p in group.parameters())

    def _after_step(self) -> None:
        if self._tuner is not None:
            self._tuner.step_done()
            if not self._tuner.running:
                self._tuner = None
        self._set_exchange()
        self.plain = self._is_plain()

    def _begin(self, closure: Any = None) -> None:
        """Check once, at the first step, that the program makes the calls that the configuration needs."""
        self._stepped = True
        self._precision.check_patterns()
        if closure is None and self.changed and not self.backwards:
            raise SetupError(
                f"ctx.step was called before any ctx.backward, without which {self._fields()} cannot work. Replace "
                "loss.backward() with ctx.backward(loss)."
            )

    def _fields(self) -> str:
        return ", ".join(f"optimizations.{name}" for name in self.changed)

    def _is_plain(self) -> bool:
        pending = any(group.count for group in self._groups.values())
        return self._every == 1 and self._loss_scale is None and self._tuner is None and not pending

    def _is_due(self, group: GradientGroup, ahead: int = 1) -> bool:
        """Return whether the group's step is due with the batch that is ``ahead`` of those counted."""
        return group.count + ahead >= self._every or (self._last and not group.closed)

    def _at_boundary(self) -> bool:
        if not self._groups:
            return self._every == 1 or self._last
        return any(self._is_due(group) for group in self._groups.values())

    def _set_exchange(self) -> None:
        """Set for each model whether its next backward pass exchanges gradients."""
        for model in self._models:
            groups = [group for group in self._groups.values() if model in group.models]
            due = any(self._is_due(group) for group in groups) if groups else self._every == 1 or self._last
            model.require_backward_grad_sync = due

    def _give_restored(self) -> None:
        for index, group in enumerate(self._groups.values()):
            self._waiting.give(index, group)
        self._set_exchange()
        self.plain = self._is_plain()
