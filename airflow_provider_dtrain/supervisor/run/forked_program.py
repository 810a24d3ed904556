"""A Python program in a forked rank, which behaves as if it were executed."""

from __future__ import annotations

import atexit
import builtins
import gc
import importlib.machinery
import io
import json
import os
import signal
import sys
import time
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..file_access import write_all
from ..machine.process_strings import show_strings, variables_of
from ..machine.processes import program, set_name
from .ranks import Rank, execute, keep_descriptors
from .warm_image import WarmImage, take_own_modules
from .warm_key import python_program
from .warm_record import MODULES_FILE


class RankProgram(BaseException):
    """The program of a forked rank. It is raised so that every frame of the supervisor ends before the program begins.

    :param locks: descriptors of the slots' locks
    """

    def __init__(self, image: WarmImage, rank: Rank, argv: list[str], env: dict[str, str], locks: list[int]) -> None:
        super().__init__()
        self.image = image
        self.rank = rank
        self.argv = argv
        self.env = env
        self.locks = locks

    def run(self) -> None:
        """Become the rank and run its program. Called at the bottom of the stack."""
        self.__traceback__ = None
        self.__context__ = None
        # Objects of the supervisor close their descriptors now, and not those of the program later.
        gc.collect()
        keep_descriptors(self.locks)
        try:
            main = self._enter()
        except Exception as error:
            sys.stderr.write(f"dtrain: the program is executed, because it could not begin in a fork: {error!r}\n")
            execute(self.rank, self.argv, self.env)
        try:
            main()
        except SystemExit:
            raise
        except BaseException as error:
            _report(error)
            if isinstance(error, KeyboardInterrupt):
                # Python ends itself by SIGINT.
                sys.excepthook = lambda *_: None
                raise
            sys.exit(1)

    def _enter(self) -> Callable[[], object]:
        os.environ.clear()
        os.environ.update(self.env)
        show_strings([os.fsencode(one) for one in self.argv], variables_of(self.env))
        set_name(os.path.basename(self.argv[0])[:15])
        # As Python does when it starts.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        write_all(2, self.image.output)
        take_own_modules()
        sys.modules.update(self.image.library)
        _renew_state()
        target = python_program(self.argv)
        work = self.env["PYTHONPATH"].split(":")
        first = work[: 0 if not work[0] or work[0] in sys.path else 1]
        sys.path[:] = [*first, *(one for one in sys.path if one != program())]
        for path in [path for path, finder in sys.path_importer_cache.items() if finder is None]:
            del sys.path_importer_cache[path]
        module = types.ModuleType("__main__")
        module.__dict__.update(__builtins__=builtins)
        if sys.version_info < (3, 14):
            module.__dict__["__annotations__"] = {}
        sys.modules["__main__"] = module
        sys.argv = [target.target or "-c", *target.arguments]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv = list(self.argv)
        if self.rank.plan["local_rank"] == 0:
            atexit.register(_note_modules, self.rank.folder, {*sys.modules})
        self._load_backends()
        if target.option == "-m":
            import runpy

            sys.argv[0] = "-m"
            sys.path.insert(0, os.getcwd())
            return lambda: runpy._run_module_as_main(target.target)  # type: ignore[attr-defined]
        if target.option == "-c":
            sys.argv[0] = "-c"
            sys.path.insert(0, "")
            module.__loader__ = importlib.machinery.BuiltinImporter
            return lambda: exec(compile(target.target, "<string>", "exec", dont_inherit=True), module.__dict__)  # noqa: S102
        return self._script(module, target.target)

    def _load_backends(self) -> None:
        """Do what PyTorch does at the end of its import: among others, start the store of the rendezvous."""
        torch: Any = sys.modules.get("torch")
        is_wanted = getattr(torch, "_is_device_backend_autoload_enabled", None)
        if is_wanted is None or not is_wanted():
            return
        import importlib.metadata

        found = importlib.metadata.entry_points
        own = [name for path in sys.path[:2] if os.path.isdir(path) for name in os.listdir(path)]
        if not any(name.endswith((".dist-info", ".egg-info")) for name in own):
            importlib.metadata.entry_points = lambda **_: self.image.backends  # type: ignore[assignment]
        try:
            torch._import_device_backends()
        finally:
            importlib.metadata.entry_points = found

    @staticmethod
    def _script(module: types.ModuleType, script: str) -> Callable[[], object]:
        path = os.path.join(os.getcwd(), script)
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
        try:
            with io.open_code(path) as file:
                content = file.read()
        except OSError as error:
            reason = f"[Errno {error.errno}] {error.strerror}"
            sys.stderr.write(f"{sys.executable}: can't open file {path!r}: {reason}\n")
            sys.exit(2)
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        module.__dict__.update(__file__=path, __cached__=None, __loader__=loader)

        def main() -> None:
            exec(compile(content, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102

        return main


def _renew_state() -> None:
    """Give this process state of its own, random one above all, where Python does not do it after a fork."""
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        threading.main_thread()._set_native_id()
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None:
        multiprocessing.current_process().authkey = os.urandom(32)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        # As at its import. Generators of devices do not exist yet.
        torch.default_generator.seed()
    logging: Any = sys.modules.get("logging")
    if hasattr(logging, "_startTime"):
        logging._startTime = time.time() if isinstance(logging._startTime, float) else time.time_ns()


def _note_modules(folder: str, known: set[str]) -> None:
    names = [name for name in sys.modules if name not in known]
    if names:
        with suppress(OSError), open(os.path.join(folder, MODULES_FILE), "w", encoding="utf-8") as file:
            json.dump({"modules": names}, file)


def _report(error: BaseException) -> None:
    """Print an exception as Python does when a program ends with it, without the frames of this module."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_globals is globals():
        traceback = traceback.tb_next
    error = error.with_traceback(traceback)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    sys.excepthook(type(error), error, traceback)
