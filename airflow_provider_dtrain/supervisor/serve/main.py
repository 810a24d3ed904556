"""Start of the program on a node. Its loader has read the first line of standard input."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from .first_node import FirstNode
from .node import BAD_PARAMETERS, OtherNode, Parameters, log


def main() -> None:
    """Read the parameters and serve. Never returns."""
    code = _run()
    # A start that hangs in a thread must not keep the process.
    os._exit(code)


def _run() -> int:
    _open_streams()
    try:
        parameters = Parameters.parse(json.loads(sys.stdin.buffer.readline()))
        number = int(os.environ["SLURM_PROCID"])
    except (KeyError, TypeError, ValueError) as error:
        # The message must not show the key.
        log(f"bad parameters: {type(error).__name__}")
        return BAD_PARAMETERS
    _close_input()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    # A traceback would fill the report of the job's end, in which its cause has to be.
    loop.set_exception_handler(lambda _, context: log(f"{context.get('message')}: {context.get('exception')!r}"[:200]))
    is_first = number == 0
    node = FirstNode(loop, parameters, os.environ) if is_first else OtherNode(loop, number, parameters, os.environ)
    return loop.run_until_complete(node.run())


def _open_streams() -> None:
    """Open the standard streams that are closed: a connection must not take their numbers."""
    null = os.open(os.devnull, os.O_RDWR)
    while null <= 2:
        os.set_inheritable(null, True)
        null = os.dup(null)
    os.close(null)


def _close_input() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    # The folder that the job was submitted from may be on a server that goes away.
    os.chdir("/")
