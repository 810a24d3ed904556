"""Command line and environment of this process, as the kernel shows them in /proc."""

from __future__ import annotations

import ctypes
import os
import struct

from ..file_access import read_text
from .processes import LIBC

_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
#: Of the kernel's ``struct prctl_mm_map``: eleven addresses, the auxiliary vector and its size, the executable.
_MAP = struct.Struct("=11QQII")
_KEPT: list[object] = []


def show_strings(arguments: list[bytes], variables: list[bytes]) -> None:
    """Let the kernel show other arguments and variables of this process, as if it had been executed with them.

    Source: prctl(2), PR_SET_MM_MAP, which needs no privilege.

    :raises OSError: the kernel cannot do that
    """
    fields = (read_text("/proc/self/stat") or "").rpartition(") ")[2].split()
    # Numbered from 1 in proc_pid_stat(5). The first two are before the name's end.
    code_begin, code_end, stack, data_begin, data_end, heap = (int(fields[n - 3]) for n in (26, 27, 28, 45, 46, 47))
    LIBC.sbrk.restype = ctypes.c_void_p
    ends: list[int] = []
    for strings in (arguments, variables):
        content = b"".join(one + b"\0" for one in strings)
        buffer = ctypes.create_string_buffer(content, len(content))
        _KEPT.append(buffer)
        ends += [ctypes.addressof(buffer), ctypes.addressof(buffer) + len(content)]
    addresses = [code_begin, code_end, data_begin, data_end, heap, LIBC.sbrk(0), stack, *ends]
    wanted = _MAP.pack(*addresses, 0, 0, 0xFFFFFFFF)
    if LIBC.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.c_char_p(wanted), len(wanted), 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def variables_of(environ: dict[str, str]) -> list[bytes]:
    """Return an environment as the kernel shows it."""
    return [os.fsencode(f"{name}={value}") for name, value in environ.items()]
