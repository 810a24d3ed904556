"""Sphinx configuration of the documentation site. scripts/docs puts this file beside the pages that it collects."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.search.en import SearchEnglish
from sphinx.util.docutils import SphinxDirective

project = "airflow-provider-dtrain"
author = "The airflow-provider-dtrain authors"
copyright = "Apache License 2.0"
html_title = project
extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence", "deflist"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 6
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
nitpicky = False

html_theme = "furo"
html_static_path = ["_static"]
html_extra_path = ["_extra"]
html_css_files = ["extra.css"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_show_sourcelink = False
html_copy_source = False
html_theme_options: dict[str, Any] = {"footer_icons": [], "navigation_with_keys": True}
templates_path: list[str] = []

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
add_module_names = False

_START = """
const isDark = () => {
  const theme = document.body.dataset.theme;
  return theme === "dark" || (theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
};
// The dark theme writes names of edges grey on grey.
const colours = isDark() ? { theme: "dark", themeVariables: { edgeLabelBackground: "#131416" } } : { theme: "neutral" };
mermaid.initialize({ startOnLoad: true, securityLevel: "strict", ...colours });
"""
# Code and tables that are wider than their box scroll with the arrow keys.
_SCROLL = """
const reach = () => {
  for (const box of document.querySelectorAll("pre, .table-wrapper"))
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
};
addEventListener("load", reach);
addEventListener("resize", reach);
"""


class Mermaid(SphinxDirective):
    """A diagram in the language of Mermaid, drawn by the browser. Its text is the alternative."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the diagram."""
        text = html.escape("\n".join(self.content))
        return [nodes.raw("", f'<pre class="mermaid" tabindex="0">\n{text}\n</pre>', format="html")]


def _add_mermaid(app: Any, page: str, template: str, context: dict[str, Any], document: nodes.document | None) -> None:
    """Load the library on pages that have a diagram."""
    is_there = (Path(app.srcdir) / "_static" / "mermaid.min.js").exists()
    if is_there and document and any('class="mermaid"' in node.astext() for node in document.findall(nodes.raw)):
        app.add_js_file("mermaid.min.js")
        app.add_js_file(None, body=_START)


def _sections(document: nodes.document) -> Iterator[tuple[str, str, str]]:
    """Yield anchor, heading and stems of each section, without its subsections. The first anchor is empty."""
    language = SearchEnglish({})
    for number, section in enumerate(document.findall(nodes.section)):
        heading = next(iter(section.findall(nodes.title)), nodes.title()).astext()
        own = (part for part in section.children if not isinstance(part, nodes.section | nodes.raw))
        words = language.split(" ".join(part.astext() for part in own).lower())
        stems = dict.fromkeys(language.stem(word) for word in words)
        yield section["ids"][0] if number else "", heading, " ".join(stems)


def _write_sections(app: Any, error: Exception | None) -> None:
    """Write the words of each section, which Sphinx's index has only for whole pages. scorer.js reads them."""
    if error or app.builder.format != "html":
        return
    found = {page: list(_sections(app.env.get_doctree(page))) for page in sorted(app.env.found_docs)}
    text = f"const SECTIONS = {json.dumps(found, separators=(',', ':'), ensure_ascii=False)};\n"
    (Path(app.outdir) / "_static" / "sections.js").write_text(text, encoding="utf-8")


def _add_sections(app: Any, page: str, template: str, context: dict[str, Any], document: nodes.document | None) -> None:
    """Load the words of the sections on the page of the search."""
    if page == "search":
        app.add_js_file("sections.js")


def setup(app: Any) -> dict[str, bool]:
    """Register the diagrams, and the words of the sections for the search."""
    app.add_directive("mermaid", Mermaid)
    app.connect("html-page-context", _add_mermaid)
    app.connect("html-page-context", _add_sections)
    app.connect("build-finished", _write_sections)
    app.add_js_file(None, body=_SCROLL)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
