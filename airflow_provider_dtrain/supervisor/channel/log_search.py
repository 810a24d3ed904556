"""Search in the logs of a run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from ..fields import parse_object, shorten
from ..file_access import write_all
from ..files.layout import RunFolder
from ..limits import CHUNK, MATCH_CPU_S, MATCH_LINE, MATCH_SHOWN, MATCH_WALL_S
from ..machine.processes import program
from ..names import Json
from ..refusal import Refused


def match_logs(folder: RunFolder, patterns: list[str]) -> Json:
    """Return for each pattern the first line found in the logs of a run's ranks.

    Each pattern is searched in its own process with a limit on its CPU time, because a search in Python cannot
    be interrupted. The calling process must be single-threaded.

    :return: ``matches`` by number of the pattern, ``unfinished`` numbers, ``refused`` numbers with the reason
    """
    answer: Json = {"matches": {}, "unfinished": [], "refused": {}}
    ranks = [rank["rank"] for rank in (folder.plan() or {}).get("ranks", ())]
    children: dict[int, tuple[int, int]] = {}
    for index, pattern in enumerate(patterns):
        try:
            compiled = re.compile(without_edges(pattern))
        except (re.error, RecursionError, OverflowError) as error:
            answer["refused"][index] = f"{error}, on Python {sys.version_info.major}.{sys.version_info.minor}"
            continue
        children[index] = fork_match(folder, ranks, compiled)
    deadline = time.monotonic() + MATCH_WALL_S
    for index, (pid, fd) in children.items():
        ready = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]
        # A child that used up its CPU time was killed, so its end of the pipe is closed without an answer.
        found = os.read(fd, 1 << 16) if ready else b""
        os.close(fd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        document = parse_object(found)
        if document is None:
            answer["unfinished"].append(index)
        elif document:
            answer["matches"][index] = document
    return answer


def fork_match(folder: RunFolder, ranks: list[int], pattern: re.Pattern[str]) -> tuple[int, int]:
    """Search in a child. Return its pid and the descriptor from which its answer is read."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (MATCH_CPU_S, MATCH_CPU_S + 1))
        write_all(writer, json.dumps(first_match(folder, ranks, pattern)).encode())
    finally:
        os._exit(0)


def without_edges(pattern: str) -> str:
    """Return a pattern that matches the same lines, without leading ``.*``, which makes a search slow."""
    while pattern.startswith(".*") and pattern[2:3] not in ("?", "+", "*", "{"):
        pattern = pattern[2:]
    return pattern


def first_match(folder: RunFolder, ranks: list[int], pattern: re.Pattern[str]) -> Json:
    """Return rank and text of a line that matches, {} when there is none.

    The ends of all logs are searched first, because the cause of a rank's end is there.
    """
    for start in (-(1 << 20), 0):
        for rank in ranks:
            for line in log_lines(folder.file(f"rank{rank}", "log"), start):
                if pattern.search(line):
                    return {"rank": rank, "line": line[:MATCH_SHOWN]}
    return {}


def log_lines(path: str, start: int) -> Iterator[str]:
    """Yield the lines of a log, each cut to :data:`MATCH_LINE`, without the part that ``log_limit`` freed.

    :param start: if negative, the number of bytes before the end to start at; else the whole log is read
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        size = os.fstat(fd).st_size
        rest = b""
        position = max(0, size + start) if start < 0 else 0
        while position < size:
            with contextlib.suppress(OSError):
                position = max(position, os.lseek(fd, position, os.SEEK_DATA))
            data = os.pread(fd, CHUNK, position)
            if not data:
                break
            position += len(data)
            lines = (rest + data).split(b"\n")
            rest = lines.pop()[-MATCH_LINE:]
            for line in lines:
                yield line[:MATCH_LINE].decode("utf-8", "replace").rstrip("\r")
        yield rest.decode("utf-8", "replace")
    finally:
        os.close(fd)


def run_match(folder: RunFolder, patterns: list[str]) -> Json:
    """Return the answer of :func:`match_logs` from a single-threaded process.

    :raises Refused: the process ended without an answer
    """
    argv = [sys.executable, "-I", program(), "match", folder.name, "--state-dir", folder.layout.state_dir]
    request = json.dumps({"patterns": patterns}).encode()
    done = subprocess.run(argv, input=request, capture_output=True, timeout=MATCH_WALL_S + 20, check=False)
    answer = parse_object(done.stdout)
    if answer is None or answer.get("ok") is not True:
        raise Refused("internal", f"The log search exited with status {done.returncode}: {shorten(done.stderr)}")
    return answer
