"""LARS and LAMB of the package pytorch-optimizer, as their papers define them.

Imported only where one of them is used, because the package is an optional extra.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytorch_optimizer
import torch

from airflow_provider_dtrain.train.values import ParameterGroup


class Lars(pytorch_optimizer.LARS):
    """SGD with momentum and a layer-wise scaled step.

    Each weight's step is scaled by ``trust_coefficient * |w| / (|g| + weight_decay * |w|)``. Tensors of less than two
    dimensions (biases, normalization) take plain steps without weight decay. The learning rate multiplies the momentum
    buffer, as in ``torch.optim.SGD``, and not the input of the buffer, as in the paper. With a constant rate, both are
    the same. With a changing rate, the momentum needs no correction.

    Source: You, Gitman, Ginsburg 2017, "Large Batch Training of Convolutional Networks", algorithm 1; Goyal et al.
    2017, section 3, remark 2, for the place of the learning rate.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        momentum: float = 0.9,
        dampening: float = 0.0,
        trust_coefficient: float = 1e-3,
        nesterov: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            weight_decay=weight_decay,
            momentum=momentum,
            dampening=dampening,
            trust_coefficient=trust_coefficient,
            nesterov=nesterov,
            foreach=foreach,
            maximize=maximize,
        )


class Lamb(pytorch_optimizer.Lamb):
    """Adam's update plus weight decay, scaled for each weight to ``min(|w|, 10) * lr``.

    The package divides the step by ``1 - beta1 ** t`` after the layer-wise scaling, which makes the first step ten
    times as long as the paper's, and decays weights outside the scaling. Here, both moments are corrected and the
    decay is part of the scaled update. In groups with ``adapt`` False, the update is Adam's.

    Source: You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", algorithm 2.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            foreach=foreach,
            maximize=maximize,
            weight_decouple=False,
            adam_debias=True,
        )

    def add_param_group(self, param_group: ParameterGroup) -> None:
        """Add a parameter group. With ``adapt`` False, layer-wise scaling excludes it."""
        # The package calls an update without scaling "adam".
        super().add_param_group({**param_group, "adam": not param_group.get("adapt", True)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take one step, see the class."""
        with _both_moments_corrected(self.param_groups):
            return super().step(closure)


@contextlib.contextmanager
def _both_moments_corrected(groups: list[ParameterGroup]) -> Iterator[None]:
    """Make the package's step without bias correction compute the corrected one.

    With ``c_i = 1 - beta_i ** t`` and ``s = sqrt(c2) / c1``, Adam's corrected update is ``s * m / (sqrt(v) + eps *
    sqrt(c2))``. The layer-wise scaling cancels ``s``, so only eps and the share of the decay are adapted.
    Without that scaling, ``s`` multiplies the learning rate.
    """
    kept = [(group, group["lr"], group["eps"], group["weight_decay"]) for group in groups]
    try:
        for group, lr, eps, decay in kept:
            beta1, beta2 = group["betas"]
            count = group.get("step", 0) + 1
            root = (1 - beta2**count) ** 0.5
            scale = root / (1 - beta1**count)
            group["eps"], group["weight_decay"] = eps * root, decay / scale
            if group["adam"]:
                group["lr"] = lr * scale
        yield
    finally:
        for group, lr, eps, decay in kept:
            group["lr"], group["eps"], group["weight_decay"] = lr, eps, decay
