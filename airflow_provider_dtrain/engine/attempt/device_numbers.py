"""Places of the user's code that take ``LOCAL_RANK`` for the number of a device, read without running the code.

Under torchrun this is right. It is wrong where each rank sees only its own device, which is then number 0.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

from airflow_provider_dtrain.engine.attempt.required_modules import parsed, python_sources

#: Names of the local rank in code, in lower case.
_LOCAL_RANK = frozenset({"local_rank", "--local_rank", "--local-rank", "get_node_local_rank"})
#: Calls whose argument is the number of a device.
_CALLS = frozenset({"set_device", "cuda", "device", "to"})
#: Calls whose result is the local rank, or a device of that number, if an argument is the local rank.
_PASSING = frozenset({"int", "str", "get", "getenv", "pop", "format", "device"})
#: Keyword arguments that hold numbers of devices.
_KEYWORDS = frozenset({"device_ids", "output_device", "device_id", "device", "device_index"})
#: Packages that use LOCAL_RANK as the number of a device.
_FRAMEWORKS = frozenset({"accelerate", "deepspeed", "lightning", "pytorch_lightning", "transformers"})


def uses_of_local_rank(payload: bytes) -> tuple[str, ...]:
    """Return the places that take ``LOCAL_RANK`` for the number of a device, e.g. ``train.py:12``.

    :param payload: tar.gz of the user's code
    """
    found: list[str] = []
    for name, source in sorted(python_sources(payload).items()):
        if b"rank" in source.lower():
            found += [f"{PurePosixPath(name)}:{line}" for line in sorted(set(_lines(parsed(source))))]
    return tuple(found)


def frameworks_with_local_rank(payload: bytes) -> tuple[str, ...]:
    """Return the imported packages that take ``LOCAL_RANK`` for the number of a device."""
    found: set[str] = set()
    for source in python_sources(payload).values():
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return tuple(sorted(found & _FRAMEWORKS))


def _lines(tree: ast.Module) -> Iterator[int]:
    names = _names_of_local_rank(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        given = [word.value for word in node.keywords if word.arg in _KEYWORDS]
        if _called(node) in _CALLS:
            given += node.args
        if any(_has_local_rank(value, names) for value in given):
            yield node.lineno


def _names_of_local_rank(tree: ast.Module) -> frozenset[str]:
    """Return the variables that hold the local rank, or a text or device made of it."""
    names: frozenset[str] = frozenset()
    while True:
        more = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and _has_local_rank(node.value, names)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        if more <= names:
            return names
        names |= more


def _has_local_rank(node: ast.AST, names: frozenset[str]) -> bool:
    """Return whether an expression depends on the local rank. A remainder by the number of devices is right."""
    if isinstance(node, ast.Compare | ast.Lambda):
        return False
    if isinstance(node, ast.Call) and _called(node) not in _PASSING | _LOCAL_RANK:
        return False
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and not isinstance(node.left, ast.Constant):
        return False
    if isinstance(node, ast.Name):
        return node.id in names or node.id.lower() in _LOCAL_RANK
    if isinstance(node, ast.Attribute) and node.attr.lower() in _LOCAL_RANK:
        return True
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.lower() in _LOCAL_RANK
    return any(_has_local_rank(child, names) for child in ast.iter_child_nodes(node))


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
