"""Parameters that DistributedDataParallel exchanges: those that needed gradients when it wrapped the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.prepared import is_distributed, plain_name, unwrap

_SHOWN = 5


class ExchangedParameters:
    """Check that the ranks exchange the gradients of all parameters that optimizers train."""

    def __init__(self) -> None:
        self._models: list[Any] = []
        #: Optimizers by identity, which the dictionary keeps alive.
        self._optimizers: dict[int, Any] = {}

    def watch(self, model: Any) -> None:
        """Add a prepared model of a gang with several ranks."""
        self._models.append(model)

    def check_once(self, optimizer: Any) -> None:
        """Check an optimizer at its first step. Later calls take well under a microsecond.

        :raises SetupError: names the parameters
        """
        if id(optimizer) not in self._optimizers:
            _refuse_unexchanged(self._models, optimizer)
            self._optimizers[id(optimizer)] = optimizer

    def check(self) -> None:
        """Check all optimizers that have taken a step, because parameters may have been unfrozen since.

        :raises SetupError: names the parameters
        """
        for optimizer in self._optimizers.values() if self._models else ():
            _refuse_unexchanged(self._models, optimizer)


def _refuse_unexchanged(models: Sequence[Any], optimizer: Any) -> None:
    """Raise when an optimizer trains parameters of a prepared model whose gradients the ranks do not exchange.

    Each rank would train them on its own data, without a word. They were frozen, or not there, in ``ctx.prepare``.

    :param models: prepared models, in DistributedDataParallel or, without any trained parameter, as they are
    :raises SetupError: names the model and the parameters
    """
    mine = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    for model in models:
        known = getattr(model, "exchanged", None) if is_distributed(model) else frozenset()
        if known is None:  # wrapped by the program itself
            continue
        left_out = set(getattr(unwrap(model), "_ddp_params_and_buffers_to_ignore", ()))
        names = [
            plain_name(name)
            for name, parameter in unwrap(model).named_parameters()
            if id(parameter) in mine and id(parameter) not in known and name not in left_out
        ]
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise SetupError(
                f"Parameters that an optimizer trains must need gradients in ctx.prepare, but "
                f"{', '.join(names[:_SHOWN])}{more} of {type(unwrap(model)).__name__} were frozen, replaced or added "
                "since then: the ranks do not exchange their gradients. Change the model before ctx.prepare. To train "
                "some parameters later, prepare them unfrozen, with ddp={'find_unused_parameters': True}, and freeze "
                "them afterwards."
            )
