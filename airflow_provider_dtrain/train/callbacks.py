"""Callbacks of a trial class: code of the user's at fixed points of the loop."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_dtrain.train.errors import TrialClassError

log = logging.getLogger(__name__)


class PyTorchCallback:
    """Override what you need. Every method runs on all ranks, except where it says otherwise."""

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Run once, when checkpoint and data are there.

        :param first_batch_idx: batches that were trained before; 0 for a new trial
        :param checkpoint_uuid: the checkpoint's path; None without one
        """

    def on_trial_shutdown(self) -> None:
        """Run at the end of this attempt: done, paused, or failed."""

    def on_training_start(self) -> None:
        """Run before the first batch of this attempt."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Run before the first batch of an epoch; not when training goes on in the middle of one."""

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """Run after the last batch of an epoch."""

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        """Run after each unit of training: ``scheduling_unit`` batches, or fewer before a validation or checkpoint.

        :param avg_metrics: the unit's means, over all ranks
        :param batch_metrics: this rank's metrics of each batch
        """

    def on_validation_start(self) -> None:
        """Run before each validation."""

    def on_validation_epoch_start(self) -> None:
        """Run before the first batch of a validation."""

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """Run after the last batch of a validation.

        :param outputs: what ``evaluate_batch`` returned on this rank, batch after batch
        """

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """Run after each validation.

        :param metrics: of the whole data set
        """

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """Run before states are restored; the dict may be changed.

        :param checkpoint: ``models``, ``optimizers``, ``schedulers``, ``others``: lists in the order of wrapping
        """

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Run on rank 0 before a checkpoint is written; what is added to the dict is saved.

        :param checkpoint: as in :meth:`on_checkpoint_load_start`; tensors, numbers, texts, lists and dicts only
        """

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """Run on rank 0 when a checkpoint is on the disk. Overriding it makes training wait for the disk."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Run like :meth:`on_checkpoint_write_end`, its older name."""

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """Run on rank 0 when a checkpoint is in its storage. Overriding it makes training wait for the storage.

        :param uuid: the checkpoint's path or URL
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed trial needs of this callback."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what :meth:`state_dict` returned."""


HOOKS = tuple(name for name in vars(PyTorchCallback) if name.startswith("on_"))


class Callbacks:
    """The callbacks of a trial, called by name.

    :param callbacks: what ``build_callbacks()`` returned
    """

    def __init__(self, callbacks: Any) -> None:
        self._callbacks = _checked(callbacks)
        #: Hook -> the methods that override it.
        self._methods: dict[str, list[Callable[..., None]]] = {
            hook: [
                getattr(callback, hook)
                for callback in self._callbacks.values()
                if getattr(type(callback), hook) is not getattr(PyTorchCallback, hook)
            ]
            for hook in HOOKS
        }

    def has(self, *hooks: str) -> bool:
        """Return whether any callback does something at one of these points."""
        return any(self._methods[hook] for hook in hooks)

    def call(self, hook: str, *arguments: Any) -> None:
        """Run one hook of every callback, in their order."""
        for method in self._methods[hook]:
            method(*arguments)

    def state_dict(self) -> dict[str, Any]:
        """Return every callback's state by its name."""
        return {name: callback.state_dict() for name, callback in self._callbacks.items()}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Give every callback the state that was saved under its name; says which have none."""
        for name, callback in self._callbacks.items():
            if name in states:
                callback.load_state_dict(states[name])
            else:
                log.warning("The checkpoint has no state of callback %r; it starts anew.", name)
        gone = sorted(set(states) - set(self._callbacks))
        if gone:
            log.warning("The checkpoint has states of callbacks that are no longer built: %s.", ", ".join(gone))


def _checked(callbacks: Any) -> dict[str, PyTorchCallback]:
    if not isinstance(callbacks, Mapping):
        raise TrialClassError(
            f"build_callbacks() returned {type(callbacks).__name__}; a dict of name -> PyTorchCallback is expected."
        )
    seen: dict[int, str] = {}
    for name, callback in callbacks.items():
        if not isinstance(name, str) or not isinstance(callback, PyTorchCallback):
            raise TrialClassError(
                f"build_callbacks() holds {name!r}: {type(callback).__name__}; names are texts, values are "
                "PyTorchCallback objects."
            )
        if id(callback) in seen:
            raise TrialClassError(
                f"build_callbacks() holds one callback under two names, {seen[id(callback)]!r} and {name!r}: it would "
                "run and be saved twice. Make two objects."
            )
        seen[id(callback)] = name
        _check_methods(name, type(callback))
    return dict(callbacks)


def _check_methods(name: str, kind: type) -> None:
    for method in dir(kind):
        if method.startswith("on_") and method not in HOOKS and callable(getattr(kind, method)):
            near = difflib.get_close_matches(method, HOOKS, n=1)
            raise TrialClassError(
                f"Callback {name!r} ({kind.__name__}) has a method {method}, which nothing would call. "
                + (f"Did you mean {near[0]}?" if near else f"There are: {', '.join(HOOKS)}.")
            )
