"""Gaussian process over hyperparameters and the rungs of successive halving.

The covariance of two metrics is a Matern 5/2 kernel of their hyperparameters, with a length scale per hyperparameter,
times a covariance of their rungs: a standard deviation per rung, and a correlation of each rung with the next one. So
many cheap metrics of low rungs inform about the highest one as far as the data show that the rungs agree.

Source: Klein et al., "Model-based Asynchronous Hyperparameter and Neural Architecture Search" (MOBSTER), 2020;
Swersky et al., "Multi-Task Bayesian Optimization", NeurIPS 2013.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from numpy import ndarray

#: Steps of the optimizer that fits a process.
_MOST_STEPS: Final = 40
#: Added to variances, so that a covariance of equal hyperparameters can be factorized.
_JITTER: Final = 1e-8
#: Mean and standard deviation of the prior of each logarithm, and of the logit of a correlation.
_LENGTH, _CHOICE_LENGTH, _DEVIATION = (-0.5, 1.0), (0.4, 1.0), (0.0, 0.7)
_AGREEMENT, _NOISE = (2.0, 1.5), (-3.0, 1.0)


@dataclass(frozen=True)
class Observations:
    """Metrics of trials at rungs."""

    #: (n, columns), each column 0 to 1.
    places: ndarray
    #: (n,), rung of each metric, from 0.
    rungs: ndarray
    #: (n,), about standard normal; smaller is better.
    metrics: ndarray

    def joined(self, other: Observations) -> Observations:
        """Return the observations with further ones behind them."""
        import numpy as np

        pairs = ((self.places, other.places), (self.rungs, other.rungs), (self.metrics, other.metrics))
        return Observations(*(np.concatenate(pair) for pair in pairs))


class Scales(NamedTuple):
    """Parameters of a process."""

    #: (groups,), in units of a column.
    lengths: ndarray
    #: (rungs,)
    deviations: ndarray
    #: (rungs - 1,), of each rung with the next one.
    correlations: ndarray
    #: Standard deviation of a metric when a training is repeated.
    noise: float

    def of_rungs(self) -> ndarray:
        """Return the covariance of rungs, (rungs, rungs)."""
        import numpy as np

        steps = np.concatenate([[0.0], np.cumsum(np.log(self.correlations))])
        # The correlation of two rungs is the product of the correlations of the steps between them.
        return np.exp(-np.abs(steps[:, None] - steps)) * np.outer(self.deviations, self.deviations)


class RungProcess:
    """Process that is fitted to observations.

    :param groups: group of each column; the columns of a choice are one group, and have one length scale
    :param is_choice: for each group whether it is a choice
    :param rungs: number of rungs, >= 1
    """

    def __init__(self, groups: Sequence[int], is_choice: Sequence[bool], rungs: int) -> None:
        import numpy as np

        self._groups, self._rungs = np.array(groups), rungs
        lengths = [_CHOICE_LENGTH if choice else _LENGTH for choice in is_choice]
        self._prior = np.array([*lengths, *[_DEVIATION] * rungs, *[_AGREEMENT] * (rungs - 1), _NOISE]).T
        self._scales = self._scales_of(self._prior[0])

    def _scales_of(self, parameters: ndarray) -> Scales:
        import numpy as np

        groups = len(parameters) - 2 * self._rungs
        lengths, deviations, agreement, noise = np.split(
            parameters, [groups, groups + self._rungs, groups + 2 * self._rungs - 1]
        )
        return Scales(np.exp(lengths), np.exp(deviations), 1 / (1 + np.exp(-agreement)), float(np.exp(noise[0])))

    def fit(self, known: Observations) -> None:
        """Choose the parameters with the largest posterior density, and condition the process on the observations."""
        import numpy as np
        from scipy.optimize import minimize

        groups = (known.places[:, self._groups == group] for group in range(self._groups.max() + 1))
        differences = np.array([_squares(places, places) for places in groups])
        options = {"maxiter": _MOST_STEPS}
        found = minimize(self._loss, self._prior[0], (known, differences), "L-BFGS-B", jac=True, options=options)
        self._scales = self._scales_of(found.x)
        self.condition(known)

    def _loss(self, parameters: ndarray, known: Observations, differences: ndarray) -> tuple[float, ndarray]:
        """Return the negative logarithm of the posterior density but for a constant, and its gradient."""
        import numpy as np
        from scipy.linalg import cho_solve

        scales = self._scales_of(parameters)
        distance = np.sqrt(5 * np.tensordot(scales.lengths**-2, differences, 1))
        of_rungs = scales.of_rungs()[np.ix_(known.rungs, known.rungs)]
        covariance = of_rungs * _matern(distance)
        same = np.eye(len(known.metrics))
        try:
            factor = np.linalg.cholesky(covariance + (scales.noise**2 + _JITTER) * same)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(parameters)
        weights = cho_solve((factor, True), known.metrics)
        # The gradient of the likelihood by an entry of the covariance.
        slope = 0.5 * (cho_solve((factor, True), same) - np.outer(weights, weights))
        by_distance = slope * of_rungs * (5 / 3) * (1 + distance) * np.exp(-distance)
        shares = slope * covariance
        gradient = [
            *np.tensordot(differences, by_distance, 2) / scales.lengths**2,
            *(2 * shares[known.rungs == rung].sum() for rung in range(self._rungs)),
            *(
                2 * shares[np.ix_(known.rungs <= rung, known.rungs > rung)].sum() * (1 - correlation)
                for rung, correlation in enumerate(scales.correlations)
            ),
            2 * scales.noise**2 * np.trace(slope),
        ]
        offsets = (parameters - self._prior[0]) / self._prior[1]
        loss = 0.5 * known.metrics @ weights + np.log(np.diag(factor)).sum() + 0.5 * offsets @ offsets
        return float(loss), np.array(gradient) + offsets / self._prior[1]

    def condition(self, known: Observations) -> None:
        """Replace the observations, with the same parameters."""
        import numpy as np
        from scipy.linalg import cho_solve

        self._known = known
        covariance = self._covariance(known.places, known.rungs)
        noise = self._scales.noise**2 + _JITTER
        self._factor = np.linalg.cholesky(covariance + noise * np.eye(len(known.metrics)))
        self._weights = cho_solve((self._factor, True), known.metrics)

    def _covariance(self, places: ndarray, rungs: ndarray) -> ndarray:
        """Return the covariance of values with those of the observations."""
        import numpy as np

        lengths = self._scales.lengths[self._groups]
        distance = np.sqrt(5 * _squares(places / lengths, self._known.places / lengths))
        return _matern(distance) * self._scales.of_rungs()[np.ix_(rungs, self._known.rungs)]

    def predict(self, places: ndarray, rung: int) -> tuple[ndarray, ndarray]:
        """Return mean and standard deviation of the metric without noise.

        :param places: (n, columns)
        """
        import numpy as np
        from scipy.linalg import solve_triangular

        covariance = self._covariance(places, np.full(len(places), rung))
        half = solve_triangular(self._factor, covariance.T, lower=True)
        variance = self._scales.deviations[rung] ** 2 - (half**2).sum(axis=0)
        return covariance @ self._weights, np.sqrt(np.maximum(variance, _JITTER))


def _squares(places: ndarray, others: ndarray) -> ndarray:
    """Return the squared distances of rows, (n, m).

    :param places: (n, columns)
    :param others: (m, columns)
    """
    import numpy as np

    squares = (places**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2 * places @ others.T
    return np.maximum(squares, 0)


def _matern(distance: ndarray) -> ndarray:
    """Return the Matern 5/2 kernel.

    :param distance: sqrt(5) times the distance in length scales
    """
    import numpy as np

    return (1 + distance + distance**2 / 3) * np.exp(-distance)
