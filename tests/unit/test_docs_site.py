"""The sources of the documentation site, without Sphinx: each page has a place, each link a target."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.script_tools import script_tool

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def site() -> Iterator[ModuleType]:
    with script_tool("docs_site", "reference", "samples") as found:
        yield found


@pytest.fixture(scope="module")
def pages(site: ModuleType) -> dict[str, str]:
    return {uri: text for uri, (_, text) in site.pages().items()}


def toctrees(pages: dict[str, str]) -> str:
    return "\n".join(one for text in pages.values() for one in re.findall(r"```\{toctree\}\n.*?```", text, re.DOTALL))


def test_every_page_of_docs_has_a_place_in_the_navigation(pages: dict[str, str]) -> None:
    listed = set(re.findall(r"^(?:.* <)?/([^\s>]+)>?$", toctrees(pages), re.MULTILINE))
    missing = {uri.removesuffix(".md") for uri in pages} - listed - {"index"}
    assert missing == set()
    assert {f"{place}.md" for place in listed} <= set(pages)


def test_links_lead_to_pages_of_the_site(pages: dict[str, str]) -> None:
    broken = [
        (uri, target)
        for uri, text in pages.items()
        for target in re.findall(
            r"\]\((?![a-z]+:|#|/)([^)#\s]+)", re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
        )
        if posixpath.normpath(posixpath.join(posixpath.dirname(uri), target)) not in pages and "files/" not in target
    ]
    assert broken == []


def test_the_reference_has_every_command_field_and_route(site: ModuleType, pages: dict[str, str]) -> None:
    commands = pages["reference/commands.md"]
    for name in ("hosts drain", "trials logs", "experiments create", "doctor", "login"):
        assert f"\n### {name}\n" in commands
    assert "| `--now` | Gangs there save at their next step and resume elsewhere |" in commands
    fields = pages["reference/configuration.md"]
    assert "| `slots_per_trial` | integer | `1` | 0 requests one CPU-only process that needs no slot. |" in fields
    assert "\n## searcher\n" in fields
    assert "\n### GET /api/v1/trials/{trial_id}\n" in pages["reference/http-api.md"]


def test_a_page_outside_the_navigation_and_a_link_to_nothing_are_refused(
    site: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(site.SiteError, match="leads to no file"):
        site._with_site_links("docs/x.md", "x.md", "see [this](nowhere.md)")
    assert site._with_site_links("docs/x.md", "x.md", "[a](../scripts/test)") == "a (`scripts/test` of the repository)"
    assert site._with_site_links("docs/x.md", "x.md", "[a](../CHANGELOG.md#b)") == "[a](project/changelog.md#b)"
    with pytest.raises(site.SiteError, match=r"does not name these pages: lonely"):
        site._parts({"lonely.md": ("docs/lonely.md", "")})


def test_code_in_the_form_of_a_link_stays(site: ModuleType) -> None:
    text = "```python\nx = a[1](b)\n```\n"
    assert site._with_site_links("docs/x.md", "x.md", text) == text
