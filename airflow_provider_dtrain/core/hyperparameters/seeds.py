"""Seeds of trials, drawn from the experiment's seed."""

from __future__ import annotations

import hashlib

SEED_LIMIT = 2**31
_BITS = 256


def trial_seed(experiment_seed: int, trial: int) -> int:
    """Return the seed of one trial, 0 .. 2^31-1. It does not depend on earlier trials.

    :param experiment_seed: 0 .. 2^31-1
    :param trial: number of the trial in its experiment, from 0
    """
    digest = hashlib.sha256(f"dtrain trial seed {experiment_seed} {trial}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % SEED_LIMIT


class Draws:
    """Pseudo-random numbers that depend on a text alone: the same on every machine and Python version.

    The n-th number is SHA-256 of the text's own SHA-256 and n.

    :param text: purpose of the numbers
    """

    def __init__(self, text: str) -> None:
        self._key = hashlib.sha256(text.encode()).digest()
        self._count = 0

    def below(self, limit: int) -> int:
        """Return the next number, 0 .. limit - 1.

        :param limit: >= 1
        """
        digest = hashlib.sha256(self._key + self._count.to_bytes(8, "big")).digest()
        self._count += 1
        return int.from_bytes(digest, "big") * limit >> _BITS

    def unit(self) -> float:
        """Return the next number, 0 <= x < 1, a multiple of 2^-53."""
        return self.below(2**53) / 2**53
