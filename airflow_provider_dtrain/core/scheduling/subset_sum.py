"""Exact subset sums over groups of equal items, for gangs that take whole hosts of unequal sizes.

A set of sums is kept as the bits of one integer: bit ``s`` is set when the sum ``s`` can be made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


def reachable(groups: Iterable[tuple[int, int]], limit: int) -> int:
    """Return the sums up to ``limit`` that items of the groups make, as bits.

    Takes one shift per group and power of two of its count.

    :param groups: (size of each item, > 0; number of items)
    :param limit: largest sum to consider
    """
    mask = (1 << (limit + 1)) - 1
    sums = 1
    for size, count in groups:
        sums = _with_group(sums, size, count, mask)
    return sums


def cheapest_subset(
    groups: Sequence[tuple[int, Sequence[int]]], total: int, *, max_steps: int = 20_000
) -> tuple[int, ...] | None:
    """Return how many items to take from each group so that their sizes sum up to ``total``, else None.

    It is always exact whether there is a solution. The result has the least cost, then the fewest items, then
    the largest sizes. When the search takes more than ``max_steps``, it is the best solution found so far.

    :param groups: (size, costs of its items ascending, each >= 0), largest size first
    :param total: sum wanted, > 0
    :param max_steps: bounds the search; 20,000 are about 50 ms
    """
    search = _SubsetSearch([(size, _prefix_sums(costs)) for size, costs in groups], total)
    return search.run(max_steps) if search.tails[0] >> total & 1 else None


def _with_group(sums: int, size: int, count: int, mask: int) -> int:
    chunk = 1
    while count > 0:
        chunk = min(chunk, count)
        sums |= (sums << (chunk * size)) & mask
        count -= chunk
        chunk *= 2
    return sums


def _prefix_sums(costs: Sequence[int]) -> list[int]:
    sums = [0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    return sums


class _SubsetNode(NamedTuple):
    """A partial choice: the first ``group`` groups are decided."""

    group: int
    rest: int
    cost: int
    items: int
    taken: tuple[int, ...]


class _SubsetSearch:
    """Depth-first search, many large items first, pruned by the best solution and by equal states."""

    def __init__(self, groups: list[tuple[int, list[int]]], total: int) -> None:
        self.groups = groups
        self.total = total
        self.best: _SubsetNode | None = None
        self.seen: dict[tuple[int, int], tuple[int, int]] = {}
        # tails[i]: the sums that the groups from i on can form. The search enters no branch without a solution.
        self.tails = [1] * (len(groups) + 1)
        mask = (1 << (total + 1)) - 1
        for index in range(len(groups) - 1, -1, -1):
            size, sums = groups[index]
            self.tails[index] = _with_group(self.tails[index + 1], size, len(sums) - 1, mask)

    def run(self, max_steps: int) -> tuple[int, ...] | None:
        stack = [_SubsetNode(0, self.total, 0, 0, ())]
        steps = 0
        while stack and (self.best is None or steps < max_steps):
            node = stack.pop()
            steps += 1
            if node.rest == 0:
                self._offer(node)
            elif not self._is_hopeless(node):
                stack.extend(self._children(node))
        if self.best is None:
            return None
        return self.best.taken + (0,) * (len(self.groups) - len(self.best.taken))

    def _offer(self, node: _SubsetNode) -> None:
        if self.best is None or (node.cost, node.items) < (self.best.cost, self.best.items):
            self.best = node

    def _is_hopeless(self, node: _SubsetNode) -> bool:
        at_least = node.items - (-node.rest // self.groups[node.group][0])
        if self.best is not None and (node.cost, at_least) >= (self.best.cost, self.best.items):
            return True
        state = (node.group, node.rest)
        value = (node.cost, node.items)
        if state in self.seen and self.seen[state] <= value:
            return True
        self.seen[state] = value
        return False

    def _children(self, node: _SubsetNode) -> list[_SubsetNode]:
        size, sums = self.groups[node.group]
        tail = self.tails[node.group + 1]
        return [
            _SubsetNode(node.group + 1, node.rest - size * k, node.cost + sums[k], node.items + k, (*node.taken, k))
            for k in range(min(len(sums) - 1, node.rest // size) + 1)
            if tail >> (node.rest - size * k) & 1
        ]
