"""Random numbers: seeds, one stream per rank, and their state in checkpoints."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import logging
import os
import random
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_dtrain.train.process.import_hooks import after_import

log = logging.getLogger(__name__)


def derive(seed: int, *names: object) -> int:
    """Return a 63-bit seed that belongs to these names alone.

    :param seed: seed of the trial
    :param names: purpose of the random stream, e.g. ``"rank", 3``
    """
    text = " ".join(map(str, ("dtrain", seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_everything(seed: int) -> None:
    """Seed Python, and torch on every device and numpy at the end of their import, or now if they are imported."""
    random.seed(seed)
    after_import("torch", "seed", functools.partial(_seed_torch, seed))
    after_import("numpy.random", "seed", functools.partial(_seed_numpy, seed))


def _seed_torch(seed: int) -> None:
    import torch

    torch.manual_seed(seed)


def _seed_numpy(seed: int) -> None:
    # numpy gets it as an attribute only after this import, and imports it anew until then.
    importlib.import_module("numpy.random").seed(seed % 2**32)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the CPU generators of Python, torch and numpy in the block, and restore their states afterwards."""
    import torch

    numpy = _numpy()
    before = random.getstate(), torch.get_rng_state(), numpy.random.get_state() if numpy is not None else None
    try:
        random.seed(seed)
        torch.default_generator.manual_seed(seed)
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
        yield
    finally:
        random.setstate(before[0])
        torch.set_rng_state(before[1])
        if numpy is not None:
            numpy.random.set_state(before[2])


def generator_kinds() -> tuple[type, ...]:
    """Return the classes of generator objects of Python, torch and numpy."""
    import torch

    numpy = _numpy()
    kinds: tuple[type, ...] = (torch.Generator, random.Random)  # noqa: S311
    return kinds if numpy is None else (*kinds, numpy.random.RandomState, numpy.random.Generator)


def global_generators() -> list[Any]:
    """Return the CPU generators of this process that Python, torch and numpy draw from by default."""
    import torch

    numpy = _numpy()
    found = [torch.default_generator, getattr(random, "_inst", None)]
    return found if numpy is None else [*found, numpy.random.mtrand._rand]


def seed_generator(generator: Any, seed: int) -> None:
    """Seed one object of :func:`generator_kinds`."""
    import torch

    numpy = _numpy()
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif numpy is not None and isinstance(generator, numpy.random.RandomState):
        generator.seed(seed % 2**32)
    elif numpy is not None and isinstance(generator, numpy.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed)


def generator_state(generator: Any) -> Any:
    """Return the state of one object of :func:`generator_kinds`, or None if it has none, as ``random.SystemRandom``."""
    import torch

    numpy = _numpy()
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if numpy is not None and isinstance(generator, numpy.random.RandomState):
        return generator.get_state()
    if numpy is not None and isinstance(generator, numpy.random.Generator):
        return generator.bit_generator.state
    try:
        return generator.getstate()
    except NotImplementedError:
        return None


def set_generator_state(generator: Any, state: Any) -> None:
    """Restore a state that :func:`generator_state` returned."""
    import torch

    numpy = _numpy()
    if isinstance(generator, torch.Generator) or numpy is not None and isinstance(generator, numpy.random.RandomState):
        generator.set_state(state)
    elif numpy is not None and isinstance(generator, numpy.random.Generator):
        generator.bit_generator.state = state
    elif state is not None:
        generator.setstate(state)


def make_deterministic() -> None:
    """Select deterministic algorithms and one intra-op thread as soon as torch is imported."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    after_import("torch", "deterministic", _select_deterministic)


def _select_deterministic() -> None:
    import torch

    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.set_num_threads(1)
    log.info(
        "deterministic: one intra-op thread and deterministic algorithms. An operation without such an algorithm "
        "raises an error. Results are equal for the same torch version, device type and number of slots only."
    )


def capture() -> dict[str, Any]:
    """Return the states of this process's generators, in a form that ``torch.load(weights_only=True)`` accepts."""
    import torch

    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(numbers), gauss], "torch": torch.get_rng_state()}
    numpy = _numpy()
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [str(name), keys.tolist(), int(position), int(has_gauss), float(cached)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two captured states are the same."""
    import torch

    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        for name, value in one.items()
    )


def apply(state: Mapping[str, Any]) -> None:
    """Set this process's generators to captured states."""
    import torch

    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(state["torch"])
    numpy = _numpy()
    if numpy is not None and "numpy" in state:
        name, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _numpy() -> Any:
    """Return numpy, or None if it is not installed. torch imports it as well if it is."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy
