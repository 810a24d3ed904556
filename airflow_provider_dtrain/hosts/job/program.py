"""Program that Slurm starts on each node of a job, and the relay to it."""

from __future__ import annotations

import base64
import functools
import json
import shlex
import zlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from airflow_provider_dtrain.core.launch.requirements import OLDEST_PYTHON, dotted
from airflow_provider_dtrain.hosts.job.identity import JobIdentity
from airflow_provider_dtrain.supervisor.serve.frames import PROTOCOL

#: Seconds without a follower after which an unused job ends itself.
UNATTENDED_S = 120.0
#: Seconds for a node to reach the first one.
JOIN_S = 120.0
#: Modules in an order in which each imports only those before it.
_MODULES = ("frames", "names", "tls", "connection", "commands", "addresses", "node", "first_node", "main")
_PACKAGE = "dtrain_serve"

# The interpreter may be of any version. A file in the current folder may have the name of a module of Python.
_LOADER = f"""
import sys
sys.path[:] = filter(None, sys.path)
if sys.version_info < {OLDEST_PYTHON!r}:
    sys.exit("dtrain: Python {dotted(OLDEST_PYTHON)} or newer is needed, not %d.%d.%d" % tuple(sys.version_info[:3]))
import base64, json, types, zlib
package = sys.modules["{_PACKAGE}"] = types.ModuleType("{_PACKAGE}")
package.__path__ = []
for name, source in json.loads(zlib.decompress(base64.b64decode(sys.stdin.buffer.readline()))):
    name = "{_PACKAGE}." + name
    module = sys.modules[name] = types.ModuleType(name)
    module.__package__ = "{_PACKAGE}"
    exec(compile(source, name, "exec"), module.__dict__)
module.main()
"""


def serve_argv(python: str) -> list[str]:
    """Return the command of each node. Its standard input is :func:`serve_input`."""
    return [python, "-E", "-s", "-c", _one_line(_LOADER)]


def serve_input(
    identity: JobIdentity,
    *,
    ports: Sequence[int],
    unattended_s: float = UNATTENDED_S,
    join_s: float = JOIN_S,
) -> bytes:
    """Return the standard input of all nodes: a line with the program, and a line with the parameters.

    The second line is secret.

    :param ports: ports that the first node tries, in their order
    :param unattended_s: seconds without a follower after which the job ends before its first policy
    :param join_s: seconds for a node to reach the first one, at the start and after a lost connection
    """
    parameters = {
        "protocol": PROTOCOL,
        "certificate": identity.certificate,
        "key": identity.key,
        "ports": list(ports),
        "unattended_s": unattended_s,
        "join_s": join_s,
    }
    return _program() + b"\n" + json.dumps(parameters).encode() + b"\n"


def printing(content: bytes) -> str:
    """Return the shell command that writes lines of ASCII to standard output.

    ``printf`` is part of the shell: the lines are in no argument of a process, and in no file of a here-document.
    """
    return shlex.join(["printf", "%s\\n", *content.decode("ascii").splitlines()])


def relay_argv(python: str, identity: JobIdentity, job_id: str) -> list[str]:
    """Return the command that connects its standard input and output with the job. It runs on the first node."""
    source = f"{_source('relay')}\nmain(sys.argv[1])\n"
    return [python, "-E", "-s", "-c", _one_line(source), identity.socket_name(job_id)]


@functools.cache
def _program() -> bytes:
    modules = [(name, _source(name)) for name in _MODULES]
    return base64.b64encode(zlib.compress(json.dumps(modules).encode(), 9))


def _source(name: str) -> str:
    folder = Path(str(resources.files("airflow_provider_dtrain.supervisor.serve")))
    return (folder / f"{name}.py").read_text("utf-8")


def _one_line(source: str) -> str:
    """Return source as one line without any character that a shell interprets, except quotes and parentheses."""
    code = base64.b64encode(source.encode()).decode()
    return f"import base64;exec(base64.b64decode('{code}'))"
