"""Search of a regular expression in a process of its own, because a search in Python cannot be interrupted."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Final, Self, cast

import airflow_provider_dtrain
from airflow_provider_dtrain.errors import UserError

#: Length of a part of a log in front of it.
LENGTH: Final = struct.Struct("<I")
_MODULE: Final = "airflow_provider_dtrain.engine.logs.expression_process"
_ROOT: Final = Path(airflow_provider_dtrain.__file__).parents[1]


class ExpressionLateError(Exception):
    """The search has not ended in its time."""


class ExpressionSearch:
    """A process that searches parts of logs for one expression until the block ends.

    :param most_s: wall time after which the process is killed
    """

    def __init__(self, expression: str, most_s: float) -> None:
        # The process needs nothing of this one's environment, which may have secrets.
        kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-m", _MODULE, expression],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={**kept, "PYTHONPATH": str(_ROOT), "LC_ALL": "C.UTF-8"},
        )
        self._timer = threading.Timer(most_s, self._process.kill)
        self._timer.daemon = True
        self._timer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            # Bytes that the process did not read are still in the buffer.
            with contextlib.suppress(OSError):
                cast("IO[bytes]", pipe).close()
        self._process.wait()

    def indices(self, content: bytes) -> list[int]:
        """Return the indices of the lines of a part of a log that match.

        :raises ExpressionLateError: the process was killed, because its time is over or its memory is used up
        :raises UserError: the expression is not valid
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(LENGTH.pack(len(content)) + content)
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except OSError:
            answer = b""
        if not answer:
            raise ExpressionLateError
        found = json.loads(answer)
        if isinstance(found, str):
            raise UserError(f"The expression is not valid: {found}. Expressions are those of Python's module re.")
        return list(found)
