"""Code of a decorated function as it is sent to hosts: its own lines, and its call."""

from __future__ import annotations

import inspect
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.decorators._function import bind

if TYPE_CHECKING:
    from airflow_provider_dtrain.decorators._function import FunctionSource

#: Folder of the payload that holds the function.
FOLDER = "dtrain_function"


def call_of(
    function: Callable[..., Any], args: list[Any], kwargs: Mapping[str, Any], context: Mapping[str, Any]
) -> JsonObject:
    """Return a call, with values of Airflow's context for parameters that have the name of a context key.

    :raises FunctionError: an argument is missing, unknown, or not JSON; the message names it
    """
    from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

    signature = inspect.signature(function)
    given = signature.bind_partial(*args, **kwargs).arguments
    of_context = {
        name: context[name]
        for name in signature.parameters
        if name in KNOWN_CONTEXT_KEYS and name not in given and name in context
    }
    return bind(function, args, {**kwargs, **of_context})


@contextmanager
def code_with(
    source: FunctionSource,
    call: Mapping[str, Any],
    folder: Path,
    model_dir: str | None,
    modules: Mapping[str, str] | None = None,
    files: Iterable[str] = (),
) -> Iterator[Path]:
    """Yield a temporary folder that has the function, its call and the configured code where a submission expects them.

    :param folder: folder of the DAG file, where ``model_dir`` starts
    :param model_dir: code that is sent with the function; None = none
    :param modules: file name -> source of further modules
    :param files: further files and folders, relative to that of the DAG file, which are sent without ``model_dir``
    """
    with tempfile.TemporaryDirectory(prefix="dtrain-") as root:
        code = Path(root) / (model_dir or "")
        if model_dir:
            shutil.copytree(folder / model_dir, code, symlinks=True)
        for name in files if not model_dir else ():
            _copy(folder / name, code / name)
        place = code / FOLDER
        place.mkdir()
        (place / source.file_name).write_text(source.text, encoding="utf-8")
        (place / "call.json").write_text(json.dumps(call, allow_nan=False), encoding="utf-8")
        for name, text in (modules or {}).items():
            (code / name).write_text(text, encoding="utf-8")
        yield Path(root)


def _copy(source: Path, target: Path) -> None:
    """Copy a file or a folder. A missing one is reported where the configuration is checked."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    elif source.is_file():
        shutil.copyfile(source, target)
