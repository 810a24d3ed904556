"""Checks of pages with axe-core."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from playwright.sync_api import Page

#: Faults that keep users from reading or using a page. The rest are recommendations.
SERIOUS = frozenset({"serious", "critical"})


@cache
def _source() -> str:
    return resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()


def faults(page: Page, within: str = "[data-testid=dtrain]") -> list[str]:
    """Return the serious faults of a page, each with the elements that have it.

    :param within: selector of the part that belongs to the provider
    """
    page.evaluate(_source())
    options = {"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
    found: dict[str, Any] = page.evaluate("([within, options]) => axe.run(within, options)", [within, options])
    return [
        f"{one['id']}: {one['help']}: " + "; ".join(str(node["html"])[:200] for node in one["nodes"][:3])
        for one in found["violations"]
        if one["impact"] in SERIOUS
    ]
