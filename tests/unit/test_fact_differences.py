"""Differences between facts: what is not known is never equal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dtrain.core.fact_differences import Facts, fact_differences

FACTS = st.none() | st.dictionaries(st.sampled_from("abc"), st.none() | st.sampled_from("12"), max_size=3)


def rows(*facts: Facts) -> list[tuple[str, list[str | None], bool]]:
    found, _ = fact_differences([{"packages": one} for one in facts])
    return [(one.name, one.values, one.is_unknown) for one in found]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (({"a": "1"}, {"a": "1"}), []),
        (({}, {}), []),
        (({"a": "1"}, {"a": "2"}), [("a", ["1", "2"], False)]),
        (({"a": "1"}, {}), [("a", ["1", None], False)]),
        # Not known, on one side or on both.
        (({"a": None}, {"a": None}), [("a", [None, None], True)]),
        (({"a": "1"}, {"a": None}), [("a", ["1", None], True)]),
        # It exists on one side only, so it differs.
        (({"a": None}, {}), [("a", ["unknown", None], False)]),
        (({"a": "1"}, {"a": None}, {}), [("a", ["1", "unknown", None], False)]),
        # A whole subject.
        ((None, None), [("", [None, None], True)]),
        ((None, {"": "12.8"}), [("", [None, "12.8"], True)]),
        ((None, {"a": "1", "b": None}), [("", [None, "a 1, b unknown"], True)]),
        ((None, {"a": "1", "b": "2", "c": "3"}), [("", [None, "3 known"], True)]),
    ],
)
def test_what_is_not_known_is_said_as_unknown(facts: tuple[Facts, ...], expected: list[object]) -> None:
    assert rows(*facts) == expected


def test_subjects_of_which_all_is_known_and_equal_are_named() -> None:
    things: list[dict[str, Facts]] = [{"code": {"": "x"}, "git": None, "seed": {"": s}} for s in "12"]
    found, same = fact_differences(things)
    assert [one.subject for one in found] == ["git", "seed"]
    assert same == ["code"]


@given(st.lists(FACTS, min_size=2, max_size=4))
def test_a_subject_is_equal_only_if_all_is_known_and_equal(facts: list[Facts]) -> None:
    _, same = fact_differences([{"s": one} for one in facts])
    is_known = all(one is not None and None not in one.values() for one in facts)
    assert (same == ["s"]) == (is_known and all(one == facts[0] for one in facts))
