"""Platform of an interpreter: the values of markers, and the tags of the wheels that it can use."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from airflow_provider_dtrain.core.lock_files.pins import LockFile, Pin

#: Oldest glibc of wheels for Linux. Source: manylinux1 (PEP 513), glibc 2.5.
_OLDEST_GLIBC: Final = 5
#: Names of older formats. Source: PEP 600.
_FORMER: Final = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_LIBC: Final = re.compile(r"(glibc|musl) (\d+)\.(\d+)", re.ASCII)
#: Packages that a message names.
_NAMED: Final = 5


@dataclass(frozen=True, kw_only=True)
class Platform:
    """An interpreter on a machine."""

    #: E.g. ``3.12.1``.
    python: str
    #: E.g. ``x86_64``.
    machine: str
    #: ``glibc 2.36``, ``musl 1.2``, or another text for an unknown library.
    libc: str
    #: ABI without the global interpreter lock.
    is_free_threaded: bool = False
    #: Values of further markers.
    system: Mapping[str, str] | None = None

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> Platform:
        """Return the platform that a host reports."""
        names = ("platform_release", "platform_version", "implementation_version")
        return cls(
            python=str(facts["python"]),
            machine=str(facts["machine"]),
            libc=str(facts["libc"]),
            is_free_threaded=bool(facts.get("is_free_threaded")),
            system={name: str(facts[name]) for name in names if name in facts},
        )

    def __str__(self) -> str:
        return f"Python {self.python} on Linux {self.machine} with {self.libc}"

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor version of Python."""
        numbers = re.findall(r"\d+", self.python)
        return int(numbers[0]), int(numbers[1])

    def markers(self) -> dict[str, str]:
        """Return the values of the variables in markers."""
        return {
            "implementation_name": "cpython",
            "implementation_version": self.python,
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": self.python,
            "python_version": ".".join(map(str, self.version)),
            "sys_platform": "linux",
            **(self.system or {}),
        }

    def tags(self) -> list[str]:
        """Return the tags of usable wheels, the best first."""
        platforms = list(self._platforms())
        interpreter = "cp{}{}".format(*self.version)
        abis = [f"{interpreter}{'t' if self.is_free_threaded else ''}"]
        found: list[Tag] = list(cpython_tags(self.version, abis=abis, platforms=platforms))
        found += compatible_tags(self.version, interpreter=interpreter, platforms=platforms)
        return list(dict.fromkeys(map(str, found)))

    def _platforms(self) -> Iterator[str]:
        yield f"linux_{self.machine}"
        match = _LIBC.match(self.libc)
        if match and match[1] == "glibc" and match[2] == "2":
            for minor in range(int(match[3]), _OLDEST_GLIBC - 1, -1):
                yield f"manylinux_2_{minor}_{self.machine}"
                if minor in _FORMER:
                    yield f"{_FORMER[minor]}_{self.machine}"
        elif match and match[1] == "musl":
            yield from (f"musllinux_{match[2]}_{minor}_{self.machine}" for minor in range(int(match[3]), -1, -1))


def this_platform(version: str | None = None) -> Platform:
    """Return the platform of this machine.

    :param version: of Python, such as ``3.12``; another text or None: that of this interpreter
    """
    is_version = version is not None and re.fullmatch(r"3\.\d+", version)
    python = f"{version}.0" if is_version else platform.python_version()
    return Platform(python=python, machine=platform.machine(), libc=" ".join(platform.libc_ver()))


def wheels_for(pin: Pin, tags: Sequence[str]) -> list[str]:
    """Return the hashes of a package's wheels that fit a platform, the best first. Its lock file names its files."""
    ranks = {tag: rank for rank, tag in enumerate(tags)}
    fitting = []
    for name, digest in (pin.files or {}).items():
        own = [ranks[tag] for tag in _tags_of(name) if tag in ranks]
        if own:
            fitting.append((min(own), digest))
    return [digest for _, digest in sorted(fitting)]


def _tags_of(file_name: str) -> list[str]:
    try:
        return [str(tag) for tag in parse_wheel_filename(file_name)[3]] if file_name.endswith(".whl") else []
    except InvalidWheelFilename:
        return []


def gaps(lock: LockFile, wanted: Platform, *, allow_builds: bool) -> list[str]:
    """Return what a lock file lacks for a platform, as far as it names files.

    :param allow_builds: packages without a fitting wheel may be built
    """
    found = []
    if not fits_python(lock.python, wanted.python):
        found.append(f"is for Python {lock.python}, not for {wanted}")
    tags = wanted.tags()
    bare = [pin for pin in lock.pins(wanted.markers()) if pin.files is not None and not wheels_for(pin, tags)]
    lacking = [pin for pin in bare if not (allow_builds and has_source(pin))]
    if lacking:
        more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
        names = ", ".join(map(str, lacking[:_NAMED])) + more
        builds = " Or set environment.allow_builds, which runs their code." if all(map(has_source, lacking)) else ""
        found.append(f"has no wheels of {names} for {wanted}. Lock versions that have them.{builds}")
    return found


def has_source(pin: Pin) -> bool:
    """Return whether a lock file names an archive of the sources of a package."""
    return any(not name.endswith(".whl") for name in pin.files or ())


def fits_python(specifier: str | None, python: str) -> bool:
    """Return whether a version of Python is among those of a lock file."""
    try:
        return SpecifierSet(specifier or "").contains(Version(python), prereleases=True)
    except InvalidVersion:
        return True
