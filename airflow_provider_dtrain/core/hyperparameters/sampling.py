"""Samples of hyperparameters, drawn by the trial's number: the same on every machine and Python version."""

from __future__ import annotations

import copy
import decimal
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from airflow_provider_dtrain.core.documents import Hyperparameters
from airflow_provider_dtrain.core.hyperparameters.seeds import Draws

LOG_BASE: Final = 10.0
#: More digits than a float has, so that its last bit does not depend on a math library.
_DECIMAL: Final = decimal.Context(prec=22, rounding=decimal.ROUND_HALF_EVEN, Emin=-999999, Emax=999999, traps=[])


@functools.lru_cache(maxsize=256)
def _ln(base: float) -> decimal.Decimal:
    return _DECIMAL.ln(decimal.Decimal(base))


def power(base: float, exponent: float) -> float:
    """Return base to the power of exponent. Every machine gets the same float.

    :param base: > 0
    :param exponent: such that the result is a finite number
    """
    return float(_DECIMAL.exp(_DECIMAL.multiply(decimal.Decimal(exponent), _ln(base))))


def own(value: Any) -> Any:
    """Return a value that no other trial shares."""
    return copy.deepcopy(value) if isinstance(value, (dict, list)) else value


def value_of(leaf: object) -> Any:
    """Return the value of a constant leaf."""
    return own(leaf["val"] if isinstance(leaf, Mapping) else leaf)


def sampler(group: Mapping[str, Any]) -> Callable[[Draws], Hyperparameters]:
    """Return a function that draws one sample of a valid space.

    Its argument holds the random numbers of that sample alone. Names are processed in sorted order at each level.
    A constant consumes no number.
    """
    makers = [(name, _maker(group[name])) for name in sorted(group)]
    return lambda draws: {name: make(draws) for name, make in makers}


def _maker(leaf: Any) -> Callable[[Draws], Any]:
    if isinstance(leaf, Mapping) and "type" not in leaf:
        return sampler(leaf)
    if not isinstance(leaf, Mapping) or leaf["type"] == "const":
        return lambda draws: value_of(leaf)
    if leaf["type"] == "categorical":
        values = leaf["vals"]
        return lambda draws: own(values[draws.below(len(values))])
    low = leaf["minval"]
    high = leaf["maxval"]
    if leaf["type"] == "int":
        return lambda draws: low + draws.below(high - low + 1)
    least = float(low)
    most = float(high)
    if leaf["type"] == "double":
        return lambda draws: _between(least, most, draws.unit())
    base = float(leaf.get("base", LOG_BASE))
    return lambda draws: power(base, _between(least, most, draws.unit()))


def _between(least: float, most: float, part: float) -> float:
    return min(least + (most - least) * part, most)


def draws_of(experiment_seed: int, trial: int, draw: int = 0) -> Draws:
    """Return the random numbers for a trial's sample.

    :param experiment_seed: 0 .. 2^31-1
    :param trial: number of the trial in its experiment, from 0
    :param draw: number of its samples that were refused before
    """
    return Draws(f"dtrain sample {experiment_seed} {trial} {draw}")
