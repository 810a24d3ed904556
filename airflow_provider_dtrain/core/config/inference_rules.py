"""Rules between the section ``inference`` and the rest of a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.config.inference import Inference, is_url
from airflow_provider_dtrain.core.config.scope import WHOLE, Scope
from airflow_provider_dtrain.core.safe_repr import shown
from airflow_provider_dtrain.errors import Problem

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config.experiment import ExperimentConfig

#: Formats of inputs without columns.
_WITHOUT_COLUMNS = frozenset({"files", "images"})


def inference_problems(
    config: ExperimentConfig, scope: Scope = WHOLE, *, needs_processor: bool = True
) -> list[Problem]:
    """Return the problems of missing or contradictory fields of a batch inference.

    :param config: valid, with every default
    :param scope: the fields that count. For a partial document, only contradictions are returned
    :param needs_processor: False when the caller brings the code
    """
    section = config.inference
    if section is None:
        return []
    found = [*_around(config, scope), *_inside(section, scope)]
    lacks_processor = needs_processor and section.processor is None and scope.knows("inference.processor")
    if lacks_processor and not scope.is_partial:
        message = "missing; module:Name of a BatchProcessor, a function batch -> rows or a trial class is required"
        found.append(("inference.processor", message))
    return [Problem(path=path, message=message) for path, message in found]


def _around(config: ExperimentConfig, scope: Scope) -> Iterator[tuple[str, str]]:
    """Yield the fields outside the section that a batch inference cannot have."""
    if config.entrypoint is not None and scope.knows("entrypoint"):
        yield "entrypoint", "cannot be combined with inference, whose processor is the code; remove one of them"
    searcher = config.searcher
    if searcher.name != "single" and scope.knows("searcher.name"):
        yield "searcher.name", f"{searcher.name} searches hyperparameters; a batch inference requires single"
    if searcher.source_checkpoint is not None and scope.knows("searcher.source_checkpoint"):
        yield "searcher.source_checkpoint", "has no effect on a batch inference; use inference.weights"


def _inside(section: Inference, scope: Scope) -> Iterator[tuple[str, str]]:
    outputs = section.outputs
    path = "inference.outputs.path"
    if scope.knows(path):
        if section.collect and is_url(outputs.path) and scope.knows("inference.collect"):
            yield path, "is a URL, to which the hosts write themselves; remove collect, or name a folder"
        elif not is_url(outputs.path) and not outputs.path.startswith("/"):
            yield path, f"must be an absolute path or a URL such as s3://bucket/folder, got {shown(outputs.path)}"
        elif ".." in outputs.path.split("/"):
            yield path, f"{shown(outputs.path)} has a '..' part"
    inputs = section.inputs
    if inputs is None:
        if outputs.columns and not scope.is_partial and scope.knows("inference.outputs.columns", "inference.inputs"):
            yield "inference.outputs.columns", "requires inference.inputs; a data set from code has no columns"
        return
    if inputs.columns is not None and inputs.format in _WITHOUT_COLUMNS and scope.knows("inference.inputs"):
        yield "inference.inputs.columns", f"inputs of format {inputs.format} have no columns to choose from"
