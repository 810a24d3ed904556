"""Families of learning curves over a space of seven hyperparameters, made from a seed, and one of real trainings.

The space is that of LCBench (Zimmer et al., "Auto-PyTorch Tabular", 2021) with a choice of optimizers instead of the
batch size. A problem is a function from hyperparameters to the true losses after 1 .. ``LENGTH`` units. Reports add
noise. All families but the last are made here:

- ``bowl``: a power law per trial. The floor is a quadratic function of the hyperparameters with random weights, so that
  some of them hardly matter. Better floors start slower.
- ``fourier``: a power law whose floor, rate and gain are independent smooth random functions with many local minima.
- ``crossing``: like ``fourier``, but a good floor comes with a slow start: after one unit the ranks of the trials are
  nearly those of chance.
- ``training``: fast learning rates converge early to worse floors, beyond an edge trials diverge to NaN, small networks
  underfit, and large ones without regularization overfit, so that their loss rises again.
- ``digits``: a network of two layers that numpy trains on scikit-learn's digits. The loss is the validation loss.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

LENGTH: Final = 64
SPACE: Final[dict[str, Any]] = {
    "lr": {"type": "log", "minval": -4, "maxval": 0},
    "momentum": {"type": "double", "minval": 0.0, "maxval": 0.99},
    "weight_decay": {"type": "log", "minval": -6, "maxval": -1},
    "width": {"type": "log", "minval": 3, "maxval": 8, "base": 2},
    "layers": {"type": "int", "minval": 1, "maxval": 5},
    "dropout": {"type": "double", "minval": 0.0, "maxval": 0.8},
    "optimizer": {"type": "categorical", "vals": ["sgd", "nesterov", "adam"]},
}
NUMBERS: Final = tuple(name for name in SPACE if name != "optimizer")
CHOICES: Final = SPACE["optimizer"]["vals"]
#: Standard deviation of a report.
NOISE: Final = 0.01

#: Hyperparameters -> true losses after each unit.
Problem = Callable[[Mapping[str, Any]], Sequence[float]]
UNITS: Final = np.arange(1, LENGTH + 1)


def places(values: Mapping[str, Any]) -> np.ndarray:
    """Return the numbers among the hyperparameters, each scaled to 0 to 1."""
    found = []
    for name in NUMBERS:
        leaf, value = SPACE[name], values[name]
        if leaf["type"] == "log":
            value = math.log(value, leaf.get("base", 10))
        found.append((value - leaf["minval"]) / (leaf["maxval"] - leaf["minval"]))
    return np.array(found)


def bowl(seed: int) -> Problem:
    chance = np.random.default_rng([1, seed])
    best = chance.uniform(0.1, 0.9, len(NUMBERS))
    weights = chance.dirichlet(np.full(len(NUMBERS), 0.7)) * 3
    offsets = dict(zip(CHOICES, chance.permutation([0.0, 0.05, 0.15]), strict=True))

    def curve(values: Mapping[str, Any]) -> Sequence[float]:
        floor = 0.1 + float(weights @ (places(values) - best) ** 2) + offsets[values["optimizer"]]
        rate = 0.35 + 0.5 * min(floor, 1.2)
        return floor + 0.9 * UNITS**-rate

    return curve


def _smooth(chance: np.random.Generator) -> Callable[[Mapping[str, Any]], float]:
    """Return a random function with about standard normal values: random Fourier features of a Gaussian kernel."""
    scales = np.exp(chance.normal(math.log(0.5), 0.5, len(NUMBERS)))
    frequencies = chance.normal(size=(200, len(NUMBERS))) / scales
    phases = chance.uniform(0, 2 * math.pi, 200)
    weights = chance.normal(size=200) * math.sqrt(2 / 200)
    offsets = dict(zip(CHOICES, chance.normal(0, 0.4, len(CHOICES)), strict=True))
    return lambda values: float(weights @ np.cos(frequencies @ places(values) + phases) + offsets[values["optimizer"]])


def _squash(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def fourier(seed: int) -> Problem:
    chance = np.random.default_rng([2, seed])
    floors, rates, gains = _smooth(chance), _smooth(chance), _smooth(chance)

    def curve(values: Mapping[str, Any]) -> Sequence[float]:
        gain, rate = 0.5 + 0.5 * _squash(gains(values)), 0.3 + 0.7 * _squash(rates(values))
        return _squash(1.2 * floors(values)) + gain * UNITS**-rate

    return curve


def crossing(seed: int) -> Problem:
    chance = np.random.default_rng([3, seed])
    floors, gains = _smooth(chance), _smooth(chance)

    def curve(values: Mapping[str, Any]) -> Sequence[float]:
        floor = _squash(1.2 * floors(values))
        return floor + (1.4 - floor + 0.2 * _squash(gains(values))) * UNITS ** -(0.3 + 0.7 * floor)

    return curve


def training(seed: int) -> Problem:
    chance = np.random.default_rng([4, seed])
    edge, capacity, needed = chance.uniform(-1.5, -0.5), chance.uniform(7, 10), chance.uniform(0.3, 0.7)
    shift = dict(zip(CHOICES, chance.normal(0, 0.4, len(CHOICES)), strict=True))
    quality = dict(zip(CHOICES, chance.permutation([0.0, 0.02, 0.06]), strict=True))

    def curve(values: Mapping[str, Any]) -> Sequence[float]:
        # Decades from the learning rate that diverges; momentum multiplies the rate.
        speed = math.log10(values["lr"] / (1 - 0.95 * values["momentum"])) + shift[values["optimizer"]] - edge
        if speed > 0.3:
            return np.where(UNITS < 3, 1.0 + UNITS, np.nan)
        size = math.log2(values["width"]) + 0.8 * values["layers"] - capacity
        regular = 0.5 * values["dropout"] / 0.8 + 0.5 * (math.log10(values["weight_decay"]) + 6) / 5
        floor = 0.1 + 0.25 * max(0.0, -size / 4) ** 2 + 0.5 * max(0.0, regular - needed) ** 2
        floor += quality[values["optimizer"]] + 0.08 * 10 ** min(speed, 0.0) + 2 * max(0.0, speed)
        pace = 0.4 * 10 ** (speed / 1.5) / (1 + 0.1 * values["layers"] + 0.5 * values["dropout"])
        fitted = np.exp(-pace * UNITS)
        overfit = 0.6 * max(0.0, needed - regular) * max(0.0, size / 4 + 0.5) * (1 - np.exp(-pace * UNITS / 8))
        return floor + 0.9 * fitted + overfit

    return curve


class _Network:
    """Losses of a network that trains on demand, one epoch per unit."""

    def __init__(self, values: Mapping[str, Any], data: tuple[np.ndarray, ...], seed: int) -> None:
        self._values = values
        self._data = data
        self._chance = np.random.default_rng(seed)
        sizes = [64, *[round(values["width"])] * values["layers"], 10]
        self._weights = [
            self._chance.normal(0, math.sqrt(2 / a), (a, b)).astype(np.float32) for a, b in itertools.pairwise(sizes)
        ]
        self._first = [np.zeros_like(one) for one in self._weights]
        self._second = [np.zeros_like(one) for one in self._weights]
        self._steps = 0
        self._losses: list[float] = []

    def __getitem__(self, index: int) -> float:
        with np.errstate(all="ignore"):
            while len(self._losses) <= index:
                self._losses.append(self._epoch())
        return self._losses[index]

    def _epoch(self) -> float:
        inputs, labels, held_out, answers = self._data
        order = self._chance.permutation(len(inputs))
        for batch in np.array_split(order, len(inputs) // 32):
            self._step(inputs[batch], labels[batch])
        logits = self._forward(held_out, 0.0)[-1][0]
        logits = logits - logits.max(axis=1, keepdims=True)
        errors = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(answers)), answers]
        return float(errors.mean())

    def _forward(self, inputs: np.ndarray, dropout: float) -> list[tuple[np.ndarray, np.ndarray | None]]:
        layers: list[tuple[np.ndarray, np.ndarray | None]] = [(inputs, None)]
        for index, weights in enumerate(self._weights):
            outputs = layers[-1][0] @ weights
            if index == len(self._weights) - 1:
                layers.append((outputs, None))
                continue
            mask = (outputs > 0).astype(np.float32)
            if dropout:
                mask *= (self._chance.random(outputs.shape, dtype=np.float32) >= dropout) / np.float32(1 - dropout)
            layers.append((outputs * mask, mask))
        return layers

    def _step(self, inputs: np.ndarray, labels: np.ndarray) -> None:
        layers = self._forward(inputs, self._values["dropout"])
        logits = layers[-1][0]
        error = np.exp(logits - logits.max(axis=1, keepdims=True))
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(len(labels)), labels] -= 1
        error /= len(labels)
        self._steps += 1
        for index in reversed(range(len(self._weights))):
            gradient = layers[index][0].T @ error + self._values["weight_decay"] * self._weights[index]
            mask = layers[index][1]
            if mask is not None:
                error = (error @ self._weights[index].T) * mask
            self._weights[index] -= self._change(index, gradient)

    def _change(self, index: int, gradient: np.ndarray) -> np.ndarray:
        lr, momentum = self._values["lr"], self._values["momentum"]
        first, second = self._first[index], self._second[index]
        if self._values["optimizer"] == "adam":
            first += (1 - momentum) * (gradient - first)
            second += 0.001 * (gradient**2 - second)
            return lr * (first / (1 - momentum**self._steps)) / (np.sqrt(second / (1 - 0.999**self._steps)) + 1e-8)
        first *= momentum
        first += gradient
        return lr * (gradient + momentum * first if self._values["optimizer"] == "nesterov" else first)


@functools.cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    data = load_digits()
    return (data.data / 16).astype(np.float32), data.target


def digits(seed: int) -> Problem:
    inputs, labels = _digits()
    order = np.random.default_rng([5, seed]).permutation(len(inputs))
    some, rest = order[:320], order[320:960]
    data = (inputs[some], labels[some], inputs[rest], labels[rest])
    return lambda values: _Network(values, data, seed)
