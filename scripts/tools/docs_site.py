"""The documentation site of scripts/docs.

Collects the pages of docs/, pages made from the code, examples and project files in build/docs/source, and lets Sphinx
make the site in build/docs/site. A link in Markdown names a file of the repository, so it works there; on the site, a
link to a file outside docs/ leads to the page of that file.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import http.server
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import reference
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BUILD = ROOT / "build" / "docs"
SOURCE, SITE = BUILD / "source", BUILD / "site"
#: Documents outside docs/ -> their pages.
PROJECT = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CODE_OF_CONDUCT.md": "project/conduct.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "LICENSE": "project/license.md",
    "ui/README.md": "project/pages.md",
    "tests/faults/README.md": "project/faults.md",
}
#: Library that draws the diagrams, and the digest of its file. The site loads nothing from another origin.
MERMAID, MERMAID_SHA256 = "mermaid@11.17.2", "581ed7d74bd9048d0e3a91363927d72ef22942d7722546b27f7cc29e35390eb8"
_LINK = re.compile(r"(\[[^\]]*\]\()([^)\s#]+)((?:#[^)\s]*)?\))|((?:href|src|srcset)=\")([^\"#]+)((?:#[^\"]*)?\")")
_FENCE = re.compile(r"(^ *```.*?^ *```)", re.M | re.S)
_KINDS = {".py": "python", ".yaml": "yaml", ".sh": "bash", ".md": "markdown"}


class SiteError(Exception):
    """The site cannot be built. Its text is for the author of a page."""


# -- pages ---------------------------------------------------------------------------------------
def pages() -> dict[str, tuple[str, str]]:
    """Return all pages: path on the site -> file of the repository that its links start from, and text."""
    found = {
        path.relative_to(DOCS).as_posix(): (path.relative_to(ROOT).as_posix(), path.read_text())
        for path in DOCS.rglob("*.md")
        if path.parent.name != "site"
    }
    origin, text = found.pop("decisions/README.md")
    found["decisions/index.md"] = (origin, text + _toctree(_decisions()))
    for name, place in PROJECT.items():
        text = (ROOT / name).read_text()
        found[place] = (name, text if name.endswith(".md") else f"# License\n\n```text\n{text}```\n")
    for path in _examples():
        found[_example(path)] = (f"dags/{path.name}", _example_text(path))
    places = [_example(path).removesuffix(".md") for path in _examples()]
    found["examples/index.md"] = ("dags/README.md", _examples_index() + _toctree(places))
    return {
        **{uri: (origin, _with_site_links(origin, uri, text)) for uri, (origin, text) in found.items()},
        **{uri: ("", text) for uri, text in {**reference.pages(), **_parts(found)}.items()},
    }


def _parts(found: dict[str, tuple[str, str]]) -> dict[str, str]:
    """Return the pages that begin the parts of the site, and the first page with the parts below it."""
    made, listed = {}, {"index"}
    nav = yaml.safe_load((DOCS / "site" / "nav.yaml").read_text())
    for part in nav:
        text = [f"# {part['part']}\n\n{part['about']}\n"]
        for group, names in part["groups"].items():
            text.append(f"\n## {group}\n" if group else "")
            titles = dict(next(iter(name.items())) if isinstance(name, dict) else (name, "") for name in names)
            places = {f"{name}/index" if f"{name}/index.md" in found else name: titles[name] for name in titles}
            listed.update(places)
            text.append(_toctree(places, hidden=False))
        made[f"{part['page']}.md"] = "".join(text)
    own = {uri.removesuffix(".md") for uri in found if not uri.startswith(("decisions/0", "examples/d"))}
    if missing := sorted(one for one in own - listed if not one.startswith(("examples/", "decisions/"))):
        raise SiteError(f"docs/site/nav.yaml does not name these pages: {', '.join(missing)}")
    first = _with_site_links("docs/index.md", "index.md", (DOCS / "index.md").read_text())
    made["index.md"] = first + _toctree([part["page"] for part in nav])
    return made


def _toctree(places: Iterable[str], *, hidden: bool = True) -> str:
    """Return a table of contents.

    :param places: pages; of a mapping, the values are their titles there, empty for those of the pages
    """
    option = ":hidden:\n" if hidden else ":maxdepth: 1\n"
    titles = places if isinstance(places, Mapping) else dict.fromkeys(places, "")
    rows = (f"{title} </{place}>\n" if title else f"/{place}\n" for place, title in titles.items())
    return f"\n```{{toctree}}\n{option}\n{''.join(rows)}```\n"


def _decisions() -> list[str]:
    return sorted(f"decisions/{path.stem}" for path in (DOCS / "decisions").glob("0*.md"))


# -- links ---------------------------------------------------------------------------------------
def _with_site_links(origin: str, page: str, text: str) -> str:
    """Return a text whose links lead to pages of the site."""

    def led(match: re.Match[str]) -> str:
        before, target, after = match.group(1, 2, 3) if match.group(1) else match.group(4, 5, 6)
        if re.match(r"[a-z]+:|/", target):
            return match.group(0)
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        place = _place(path)
        if place is None and (ROOT / path).exists() and before.startswith("["):
            return f"{before[1:-2]} (`{path}` of the repository)"
        if place is None:
            raise SiteError(f"{origin}: the link to {target!r} leads to no file.")
        if not before.startswith("["):
            place = place.removesuffix(".md") + ".html" if place.endswith(".md") else place
        return f"{before}{posixpath.relpath(place, posixpath.dirname(page) or '.')}{after}"

    return "".join(part if _FENCE.fullmatch(part) else _LINK.sub(led, part) for part in _FENCE.split(text))


def _place(path: str) -> str | None:
    """Return the place of a file of the repository on the site."""
    if path in PROJECT:
        return PROJECT[path]
    if path in ("README.md", "docs", "docs/README.md"):
        return "index.md"
    if not (ROOT / path).exists():
        return None
    if path.startswith("docs/"):
        place = path.removeprefix("docs/")
        if place == "decisions/README.md" or place == "decisions":
            return "decisions/index.md"
        return place if place.endswith((".md", ".png", ".svg")) else f"files/{place}"
    if path == "dags":
        return "examples/index.md"
    if path.startswith("dags/"):
        return _example(ROOT / "dags" / path.split("/")[1])
    return None


# -- examples ------------------------------------------------------------------------------------
def _examples() -> list[Path]:
    """Return DAG files, and folders of the code that they start."""
    return sorted(path for path in (ROOT / "dags").iterdir() if path.suffix == ".py" or _code_files(path))


def _code_files(path: Path) -> list[Path]:
    kinds = (*_KINDS, ".txt")
    return sorted(one for one in path.rglob("*") if one.suffix in kinds) if path.is_dir() else []


def _example(path: Path) -> str:
    return f"examples/{path.stem}.md"


def _example_text(path: Path) -> str:
    if path.is_file():
        text = path.read_text()
        about = ast.get_docstring(ast.parse(text)) or ""
        return f"# {path.name}\n\n{_markdown(about)}\n\n````python\n{text}````\n"
    parts = [f"# dags/{path.name}\n\nCode that the hosts run.\n"]
    for one in _code_files(path):
        parts.append(f"\n## {one.relative_to(path)}\n\n````{_KINDS.get(one.suffix, 'text')}\n{one.read_text()}\n````\n")
    return "".join(parts)


def _examples_index() -> str:
    rows = []
    for path in _examples():
        if path.is_file():
            about = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
            rows.append(f"| [{path.stem}]({path.name}) | {reference.cell(_markdown(about))} |\n")
    return "# Examples\n\nDAG files of the folder `dags/`. Tests run them.\n\n| DAG | content |\n|---|---|\n" + "".join(
        rows
    )


def _markdown(text: str) -> str:
    """Return a docstring as Markdown."""
    return re.sub(r":\w+:`[~.]*([^`]*)`", r"`\1`", text.replace("``", "`"))


# -- build ---------------------------------------------------------------------------------------
def collect() -> None:
    """Write all sources of the site."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for uri, (_, text) in pages().items():
        path = SOURCE / uri
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("conf.py", "scorer.js"):
        shutil.copy(DOCS / "site" / name, SOURCE / name)
    (SOURCE / "_static").mkdir()
    shutil.copy(DOCS / "site" / "extra.css", SOURCE / "_static" / "extra.css")
    if library := mermaid():
        shutil.copy(library, SOURCE / "_static" / "mermaid.min.js")
    # Pictures that HTML names keep their places, and files that are no pages can be downloaded.
    shutil.copytree(DOCS / "images", SOURCE / "_extra" / "images")
    for path in DOCS.rglob("*"):
        if path.suffix in (".json", ".yml", ".ipynb"):
            target = SOURCE / "files" / path.relative_to(DOCS)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


