"""The OpenAPI document of the API: it is committed, and each route declares its rule."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from airflow_provider_dtrain.api.app import create_app
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.security import READING, Rule

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def app():
    return create_app()


def routes(app):
    """Return the routes of the API, flat."""
    found = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(found) > 4
    return found


def test_the_committed_document_is_that_of_the_code() -> None:
    tool = runpy.run_path(str(ROOT / "scripts" / "tools" / "openapi.py"))
    assert (ROOT / "ui" / "openapi.json").read_text() == tool["text"](), "run: python scripts/tools/openapi.py"


def test_every_route_declares_a_rule_and_runs_in_a_thread_with_a_deadline(app) -> None:
    for route in routes(app):
        assert isinstance(route, StoreRoute), route.path
        assert Rule((route.openapi_extra or {})["x-dtrain-rule"])


def test_only_routes_that_read_have_the_rule_to_read(app) -> None:
    reads_only = {
        (route.path, method)
        for route in routes(app)
        for method in route.methods
        if method not in READING and Rule(route.openapi_extra["x-dtrain-rule"]) is Rule.READ
    }
    assert reads_only <= {
        (f"/api/v1/{path}", "POST") for path in ("configs/validate", "configs/explain", "templates/validate")
    }


def inputs(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schema of each parameter and of each body."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for parameter in operation.get("parameters", ()):
                yield f"{method} {path} {parameter['in']} {parameter['name']}", parameter["schema"]
            for content in operation.get("requestBody", {"content": {}})["content"].values():
                yield f"{method} {path} body", content["schema"]


def unbounded(schema: dict[str, Any], place: str, schemas: dict[str, Any]) -> Iterator[str]:
    """Yield the places below a schema where a request may say anything of any length."""
    if "$ref" in schema:
        yield from unbounded(schemas[schema["$ref"].rpartition("/")[2]], place, schemas)
        return
    for part in [one for name in ("anyOf", "oneOf", "allOf") for one in schema.get(name, ())]:
        yield from unbounded(part, place, schemas)
    match schema.get("type"):
        case "array":
            if "maxItems" not in schema:
                yield f"{place}: list"
            yield from unbounded(schema["items"], f"{place}[]", schemas)
        case "string":
            if not schema.keys() & {"maxLength", "enum", "const"} and schema.get("format") not in ("date", "date-time"):
                yield f"{place}: text"
        case "object":
            if schema.get("additionalProperties") is not False:
                yield f"{place}: map"
            for name, part in schema.get("properties", {}).items():
                yield from unbounded(part, f"{place}.{name}", schemas)
        case "integer" | "number":
            if not schema.keys() & {"maximum", "exclusiveMaximum"} and " path " not in place:
                yield f"{place}: number"
        case "boolean" | "null":
            pass
        case None:
            if not schema.keys() & {"anyOf", "oneOf", "allOf", "enum", "const"}:
                yield f"{place}: anything"


def test_each_text_list_and_number_of_a_request_has_a_bound(app) -> None:
    document = app.openapi()
    found = [
        one for place, schema in inputs(document) for one in unbounded(schema, place, document["components"]["schemas"])
    ]
    # An archive, whose route counts its bytes.
    assert found == ["post /api/v1/code body: text"]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array", "items": {"type": "integer", "maximum": 1}}, "x: list"),
        ({"anyOf": [{"type": "null"}, {"type": "string", "pattern": "a*"}]}, "x: text"),
        ({"type": "array", "maxItems": 1, "items": {"type": "string"}}, "x[]: text"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "x: map"),
        ({"$ref": "#/components/schemas/S"}, "x.a: number"),
        ({}, "x: anything"),
    ],
)
def test_a_schema_without_a_bound_is_found(schema: dict[str, Any], words: str) -> None:
    schemas = {"S": {"type": "object", "additionalProperties": False, "properties": {"a": {"type": "integer"}}}}
    assert list(unbounded(schema, "x", schemas)) == [words]
