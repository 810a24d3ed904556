"""A fast way out of the interpreter that keeps the exit status."""

from __future__ import annotations

import atexit
import contextlib
import gc

_registered: list[bool] = []


def install() -> None:
    """Skip the tear-down of torch when the interpreter ends; every exit handler still runs.

    Freeing torch's modules and running its C++ destructors costs 0.35 s and more per rank, and in destructors a
    gloo rank aborts now and then after a good run ("terminate called without an active exception", 1 of 30 seen).
    ``os._exit`` in an exit handler would lose the status of a ``raise SystemExit(3)``; glibc's ``on_exit`` is given it.
    """
    if not _registered:
        _registered.append(True)
        atexit.register(_leave)


def _leave() -> None:
    gc.disable()
    gc.freeze()
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        libc = ctypes.CDLL(None)
        libc.fflush(None)
        libc.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
