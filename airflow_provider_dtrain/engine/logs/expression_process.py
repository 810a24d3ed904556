"""The process that searches parts of logs, which it reads from standard input, for the expression in its arguments."""

from __future__ import annotations

import json
import re
import resource
import sys

from airflow_provider_dtrain.core.logs.query import LogQuery, with_text
from airflow_provider_dtrain.core.logs.text import lines_of
from airflow_provider_dtrain.engine.logs.expression import LENGTH

#: Limits of the process. The one that started it ends it earlier.
_CPU_S, _MEMORY_BYTES = 60, 1 << 30


def main() -> None:
    """Answer each part of a log with a line: the indices of the lines that match, or an error."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    query = LogQuery(text=sys.argv[1], is_regex=True)
    while head := sys.stdin.buffer.read(LENGTH.size):
        content = sys.stdin.buffer.read(LENGTH.unpack(head)[0])
        try:
            answer: object = with_text(lines_of(content), query)
        except (re.error, RecursionError, OverflowError, MemoryError) as error:
            answer = str(error) or type(error).__name__
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
