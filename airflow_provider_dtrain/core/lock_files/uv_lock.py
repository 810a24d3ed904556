"""Lock files of uv: ``uv.lock`` of a project, and the lock file beside a script."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from packaging.markers import InvalidMarker, Marker, UndefinedEnvironmentName
from packaging.utils import canonicalize_name

from airflow_provider_dtrain.core.lock_files.pins import HASH, Markers, Pin
from airflow_provider_dtrain.core.safe_repr import shown

#: Version of the format.
FORMAT: Final = 1
#: Sources of the project itself, which is the code that is sent and is not installed.
_OF_PROJECT: Final = ("virtual", "editable")


class UvLock:
    """Packages of a lock file of uv, as a graph from the dependencies of the project or script.

    :param document: checked
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.python: str | None = document.get("requires-python")
        self._packages: dict[str, list[Mapping[str, Any]]] = {}
        for package in document.get("package", ()):
            self._packages.setdefault(canonicalize_name(package["name"]), []).append(package)
        self._roots = list(_roots(document))

    def pins(self, markers: Markers | None) -> Sequence[Pin]:
        """Return the packages of a platform, or with None those of all platforms."""
        found: dict[tuple[str, str], Pin] = {}
        waiting = list(self._roots)
        seen = set()
        while waiting:
            dependency = waiting.pop()
            if not _applies(dependency.get("marker"), markers):
                continue
            for package in self._chosen(dependency, markers):
                extras = ("", *dependency.get("extra", ()))
                for key in ((package["name"], package["version"], extra) for extra in extras):
                    if key not in seen:
                        seen.add(key)
                        waiting += _dependencies(package, key[2])
                pin = _pin(package)
                found.setdefault((pin.name, pin.version), pin)
        return [found[key] for key in sorted(found)]

    def _chosen(self, dependency: Mapping[str, Any], markers: Markers | None) -> Iterator[Mapping[str, Any]]:
        """Yield the package of a dependency, without markers each version of it."""
        for package in self._packages.get(canonicalize_name(dependency["name"]), ()):
            is_version = dependency.get("version") in (None, package.get("version"))
            of_platform = package.get("resolution-markers")
            fits = not of_platform or any(_applies(marker, markers) for marker in of_platform)
            if is_version and fits and not _is_project(package):
                yield package


def _dependencies(package: Mapping[str, Any], extra: str) -> Sequence[Mapping[str, Any]]:
    found = package.get("optional-dependencies", {}).get(extra, ()) if extra else package.get("dependencies", ())
    return list(found)


def _roots(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the dependencies of the project in this folder, or of the script."""
    for package in document.get("package", ()):
        if _is_project(package) and "." in package["source"].values():
            yield from package.get("dependencies", ())
    yield from document.get("manifest", {}).get("requirements", ())


def _is_project(package: Mapping[str, Any]) -> bool:
    return any(name in package.get("source", {}) for name in _OF_PROJECT)


def _applies(marker: str | None, markers: Markers | None) -> bool:
    if marker is None or markers is None:
        return True
    try:
        return Marker(marker).evaluate(dict(markers))
    except UndefinedEnvironmentName:
        return False


def _pin(package: Mapping[str, Any]) -> Pin:
    files = {_file_name(one["url"]): one["hash"] for one in _files(package)}
    name = canonicalize_name(package["name"])
    return Pin(name=name, version=package["version"], hashes=tuple(dict.fromkeys(files.values())), files=files)


def _files(package: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from package.get("wheels", ())
    if "sdist" in package:
        yield package["sdist"]


def _file_name(url: str) -> str:
    return url.partition("#")[0].rpartition("/")[2]


def read_uv_lock(text: str) -> tuple[UvLock | None, list[str]]:
    """Return the packages of a lock file of uv, and its problems. With problems there may be no packages."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return None, [f"is not TOML: {error}"]
    if document.get("version") != FORMAT:
        return None, [f"has format {shown(document.get('version'))} of uv.lock; {FORMAT} is accepted"]
    try:
        problems = list(_problems(document))
        return (None, problems) if problems else (UvLock(document), [])
    except (AttributeError, KeyError, TypeError, ValueError):
        return None, ["is not a lock file as uv writes it. Write it anew: uv lock"]


def _problems(document: Mapping[str, Any]) -> Iterator[str]:
    for package in document.get("package", ()):
        source = package["source"]
        if _is_project(package):
            if "." not in source.values():
                yield f"{package['name']} is a member of a workspace; a lock file of one project is accepted"
        elif "registry" not in source:
            kind = next(iter(source), "nowhere")
            yield f"{package['name']} comes from {kind}; packages of an index are accepted"
        else:
            yield from (
                f"{package['name']}: a file without a hash or a URL"
                for one in _files(package)
                if not HASH.match(one.get("hash", "")) or not isinstance(one.get("url"), str)
            )
        for marker in _markers(package):
            try:
                Marker(marker)
            except InvalidMarker:
                yield f"{package['name']}: {shown(marker)} is not a marker"
    if not any(_roots(document)) and not any(_is_project(one) for one in document.get("package", ())):
        yield "names neither a project in this folder nor the requirements of a script"


def _markers(package: Mapping[str, Any]) -> Iterator[str]:
    groups = [package.get("dependencies", ()), *package.get("optional-dependencies", {}).values()]
    yield from (one["marker"] for group in groups for one in group if "marker" in one)
    yield from package.get("resolution-markers", ())
