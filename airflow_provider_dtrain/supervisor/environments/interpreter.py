"""Interpreters on this host: where they are, what identifies them, and what they are."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

from ..fields import parse_object, shorten
from ..limits import SELF_TEST_S
from ..names import Json
from ..refusal import Refused

#: Packages of an interpreter, relative to the folder above its ``bin``. Debian has those of the system elsewhere.
_PACKAGES = ("lib/python3*/*-packages", "lib64/python3*/*-packages", "local/lib/python3*/*-packages")
_FACTS = """
import glob, importlib.util, json, os, platform, sys, sysconfig
from importlib import metadata
bundled = importlib.util.find_spec("ensurepip")
places = [sysconfig.get_config_var("WHEEL_PKG_DIR"), "/usr/share/python-wheels"]
places += [os.path.join(os.path.dirname(bundled.origin), "_bundled")] if bundled else []
pips = [path for place in places if place for path in sorted(glob.glob(os.path.join(place, "pip-*.whl")))]
folders = [path for path in sys.path if path.endswith("-packages") and os.path.isdir(path)]
found = {}
for one in metadata.distributions(path=folders) if "packages" in sys.argv else ():
    name = one.metadata["Name"]
    if name and name not in found:
        found[name] = one.version
sys.stdout.write("\\nDTRAIN " + json.dumps({
    "python": "%d.%d.%d" % sys.version_info[:3], "executable": sys.executable,
    "implementation": sys.implementation.name, "machine": platform.machine(),
    "is_free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "platform_release": platform.release(), "platform_version": platform.version(),
    "pip": pips[-1] if pips else None,
    "folders": folders, "distributions": found}) + "\\n")
"""


def find_interpreter(python: str | None, environ: Mapping[str, str]) -> str:
    """Return the absolute path of an interpreter.

    :param python: path, or name of a program in the PATH of ``environ``; None: the one that runs this program
    :raises Refused: ``no_python``
    """
    if python is None:
        return sys.executable
    if "/" in python:
        found: str | None = os.path.abspath(os.path.expanduser(python))
        where = ""
    else:
        found, where = shutil.which(python, path=environ.get("PATH")), f" in its PATH ({environ.get('PATH')})"
    if found is None or not os.path.isfile(found):
        message = f"This host has no interpreter {shorten(python)}{where}. Install it, or set environment.python"
        raise Refused("no_python", f"{message} to one that exists on every host.")
    return found


def identity_of(path: str, *, with_packages: bool) -> Json:
    """Return what distinguishes an interpreter from others and from later ones at its place, without starting it.

    :param with_packages: its packages are part of the environment
    """
    real = os.path.realpath(path)
    found = os.stat(real)
    prefix = os.path.dirname(os.path.dirname(path))
    identity: Json = {
        "path": path,
        "real": real,
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
        "machine": os.uname().machine,
        "libc": libc(),
    }
    if with_packages:
        folders = sorted(folder for pattern in _PACKAGES for folder in glob.glob(os.path.join(prefix, pattern)))
        identity["packages"] = {folder: os.stat(folder).st_mtime_ns for folder in folders}
    return identity


def libc() -> str:
    """Return name and version of the C library, as tags of wheels need it."""
    try:
        found = os.confstr("CS_GNU_LIBC_VERSION")
    except (OSError, ValueError):
        found = None
    # All wheels for musl so far are for 1.1 or 1.2.
    return found or ("musl 1.2" if glob.glob("/lib/ld-musl-*") else "unknown")


def facts_of(path: str, environ: Mapping[str, str], *, with_packages: bool) -> Json:
    """Return what an interpreter says about itself.

    :param with_packages: also its packages with their versions
    :raises Refused: ``no_python``, it cannot be started or is not CPython
    """
    argv = [path, "-I", "-c", _FACTS, *(["packages"] if with_packages else [])]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=SELF_TEST_S * 3, check=False, env=dict(environ))
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Refused("no_python", f"Interpreter {path} cannot be started: {reason}.") from error
    for line in reversed(done.stdout.splitlines()):
        found = parse_object(line[7:]) if line.startswith(b"DTRAIN ") else None
        if found is not None:
            if found["implementation"] != "cpython":
                message = f"{path} is {found['implementation']}; environments are made for CPython"
                raise Refused("no_python", f"{message}. Set environment.python to another interpreter.")
            return {**found, "libc": libc()}
    last = done.stderr.decode("utf-8", "replace").strip()[-300:]
    raise Refused("no_python", f"Interpreter {path} ended with status {done.returncode}: {last}")
