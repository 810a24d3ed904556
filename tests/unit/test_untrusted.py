"""JSON from hosts is counted in linear time, as a JSON parser would count it."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_dtrain.core.untrusted_json import UntrustedInputError, check_size, parse_object
from tests.support.budgets import budget

SIZE = 32 * 1024
TEXTS = st.text('a"\\[]{},\n', max_size=8)
VALUES = st.recursive(
    TEXTS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=12
)


def measured(value: object, level: int = 1) -> tuple[int, int]:
    """Return the depth of a value, and how many brackets and commas JSON has for it."""
    if not isinstance(value, list | dict):
        return level - 1, 0
    found = [measured(one, level + 1) for one in (value.values() if isinstance(value, dict) else value)]
    return max([level, *(depth for depth, _ in found)]), 1 + max(0, len(found) - 1) + sum(count for _, count in found)


@settings(max_examples=budget(100))
@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_quotes_and_escapes_in_texts_do_not_mislead_the_count(document: dict[str, object]) -> None:
    text = json.dumps(document).encode()
    depth, values = measured(document)
    check_size(text, depth=depth, values=values)
    with pytest.raises(UntrustedInputError, match="values"):
        check_size(text, depth=0, values=values - 1)
    with pytest.raises(UntrustedInputError, match="levels deep"):
        check_size(text, depth=depth - 1, values=values)


@pytest.mark.parametrize(
    "unit",
    [b'\\"', b'"\\', b"\\", b'"', b'""', b'"\\""', b'"[', b'"[\\"', b"[", b"][", b"1", b"1.5,", b"\\ud800", b"{},"],
)
@pytest.mark.parametrize("start", [b'{"a":', b'{"a":' + b"[" * 40, b'{"a":' + b"[" * 40 + b'"', b'{"a":"'])
def test_hostile_lines_take_linear_time(unit: bytes, start: bytes) -> None:
    text = start + unit * (SIZE // len(unit))
    begun = time.thread_time()
    with pytest.raises(UntrustedInputError):
        parse_object(text, depth=16, values=20_000)
    assert time.thread_time() - begun < 1.0
