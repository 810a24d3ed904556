"""Lock files in the format of pip's requirements, as ``uv pip compile`` and ``pip-compile`` write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from packaging.markers import Marker, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from airflow_provider_dtrain.core.lock_files.pins import HASH, Markers, Pin
from airflow_provider_dtrain.core.safe_repr import shown

_COMMENT: Final = re.compile(r"(^|\s)#.*\Z")
_OPTION: Final = re.compile(r"\s--hash[= ]\s*(\S+)")
_INDEX: Final = ("-i", "--index-url", "--extra-index-url", "--no-index", "-f", "--find-links", "--trusted-host")
_EDITABLE: Final = ("-e", "--editable")
_OTHER_FILES: Final = ("-r", "--requirement", "-c", "--constraint")


class _Line(NamedTuple):
    pin: Pin
    marker: Marker | None


class Requirements:
    """The lines of a file of requirements.

    :param python: specifier of the Python versions that they are for
    """

    def __init__(self, lines: Iterable[_Line], python: str | None = None) -> None:
        self._lines = tuple(lines)
        self.python = python

    def pins(self, markers: Markers | None) -> Sequence[Pin]:
        """Return the packages of a platform, or with None those of all platforms."""
        return [
            line.pin for line in self._lines if markers is None or line.marker is None or _applies(line.marker, markers)
        ]


def _applies(marker: Marker, markers: Markers) -> bool:
    try:
        return marker.evaluate(dict(markers))
    except UndefinedEnvironmentName:
        # An extra of the file itself, which is not requested.
        return False


def read_requirements(text: str) -> tuple[Requirements, list[str]]:
    """Return the packages of a file of requirements, and its problems, each with the number of its line."""
    lines, problems = [], []
    for number, line in _logical_lines(text):
        found = _line(line)
        if isinstance(found, str):
            problems.append(f"line {number}: {found}")
        else:
            lines.append(found)
    return Requirements(lines), problems


def from_dependencies(dependencies: Iterable[str], python: str | None) -> tuple[Requirements, list[str]]:
    """Return the packages of a list of dependencies, and its problems."""
    lines, problems = [], []
    for dependency in dependencies:
        found = _line(dependency)
        if isinstance(found, str):
            problems.append(found)
        else:
            lines.append(found)
    return Requirements(lines, python), problems


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines without comments, joined where one ends with a backslash."""
    parts: list[str] = []
    first = 0
    for number, raw in enumerate(text.splitlines(), 1):
        first = first if parts else number
        continues = raw.endswith("\\") and not raw.lstrip().startswith("#")
        parts.append(_COMMENT.sub("", raw[:-1] if continues else raw).strip())
        if not continues:
            if line := " ".join(filter(None, parts)):
                yield first, line
            parts = []
    if line := " ".join(filter(None, parts)):
        yield first, line


def _line(text: str) -> _Line | str:
    """Return a pinned package, or the problem of its line."""
    if text.startswith("-"):
        return _refused_option(text)
    hashes = tuple(dict.fromkeys(_OPTION.findall(text)))
    bare = _OPTION.sub("", text).strip()
    try:
        requirement = Requirement(bare)
    except InvalidRequirement as error:
        return f"{shown(bare)} is not name==version: {str(error).splitlines()[0]}"
    if requirement.url is not None:
        return f"{requirement.name} is taken from a URL or a path; name==version with hashes is accepted"
    wrong = [value for value in hashes if not HASH.match(value)]
    if wrong:
        return f"{shown(wrong[0])} is not a hash of the form sha256:<64 digits>"
    version = _pinned(requirement)
    if version is None:
        return f"{shown(bare)} has no exact version; name==version is accepted. {HOW_TO_LOCK}"
    return _Line(Pin(name=canonicalize_name(requirement.name), version=version, hashes=hashes), requirement.marker)


#: Sentence for a file that does not pin its packages.
HOW_TO_LOCK: Final = (
    "Lock it: uv pip compile --universal --generate-hashes --no-emit-index-url requirements.in -o requirements.lock"
)


def _pinned(requirement: Requirement) -> str | None:
    specifiers = list(requirement.specifier)
    exact = [one for one in specifiers if one.operator in ("==", "===") and not one.version.endswith("*")]
    return exact[0].version if len(specifiers) == 1 and exact else None


def _refused_option(text: str) -> str:
    name = re.split(r"[\s=]", text, maxsplit=1)[0]
    if name in _INDEX:
        return (
            f"{name} is not accepted in a lock file. The index is that of environment.index_conn_id, or the one that "
            "the host is set up for; a folder of wheels is environment.wheels"
        )
    if name in _EDITABLE:
        return f"{name} is not accepted. Put the package into model_dir, which is on the path of the ranks"
    if name in _OTHER_FILES:
        return f"{name} is not accepted. Lock all packages in one file"
    return f"option {shown(name)} is not accepted; lines of the form name==version --hash=sha256:... are"
