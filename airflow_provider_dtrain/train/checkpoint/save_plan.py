"""Division of a state's tensors between the files of the ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_dtrain.train.checkpoint.tensor_file import DTYPES, TensorSlot, header, row_by_row
from airflow_provider_dtrain.train.checkpoint.tensor_index import Box, Chunk, SavedTensor, TensorIndex
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.errors import CheckpointError
from airflow_provider_dtrain.train.sharded_tensors import is_dtensor, local_part


def file_name(rank: int) -> str:
    """Return the name of a rank's file."""
    return f"rank-{rank:05d}.safetensors"


@dataclass(frozen=True)
class TensorPart:
    """A part of a tensor that one rank saves."""

    key: str
    #: Name in the format of the files, e.g. ``F32``.
    dtype: str
    #: Shape of the whole tensor.
    shape: tuple[int, ...]
    box: Box
    is_sharded: bool
    #: As in :class:`SavedTensor`.
    strides: tuple[int, ...] | None = None

    @property
    def slot(self) -> TensorSlot:
        """Place of the part in a file. Its name has the range of each dimension unless the part is the whole."""
        if self.box.sizes == self.shape:
            return TensorSlot(self.key, self.dtype, self.shape)
        ranges = ",".join(f"{start}:{start + size}" for start, size in zip(self.box.offsets, self.box.sizes))
        return TensorSlot(f"{self.key}[{ranges}]", self.dtype, self.box.sizes)


@dataclass(frozen=True)
class SavePlan:
    """Parts that this rank saves."""

    parts: Sequence[TensorPart]
    #: This rank's tensor of each part.
    tensors: Sequence[Any]
    #: Ranks that save a file; complete on rank 0.
    ranks: Sequence[int]
    #: Index of all ranks' files; None except on rank 0.
    index: TensorIndex | None


def make(tensors: Mapping[str, Any], distributed: Distributed, *, is_sharded: bool) -> SavePlan:
    """Return what this rank saves. Called by all ranks if the state is sharded, else by rank 0 alone.

    Rank 0 saves the plain tensors. Of a sharded tensor each rank saves its own part, and a part that several ranks hold
    is saved by the first of them.

    :param tensors: this rank's tensors by key; plain ones count on rank 0 only
    :param is_sharded: whether any rank has a sharded tensor
    :raises CheckpointError: the ranks' parts do not make up a tensor
    """
    rank = distributed.get_rank() if is_sharded else 0
    own = {key: tensor for key, tensor in tensors.items() if not is_dtensor(tensor)} if rank == 0 else {}
    plain = [_whole(key, tensor) for key, tensor in own.items()]
    if not is_sharded:
        return SavePlan(plain, list(own.values()), [0] if plain else [], index_of([plain]))
    sharded = {key: tensor for key, tensor in tensors.items() if is_dtensor(tensor)}
    everyones = _divided(sharded, distributed)
    mine = everyones[rank]
    everyones[0] = plain + everyones[0]
    return SavePlan(
        plain + mine,
        [*own.values(), *(local_part(sharded[part.key]) for part in mine)],
        [number for number, parts in enumerate(everyones) if parts],
        index_of(everyones) if rank == 0 else None,
    )


def _whole(key: str, tensor: Any) -> TensorPart:
    shape = tuple(tensor.shape)
    return TensorPart(
        key, DTYPES.by_dtype[tensor.dtype], shape, Box((0,) * len(shape), shape), False, strides_of(tensor)
    )


def strides_of(tensor: Any) -> tuple[int, ...] | None:
    """Return the strides of a copy of a tensor, None if its numbers are row by row."""
    import torch

    if tensor.stride() == row_by_row(tensor.shape):
        return None
    # A tensor with gaps, such as a part of another one, keeps the order of its dimensions only.
    return tuple(torch.empty_like(tensor, device="meta").stride())


def _divided(sharded: Mapping[str, Any], distributed: Distributed) -> list[list[TensorPart]]:
    """Return the parts of sharded tensors that each rank saves, by the planner of torch.distributed.checkpoint."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    planner = DefaultSavePlanner(
        flatten_state_dict=False, flatten_sharded_tensors=False, dedup_save_to_lowest_rank=True
    )
    planner.set_up_planner(dict(sharded), is_coordinator=distributed.get_rank() == 0)
    local = planner.create_local_plan()
    # An empty part may not be the first of its tensor on all ranks: tied tensors have one key where they hold numbers.
    local = dataclasses.replace(local, items=[item for item in local.items if _holds_numbers(item)])
    plans = distributed.gather(local)
    divided: Any = None
    if plans is not None:
        try:
            divided = [[_part(item) for item in plan.items] for plan in planner.create_global_plan(plans)[0]]
        except (ValueError, AssertionError) as error:
            divided = str(error)[:2000]
    divided = distributed.broadcast(divided)
    if isinstance(divided, str):
        raise CheckpointError(f"The ranks' parts of the sharded tensors do not make up the state: {divided}")
    return list(divided)


def _holds_numbers(item: Any) -> bool:
    return 0 not in item.tensor_data.chunk.sizes


def _part(item: Any) -> TensorPart:
    data = item.tensor_data
    box = Box(tuple(data.chunk.offsets), tuple(data.chunk.sizes))
    return TensorPart(item.index.fqn, DTYPES.by_dtype[data.properties.dtype], tuple(data.size), box, True)


def index_of(everyones: Sequence[Sequence[TensorPart]]) -> TensorIndex:
    """Return the index of the files that the ranks write.

    :param everyones: parts of each rank, in order of rank
    """
    entries: dict[str, SavedTensor] = {}
    for rank, parts in enumerate(everyones):
        _, starts = header([part.slot for part in parts])
        for part, start in zip(parts, starts):
            chunk = Chunk(part.box, file_name(rank), start)
            known = entries.get(part.key)
            chunks = (*known.chunks, chunk) if known else (chunk,)
            entries[part.key] = SavedTensor(part.dtype, part.shape, chunks, part.is_sharded, part.strides)
    return TensorIndex(entries)
