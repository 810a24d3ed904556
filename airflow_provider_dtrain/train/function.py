"""Run a function from a copy of its source: ``python -m airflow_provider_dtrain.train.function FOLDER/FILE.py``.

The control side starts it as the ranks of a ``@task.dtrain`` function. The file ``call.json`` is beside the source.
"""

from __future__ import annotations

import ast
import json
import math
import os
import sys
import time
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.errors import ResultError
from airflow_provider_dtrain.train.process.code_folder import add_code_folder
from airflow_provider_dtrain.train.reports import failure
from airflow_provider_dtrain.train.reports.events import EventWriter

#: Largest result of a function as JSON, bytes, because it becomes an XCom.
RESULT_LIMIT_BYTES = 1 << 20
CALL = "call.json"
MODULE = "dtrain_function"
#: Kind of the events that carry the result, as pieces of JSON text.
RETURNED = "returned"
#: Characters of a piece. An event stays below its limit even when each of them is escaped.
PIECE = 1 << 18


def main(argv: Sequence[str] | None = None) -> int:
    """Call the function and return the exit status."""
    path = Path((sys.argv[1:] if argv is None else argv)[0])
    call = json.loads((path.parent / CALL).read_text(encoding="utf-8"))
    rank = int(os.environ.get("RANK", "0"))
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    failure.install(Path(error_file) if error_file else None, rank)
    add_code_folder()
    function = load(path, call["name"], call["defaults"])
    try:
        value = function(*call["args"], **call["kwargs"])
    except Exception as error:
        _report(error)
        return 1
    if rank == 0:
        try:
            text = result_json(value, call["name"])
        except ResultError as error:
            # The traceback holds no line of the function, and the lines of this file do not help.
            error.__traceback__ = None
            failure.record(error)
            print(error, file=sys.stderr)
            return 1
        _send(text)
    return 0


def load(path: Path, name: str, defaults: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function that a file defines.

    Decorators, type hints and the expressions of defaults are removed, because their names belong to the DAG file.

    :param defaults: values of the defaults of its parameters
    """
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    found = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)
    _strip(found)
    module = types.ModuleType(MODULE)
    module.__file__ = str(path)
    sys.modules[MODULE] = module
    code = compile(ast.Module([found], []), str(path), "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - the code that the user wants to run
    function: Any = getattr(module, name)
    place = found.args
    positional = [*getattr(place, "posonlyargs", []), *place.args][-len(place.defaults) :] if place.defaults else []
    function.__defaults__ = tuple(defaults.get(argument.arg) for argument in positional) or None
    keywords = {argument.arg: defaults.get(argument.arg) for argument in place.kwonlyargs if argument.arg in defaults}
    function.__kwdefaults__ = keywords or None
    return function  # type: ignore[no-any-return]


def _strip(node: ast.FunctionDef) -> None:
    node.decorator_list = []
    node.returns = None
    for argument in ast.walk(node.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    nothing = ast.copy_location(ast.Constant(None), node)
    node.args.defaults = [nothing for _ in node.args.defaults]
    node.args.kw_defaults = [None if default is None else nothing for default in node.args.kw_defaults]


def plain_json(value: Any, where: str) -> Any:
    """Return a value made of plain JSON types.

    :param where: name of the value, for the message
    :raises ValueError: the value holds another type; names its place
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}, which JSON cannot hold. Use None, or a string like '{value}'.")
        return float(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{where} has the key {key!r}, but keys of JSON must be strings.")
        return {str(key): plain_json(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [plain_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    kind = f"{type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")
    allowed = "numbers, strings, True, False, None, and lists and dicts of them"
    raise ValueError(f"{where} is a {kind}. Allowed are {allowed}.{_hint(value)}")


def _hint(value: Any) -> str:
    if isinstance(value, (set, frozenset)):
        return " Convert it with sorted() or list()."
    if hasattr(value, "tolist"):
        return " Convert it with its .tolist()."
    return " Convert it with its .item()." if hasattr(value, "item") else ""


def result_json(value: Any, name: str) -> str:
    """Return a function's result as JSON text.

    :param name: name of the function
    :raises ResultError: the result is not JSON, or is too large
    """
    try:
        text = json.dumps(plain_json(value, "result"), allow_nan=False)
    except RecursionError:
        raise ResultError(f"{name}() returned what cannot become an XCom: result contains itself.") from None
    except ValueError as error:
        raise ResultError(f"{name}() returned what cannot become an XCom: {error}") from None
    size = len(text.encode("utf-8", errors="surrogatepass"))
    if size > RESULT_LIMIT_BYTES:
        raise ResultError(
            f"A result of a @task.dtrain function must have at most {RESULT_LIMIT_BYTES:,} bytes as JSON, this one of "
            f"{name}() has {size:,}. Write it to storage and return its location."
        )
    return text


def _send(text: str) -> None:
    """Write the result to the events file, which the control side reads."""
    pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    now = time.time()
    events = [(now, RETURNED, {"json": piece, "part": part, "parts": len(pieces)}) for part, piece in enumerate(pieces)]
    startup = sys.modules.get("airflow_provider_dtrain.train.initialization")
    live = getattr(startup, "_live", None)
    if live:
        # The file must have one writer, because the writer counts its lines.
        live[-1]._writer.write_all(events, sync=True)
        return
    path = os.environ.get("DTRAIN_EVENTS")
    writer = EventWriter(Path(path) if path else None)
    writer.write_all(events, sync=True)
    writer.close()


def joined(pieces: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the JSON text of the latest complete result in the events that carry it, or None."""
    found: str | None = None
    parts: list[str] = []
    for piece in pieces:
        part = piece.get("part", 0)
        parts = [*parts[:part], str(piece.get("json"))] if part == len(parts) or part == 0 else []
        if len(parts) == piece.get("parts", 1):
            found = "".join(parts)
    return found


def _report(error: Exception) -> None:
    """Record and print an exception of the function without the lines of this file."""
    inside = error.__traceback__.tb_next if error.__traceback__ else None
    error.__traceback__ = inside
    failure.record(error)
    traceback.print_exception(type(error), error, inside)


if __name__ == "__main__":
    sys.exit(main())
