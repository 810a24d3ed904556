"""Rendered parts of answers are kept within a limit."""

from __future__ import annotations

from airflow_provider_dtrain.api.parts import PART_BYTES, Parts


def test_parts_that_were_not_requested_for_longest_are_dropped():
    parts = Parts(kept_bytes=2 * (PART_BYTES + 10))
    parts.keep({"a": b"x" * 10, "b": b"y" * 10})
    assert parts.known(["a"]) == {"a": b"x" * 10}
    parts.keep({"c": b"z" * 10})
    assert set(parts.known(["a", "b", "c"])) == {"a", "c"}
    parts.keep({"d": b"w" * 10_000})
    assert not parts.known(["a", "c", "d"])
