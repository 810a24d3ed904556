"""Execution of a notebook's cells in this process, and their outputs in the notebook's format."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

#: Files of the notebook of the Python client.
FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebook"
NOTEBOOK = FOLDER / "client-notebook.ipynb"


def cells() -> list[dict[str, Any]]:
    """Return the cells of the notebook."""
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]
    return found


def executed(folder: Path) -> list[list[dict[str, Any]]]:
    """Return the outputs of each code cell, executed in a folder. Paths below the folder are relative in them."""
    names: dict[str, Any] = {}
    with contextlib.chdir(folder):
        return [
            _outputs("".join(cell["source"]), names, number, folder)
            for number, cell in enumerate((one for one in cells() if one["cell_type"] == "code"), 1)
        ]


def _outputs(source: str, names: dict[str, Any], number: int, folder: Path) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue().replace(f"{folder}/", ""):
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        outputs.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return outputs


def write(outputs: list[list[dict[str, Any]]]) -> None:
    """Write the outputs of the code cells into the notebook."""
    notebook = json.loads(NOTEBOOK.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, found) in enumerate(zip(code, outputs, strict=True), 1):
        cell["outputs"], cell["execution_count"] = found, number
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