def mermaid() -> Path | None:
    """Return the library of the diagrams, which is fetched once, or None if npm is missing or fails.

    :raises SiteError: the file is another one
    """
    path = BUILD / f"{MERMAID_SHA256[:12]}.js"
    if path.exists():
        return path
    if not shutil.which("npm"):
        print("npm is missing: the site shows diagrams as text.", flush=True)
        return None
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", MERMAID, "--silent", "--pack-destination", folder]
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, timeout=300, check=True)
        except subprocess.SubprocessError as error:
            print(f"npm could not fetch {MERMAID}: the site shows diagrams as text. {error}", flush=True)
            return None
        with tarfile.open(next(Path(folder).iterdir())) as tar:
            member = tar.extractfile("package/dist/mermaid.min.js")
            data = member.read() if member else b""
    if hashlib.sha256(data).hexdigest() != MERMAID_SHA256:
        raise SiteError(f"{MERMAID} is another file than the one that scripts/tools/docs_site.py names.")
    BUILD.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def build() -> None:
    """Build the site. Each warning is an error.

    :raises SiteError: a page has a problem
    """
    collect()
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(SOURCE), str(SITE)]
    # autodoc imports the operators, and Airflow writes a configuration on import.
    environment = {**os.environ, "AIRFLOW_HOME": str(BUILD / "airflow"), "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR"}
    environment["PYTHONPATH"] = str(ROOT)
    if subprocess.run(command, check=False, env=environment).returncode:
        raise SiteError("Sphinx found problems, see above.")
    if found := sorted(foreign_addresses()):
        raise SiteError("Pages would load something from another origin:\n" + "\n".join(found[:20]))


def foreign_addresses() -> set[str]:
    """Return what pages load from another origin, with the page."""
    loads = re.compile(r"<(?:script|link|img|source|iframe)\b[^>]*?(?:src|href|srcset)=\"((?:https?:)?//[^\"]*)\"")
    return {
        f"{path.relative_to(SITE)}: {address}"
        for path in SITE.rglob("*.html")
        for address in loads.findall(path.read_text())
    }


def serve(port: int) -> None:
    """Serve the site on this machine until Ctrl-C."""
    handler: Any = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/index.html")
        server.serve_forever()
