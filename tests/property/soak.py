"""A million simulated steps: random walks over the protocol's model, and histories of the real store.

    python -m tests.property.soak --steps 1000000 --store-steps 20000 --seed 1

The walks reach states beyond the exhaustive search of ``tests/property/test_lifecycle_model.py``: more allocations,
grants and takeovers, restored backups. The program prints its moves. A violation ends it with the state.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections import Counter

LARGE = {"rows": 8, "tokens": 24, "takeovers": 8, "crashes": 4}


def walk(steps: int, seed: int) -> tuple[Counter[str], int]:
    """Walk at random, with a restart when a state has no successor, and return the moves and the number of walks."""
    from tests.support.lifecycle_model import Model, check

    dice, moves, walks = random.Random(seed), Counter[str](), 0
    while moves.total() < steps:
        sizes = dice.choice([(1, 1), (1, 2), (2, 2)])
        model = Model(sizes, **LARGE, backups=dice.choice([0, 0, 1]))
        state, walks = model.first, walks + 1
        for _ in range(400):
            following = list(model.following(state))
            if not following or moves.total() >= steps:
                break
            # Draw the kind of move first: rare kinds would otherwise be lost among many fences.
            wanted = dice.choice(sorted({what for what, _ in following}))
            state = dice.choice([after for what, after in following if what == wanted])
            check(state)
            moves[wanted] += 1
    return moves, walks


def store_histories(steps: int) -> int:
    """Run the store's state machine for about this number of steps, and return pytest's exit code."""
    from tests.support.machines import STEPS

    environment = {**os.environ, "DTRAIN_MACHINE_EXAMPLES": str(max(1, steps // STEPS))}
    command = [sys.executable, "-m", "pytest", "-q", "tests/property/test_store_machine.py"]
    return subprocess.run(command, env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.property.soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--store-steps", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begun = time.monotonic()
    moves, walks = walk(options.steps, options.seed)
    took_s = time.monotonic() - begun
    print(f"{moves.total():,} steps in {walks:,} walks, 0 violations, {took_s:.0f} s")
    for what, number in moves.most_common():
        print(f"  {what:<14}{number:>10,}")
    return store_histories(options.store_steps) if options.store_steps else 0


if __name__ == "__main__":
    raise SystemExit(main())
