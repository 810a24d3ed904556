"""Sizes have the same text in both programs and in the pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_dtrain.core.byte_size import byte_size

#: ``ui/src/format/format.test.ts`` compares the pages' function with the same list.
SIZES = json.loads((Path(__file__).parents[2] / "ui" / "src" / "format" / "byteSizes.json").read_text())


def test_sizes_are_those_that_the_pages_show() -> None:
    assert [[count, byte_size(count)] for count, _ in SIZES] == SIZES


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1023, "1023 B"), (1024, "1.0 KiB"), (1280, "1.3 KiB"), (1024**2 - 1, "1.0 MiB"), (39_000, "38.1 KiB"),
        (1024**6, "1024.0 PiB"), (-2048, "-2.0 KiB"), (None, "-"), (float("nan"), "-"), (float("inf"), "-"),
    ],
)  # fmt: skip
def test_the_unit_is_the_largest_below_the_rounded_size(count: float | None, text: str) -> None:
    assert byte_size(count) == text


def test_the_list_of_both_has_every_unit_and_the_values_between_two_units() -> None:
    assert {text.split()[1] for _, text in SIZES} == {"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
    assert len(SIZES) > 150
