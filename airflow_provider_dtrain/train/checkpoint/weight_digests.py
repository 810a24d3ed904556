"""Digests of the weights, by which a trial and its reproduction are compared.

The weights are the parameters and persistent buffers of the prepared models, with the names that a checkpoint has. Each
tensor has the SHA-256 of its name, dtype, shape, and bytes in the order of its indices. Rank 0 covers whole tensors.
Of sharded ones, each rank covers its own part, whose range is in the name, so that no digest needs an exchange.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_dtrain.train.checkpoint.save_plan import TensorPart
from airflow_provider_dtrain.train.checkpoint.state_values import encode
from airflow_provider_dtrain.train.checkpoint.tensor_file import DTYPES, memory
from airflow_provider_dtrain.train.checkpoint.tensor_index import Box
from airflow_provider_dtrain.train.checkpoint.tensor_tree import split
from airflow_provider_dtrain.train.prepared import Prepared
from airflow_provider_dtrain.train.reports.events import EventWriter
from airflow_provider_dtrain.train.sharded_tensors import held_part, is_dtensor
from airflow_provider_dtrain.train.values import JsonObject

log = logging.getLogger(__name__)

#: Digests of single tensors in a record. Of more tensors, neighbors share one.
PARTS_MOST = 256
#: Hexadecimal digits of a tensor's digest, which only names the tensor that differs. All digits of the whole decide.
PART_DIGITS = 8
#: Characters of a name, from its end.
NAME_CHARS = 200
#: Steps of a trial that are recorded. They take up to 2 KiB each.
STEPS_MOST = 10_000
#: Path of the models in a state.
_MODELS = "models"
Named = tuple[str, Any]


class WeightDigests:
    """Writes the digests of one rank as events: for each checkpoint, and on request for each step.

    :param config: of the experiment
    """

    def __init__(self, config: Mapping[str, Any], rank: int, writer: EventWriter, prepared: Prepared) -> None:
        self._rank = rank
        self._writer = writer
        self._prepared = prepared
        #: True with ``reproducibility.record_steps``, until the last step that is recorded.
        self.records_steps = bool((config.get("reproducibility") or {}).get("record_steps"))
        self._has_named = False

    def step(self, step: int) -> None:
        """Record the weights after a step.

        :param step: number of batches since the start of the trial
        """
        if step > STEPS_MOST:
            self.records_steps = False
            if self._rank == 0:
                log.info("reproducibility.record_steps records %d steps, and later ones are left out.", STEPS_MOST)
            return
        skeleton, tensors = split(encode({_MODELS: self._prepared.model_states()}))
        whole = [one for one in tensors.items() if not is_dtensor(one[1])]
        named = [] if self._rank else [*_plain(skeleton), *whole]
        record = summary([*named, *_own_parts(tensors)])
        if record is not None and self._has_named:
            del record["names"]
        self._has_named = True
        self._write("step_weights", step, record)

    def checkpoint(self, step: int, skeleton: Mapping[str, Any], saved: Sequence[Named]) -> None:
        """Record the weights of a checkpoint.

        :param skeleton: state without its tensors; empty on other ranks than rank 0
        :param saved: tensors that this rank saves, with their names in its file
        """
        of_models = [one for one in saved if one[0].startswith(f"{_MODELS}.")]
        self._write("weights", step, summary([*_plain(skeleton), *of_models]))

    def _write(self, kind: str, step: int, record: JsonObject | None) -> None:
        if record is not None:
            self._writer.write(kind, {"step": step, **record})


def _own_parts(tensors: Mapping[str, Any]) -> Iterator[Named]:
    """Yield the parts of sharded tensors that this rank holds."""
    for key, tensor in tensors.items():
        if is_dtensor(tensor) and (held := held_part(tensor)) is not None:
            offsets, sizes, part = held
            of = TensorPart(key, DTYPES.by_dtype[tensor.dtype], tuple(tensor.shape), Box(offsets, sizes), True)
            yield of.slot.name, part


def _plain(skeleton: Mapping[str, Any]) -> Iterator[Named]:
    """Yield the tensors of models that no tensor file holds, such as counters without dimensions."""
    import torch

    for number, model in enumerate(skeleton.get(_MODELS) or ()):
        # A callback of the program may have replaced it.
        for name, value in model.items() if isinstance(model, Mapping) else ():
            is_whole = isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_meta
            if is_whole and not value.is_quantized:
                yield f"{_MODELS}.{number}.{name}", value


def summary(named: Sequence[Named]) -> JsonObject | None:
    """Return the digest of all tensors, those of the single ones, and their names. None without tensors.

    :param named: plain tensors with their names
    """
    if not named:
        return None
    digests = [_digest(name, tensor) for name, tensor in named]
    each = -(-len(named) // PARTS_MOST)
    groups = [slice(start, start + each) for start in range(0, len(named), each)]
    parts = [hashlib.sha256(b"".join(digests[one])).hexdigest()[:PART_DIGITS] for one in groups]
    names = [_shown(name) for name, _ in named]
    return {
        "digest": hashlib.sha256(b"".join(digests)).hexdigest(),
        "tensors": "".join(parts),
        "names": [_range(names[one]) for one in groups],
    }


def _digest(name: str, tensor: Any) -> bytes:
    digest = hashlib.sha256(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    # Releases the GIL.
    digest.update(memory(tensor.detach().cpu().contiguous()))
    return digest.digest()


def _shown(name: str) -> str:
    """Return the name of a tensor without the number of the first model, which is the only one as a rule."""
    short = name.removeprefix(f"{_MODELS}.0.")[-NAME_CHARS:]
    return "".join(one if one.isprintable() else "?" for one in short)


def _range(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"[:NAME_CHARS]
