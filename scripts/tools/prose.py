"""Checks the language of docstrings, comments, messages, pages and names against the rules in CONTRIBUTING.md.

``python scripts/tools/prose.py [PATH ...]`` prints each breach with its place, and ends with 1 when there is one.
Without a path, it checks every Python, Markdown and YAML file that git tracks.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import identifiers

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("airflow_provider_dtrain")
SUFFIXES = (".py", ".md", ".yaml", ".yml", ".toml", ".c")
#: Words that name no actor. "No more than" is a comparison.
#: A phrase may go on in the next line of a comment.
_GAP = r"(?:\s|^\s*#)+"
BANNED = re.compile(
    rf"\b(?:nobody|somebody|anybody|whoever|(?:any|no){_GAP}more\b(?!{_GAP}than\b))", re.IGNORECASE | re.MULTILINE
)
#: A first line is a verb or a noun phrase.
OPENINGS = re.compile(r"(what|who|whoever|whose|whether|that|how|where|which)\b", re.IGNORECASE)
#: Files that list the words themselves.
LISTS = tuple(
    Path(name)
    for name in (
        "scripts/tools/identifiers.py",
        "scripts/tools/prose.py",
        "tests/unit/test_prose.py",
        "CONTRIBUTING.md",
    )  # fmt: skip
)


@dataclass(frozen=True)
class Breach:
    """One place that breaks a rule."""

    path: Path
    line: int
    rule: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}"


def banned_words(path: Path, text: str) -> Iterator[Breach]:
    """Yield each banned word, also one that is spread over two lines."""
    for found in BANNED.finditer(text):
        words = " ".join(found[0].replace("#", " ").split())
        yield Breach(path, text.count("\n", 0, found.start()) + 1, f"banned word: {words}")


def docstrings(path: Path, text: str) -> Iterator[Breach]:
    """Yield first lines of docstrings that open with a question word or hold a semicolon."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        docstring = ast.get_docstring(node)
        if not docstring:
            continue
        line, first = node.body[0].lineno, docstring.partition("\n\n")[0]
        if opening := OPENINGS.match(first):
            yield Breach(path, line, f"docstring opens with: {opening[0]}")
        if ";" in first.partition("\n")[0]:
            yield Breach(path, line, "semicolon in the first line of a docstring")


def names(path: Path, text: str) -> Iterator[Breach]:
    """Yield public names with words that are not those of the field, and names in docstrings that do not exist."""
    tree = ast.parse(text)
    defined = [identifiers.Definition(path.stem, 1, True), *identifiers.definitions(tree)]
    for one in defined:
        if one.is_public and (words := identifiers.dialect(one.name)):
            yield Breach(path, one.line, f"public name {one.name} has: {', '.join(words)}")
    for line, name in identifiers.missing(tree, ROOT / PACKAGE):
        yield Breach(path, line, f"docstring names what does not exist: {name}")


def breaches(path: Path, text: str) -> Iterator[Breach]:
    """Yield what is wrong in one file.

    :param path: relative to the repository
    """
    if path in LISTS:
        return
    yield from banned_words(path, text)
    if path.suffix == ".py":
        yield from docstrings(path, text)
    if path.suffix == ".py" and PACKAGE in path.parents:
        yield from names(path, text)


def tracked() -> list[Path]:
    """Return the files that git tracks, and those that are new."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [Path(name) for name in names if name.endswith(SUFFIXES) and (ROOT / name).exists()]


def main() -> int:
    """Print all breaches; return 1 when there is one."""
    paths = [Path(name).resolve().relative_to(ROOT) for name in sys.argv[1:]]
    files = [one for one in tracked() if not paths or any(one == path or path in one.parents for path in paths)]
    found = [breach for path in files for breach in breaches(path, (ROOT / path).read_text(encoding="utf-8"))]
    for breach in found:
        print(breach)
    if found:
        print(f"{len(found)} breaches of the rules in CONTRIBUTING.md, section Language.")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
