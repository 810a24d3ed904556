"""Modules that a command needs on the hosts, read from the user's code without running it."""

from __future__ import annotations

import ast
import io
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath

from airflow_provider_dtrain.core.config.types import is_trial_class

_LIBRARY = "airflow_provider_dtrain.train"
#: Modules and names of the training library that import torch. The rest of it works without.
_WITH_TORCH = frozenset(
    {"DataLoader", "LRScheduler", "PyTorchCallback", "PyTorchTrial", "evaluate_trial", "harness", "inference"}
    | {"load_weights", "optim", "pytorch", "run_trial", "trial", "BatchProcessor", "InferenceContext"}
    | {"determined.pytorch", "determined.transformers"}
)
#: Modules that code may import where they are installed: only an import that always runs needs them.
_OPTIONAL = ("numpy", "determined")
#: Module that runs the file named after it, without PyTorch if that file needs none.
RUNS_FUNCTIONS = "airflow_provider_dtrain.train.function"
_MAX_SOURCE_BYTES = 4 * 1024 * 1024
# Python 3.11 counts the depth of its parser once for all threads: two parsers at a time raise SystemError (seen).
_PARSING = threading.Lock()


def needed_modules(command: Sequence[str], payload: bytes) -> tuple[str, ...]:
    """Return the modules that the command's script imports, directly or through files of the payload.

    :param command: words of the entrypoint; only Python scripts, trial classes and ``-m`` are analyzed
    :param payload: tar.gz of the user's code
    """
    sources = python_sources(payload)
    imported = {*_run_modules(command), *_reached(command, sources, _imports)}
    needed = set(filter(None, map(_needed, imported)))
    # PyTorch does without NumPy. Code that imports it where it is there does without as well.
    always = {module.partition(".")[0] for module in _reached(command, sources, _unconditional_imports)}
    own = {name for name in _OPTIONAL if any(file in sources for file in _files_of(name))}
    return tuple(sorted(needed | (always & set(_OPTIONAL)) - own))


def _reached(
    command: Sequence[str], sources: Mapping[str, bytes], imports: Callable[[bytes], Iterator[str]]
) -> set[str]:
    """Return the modules that a command imports, directly or through files of the payload.

    :param imports: returns the modules that a file imports
    """
    waiting = [name for name in _entry_files(command) if name in sources]
    seen = set(waiting)
    reached = set()
    while waiting:
        for module in imports(sources[waiting.pop()]):
            reached.add(module)
            for name in _files_of(module):
                if name in sources and name not in seen:
                    seen.add(name)
                    waiting.append(name)
    return reached


def _run_modules(command: Sequence[str]) -> Iterator[str]:
    """Yield the name of each module that is run with ``-m``.

    :data:`RUNS_FUNCTIONS` is left out: it needs only what its function needs.
    """
    for word, following in pairwise(command):
        if word == "-m" and following != RUNS_FUNCTIONS:
            yield following


def _needed(module: str) -> str | None:
    """Return the module whose absence is reported before the launch of a program that imports this one."""
    if module.partition(".")[0] == "torch":
        return "torch"
    inner = module.removeprefix(f"{_LIBRARY}.")
    first, _, rest = inner.partition(".")
    names = {first, f"{first}.{rest.partition('.')[0]}"}
    return "torch" if inner != module and names & _WITH_TORCH else None


def _entry_files(command: Sequence[str]) -> Iterator[str]:
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word == "-m":
            yield from (*_files_of(following), f"{following.replace('.', '/')}/__main__.py")
        elif is_trial_class(word):
            yield from _files_of(word.partition(":")[0])
        elif word.endswith(".py"):
            yield str(PurePosixPath(word))


def _files_of(module: str) -> Iterator[str]:
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        path = "/".join(parts[:count])
        yield f"{path}.py"
        yield f"{path}/__init__.py"


def parsed(source: bytes) -> ast.Module:
    """Return the syntax tree of a file, an empty one if it is not Python."""
    try:
        with _PARSING:
            return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _imports(source: bytes) -> Iterator[str]:
    return _modules(ast.walk(parsed(source)))


def _unconditional_imports(source: bytes) -> Iterator[str]:
    """Yield the modules that are imported whenever a file is: not in a function, a condition or ``try``."""
    return _modules(parsed(source).body)


def _modules(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def regular_files(payload: bytes) -> dict[str, bytes]:
    """Return the files of a packed code folder, by path."""
    files = {}
    with tarfile.open(fileobj=io.BytesIO(payload), mode="r:gz") as archive:
        for member in archive:
            if member.isfile():
                content = archive.extractfile(member)
                files[str(PurePosixPath(member.name))] = content.read() if content else b""
    return files


def python_sources(payload: bytes) -> Mapping[str, bytes]:
    """Return the Python files of a packed code folder, by path."""
    sources = {}
    with tarfile.open(fileobj=io.BytesIO(payload), mode="r:gz") as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(".py") and member.size <= _MAX_SOURCE_BYTES:
                content = archive.extractfile(member)
                sources[str(PurePosixPath(member.name))] = content.read() if content else b""
    return sources
