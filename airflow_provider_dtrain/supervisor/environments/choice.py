"""Choice of the file of a package that is installed: by hash, by tags, and by the rule about builds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..refusal import Refused
from .index import Offer

_SOURCES = (".tar.gz", ".zip", ".tar.bz2", ".tgz")
#: Names of files that a message shows.
_SHOWN = 3


class Package(NamedTuple):
    """A package of a lock file."""

    name: str
    version: str
    #: Of the files that may be installed. Empty: any file of a folder that was sent with the code.
    hashes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def choose(package: Package, offers: Iterable[Offer], ranks: Mapping[str, int], *, allow_builds: bool) -> Offer | None:
    """Return the file that fits best, None if none does.

    :param ranks: tag of wheels -> its rank, the best is 0
    :param allow_builds: an archive of the sources may be installed if no wheel fits
    """
    own = [offer for offer in offers if is_of(package, offer)]
    rated = [(rank, offer) for offer in own if (rank := _rank(offer.name, ranks)) is not None]
    if rated:
        return min(rated)[1]
    sources = [offer for offer in own if offer.name.endswith(_SOURCES)]
    return sources[0] if sources and allow_builds else None


def is_of(package: Package, offer: Offer) -> bool:
    """Return whether a file is one of a package in its version, with one of its hashes as far as that is known."""
    comparable = [one for one in package.hashes if one.startswith("sha256:")]
    is_allowed = offer.digest is None or not comparable or offer.digest in comparable
    return is_allowed and version_in(package.name, offer.name) == normal_version(package.version)


def version_in(name: str, file_name: str) -> str | None:
    """Return the version in the name of a file, None if it is not one of the package."""
    if file_name.endswith(".whl"):
        parts = file_name[:-4].split("-")
        if len(parts) < 5 or normal_name(parts[0]) != name:
            return None
        return normal_version(parts[1])
    stem = next((file_name[: -len(end)] for end in _SOURCES if file_name.endswith(end)), None)
    if stem is None:
        return None
    # A name may have hyphens, and so may a version.
    for place in (one.start() for one in re.finditer("-", stem)):
        if normal_name(stem[:place]) == name and stem[place + 1 : place + 2].isdigit():
            return normal_version(stem[place + 1 :])
    return None


def normal_name(name: str) -> str:
    """Return a name of a package in the spelling of lock files."""
    return re.sub(r"[-_.]+", "-", name).lower()


def normal_version(version: str) -> str:
    """Return a version in a spelling that two equal ones share."""
    plain = re.sub(r"[-_]", ".", version.lower().strip())
    return re.sub(r"(\.0)+(?=$|\+)", "", plain.removeprefix("v"))


def _rank(file_name: str, ranks: Mapping[str, int]) -> int | None:
    if not file_name.endswith(".whl"):
        return None
    pythons, abis, platforms = (part.split(".") for part in file_name[:-4].split("-")[-3:])
    found = [ranks.get(f"{one}-{abi}-{place}") for one in pythons for abi in abis for place in platforms]
    return min((rank for rank in found if rank is not None), default=None)


def refuse(package: Package, offers: Iterable[Offer], ranks: Mapping[str, int], where: str) -> Refused:
    """Return the refusal for a package without a usable file.

    :param where: places that were searched, in words
    """
    every = list(offers)
    own = [offer for offer in every if version_in(package.name, offer.name) == normal_version(package.version)]
    tag = min(ranks, key=lambda one: ranks[one])
    lock = "Lock the packages again for this platform, for example with uv pip compile --universal --generate-hashes."
    allowed = [offer for offer in own if is_of(package, offer)]
    if not own:
        message = f"{where} has no file of {package}. Correct the lock file, or the index"
    elif not allowed:
        message = f"None of the {len(own)} files of {package} in {where} has a hash of the lock file. {lock}"
    elif all(offer.name.endswith(_SOURCES) for offer in allowed):
        message = (
            f"{package} has no wheel, and its build would run its code. Set environment.allow_builds to build it, or "
            "choose a version with wheels"
        )
    else:
        names = ", ".join(offer.name for offer in allowed[:_SHOWN])
        message = f"No wheel of {package} that the lock file allows fits {tag} of this host, only {names}. {lock}"
    return Refused("package", f"{message.rstrip('.')}.", package=str(package))
