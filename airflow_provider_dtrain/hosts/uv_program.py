"""The program uv for hosts that have none: that of this machine, or one from a package index for another platform."""

from __future__ import annotations

import functools
import http.client
import io
import json
import os
import tempfile
import threading
import time
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.core.lifecycle.timing import INDEX_STALL_S, UV_FETCH_S
from airflow_provider_dtrain.core.lock_files.platform import Platform, this_platform
from airflow_provider_dtrain.errors import PayloadError
from airflow_provider_dtrain.hosts.payload import Payload, packed
from airflow_provider_dtrain.supervisor.environments.choice import Package, choose
from airflow_provider_dtrain.supervisor.environments.download import digest_of, indexes_of
from airflow_provider_dtrain.supervisor.environments.index import Index, Offer, why_unreachable
from airflow_provider_dtrain.supervisor.refusal import Refused

#: Most bytes of a wheel of uv and of its program, which have about 20 and 50 MiB.
_WHEEL_BYTES, _PROGRAM_BYTES = 128 << 20, 512 << 20
_PIECE = 1 << 20
#: Hosts of a gang want the same program at once.
_FETCHING = threading.Lock()


def uv_for(platform: Platform, index: Mapping[str, Any] | None) -> Payload | None:
    """Return an archive with uv for hosts of a platform, None if uv is not installed on this machine. Blocks.

    :param index: package index for other platforms than this one; None: the one that this machine is set up for
    :raises PayloadError: the index has no wheel for the platform, or does not answer
    """
    version = _version()
    if version is None:
        return None
    here = this_platform()
    if platform.machine == here.machine and _kind(platform.libc) == _kind(here.libc):
        return _own()
    with _FETCHING:
        try:
            return _fetched(version, platform.machine, platform.libc, json.dumps(index))
        except Refused as error:
            raise PayloadError(f"uv {version} for {platform} cannot be fetched: {error.message}") from error
        except (OSError, ValueError) as error:
            raise PayloadError(f"uv {version} for {platform} cannot be fetched: {error}") from error


def _version() -> str | None:
    try:
        return metadata.version("uv")
    except metadata.PackageNotFoundError:
        return None


def _kind(libc: str) -> str:
    return libc.partition(" ")[0]


@functools.cache
def _own() -> Payload | None:
    files = metadata.distribution("uv").files or ()
    programs = [file for file in files if file.name == "uv" and "bin" in file.parts]
    return packed(iter([("uv", Path(str(programs[0].locate())))])) if programs else None


@functools.lru_cache(maxsize=4)
def _fetched(version: str, machine: str, libc: str, index: str) -> Payload:
    # The program does not depend on Python, and its wheels are for any.
    tags = Platform(python="3.12.0", machine=machine, libc=libc).tags()
    package = Package("uv", version, ())
    ranks = {tag: rank for rank, tag in enumerate(tags)}
    places = indexes_of(json.loads(index), INDEX_STALL_S, None)
    for place in places:
        offer = choose(package, place.offers("uv"), ranks, allow_builds=False)
        if offer is not None:
            return _program_in(_read(place, offer), offer)
    raise Refused("package", f"{' and '.join(place.url for place in places)} has no wheel of it.")


def _read(index: Index, offer: Offer) -> bytes:
    content = bytearray()
    deadline = time.monotonic() + UV_FETCH_S
    try:
        with index.open(offer.url) as answer:
            while piece := answer.read(_PIECE):
                content += piece
                if len(content) > _WHEEL_BYTES or time.monotonic() > deadline:
                    message = f"has more than {_WHEEL_BYTES >> 20} MiB or takes longer than {UV_FETCH_S:g} s"
                    raise Refused("index", f"{offer.name} {message}.")
    except (OSError, http.client.HTTPException) as error:
        raise Refused("index", f"The server of {offer.name} {why_unreachable(error, INDEX_STALL_S)}") from error
    if offer.digest is not None and f"sha256:{digest_of(io.BytesIO(content), 'sha256')}" != offer.digest:
        raise Refused("index", f"{offer.name} is damaged: it has another hash than the index says.")
    return bytes(content)


def _program_in(wheel: bytes, offer: Offer) -> Payload:
    try:
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive, tempfile.TemporaryDirectory(prefix="dtrain-uv-") as folder:
            member = next(one for one in archive.infolist() if one.filename.endswith(".data/scripts/uv"))
            if member.file_size > _PROGRAM_BYTES:
                raise Refused("index", f"{offer.name} has a program of more than {_PROGRAM_BYTES >> 20} MiB.")
            path = Path(folder) / "uv"
            path.write_bytes(archive.read(member))
            os.chmod(path, 0o700)
            return packed(iter([("uv", path)]))
    except (zipfile.BadZipFile, StopIteration, NotImplementedError, RuntimeError) as error:
        raise Refused("index", f"{offer.name} is not a wheel with the program uv.") from error
