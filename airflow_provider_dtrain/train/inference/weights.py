"""Weights that a batch inference uses, and their identity."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint import description, reading, storage
from airflow_provider_dtrain.train.checkpoint.tensor_source import TensorSource
from airflow_provider_dtrain.train.checkpoint.weights import load_weights, put
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.errors import CheckpointError, WeightsError
from airflow_provider_dtrain.train.values import JsonObject


class Weights:
    """The checkpoint that ``inference.weights`` names. Rank 0 reads it, and sends it to the other ranks.

    :param source: folder or URL; None: the configuration names none
    :param config: ``checkpoint_storage`` of the configuration, for credentials
    """

    def __init__(self, source: Path | str | None, distributed: Distributed, config: Mapping[str, Any]) -> None:
        self._source = source
        self._distributed = distributed
        self._config = config
        self._opened: tuple[Any, TensorSource] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._identity: JsonObject | None = None

    @property
    def exist(self) -> bool:
        """True if the configuration names a checkpoint."""
        return self._source is not None

    def identity(self) -> JsonObject | None:
        """Return what names the weights: step and checksum, the same wherever a copy of them is. Called by all ranks.

        None without weights.
        """
        self._fetch()
        return self._identity

    def load(self, model: Any, where: Any, index: int) -> None:
        """Load the weights into a model. Called by all ranks.

        :param where: another checkpoint, which each rank reads itself
        :raises WeightsError: there are no weights, or they do not fit
        """
        if where is not None:
            load_weights(plain_model(model), where, index=index, storage_config=self._config)
            return
        if self._source is None:
            raise WeightsError(
                "ctx.load_weights() has no checkpoint to load: set inference.weights, or pass a path or URL."
            )
        self._fetch()
        assert self._opened is not None
        try:
            put(plain_model(model), *self._opened, index, str(self._source))
        except CheckpointError as error:
            raise WeightsError(str(error)) from error

    def release(self) -> None:
        """Free the memory of the weights, and the disk of a copy."""
        self._opened = None
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def _fetch(self) -> None:
        if self._source is None or self._opened is not None:
            return
        found = None
        if self._distributed.get_rank() == 0:
            self._scratch = tempfile.TemporaryDirectory(prefix="dtrain-weights-")
            found = storage.reader(self._source, self._config)(Path(self._scratch.name))
            description.refuse_files(found)
            self._identity = {"step": found.step, "sha256": found.sha256, "trial": found.metadata.get("trial_id")}
        self._identity = self._distributed.broadcast(self._identity)
        metadata = self._distributed.broadcast(dict(found.metadata) if found else None)
        self._opened = reading.open_state(found, metadata, self._distributed)


def plain_model(model: Any) -> Any:
    """Return the module inside a compiled model, whose parameters have the names of the checkpoint."""
    return getattr(model, "_orig_mod", model)
