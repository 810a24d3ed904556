"""Fast exit of the interpreter that keeps the exit status."""

from __future__ import annotations

import atexit
import contextlib
import gc

_registered: list[bool] = []


def install() -> None:
    """Skip the tear-down of torch when the interpreter ends. Every exit handler still runs.

    Freeing torch's modules and running its C++ destructors takes 0.35 s or more per rank. In its destructors, a gloo
    rank sometimes aborts after a successful run ("terminate called without an active exception", seen in 1 of 30 runs).
    ``os._exit`` in an exit handler would lose the status of ``raise SystemExit(3)``. glibc passes it to ``on_exit``.
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
