"""Record of earlier launches of a program on this host: its imports, and the variables of its setup script."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import site
import sysconfig
import time

from ..fields import parse_object
from ..file_access import read_bytes, read_json, write_json
from ..limits import WARM_BAD_S, WARM_CODES, WARM_MODULES, WARM_RECORD_BYTES
from ..names import MODULE, Json

#: File in a rank's folder with the modules that its program had imported at its end.
MODULES_FILE = "modules.json"
#: Packages of the training library, and the module by which PyTorch finds its store.
_LIBRARY = ("airflow_provider_dtrain", "dtrain_rendezvous")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class WarmRecord:
    """Record of a program, which outlives warm parents. Any rank of this account may have forged it.

    :param folder: of the warm parents
    """

    def __init__(self, folder: str, plan: Json) -> None:
        facts = [plan[name] for name in ("argv", "python", "environment", "library", "setup")]
        self.path = os.path.join(folder, f"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]}.json")
        self.values: Json = read_json(self.path) or {}

    def why_executed(self, payload: str | None) -> str | None:
        """Return the reason why code is executed, None if it may be forked, and record that it is launched.

        :param payload: digest of the code
        """
        if self.is_bad:
            return "a warm parent of this program has failed"
        launched = self.values.get("launched")
        known: dict[str, object] = launched if isinstance(launched, dict) else {}
        name = str(payload)
        if name not in known:
            latest = dict(list(known.items())[-WARM_CODES:])
            self._write(launched={**latest, name: None})
            return "the first launch of this code on this host"
        reason = known[name]
        return reason if isinstance(reason, str) else None

    def note_refusal(self, payload: str | None, reason: str) -> None:
        """Record that code cannot be forked, so that no parent is started for it again."""
        launched = self.values.get("launched")
        self._write(launched={**(launched if isinstance(launched, dict) else {}), str(payload): reason})

    @property
    def is_bad(self) -> bool:
        """Return whether a parent of this program has recently failed."""
        since = self.values.get("bad_since")
        return isinstance(since, (int, float)) and 0 <= time.time() - since < WARM_BAD_S

    def note_bad(self) -> None:
        """Record that a parent of this program failed, so that its ranks are executed for a while."""
        self._write(bad_since=time.time(), modules=[])

    def with_setup(self, plan: Json) -> Json:
        """Return a plan with the variables that its setup script has set at the last launch."""
        variables = self.values.get("variables")
        if plan["setup"] is None or not isinstance(variables, dict):
            return plan
        known = {name: value for name, value in variables.items() if isinstance(value, str)}
        return {**plan, "env": {**known, **plan["env"]}}

    def note_setup(self, variables: dict[str, str]) -> None:
        """Record the variables that the setup script has set."""
        if self.values.get("variables") != variables:
            self._write(variables=variables)

    def modules(self) -> list[str]:
        """Return the names to import, in order."""
        found = self.values.get("modules")
        return checked_names(found) if isinstance(found, list) else []

    def note_modules(self, rank_folder: str) -> None:
        """Add the modules that a finished rank has reported."""
        content = read_bytes(os.path.join(rank_folder, MODULES_FILE), WARM_RECORD_BYTES)
        reported = (parse_object(content or b"") or {}).get("modules")
        if not isinstance(reported, list) or self.is_bad:
            return
        known = self.modules()
        wanted = packages()
        new = [name for name in checked_names(reported) if name.partition(".")[0] in wanted and name not in known]
        if new:
            self._write(modules=[*known, *new][:WARM_MODULES])

    def _write(self, **changes: object) -> None:
        self.values = {**self.values, **changes}
        with contextlib.suppress(OSError):
            write_json(self.path, self.values, durable=False)


def checked_names(names: list[object]) -> list[str]:
    """Return those of some values that are names of modules and not of programs."""
    found = (name for name in names[:WARM_MODULES] if isinstance(name, str) and MODULE.fullmatch(name))
    return [name for name in found if not name.endswith("__main__")]


def packages() -> set[str]:
    """Return the packages that a warm parent imports: PyTorch, what it requires, NumPy, and the training library."""
    # At the top, each channel to a host would import it.
    import importlib.metadata

    found: set[str] = set()
    waiting = ["torch"]
    distributions = set[str]()
    while waiting:
        name = waiting.pop()
        if name in distributions:
            continue
        distributions.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        top = (distribution.read_text("top_level.txt") or name.replace("-", "_")).split()
        found.update(top)
        for line in distribution.requires or []:
            requirement = _REQUIREMENT.match(line)
            if requirement and "extra ==" not in line:
                waiting.append(requirement[0].lower())
    # PyTorch imports NumPy where it is, and does not require it.
    return {*found, "numpy", *_LIBRARY} if found else {*_LIBRARY}


def is_installed(origin: str | None, library: str) -> bool:
    """Return whether the file of a module belongs to the installed packages of this interpreter or to the library."""
    if origin is None:
        return False
    roots = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages(), library}
    roots.add(site.getusersitepackages())
    real = os.path.realpath(origin)
    return any(root and real.startswith(os.path.realpath(root) + os.sep) for root in roots)
