"""Adapters: processors of each kind behind one interface."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

from airflow_provider_dtrain.train.inference.processor import BatchProcessor, InferenceContext


class Processor:
    """A processor of any kind, as the program uses it."""

    #: Data set from code, and how its samples become a batch; None: the configuration names the input.
    dataset: Any = None
    collate: Any = None

    def process(self, batch: Any, index: int) -> Any:
        """Return the rows of a batch."""
        raise NotImplementedError

    def running(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager around the computation of all shards."""
        import torch

        return torch.inference_mode()

    def finish(self) -> None:
        """Clean up after the last shard."""


class OfObject(Processor):
    """A :class:`BatchProcessor`."""

    def __init__(self, processor: BatchProcessor, ctx: InferenceContext, *, needs_data: bool) -> None:
        processor.setup(ctx)
        self._processor = processor
        if needs_data:
            self.dataset = processor.build_dataset()
            self.collate = processor.collate_fn

    def process(self, batch: Any, index: int) -> Any:
        """Return the rows of a batch."""
        return self._processor.process_batch(batch, index)

    def finish(self) -> None:
        """Clean up after the last shard."""
        self._processor.on_finish()


class OfFunction(Processor):
    """A function of a batch, or of a batch and ``ctx``."""

    def __init__(self, function: Callable[..., Any], ctx: InferenceContext) -> None:
        self._function = function
        self._kwargs = {"ctx": ctx} if "ctx" in inspect.signature(function).parameters else {}

    def process(self, batch: Any, index: int) -> Any:
        """Return the rows of a batch."""
        return self._function(batch, **self._kwargs)
