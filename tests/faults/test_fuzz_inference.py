"""A few fuzz runs of batch inferences. ``python -m tests.faults.fuzz_inference`` runs many more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("torch")

from tests.faults.fuzz_inference import GANGS, describe, one_run, warm  # noqa: E402
from tests.support.warm_ranks import WarmRanks  # noqa: E402

pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.slow]
#: Runs that found a mistake: parts of one size that two runs wrote, and an old run that published.
SEEDS = (2, 3, 12)


@pytest.fixture(scope="module")
def ranks() -> Iterator[tuple[WarmRanks, WarmRanks]]:
    with warm() as both:
        yield both


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(100, 300))])
def test_a_fuzzed_inference_publishes_each_row_once(
    ranks: tuple[WarmRanks, WarmRanks], tmp_path: Path, seed: int
) -> None:
    run = one_run(seed, tmp_path / "place", ranks, list(GANGS))
    assert run.violations == [], describe(run)
