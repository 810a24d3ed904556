"""Statements of the pages and the container files that must match the code."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from airflow_provider_dtrain.core.config import ExperimentConfig

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def fields(model: type[BaseModel]) -> Iterator[str]:
    """Return the names of all fields of a model and of the models inside it."""
    for name, field in model.model_fields.items():
        yield name
        for inner in models_in(field.annotation):
            yield from fields(inner)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Return the models that a type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from models_in(part)


def test_the_page_of_options_is_written_from_the_provider_info() -> None:
    tool = runpy.run_path(str(ROOT / "scripts" / "tools" / "options_page.py"))
    assert (ROOT / "docs" / "options.md").read_text() == tool["page"]()


def test_the_page_of_the_configuration_names_every_field() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`", page))))
    storages = {"bucket", "endpoint_url", "prefix", "container", "account_url"}
    assert set(fields(ExperimentConfig)) - named - storages == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_compose_file_names_files_and_services_that_exist() -> None:
    folder = ROOT / "docker"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        if build := service.get("build"):
            context = folder / build["context"]
            assert (context / build["dockerfile"]).is_file()
    for file in folder.glob("Dockerfile.*"):
        context = ROOT if file.name == "Dockerfile.airflow" else folder
        sources = re.findall(r"^COPY (?:--\S+ )*(.+) \S+$", file.read_text(), re.MULTILINE)
        assert [name for line in sources for name in line.split() if not (context / name).exists()] == []
