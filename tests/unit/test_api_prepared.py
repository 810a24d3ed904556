"""Answers that are kept as bytes."""

from __future__ import annotations

import gzip
import json
import math

import pytest
from starlette.requests import Request

from airflow_provider_dtrain.api import prepared
from airflow_provider_dtrain.api.prepared import Body, Prepared, rendered

pytestmark = pytest.mark.airflow


def request(encodings=""):
    return Request({"type": "http", "headers": [(b"accept-encoding", encodings.encode())]})


def test_answers_that_were_not_requested_for_longest_are_dropped_first():
    kept = Prepared(kept_bytes=250)
    for tag in ("a", "b"):
        kept.keep(tag, Body(b"x" * 100))
    assert kept.get("a") is not None
    kept.keep("c", Body(b"x" * 100))
    assert [kept.get(tag) is not None for tag in "abc"] == [True, False, True]


def test_an_answer_that_is_kept_twice_counts_once():
    kept = Prepared(kept_bytes=250)
    for _ in range(5):
        kept.keep("a", Body(b"x" * 100))
    kept.keep("b", Body(b"x" * 100))
    assert kept.get("a") is not None


def test_a_huge_answer_is_not_kept(monkeypatch):
    monkeypatch.setattr(prepared, "LARGEST_BYTES", 10)
    kept = Prepared()
    kept.keep("a", Body(b"x" * 11))
    assert kept.get("a") is None


@pytest.mark.parametrize(("encodings", "is_compressed"), [("gzip, br", True), ("", False), ("br", False)])
def test_an_answer_is_compressed_for_clients_that_can_read_it(encodings, is_compressed):
    plain = json.dumps(list(range(1000))).encode()
    answer = Body(plain).answer(request(encodings), 'W/"1"')
    assert (answer.headers.get("content-encoding") == "gzip") == is_compressed
    assert answer.headers["vary"] == "Accept-Encoding"
    assert (gzip.decompress(answer.body) if is_compressed else answer.body) == plain


def test_a_short_answer_is_sent_as_it_is():
    assert Body(b"[]").answer(request("gzip"), 'W/"1"').body == b"[]"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_json_does_not_have_becomes_null(value):
    assert rendered({"value": [value]}).plain == b'{"value":[null]}'
