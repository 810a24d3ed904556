"""Reasons why the system does not execute a program of the user."""

from __future__ import annotations

import errno
import os
import stat

from ..fields import shorten
from .host import mount_of


def why_not_executed(program: str, error: OSError) -> str:
    """Return the reason why a program was not executed, with what helps.

    :param program: first word of the command; looked up in PATH by the system unless it is a path
    """
    reason = error.strerror or str(error)
    if "/" not in program:
        return reason
    try:
        found = os.stat(program)
    except OSError:
        return reason
    shell = f"use 'bash {os.path.basename(program)}' as the entrypoint"
    if error.errno == errno.EACCES and stat.S_ISREG(found.st_mode):
        if os.statvfs(program).f_flag & os.ST_NOEXEC:
            point = mount_of(os.path.realpath(program))[0]
            return f"{reason}. The file system at {point} is mounted with noexec: {shell}, or set another state_dir"
        if not found.st_mode & 0o111:
            return f"{reason}. The file is not executable: {shell}, or chmod +x the file"
    if error.errno in (errno.ENOENT, errno.ENOEXEC):
        line = _first_line(program)
        if line.startswith(b"#!"):
            name = shorten(line[2:].decode("utf-8", "replace").strip(" "))
            return f"{reason}. Its first line names the interpreter {name}, which does not exist there{_windows(line)}"
        if error.errno == errno.ENOEXEC:
            return f"{reason}. Its first line names no interpreter (#!/bin/bash): add it, or {shell}"
    return reason


def _first_line(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(256).partition(b"\n")[0]
    except OSError:
        return b""


def _windows(line: bytes) -> str:
    return ". The lines of the file end as on Windows: convert it with dos2unix" if line.endswith(b"\r") else ""
