"""States of prepared objects that differ between the ranks, so that each rank needs its own from a checkpoint."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from airflow_provider_dtrain.train.checkpoint.snapshot import Snapshots
from airflow_provider_dtrain.train.checkpoint.state_values import encode
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.sharded_tensors import is_sharded

log = logging.getLogger(__name__)

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def gather(distributed: Distributed, states: Sequence[Any]) -> list[dict[int, Any]] | None:
    """Return each rank's states that differ between the ranks, by position, on rank 0, and None elsewhere.

    Called by all ranks. States that are equal on all ranks are compared by digest and not sent.

    :param states: return value of :func:`state_values.encode`
    """
    if distributed.get_size() == 1:
        return [{}]
    digests = distributed.allgather([_digest(state) for state in states])
    apart = [index for index, column in enumerate(zip(*digests)) if len(set(column)) > 1]
    if not apart:
        return [{}] * distributed.get_size() if distributed.get_rank() == 0 else None
    # On the CPU, because a tensor on a device would arrive on the sender's device.
    return distributed.gather(Snapshots().take({index: states[index] for index in apart}))


def of_rank(
    states: Sequence[Any], saved: Sequence[Mapping[int, Any]], objects: Sequence[Any], distributed: Distributed
) -> list[Any]:
    """Return this rank's states of a checkpoint. With another number of ranks, they are those of rank 0, and logged.

    :param states: states of rank 0
    :param saved: return value of :func:`gather`, decoded
    :param objects: prepared objects, for the message
    """
    rank = distributed.get_rank()
    size = distributed.get_size()
    if len(saved) == size:
        # A callback may have changed rank 0's states before they were saved.
        own = saved[rank] if rank else {}
        return [own.get(index, state) for index, state in enumerate(states)]
    if rank == 0:
        log.warning(
            "%s had a state of its own on each of the %d ranks that wrote the checkpoint. This run has %d ranks, which "
            "all get the state of rank 0. Resume with %d ranks to keep each rank's state.",
            ", ".join(_name(index, saved, objects) for index in saved[0]),
            len(saved),
            size,
            len(saved),
        )
    return list(states)


def _name(index: int, saved: Sequence[Mapping[int, Any]], objects: Sequence[Any]) -> str:
    """Return the type of an object, and the entries of its state that differ if it is a dict."""
    name = type(objects[index]).__name__ if index < len(objects) else f"others[{index}]"
    states = [states[index] for states in saved]
    if not all(isinstance(state, dict) for state in states):
        return name
    columns = {str(key): {_digest(encode(state.get(key))) for state in states} for key in states[0]}
    keys = [key for key, digests in columns.items() if len(digests) > 1]
    return f"{name} ({', '.join(keys[:5])})" if keys else name


def _digest(state: Any) -> bytes:
    digest = blake2b(digest_size=16)
    _add(digest, state)
    return digest.digest()


def _add(digest: Any, value: Any) -> None:
    import torch

    digest.update(f"{type(value).__name__}:".encode())
    if type(value) in _PLAIN:
        content = repr(value).encode()
        digest.update(b"%d " % len(content))
        digest.update(content)
    elif isinstance(value, dict):
        digest.update(b"%d " % len(value))
        for key, item in value.items():
            _add(digest, key)
            _add(digest, item)
    elif isinstance(value, (list, tuple)):
        digest.update(b"%d " % len(value))
        for item in value:
            _add(digest, item)
    elif type(value) in {torch.Tensor, torch.nn.Parameter} and value.layout is torch.strided:
        _add_tensor(digest, value.detach())
    elif not is_sharded(value):
        digest.update(_pickled(value))


def _add_tensor(digest: Any, tensor: Any) -> None:
    import torch

    digest.update(f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} ".encode())
    try:
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    except RuntimeError:  # torch without numpy, or a type of tensor without plain bytes
        digest.update(_pickled(tensor))


def _pickled(value: Any) -> bytes:
    """Return the bytes that ``torch.save`` writes, or none for an object that cannot be saved and is refused later."""
    import torch

    file = io.BytesIO()
    try:
        torch.save(value, file)
    except Exception:
        # __reduce__ of a class may raise anything.
        return b""
    return file.getvalue()
