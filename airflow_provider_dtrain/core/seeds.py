"""Seeds of trials, drawn from the experiment's seed."""

from __future__ import annotations

import hashlib

SEED_LIMIT = 2**31


def trial_seed(experiment_seed: int, trial: int) -> int:
    """Return the seed of one trial, 0 .. 2^31-1; the same whatever ran before it.

    :param experiment_seed: 0 .. 2^31-1
    :param trial: number of the trial in its experiment, from 0
    """
    digest = hashlib.sha256(f"dtrain trial seed {experiment_seed} {trial}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % SEED_LIMIT
