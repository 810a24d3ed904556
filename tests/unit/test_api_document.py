"""The OpenAPI document of the API: it is committed, and each route declares its rule."""

from __future__ import annotations

import runpy
from pathlib import Path

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
    assert reads_only <= {("/api/v1/configs/validate", "POST")}
