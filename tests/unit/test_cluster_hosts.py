"""Hosts of the cluster page from their marks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_provider_dtrain.resources.hosts import Slot
from airflow_provider_dtrain.store.pages.cluster_hosts import host_of, slot_counts
from airflow_provider_dtrain.store.records.pages import HeldRange, HostMark

BROKEN = Slot(state="stuck", is_enabled=False, note="ECC errors", device="GPU-1")
READY = Slot(device="GPU-2")


def mark(**changes: Any) -> HostMark:
    usual = HostMark("n1", "big", "ready", "", None, None, "cuda", None, "", "H100", 4, (), (HeldRange(7, 1, 2),))
    return usual._replace(**changes)


def holders(of: HostMark) -> list[int | None]:
    return [cell.allocation_id for cell in host_of(of).slots]


def test_a_range_of_slots_is_held_by_its_gang() -> None:
    assert holders(mark()) == [None, 7, 7, None]
    assert slot_counts(mark()) == (2, 2)


def test_a_held_slot_keeps_the_reason_why_it_is_not_ready() -> None:
    of = mark(cells=(READY, BROKEN), slots=2, held=(HeldRange(7, 1, 1),))
    assert host_of(of).slots == [READY, replace(BROKEN, allocation_id=7)]


def test_a_broken_slot_is_neither_held_nor_free() -> None:
    assert slot_counts(mark(cells=(READY, BROKEN), slots=2, held=())) == (0, 1)


def test_held_slots_that_the_host_does_not_have_are_left_out() -> None:
    for held in ((HeldRange(7, 3, 6),), (HeldRange(7, 3, 3), HeldRange(8, 9, 9))):
        assert holders(mark(held=held)) == [None, None, None, 7]
        assert slot_counts(mark(held=held)) == (1, 3)


def test_a_host_that_is_not_ready_has_no_free_slots() -> None:
    assert slot_counts(mark(state="draining")) == (2, 0)


def test_slots_of_a_gang_with_gaps_are_single_ranges() -> None:
    assert holders(mark(held=(HeldRange(7, 0, 0), HeldRange(8, 1, 1), HeldRange(7, 3, 3)))) == [7, 8, None, 7]
