"""Names that code defines, and names that its docstrings mention."""

from __future__ import annotations

import ast
import builtins
import functools
import keyword
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Words for which Airflow, PyTorch and Slurm have others: notify, report, check, request, reason, message, ended.
DIALECT = frozenset(
    ("anew", "buried", "gone", "hear", "heard", "hears", "look", "looked", "looks", "meet", "meets", "met", "others")
    + ("said", "say", "saying", "says", "stranger", "strangers", "tell", "telling", "tells", "told")
    + ("who", "whoever", "whom", "whose", "words")
)
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
#: Names in double backquotes or in a role: of a file, or dotted.
_FILE = re.compile(r"``((?:\w+/)*\w+\.py)``")
_NAME = re.compile(r"``([a-z_]\w*(?:\.\w+)*)``|:\w+:`[.~]*([\w.]+)`")
#: Names of other programs and of their files that docstrings mention.
_FOREIGN = frozenset(["accelerator.log", "determined/pytorch/samplers.py", "eval_loss", "known_hosts", "torchrun"])


@dataclass(frozen=True)
class Definition:
    """A name that code defines."""

    name: str
    line: int
    is_public: bool


def dialect(name: str) -> list[str]:
    """Return the words of a name that are not those of the field."""
    return [part for part in map(str.lower, _PARTS.findall(name)) if part in DIALECT]


def definitions(tree: ast.AST) -> Iterator[Definition]:
    """Yield the names of classes, functions, parameters, variables and attributes.

    A parameter is as public as its function.
    """
    yield from _defined(tree, is_public=True)


def _defined(node: ast.AST, *, is_public: bool) -> Iterator[Definition]:
    for child in ast.iter_child_nodes(node):
        inside = is_public
        if isinstance(child, ast.ClassDef):
            inside = is_public and not child.name.startswith("_")
            yield Definition(child.name, child.lineno, inside)
        elif isinstance(child, Function):
            named = is_public and (not child.name.startswith("_") or child.name == "__init__")
            yield Definition(child.name, child.lineno, named)
            for argument in ast.walk(child.args):
                if isinstance(argument, ast.arg):
                    yield Definition(argument.arg, argument.lineno, named)
            inside = False
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield Definition(child.id, child.lineno, False)
        elif isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
            yield Definition(child.attr, child.lineno, False)
        elif isinstance(child, ast.arguments):
            continue
        yield from _defined(child, is_public=inside)


@functools.cache
def vocabulary(package: Path) -> frozenset[str]:
    """Return the names that occur in the code of a package outside comments and docstrings, and its modules."""
    names = {*keyword.kwlist, *dir(builtins), *sys.stdlib_module_names}
    for path in package.rglob("*.py"):
        names |= {path.stem, path.parent.name}
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {id(node.body[0].value) for node, _ in documented(tree)}
        for node in ast.walk(tree):
            if id(node) not in docstrings:
                names.update(_words(node))
    return frozenset(names)


def _words(node: ast.AST) -> Iterator[str]:
    """Yield the names in one node, and the words of a text."""
    match node:
        case ast.Constant(value=str(text)):
            yield from re.findall(r"\w+", text)
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            yield name
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.ImportFrom(module=str(module)):
            yield from module.split(".")
        case ast.alias(name=name):
            yield from name.split(".")


def documented(tree: ast.AST) -> Iterator[tuple[Any, str]]:
    """Yield each node that has a docstring, with the docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and (text := ast.get_docstring(node, clean=False)):
            yield node, text


def missing(tree: ast.Module, package: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of what docstrings mention, but the package does not have.

    All docstrings: files in a folder, and names in roles. The docstring of the module: also files and names in
    double backquotes, because it tells how the module stands to its neighbours.
    """
    known = vocabulary(package)
    for node, text in documented(tree):
        is_module, line = node is tree, node.body[0].lineno
        for name in _FILE.findall(text):
            if (is_module or "/" in name) and name not in _FOREIGN and not _has_file(package, name):
                yield line, name
        for plain, role in _NAME.findall(text):
            name = role or (plain if is_module and not plain.endswith(".py") else "")
            if name not in _FOREIGN and any(part and part not in known for part in name.split(".")):
                yield line, name


def _has_file(package: Path, name: str) -> bool:
    return (package.parent / name).exists() or any(
        path.as_posix().endswith(f"/{name}") for path in package.rglob(Path(name).name)
    )
