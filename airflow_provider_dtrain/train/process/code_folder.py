"""The folder with the user's code, as the library's own programs import from it."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import ModuleType

from airflow_provider_dtrain.train.errors import SetupError


def add_code_folder() -> None:
    """Make the modules of the current folder importable, behind those of Python itself.

    ``python -m`` puts the current folder in front of everything, so that a ``numbers.py`` of the user would replace the
    module that torch imports. A supervisor starts the program without it. Processes that the user's code starts get
    the usual environment.
    """
    folder = os.getcwd()
    if os.environ.get("DTRAIN_RUN"):
        folders = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part not in ("", folder)]
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *folders])
    kept = [path for path in sys.path if path and os.path.abspath(path) != folder]
    own = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    own |= {os.path.join(path, "lib-dynload") for path in own}
    place = max((index + 1 for index, path in enumerate(kept) if path in own), default=0)
    sys.path[:] = [*kept[:place], folder, *kept[place:]]


def check_is_own(module: ModuleType, name: str) -> None:
    """Raise when the current folder has a module of this name, and another one was imported.

    :param name: dotted name of the module
    :raises SetupError: names both
    """
    top = name.partition(".")[0]
    folder = os.getcwd()
    mine = next((path for path in (f"{top}.py", os.path.join(top, "__init__.py")) if os.path.exists(path)), None)
    path = getattr(module, "__file__", None)
    if mine is not None and not (path and os.path.abspath(path).startswith(os.path.join(folder, ""))):
        found = path or "a built-in module"
        raise SetupError(f"{mine} has the name of a module that Python imports instead: {found}. Rename {mine}.")
