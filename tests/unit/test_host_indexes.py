"""Package indexes that a host is set up for."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from airflow_provider_dtrain.supervisor.environments import index
from airflow_provider_dtrain.supervisor.refusal import Refused

ONE = "https://one.example/simple"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(index, "_PIP_FILES", (str(tmp_path / "pip.conf"),))
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_a_host_without_settings_uses_the_index_of_pip() -> None:
    from pip._internal.models.index import PyPI

    assert index.host_indexes({}, None) == [PyPI.simple_url]


def test_settings_prevail_over_the_index_of_pip(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {ONE}\n")
    assert index.host_indexes({}, None) == [ONE]
    environ = {"UV_DEFAULT_INDEX": "https://two.example/simple", "PIP_EXTRA_INDEX_URL": "https://three.example/simple"}
    assert index.host_indexes(environ, None) == ["https://two.example/simple", "https://three.example/simple"]


def test_a_host_that_knows_no_index_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(Refused, match="Set PIP_INDEX_URL there, or environment.index_conn_id"):
        index.host_indexes({}, None)
