"""Files of the code folder that a processor reads: its results depend on them as on its code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

#: Files of code, which are compared as modules.
_CODE = (".py", ".pyc", ".so", ".pyd")
#: Model files whose libraries open them outside Python, where no audit event reports them.
_OPENED_OUTSIDE_PYTHON = (".safetensors", ".onnx", ".gguf")
#: Most entries of the folder that are searched for such files.
_ENTRIES_MOST = 20_000
_WRITES = os.O_WRONLY | os.O_RDWR


class ReadFiles:
    """Record of the files below a folder that this process opens for reading.

    :param root: the code folder
    """

    def __init__(self, root: str | Path) -> None:
        self._root = os.path.join(os.path.realpath(root), "")
        self._found: set[str] = set()
        self._is_on = False

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record during the block. An audit hook cannot be removed, so it stays and does nothing afterwards."""
        self._is_on = True
        sys.addaudithook(self._on_event)
        try:
            yield
        finally:
            self._is_on = False

    def paths(self) -> list[Path]:
        """Return the files that exist: those that were opened, and model files that a library may have opened."""
        inside = {os.path.realpath(path) for path in self._found}
        chosen = {path for path in inside if path.startswith(self._root) and os.path.isfile(path)}
        return sorted(map(Path, {*chosen, *self._opened_elsewhere()}))

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        # Any code may raise an event of this name.
        if not self._is_on or event != "open" or len(arguments) != 3:
            return
        path, _, flags = arguments
        if isinstance(flags, int) and flags & _WRITES:
            return
        if isinstance(path, (str, bytes, os.PathLike)):
            named = os.fsdecode(path)
            if _is_data(named):
                self._found.add(os.path.abspath(named))

    def _opened_elsewhere(self) -> Iterable[str]:
        seen = 0
        for folder, folders, names in os.walk(self._root):
            folders[:] = [name for name in folders if not name.startswith(".") and name != "site-packages"]
            seen += len(names)
            if seen > _ENTRIES_MOST:
                return
            yield from (os.path.join(folder, name) for name in names if name.endswith(_OPENED_OUTSIDE_PYTHON))


def _is_data(path: str) -> bool:
    return not path.endswith(_CODE) and f"{os.sep}site-packages{os.sep}" not in path
