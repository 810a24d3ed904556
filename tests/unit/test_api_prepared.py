"""Answers as bytes."""

from __future__ import annotations

import gzip
import json
import math

import pytest
from starlette.requests import Request

from airflow_provider_dtrain.api.prepared import Body, rendered

pytestmark = pytest.mark.airflow


def request(encodings=""):
    return Request({"type": "http", "headers": [(b"accept-encoding", encodings.encode())]})


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
