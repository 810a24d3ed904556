"""Actions at the end of the first import of a module, by whatever code and in whatever thread it is imported.

The script need not import torch, and if it does, then before or after ``dtrain.init()``. The result is the same.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from airflow_provider_dtrain.train.process.imported import imported

_Action = Callable[[], None]

_lock = threading.RLock()
#: Module -> name of the action -> action, in the order of their first registration. None: the module is imported.
_actions: dict[str, dict[str, _Action] | None] = {}
#: Exit handlers that the import of torch has registered.
_exits = contextlib.ExitStack()


def after_import(module: str, name: str, action: _Action) -> None:
    """Run an action now if the module is imported, else at the end of its import, before any code gets the module.

    An exception of the action then ends this import.

    :param name: a later action of this name replaces this one as long as it has not run
    """
    with _lock:
        is_new = module not in _actions
        waiting = _actions.setdefault(module, {})
        if waiting is None:
            action()
            return
        waiting[name] = action
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
            atexit.register(_exits.close)
    if is_new and module in sys.modules:
        # Another thread may have begun the import before this process observed it. Without the lock, wait for its end.
        importlib.import_module(module)
    if imported(module) is not None:
        run_actions(module)


def run_actions(module: str) -> None:
    """Run the actions of a module that is imported, once.

    It is called at the end of the import, and later for the case that the finder of another library has imported the
    module past the one here.
    """
    with _lock:
        waiting = _actions.get(module)
        _actions[module] = None
        for action in (waiting or {}).values():
            action()


class _Finder:
    """Finds the modules that have actions, with the finders behind this one, and changes what executes them.

    It stays in ``sys.meta_path``: another thread that reads the list during a removal would skip a finder.
    """

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> Any:
        """Return the module's own spec, or None for modules without actions."""
        if not _actions.get(fullname):
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in finders)), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _extend(spec.loader)
        return spec


def _extend(loader: Any) -> None:
    """Run the actions after the loader has executed a module. The loader has its own method again before it does."""
    execute = loader.exec_module

    def execute_and_act(module: ModuleType) -> None:
        loader.__dict__.pop("exec_module", None)
        with _exit_handlers_below() if module.__name__ == "torch" else contextlib.nullcontext():
            execute(module)
        run_actions(module.__name__)

    loader.exec_module = execute_and_act


@contextlib.contextmanager
def _exit_handlers_below() -> Iterator[None]:
    """Let exit handlers that the block registers run after those of this library, as if torch were imported first."""
    register = atexit.register
    atexit.register = _exits.callback
    try:
        yield
    finally:
        atexit.register = register
