"""Random generators that samplers, data sets and loaders hold as attributes."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from types import ModuleType
from typing import Any

from airflow_provider_dtrain.train.process import seeding

#: Levels of attributes and items below the object that is searched.
DEPTH = 10
#: Values that the search of one object looks at. It goes level by level, so that only deep ones are left out.
MOST_VALUES = 20_000
#: Items of one list, tuple or dict that a search looks at, so that a list of samples does not use up the search.
MOST_ITEMS = 1_000


@dataclass(frozen=True)
class SeedPlan:
    """Names that the seeds of held generators derive from, the same on all ranks."""

    #: Path of a generator -> path of the first generator that had the same state on all ranks. Generators that the user
    #: seeded alike, e.g. for an image and its mask, stay alike.
    names: Mapping[str, str] = field(default_factory=dict)
    #: Paths of generators whose states differ between the ranks.
    apart: frozenset[str] = frozenset()

    @classmethod
    def agreed(cls, ranks: Sequence[Mapping[str, bytes]]) -> SeedPlan:
        """Return the plan for generators with these :meth:`HeldGenerators.digests` on each rank."""
        states = {path: tuple(rank.get(path) for rank in ranks) for rank in ranks for path in rank}
        first: dict[Any, str] = {}
        names = {path: first.setdefault(state, path) for path, state in states.items()}
        return cls(names, frozenset(path for path, state in states.items() if len(set(state)) > 1))


class HeldGenerators:
    """Generators reachable from objects through attributes, lists, tuples and dicts.

    The generators that Python, torch and numpy draw from by default are left out.

    :param roots: each is searched by itself, so that a large data set leaves out none of a sampler
    """

    def __init__(self, *roots: Any) -> None:
        self._found: dict[str, Any] = {}
        seen = {id(item) for item in (*roots, *seeding.global_generators())}
        for number, root in enumerate(roots):
            self._found.update(_search(f"{number}", root, seen))

    @classmethod
    def of_loader(cls, loader: Any) -> HeldGenerators:
        """Return the generators of a loader, its samplers and its data set."""
        from torch.utils.data import DataLoader

        parts = (loader.batch_sampler, loader.sampler, loader.dataset) if isinstance(loader, DataLoader) else ()
        return cls(*parts, loader)

    def __bool__(self) -> bool:
        return bool(self._found)

    def digests(self) -> dict[str, bytes]:
        """Return a digest of each generator's state by its path. Generators without a state are left out."""
        states = {path: seeding.generator_state(generator) for path, generator in self._found.items()}
        return {path: _digest(state) for path, state in states.items() if state is not None}

    @contextlib.contextmanager
    def seeded(self, seed: int, plan: SeedPlan, rank: int | None = None) -> Iterator[None]:
        """Seed the generators in the block, and restore their states afterwards.

        :param rank: seeds the generators by rank that differ between the ranks; None: all are seeded alike
        """
        before = [(generator, seeding.generator_state(generator)) for generator in self._found.values()]
        try:
            for path, generator in self._found.items():
                by_rank = () if rank is None or path not in plan.apart else (rank,)
                seeding.seed_generator(generator, seeding.derive(seed, plan.names.get(path, path), *by_rank))
            yield
        finally:
            for generator, state in before:
                seeding.set_generator_state(generator, state)


def _search(name: str, root: Any, seen: set[int]) -> dict[str, Any]:
    """Return the generators below an object by their paths, and add the values that were found to ``seen``."""
    kinds = seeding.generator_kinds()
    found = {}
    level = [(name, root)]
    left = MOST_VALUES
    for _ in range(DEPTH):
        below = itertools.chain.from_iterable(_children(path, value) for path, value in level)
        level = []
        for path, value in itertools.islice(below, left):
            left -= 1
            if id(value) in seen or issubclass(type(value), (type, ModuleType)):
                continue
            seen.add(id(value))
            if issubclass(type(value), kinds):
                found[path] = value
            else:
                level.append((path, value))
    return found


def _children(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes and items of a value with their paths, without running code of its class."""
    with contextlib.suppress(AttributeError):
        for name, attribute in list(object.__getattribute__(value, "__dict__").items()):
            yield f"{path}.{name}", attribute
    for kind, items in ((list, list.__iter__), (tuple, tuple.__iter__), (dict, lambda value: iter(dict.values(value)))):
        if issubclass(type(value), kind):
            for position, item in enumerate(list(itertools.islice(items(value), MOST_ITEMS))):
                yield f"{path}[{position}]", item


def _digest(state: Any) -> bytes:
    text = json.dumps(state, default=lambda value: value.tolist() if hasattr(value, "tolist") else repr(value))
    return blake2b(text.encode(), digest_size=16).digest()
