"""Callbacks of a trial class: user code that runs at fixed points of the training loop."""

from __future__ import annotations

import difflib
import inspect
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_dtrain.train.errors import TrialClassError
from airflow_provider_dtrain.train.reports.timings import RankTimings
from airflow_provider_dtrain.train.values import Metrics, StateDict

log = logging.getLogger(__name__)


class PyTorchCallback:
    """Base class of callbacks. Override the methods that you need.

    Every method runs on all ranks, unless its description says otherwise.
    """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Run once, after the data loaders are built and the checkpoint is restored.

        :param first_batch_idx: number of batches trained before this attempt; 0 for a new trial
        :param checkpoint_uuid: path or URL of the restored checkpoint; None without one, and on ranks other than 0
        """

    def on_trial_shutdown(self) -> None:
        """Run at the end of this attempt: completed, paused, or failed."""

    def on_training_start(self) -> None:
        """Run before the first batch of this attempt."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Run before the first batch of an epoch, but not when training resumes in the middle of one."""

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """Run after the last batch of an epoch."""

    def on_training_workload_end(self, avg_metrics: Metrics, batch_metrics: list[Metrics]) -> None:
        """Run after each unit of training: ``scheduling_unit`` batches, or fewer before a validation or checkpoint.

        :param avg_metrics: means of the unit, over all ranks unless ``average_training_metrics`` is false
        :param batch_metrics: this rank's metrics of each batch
        """

    def on_validation_start(self) -> None:
        """Run before each validation."""

    def on_validation_epoch_start(self) -> None:
        """Run before the first batch of a validation."""

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """Run after the last batch of a validation.

        :param outputs: return values of ``evaluate_batch`` on this rank, in order of batches
        """

    def on_validation_end(self, metrics: Metrics) -> None:
        """Run after each validation.

        :param metrics: metrics of the whole data set
        """

    def on_checkpoint_load_start(self, checkpoint: StateDict) -> None:
        """Run before states are restored. The callback may change the dict.

        :param checkpoint: ``models``, ``optimizers``, ``schedulers``, ``others``: lists in the order of wrapping
        """

    def on_checkpoint_save_start(self, checkpoint: StateDict) -> None:
        """Run on rank 0 before a checkpoint is written. Entries added to the dict are saved.

        :param checkpoint: as in :meth:`on_checkpoint_load_start`; tensors, numbers, strings, lists and dicts only
        """

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """Run on rank 0 when a checkpoint is on disk. Overriding it makes training wait for the disk."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Run like :meth:`on_checkpoint_write_end`. This is its older name."""

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """Run on rank 0 when a checkpoint is in its storage. Overriding it makes training wait for the storage.

        :param uuid: the checkpoint's path or URL
        """

    def state_dict(self) -> StateDict:
        """Return the state of this callback that a resumed trial needs."""
        return {}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Restore the state that :meth:`state_dict` returned."""


HOOKS = tuple(name for name in vars(PyTorchCallback) if name.startswith("on_"))
#: Most classes and hooks of a rank with a timing of their own, and characters of a class in its name. The control side
#: has the same limits.
TIMINGS_MOST, CLASS_CHARS = 32, 64
#: Timing of all further hooks together.
OTHER = "callbacks.other"


class Callbacks:
    """The callbacks of a trial, called by name and timed by class and hook.

    :param callbacks: return value of ``build_callbacks()``
    :param timings: gets ``callbacks.CLASS.HOOK``; None measures nothing
    """

    def __init__(self, callbacks: Any, timings: RankTimings | None = None) -> None:
        self._callbacks = _checked(callbacks)
        self._timings = timings or RankTimings()
        #: Timings of the hooks that ran so far.
        self._timed: set[str] = set()
        #: Hook -> class and method of each callback that overrides it.
        self._methods: dict[str, list[tuple[str, Callable[..., None]]]] = {
            hook: [
                (type(callback).__name__, _adapted(getattr(callback, hook), hook))
                for callback in self._callbacks.values()
                if getattr(type(callback), hook) is not getattr(PyTorchCallback, hook)
            ]
            for hook in HOOKS
        }

    def has(self, *hooks: str) -> bool:
        """Return whether any callback overrides one of these hooks."""
        return any(self._methods[hook] for hook in hooks)

    def call(self, hook: str, *arguments: Any) -> None:
        """Run one hook of every callback, in order."""
        for kind, method in self._methods[hook]:
            with self._timings.of(self._timing(kind, hook)):
                method(*arguments)

    def _timing(self, kind: str, hook: str) -> str:
        name = f"callbacks.{re.sub('[^0-9A-Za-z_]', '_', kind)[:CLASS_CHARS]}.{hook}"
        if name not in self._timed:
            if len(self._timed) >= TIMINGS_MOST:
                return OTHER
            self._timed.add(name)
        return name

    def state_dict(self) -> StateDict:
        """Return every callback's state by its name."""
        return {name: callback.state_dict() for name, callback in self._callbacks.items()}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore the state of every callback by its name. Log the names without a counterpart."""
        for name, callback in self._callbacks.items():
            if name in states:
                callback.load_state_dict(states[name])
            else:
                log.warning("The checkpoint has no state of callback %r, which starts anew.", name)
        removed = sorted(set(states) - set(self._callbacks))
        if removed:
            log.warning("The checkpoint has states of callbacks that are no longer built: %s.", ", ".join(removed))


def _checked(callbacks: Any) -> dict[str, PyTorchCallback]:
    if not isinstance(callbacks, Mapping):
        raise TrialClassError(
            f"build_callbacks() must return a dict of name -> PyTorchCallback, got {type(callbacks).__name__}."
        )
    seen: dict[int, str] = {}
    for name, callback in callbacks.items():
        if not isinstance(name, str) or not isinstance(callback, PyTorchCallback):
            raise TrialClassError(
                "build_callbacks() must return a dict of str -> PyTorchCallback, got the entry "
                f"{name!r}: {type(callback).__name__}."
            )
        if id(callback) in seen:
            raise TrialClassError(
                f"build_callbacks() returned one callback under two names, {seen[id(callback)]!r} and {name!r}: it "
                "would run and be saved twice. Create two objects."
            )
        seen[id(callback)] = name
        _check_methods(name, type(callback))
    return dict(callbacks)


def _adapted(method: Callable[..., None], hook: str) -> Callable[..., None]:
    """Return a hook's method. ``on_training_epoch_start`` may have its older form, without an argument."""
    if hook != "on_training_epoch_start" or inspect.signature(method).parameters:
        return method
    log.warning("on_training_epoch_start of a callback takes no epoch_idx. It runs, but add the argument.")
    return lambda _: method()


def _check_methods(name: str, kind: type) -> None:
    """Check methods whose names look like hooks.

    A method that the class itself calls is a helper. A name that is close to that of a hook is taken for a mistake.

    :raises TrialClassError: a method has nearly the name of a hook, and would never run
    """
    unknown = [
        method
        for method in dir(kind)
        if method.startswith("on_") and method not in HOOKS and callable(getattr(kind, method))
    ]
    called = _names_used(kind) if unknown else set()
    for method in unknown:
        if method in called:
            continue
        near = difflib.get_close_matches(method, HOOKS, n=1)
        if near:
            raise TrialClassError(
                f"Callback {name!r} ({kind.__name__}) has a method {method}, which is not a hook and would never run. "
                f"Did you mean {near[0]}? If it is a helper, rename it, e.g. to _{method}."
            )
        log.warning(
            "Callback %r (%s) has a method %s, which is not a hook: the training loop never calls it.",
            name,
            kind.__name__,
            method,
        )


def _names_used(kind: type) -> set[str]:
    """Return the names of attributes that the methods of a class read."""
    functions = [value for base in kind.__mro__ for value in vars(base).values() if hasattr(value, "__code__")]
    return {name for function in functions for name in function.__code__.co_names}
