"""Modules and packages of the interpreters that run ranks on this host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping

from ..fields import parse_object
from ..file_access import names_in
from ..names import Json
from .packages import packages_in

#: Path, inode, time of the last change and size of files and folders.
_Stamps = tuple[tuple[str, int, int, int], ...]
#: Nanoseconds for which a file must not have changed. A later change then has another time on any file system.
SETTLED_NS = 2 * 10**9
#: Answers that one channel keeps.
KEPT = 64
#: It imports from the interpreter's own folders, and looks for modules in PYTHONPATH as well, as a rank does. The name
#: of a package's metadata has its version, and importlib.metadata would take longer than all the rest.
FIND_MODULES = """
import sys
sys.path[:] = filter(None, sys.path)
import json, os
path = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
def named(name):
    wanted = name.lower().replace("-", "_").replace(".", "_")
    for folder in path + sys.path:
        try:
            entries = sorted(os.listdir(folder))
        except OSError:
            continue
        for entry in entries:
            found, _, version = entry.partition("-")
            if version.endswith(".dist-info") and found.lower().replace(".", "_") == wanted:
                return version[:-len(".dist-info")]
def version(name):
    import importlib.util
    from importlib import machinery
    top = name.partition(".")[0]
    try:
        if importlib.util.find_spec(top) is None and machinery.PathFinder.find_spec(top, path) is None:
            return None
    except (ImportError, ValueError):
        return None
    known = named(name)
    if known:
        return known
    try:
        from importlib import metadata
        for distribution in (name, name.replace("_", "-")):
            for found in metadata.distributions(name=distribution, path=path + sys.path):
                return found.version
        for found in metadata.distributions(path=path + sys.path):
            if top in (found.read_text("top_level.txt") or "").split():
                return found.version
    except Exception:
        pass
    return "unknown"
names = json.load(sys.stdin)
sys.stdout.write("\\nDTRAIN " + json.dumps({
    "python": "%d.%d.%d" % sys.version_info[:3], "executable": sys.executable,
    "folders": path + sys.path, "modules": dict((name, version(name)) for name in names)}) + "\\n")
"""


class Interpreters:
    """Interpreters of this host that one channel has asked for their modules.

    An interpreter takes a tenth of a second of CPU time, and each trial of a search asks the same one. So an answer is
    used again while the interpreter and the folders that it imports from stay the same.
    """

    def __init__(self) -> None:
        self._known: dict[object, tuple[_Stamps, Json]] = {}

    def find(
        self,
        python: str | None,
        modules: list[str],
        folder: str,
        variables: Mapping[str, str],
        *,
        with_packages: bool = True,
    ) -> tuple[Json, list[str]]:
        """Return the versions of some modules of an interpreter, without importing them, and the problems.

        :param python: path or name of the interpreter; None = this one
        :param variables: of a setup script
        :param with_packages: also all its packages
        """
        if python is None and not modules and not with_packages:
            return {"python": "{}.{}.{}".format(*sys.version_info[:3]), "executable": sys.executable, "modules": {}}, []
        path = shutil.which(os.path.expanduser(python or sys.executable), path=variables.get("PATH"))
        key = (path, tuple(modules), tuple(sorted(variables.items())))
        known = self._known.get(key)
        if known is None or known[0] != _stamps(known[1]):
            before_ns = time.time_ns()
            found, problems = _ask(python, modules, folder, variables)
            if problems:
                return found, problems
            known = _stamps(found), found
            self._note(key, known, before_ns)
        found = known[1]
        answer = {name: value for name, value in found.items() if name != "folders"}
        return {**answer, **(packages_in(found["folders"]) if with_packages else {})}, []

    def _note(self, key: object, known: tuple[_Stamps, Json], before_ns: int) -> None:
        """Remember an answer, unless a module is missing or something changed just before or meanwhile."""
        stamps, found = known
        if None in found["modules"].values() or any(one[2] > before_ns - SETTLED_NS for one in stamps):
            self._known.pop(key, None)
            return
        if len(self._known) >= KEPT:
            self._known.clear()
        self._known[key] = known


def find_modules(modules: list[str], folder: str) -> tuple[Json, list[str]]:
    """Return the versions of some modules of this interpreter, its packages, and the problems."""
    return Interpreters().find(None, modules, folder, {})


def _stamps(found: Json) -> _Stamps:
    """Return path, inode, time of the last change and size of all that decides what an interpreter finds.

    A package that is installed or removed changes the folder of its metadata. Paths in ``.pth`` files do not.
    """
    paths = [found["executable"], *found["folders"]]
    for folder in found["folders"]:
        paths += [os.path.join(folder, name) for name in names_in(folder) if name.endswith(".pth")]
    stamps = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            stamps.append((path, 0, 0, 0))
        else:
            stamps.append((path, status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(stamps)


def _ask(python: str | None, modules: list[str], folder: str, variables: Mapping[str, str]) -> tuple[Json, list[str]]:
    """Return what an interpreter answers, with the ``folders`` that it imports from, and the problems."""
    argv = [os.path.expanduser(python) if python else sys.executable, "-E", "-c", FIND_MODULES]
    nothing: Json = {"python": None, "executable": None, "modules": dict.fromkeys(modules)}
    try:
        done = subprocess.run(
            argv,
            input=json.dumps(modules).encode(),
            capture_output=True,
            timeout=30,
            check=False,
            cwd=folder,
            env={**os.environ, **variables},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return nothing, [f"interpreter {python} cannot be used: {getattr(error, 'strerror', None) or error}"]
    for line in reversed(done.stdout.splitlines()):
        found = parse_object(line[7:]) if line.startswith(b"DTRAIN ") else None
        if found is not None and _is_answer(found):
            return found, []
    message = done.stderr.decode("utf-8", "replace").strip()[-300:]
    return nothing, [f"interpreter {argv[0]} exited with status {done.returncode}: {message}"]


def _is_answer(found: Json) -> bool:
    """Return whether an interpreter has answered, and not a module that it has imported by itself."""
    folders, modules = found.get("folders"), found.get("modules")
    is_listed = isinstance(folders, list) and all(isinstance(folder, str) for folder in folders)
    return is_listed and isinstance(modules, dict) and isinstance(found.get("executable"), str)
