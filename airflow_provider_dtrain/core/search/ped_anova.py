"""PED-ANOVA: importance of a hyperparameter, from the cells of a grid that its values fall into.

It compares the density of the best trials with that of all trials. A hyperparameter for which both are alike does not
matter for reaching a good metric.

Source: Watanabe et al., "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary Subspaces",
IJCAI 2023, with the bandwidths and the prior of Optuna 5. Optuna itself is not used, because ``optuna.importance``
imports scikit-learn and pandas, which costs seven seconds of CPU.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

#: Share of the trials that are the best ones.
BEST_RATIO = 0.1
#: Cells of the grid over a range.
CELLS_MOST = 50
#: Weight of the prior, in trials.
_PRIOR = 1.0
#: Smallest bandwidth: 90 % of a kernel are in the cell of its trial.
_SMALLEST_WIDTH = 0.5 / 1.64
_TINY = 1e-12


def best_trials(losses: Sequence[float]) -> list[bool]:
    """Return for each trial whether it is one of the best, those that equal the last of them included.

    :param losses: finite values, at least one; smaller is better
    """
    limit = sorted(losses)[math.ceil(BEST_RATIO * len(losses)) - 1]
    return [loss <= limit for loss in losses]


def cell_of(value: float, low: float, high: float, cells: int) -> int:
    """Return the cell of a value of a range.

    :param cells: number of cells, at least 2; the ends of the range are the centres of the first and the last one
    """
    # Half of each number, because the width of the range of all floats is infinite.
    width = (high / 2 - low / 2) / (cells - 1)
    return min(max(math.ceil((value / 2 - low / 2) / width - 0.5), 0), cells - 1)


def divergence(cells: Sequence[int], best: Sequence[bool], number: int, *, ordered: bool) -> float:
    """Return the importance of a hyperparameter: the Pearson divergence of the best trials from all trials.

    :param cells: cell of each trial
    :param best: for each trial whether it is one of the best
    :param number: of cells
    :param ordered: False for categorical hyperparameters, whose cells have no neighbours
    """
    density = _ordered_density if ordered else _unordered_density
    everywhere = density(_counts(cells, number))
    of_best = density(_counts([cell for cell, is_best in zip(cells, best, strict=True) if is_best], number))
    pairs = [(one + _TINY, other + _TINY) for one, other in zip(of_best, everywhere, strict=True)]
    return sum(other * (one / other - 1.0) ** 2 for one, other in pairs)


def _counts(cells: Sequence[int], number: int) -> list[int]:
    found = [0] * number
    for cell in cells:
        found[cell] += 1
    return found


def _unordered_density(counts: Sequence[int]) -> list[float]:
    """Return the probability of each cell: that of its trials, mixed with that of all cells alike."""
    total = sum(counts) + _PRIOR
    alike = _PRIOR / (sum(count > 0 for count in counts) + 1)
    of_kernel = 1.0 + alike * len(counts)
    elsewhere = alike / of_kernel * (total - _PRIOR) / total + _PRIOR / total / len(counts)
    return [count / total / of_kernel + elsewhere for count in counts]


def _ordered_density(counts: Sequence[int]) -> list[float]:
    """Return the probability of each cell, by normal kernels around the cells with trials and a wide one as prior."""
    last = len(counts) - 1
    width = _bandwidth(counts)
    kernels = [(float(cell), width, float(count)) for cell, count in enumerate(counts) if count]
    kernels.append((last / 2, last + 1.0, _PRIOR))
    total = sum(weight for *_, weight in kernels)
    found = [0.0] * len(counts)
    for centre, sigma, weight in kernels:
        # The borders of the cells, as shares of the kernel that are below them.
        below = [math.erf((border - 0.5 - centre) / (sigma * math.sqrt(2))) for border in range(len(counts) + 1)]
        scale = weight / total / (below[-1] - below[0])
        for cell in range(len(counts)):
            found[cell] += scale * (below[cell + 1] - below[cell])
    return found


def _bandwidth(counts: Sequence[int]) -> float:
    """Return the width of the kernels by Scott's rule, in cells."""
    observed = [cell for cell, count in enumerate(counts) if count]
    below = list(accumulate(counts[cell] for cell in observed))
    total = below[-1]
    mean = sum(cell * counts[cell] for cell in observed) / total
    sigma = math.sqrt(sum((cell - mean) ** 2 * counts[cell] for cell in observed) / max(1, total - 1))
    first, third = bisect_left(below, total // 4), bisect_right(below, total * 3 // 4)
    between = observed[min(len(observed) - 1, third)] - observed[first]
    return max(1.059 * min(between / 1.34, sigma) * math.pow(total, -0.2), _SMALLEST_WIDTH)
