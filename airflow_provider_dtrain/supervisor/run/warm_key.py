"""Key of a warm parent: everything that an interpreter depends on before it runs code of a user."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import resource
import site
import sys
from typing import NamedTuple

from ..environments.interpreter import find_interpreter, identity_of
from ..files.layout import Layout
from ..machine.host_environment import passed
from ..machine.processes import program
from ..names import Json
from ..refusal import Refused
from .rank_environment import constant_variables, packages_variables, shared_variables
from .ranks import rank_argv

#: Variables that the loader, the interpreter, or a library reads when it starts. A parent has them from its own start.
_AT_START = re.compile(
    r"(PYTHON|TORCH|PYTORCH)\w*|LANGUAGE|(LD|MALLOC|GLIBC|OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|NUMEXPR|ATEN|NPY|NUMPY|CUDA|NVIDIA"
    r"|HIP|ROCM|TRITON|DNNL|ONEDNN|NCCL|GLOO|LC|LANG|TZ)(_\w+)?"
)
#: Variables with which an interpreter writes about its start or its imports, or starts in another way.
_EXECUTED = re.compile(
    r"PYTHON(VERBOSE|PROFILEIMPORTTIME|INSPECT|SAFEPATH|TRACEMALLOC|MALLOCSTATS|PERFSUPPORT|DUMPREFS\w*|STARTUP|HOME)"
)


class Cold(Exception):
    """The ranks are executed instead of forked. Its text is the reason."""


class ColdCode(Cold):
    """It is the code that cannot be forked, so this holds for each launch of it."""


class PythonProgram(NamedTuple):
    """A program as the command line of an interpreter names it."""

    #: ``-m``, ``-c`` or "" for a script.
    option: str
    #: Module, code or path.
    target: str
    arguments: list[str]


class WarmKey(NamedTuple):
    """Interpreter that ranks of equal launches may be forked from."""

    #: Path of the interpreter.
    python: str
    #: Environment that it is started with: no value of a trial, and no secret.
    environment: dict[str, str]
    #: SHA-256 over everything that its state depends on.
    digest: str


def python_program(argv: list[str]) -> PythonProgram:
    """Return the program of an interpreter's command line.

    :raises Cold: it starts in a way that only a new interpreter can
    """
    words = argv[1:]
    while words[:1] == ["-u"]:
        # The ranks' output is unbuffered anyway.
        words = words[1:]
    if words[:1] in (["-m"], ["-c"]) and len(words) > 1:
        return PythonProgram(words[0], words[1], words[2:])
    if words and words[0].endswith(".py") and not words[0].startswith("-"):
        return PythonProgram("", words[0], words[1:])
    raise Cold("the command has options of the interpreter, or no script")


def warm_key(layout: Layout, plan: Json) -> WarmKey:
    """Return the interpreter that the ranks of a plan may be forked from.

    :raises Cold: they are executed
    """
    if plan["argv"][0] not in ("python", "python3"):
        raise Cold("the program is not the Python of its environment")
    if plan["container"] is not None or plan["per_host"]:
        raise Cold("a container or a launcher starts the ranks")
    argv = rank_argv(plan)
    python_program(argv)
    environment = _environment(layout, plan)
    refused = next((name for name in environment if _EXECUTED.fullmatch(name)), None)
    if refused:
        raise Cold(f"{refused} is set")
    try:
        python = find_interpreter(argv[0], environment)
        identity = identity_of(python, with_packages=True)
    except (Refused, OSError) as error:
        raise Cold(f"its interpreter cannot be read: {error}") from error
    # The folder of the library is named after its content, and each launch gives it a new time.
    library = layout.library(plan["library"]) if plan["library"] else None
    folders = [path for path in environment["PYTHONPATH"].split(":") if path != library]
    facts = {
        "user": os.getuid(),
        "namespaces": _namespaces(),
        "program": program(),
        "interpreter": identity,
        "folders": {path: _changed(path) for path in [*folders, _user_packages(python)]},
        "environment": plan["environment"],
        "payload": plan["payload"],
        "library": plan["library"],
        "variables": environment,
        "limits": _limits(),
        "processors": sorted(os.sched_getaffinity(0)),
        "nice": os.nice(0),
        "idle_s": plan["warm"]["idle_s"],
    }
    return WarmKey(python, environment, hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest())


def check_secrets_late(secrets: dict[str, str]) -> None:
    """Check that no secret has to be known when an interpreter starts.

    :raises Cold: one has to
    """
    name = next((name for name in secrets if _AT_START.fullmatch(name)), None)
    if name:
        raise Cold(f"secret {name} has the name of a variable that is read when a program starts")


def _environment(layout: Layout, plan: Json) -> dict[str, str]:
    """Return the variables of the ranks that do not depend on rank, trial or secrets."""
    shared = shared_variables(plan, passed(os.environ))
    withheld = {name for name in plan["warm"]["private"] if not _AT_START.fullmatch(name)}
    path = [layout.library(plan["library"])] if plan["library"] else []
    path += [one for one in (plan["env"].get("PYTHONPATH") or os.environ.get("PYTHONPATH", "")).split(":") if one]
    return {
        **{name: value for name, value in shared.items() if name not in withheld},
        **packages_variables(plan, layout, shared.get("PATH") or os.defpath),
        **constant_variables(),
        "PYTHONPATH": ":".join(path),
    }


def _namespaces() -> list[str]:
    """Return the namespaces of this process: one in another one has another network or other files."""
    return sorted(os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns"))


def _limits() -> list[tuple[int, int]]:
    found = []
    with contextlib.suppress(ValueError):
        # The kernel numbers them from 0 on.
        for number in range(64):
            found.append(resource.getrlimit(number))  # noqa: PERF401 - ends with the first unknown number
    return found


def _changed(path: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(path).st_mtime_ns
    return 0


def _user_packages(python: str) -> str:
    # The folder of another version's packages is as good: what matters is that an installation changes the key.
    return site.getusersitepackages() if python == sys.executable else os.path.expanduser("~/.local/lib")
