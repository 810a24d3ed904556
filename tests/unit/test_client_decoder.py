"""The decoder accepts nothing that pydantic's strict mode refuses for the same records, and gives the same values."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from airflow_provider_dtrain import resources
from airflow_provider_dtrain.client import answers, common_answers, decoder
from airflow_provider_dtrain.client.decoder import Answer
from airflow_provider_dtrain.core import rank_results
from airflow_provider_dtrain.core.lifecycle.states import TrialState
from airflow_provider_dtrain.errors import ServerError
from airflow_provider_dtrain.resources import bounds
from airflow_provider_dtrain.resources.experiments import ExperimentFilter
from airflow_provider_dtrain.resources.metrics import Value
from tests.support.budgets import budget
from tests.support.hostile_server import RAW, changed, valid

RESOURCES = [
    importlib.import_module(f"{resources.__name__}.{found.name}") for found in pkgutil.iter_modules(resources.__path__)
]
KINDS = [
    kind
    for module in (*RESOURCES, answers, common_answers, rank_results)
    for kind in vars(module).values()
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and kind.__module__ == module.__name__
    # It is a part of requests.
    if kind is not ExperimentFilter
]
ADAPTERS = {kind: TypeAdapter(kind) for kind in KINDS}


@settings(max_examples=budget(400))
@given(st.sampled_from(KINDS), st.integers(0, 2**32))
def test_whatever_is_accepted_has_the_declared_types(kind: type, seed: int) -> None:
    text = changed(valid(kind), random.Random(seed)) if dataclasses.fields(kind) else "{}"
    try:
        found = Answer(text.encode()).record(kind)
    except ServerError as error:
        shown = str(error)
    else:
        shown = ""
        assert found == ADAPTERS[kind].validate_json(text, strict=True)
    assert len(shown) < 400


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_friendly_answer_is_accepted(kind: type) -> None:
    text = json.dumps(valid(kind))
    assert Answer(text.encode()).record(kind) == ADAPTERS[kind].validate_json(text, strict=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Everything:
    text: str = ""
    number: int = 0
    ratio: float = 0.0
    truth: bool = False
    moment: datetime | None = None
    values: list[int] = dataclasses.field(default_factory=list)
    named: dict[str, float] = dataclasses.field(default_factory=dict)
    anything: Any = None
    value: Value = None
    count: bounds.Count = 0
    state: TrialState | None = None
    totals: Mapping[str, int] | None = None


@pytest.mark.parametrize("field", [one.name for one in dataclasses.fields(Everything)])
@pytest.mark.parametrize("raw", [*RAW, "null", "1", "1.0", "1e0", "true", '"1"', "[]", "{}", "-1", str(2**63)])
def test_each_type_accepts_its_own_form_only(field: str, raw: str) -> None:
    text = f'{{"{field}": {raw}}}'
    try:
        expected = TypeAdapter(Everything).validate_json(text, strict=True)
    except ValidationError:
        expected = None
    try:
        found = Answer(text.encode()).record(Everything)
    except ServerError:
        # Bounds, values that JSON does not have, and numbers as texts of times.
        is_beyond = raw in (*RAW, "-1", str(2**63)) or (field == "moment" and raw == '"1"')
        assert expected is None or is_beyond
    else:
        assert found == expected
        assert type(getattr(found, field)) is type(getattr(expected, field))


def test_a_time_needs_a_zone_and_is_in_utc() -> None:
    assert Answer(b'{"moment": "2026-01-01T01:00:00+01:00"}').record(Everything).moment == datetime(
        2026, 1, 1, tzinfo=UTC
    )
    for text in ("2026-01-01T01:00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "noon"):
        with pytest.raises(ServerError, match="moment: a t"):
            Answer(json.dumps({"moment": text}).encode()).record(Everything)


def test_texts_numbers_and_nesting_have_bounds(monkeypatch) -> None:
    monkeypatch.setattr(decoder, "TEXT_MOST", 100)
    for value in ("x" * 101, {"x" * 101: 1}, 10**401, "\ud800"):
        with pytest.raises(ServerError):
            Answer(json.dumps({"anything": value}).encode()).record(Everything)
    assert Answer(json.dumps({"anything": 10**400}).encode()).record(Everything).anything == 10**400
    for field in ("ratio", "anything", "value", "count"):
        for raw in ("1e999", "-1e999", "NaN", "Infinity"):
            with pytest.raises(ServerError):
                Answer(f'{{"{field}": {raw}}}'.encode()).record(Everything)
    with pytest.raises(ServerError, match="101 levels deep"):
        Answer(b'{"anything":' + b"[" * 100 + b"]" * 100 + b"}")


def test_a_small_answer_with_many_values_is_not_built(monkeypatch) -> None:
    monkeypatch.setattr(decoder, "_VALUES", 1000)
    with pytest.raises(ServerError, match="1,003 values"):
        Answer(b'{"anything": [' + b",".join([b"{}"] * 501) + b"]}")
