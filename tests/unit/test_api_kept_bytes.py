"""Answers and parts of answers are kept within a limit."""

from __future__ import annotations

from airflow_provider_dtrain.api import kept
from airflow_provider_dtrain.api.kept import EACH_BYTES, Kept
from airflow_provider_dtrain.api.prepared import Body


def test_what_was_not_requested_for_longest_is_dropped_first():
    found = Kept(kept_bytes=2 * (EACH_BYTES + 10))
    found.keep({"a": b"x" * 10, "b": Body(b"y" * 10)})
    assert found.known(["a"]) == {"a": b"x" * 10}
    found.keep({"c": b"z" * 10})
    assert set(found.known(["a", "b", "c"])) == {"a", "c"}


def test_a_value_that_is_kept_twice_counts_once():
    found = Kept(kept_bytes=2 * (EACH_BYTES + 10))
    for _ in range(5):
        found.keep({"a": Body(b"x" * 10)})
    found.keep({"b": b"x" * 10})
    assert set(found.known(["a", "b"])) == {"a", "b"}


def test_a_huge_value_is_not_kept(monkeypatch):
    monkeypatch.setattr(kept, "LARGEST_BYTES", 10)
    found = Kept()
    found.keep({"a": b"x" * 11, "b": Body(b"x" * 11)})
    assert found.known(["a", "b"]) == {}
