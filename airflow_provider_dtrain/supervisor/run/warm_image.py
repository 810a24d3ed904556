"""Interpreter of a warm parent: its imports, and whether forked ranks would behave as executed ones."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ..files.layout import Layout
from ..limits import WARM_OUTPUT_BYTES
from ..machine.processes import program
from ..names import Json
from .ranks import rank_argv
from .warm_key import Cold, ColdCode, check_secrets_late, python_program, warm_key
from .warm_record import is_installed, packages

if TYPE_CHECKING:
    import importlib.metadata

#: Group of the entry points that PyTorch calls, and the variable that keeps it from doing so.
_BACKENDS = "torch.backends"
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_OWN = "airflow_provider_dtrain"
_HARMLESS = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


class WarmImage:
    """The interpreter that ranks are forked from.

    :param digest: of its key
    :param started_with: modules that every interpreter has when it begins to run a program
    """

    def __init__(self, digest: str, started_with: set[str]) -> None:
        self.digest = digest
        self.started_with = started_with
        #: The training library's modules, which have the same names as those of this program.
        self.library: dict[str, types.ModuleType] = {}
        #: What the imports wrote. Each rank writes it to its log.
        self.output = b""
        #: Packages that PyTorch calls at the end of its import. To find them takes longer than the rest of a start.
        self.backends: list[importlib.metadata.EntryPoint] = []

    def load(self, names: list[str], libraries: str) -> None:
        """Import modules that a rank has reported, as far as they are installed.

        :param libraries: folder of the training libraries
        """
        wanted = packages()
        allowed: dict[str, bool] = {}
        with self._as_rank(), captured() as written:
            for name in names:
                top = name.partition(".")[0]
                if top not in allowed:
                    allowed[top] = top in wanted and is_installed(_origin(top), libraries)
                if allowed[top] and name not in sys.modules:
                    # Some are parts of an extension module, and are there once it is.
                    with suppress(ImportError):
                        importlib.import_module(name)
            if "torch" in sys.modules:
                self.backends = _entry_points(_BACKENDS)
        self.output += bytes(written)

    @contextmanager
    def _as_rank(self) -> Iterator[None]:
        """Let the block see the modules and the path of a rank."""
        own, path = take_own_modules(), sys.path[:]
        sys.modules.update(self.library)
        sys.path[:] = [one for one in path if one != program()]
        # PyTorch calls other packages, and the hook of its store, at the end of its import. Ranks do it themselves.
        autoload = os.environ.get(_AUTOLOAD)
        os.environ[_AUTOLOAD] = "0"
        try:
            yield
        finally:
            if autoload is None:
                del os.environ[_AUTOLOAD]
            else:
                os.environ[_AUTOLOAD] = autoload
            sys.path[:] = path
            self.library = take_own_modules()
            sys.modules.update(own)

    def check(self, layout: Layout, plan: Json, work: str, secrets: dict[str, str]) -> None:
        """Check that ranks that are forked from this process behave as executed ones.

        :param work: folder with the code
        :raises Cold: they would not
        """
        if warm_key(layout, plan).digest != self.digest:
            raise Cold("the interpreter, its packages or the variables have changed since the parent was started")
        reason = why_not_forked()
        if reason is not None:
            raise Cold(f"the supervisor cannot be forked: {reason}")
        check_secrets_late(secrets)
        target = python_program(rank_argv(plan))
        folders = {work, os.path.dirname(os.path.join(work, target.target))} if not target.option else {work}
        hidden = {name.partition(".")[0] for name in [*sys.modules, *self.library]} - self.started_with
        for folder in folders:
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if name.partition(".")[0] in hidden and _is_importable(os.path.join(folder, name)):
                    raise ColdCode(f"{name} in the code has the name of a module that is already imported")


def why_not_forked() -> str | None:
    """Return the reason why ranks of this process would not behave as executed ones, None if they would."""
    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        return f"it has {len(threads)} threads"
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("/dev/") and target not in _HARMLESS:
            return f"it uses {target}"
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and (cuda._is_in_bad_fork() or cuda.is_initialized()):
        return "it has initialized CUDA"
    return None


def take_own_modules() -> dict[str, types.ModuleType]:
    """Take the modules with the name of this package out of the interpreter, and return them."""
    names = [name for name in sys.modules if name == _OWN or name.startswith(f"{_OWN}.")]
    return {name: sys.modules.pop(name) for name in names}


def _is_importable(path: str) -> bool:
    """Return whether Python would import a file or folder instead of a module further down its path."""
    if os.path.isdir(path):
        return any(name.startswith("__init__.") for name in os.listdir(path))
    return path.endswith(tuple(importlib.machinery.all_suffixes()))


def _entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
    import importlib.metadata

    if sys.version_info < (3, 10):
        return list(importlib.metadata.entry_points().get(group, ()))
    return list(importlib.metadata.entry_points(group=group))


def _origin(name: str) -> str | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return None if spec is None else spec.origin


@contextmanager
def captured() -> Iterator[bytearray]:
    """Keep what the block writes to both standard streams, up to a limit."""
    found = bytearray()
    kept = [os.dup(1), os.dup(2)]
    target = os.memfd_create("imports")
    try:
        for number in (1, 2):
            os.dup2(target, number)
        yield found
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, fd in enumerate(kept, 1):
            os.dup2(fd, number)
            os.close(fd)
        found += os.pread(target, WARM_OUTPUT_BYTES, 0)
        os.close(target)
