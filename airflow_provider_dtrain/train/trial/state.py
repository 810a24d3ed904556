"""State of a trial class in a checkpoint, beyond models, optimizers and schedulers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from airflow_provider_dtrain.train.durations import Position
from airflow_provider_dtrain.train.errors import CheckpointError
from airflow_provider_dtrain.train.trial.callbacks import Callbacks
from airflow_provider_dtrain.train.trial.context import PyTorchTrialContext
from airflow_provider_dtrain.train.values import StateDict


class PreparedTrialState:
    """Position, callbacks and counters, as an object that ``ctx.prepare`` takes."""

    def __init__(self, position: Position, callbacks: Callbacks, context: PyTorchTrialContext) -> None:
        self._position = position
        self._callbacks = callbacks
        self._context = context
        #: Best value of ``searcher.metric`` so far.
        self.best: float | None = None
        #: Training stopped where a validation was due.
        self.owes_validation = False
        #: Batches at the latest validation, and its metrics.
        self.validated = -1
        self.metrics: dict[str, float] = {}
        #: Number of ranks, and way in which they share the training data; the same of the restored checkpoint.
        self.ranks = self.saved_ranks = 0
        self.sharing = self.saved_sharing = ""

    def state_dict(self) -> StateDict:
        """Return the state as numbers, strings, lists and dicts."""
        return {
            "position": asdict(self._position),
            "optimizer_steps": list(self._context.optimizer_steps),
            "callbacks": self._callbacks.state_dict(),
            "best": self.best,
            "owes_validation": self.owes_validation,
            "validated": self.validated,
            "metrics": dict(self.metrics),
            "ranks": self.ranks,
            "sharing": self.sharing,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned.

        :raises CheckpointError: a plain script wrote it
        """
        if "position" not in state:
            raise CheckpointError("The checkpoint was not written by a trial class: it has no position.")
        for name, value in state["position"].items():
            setattr(self._position, name, value)
        self._context.optimizer_steps[:] = state["optimizer_steps"]
        self._callbacks.load_state_dict(state["callbacks"])
        self.best = state["best"]
        self.owes_validation = state["owes_validation"]
        self.validated = state["validated"]
        self.metrics = dict(state["metrics"])
        self.saved_ranks = state["ranks"]
        self.saved_sharing = state["sharing"]
