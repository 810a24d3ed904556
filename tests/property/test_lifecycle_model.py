"""Model check of the protocol: every interleaving of two requests on two hosts.

No process runs in a slot that the store has released, and every request can end. The model is small, but uses the real
rules: ``run_pass`` decides the grants, and the table of ``lifecycle`` allows each change of state. Messages may arrive
late: a stale follower still starts and fences runs on the hosts, as a real network allows.
"""

from __future__ import annotations

import pytest

from tests.support.lifecycle_model import (
    Model,
    Violation,
    cannot_become_free,
    explore,
)

EVERYTHING = [
    *(pytest.param(sizes, {}, id=f"{sizes}") for sizes in [(1, 1), (1, 2), (2, 2)]),
    pytest.param((1, 1), {"rows": 3, "crashes": 0, "tokens": 3}, id="a trial waits again"),
    *(pytest.param(sizes, {"rows": 3}, id=f"{sizes} and again", marks=pytest.mark.soak)
      for sizes in [(1, 1), (1, 2), (2, 2)]),
]  # fmt: skip


@pytest.mark.nightly("a trial waits again")
@pytest.mark.parametrize(("sizes", "limits"), EVERYTHING)
def test_no_interleaving_leaves_a_process_in_a_slot_that_was_given_back(
    sizes: tuple[int, int], limits: dict[str, int]
) -> None:
    found = explore(Model(sizes, **limits))
    moves = {what for following in found.values() for what, _ in following}
    needed = {"pass", "untaken", "take up", "start", "running", "stopping", "end", "fence", "release", "take over",
              "gone"}  # fmt: skip
    assert needed - moves == set()
    assert ("again" in moves) is (limits.get("rows", 2) > 2)
    assert ("crash" in moves) is (limits.get("crashes", 1) > 0)
    assert cannot_become_free(found) == []


@pytest.mark.nightly
@pytest.mark.parametrize("sizes", [(1, 1), (1, 2)])
def test_a_store_set_back_to_a_backup_never_shares_a_slot_and_comes_free(sizes: tuple[int, int]) -> None:
    found = explore(Model(sizes, backups=1, takeovers=0, crashes=0, tokens=2))
    moves = {what for following in found.values() for what, _ in following}
    assert {"backup", "restore", "raise token"} <= moves
    assert cannot_become_free(found) == []


def test_the_model_finds_slots_that_a_clock_frees() -> None:
    with pytest.raises(Violation):
        explore(Model((1, 1), asks=False))


def test_the_model_finds_hosts_that_forget_what_was_fenced() -> None:
    with pytest.raises(Violation):
        explore(Model((1, 1), buries=False))
