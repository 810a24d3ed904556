"""Download of the files of an environment, the only process that knows index and credentials. It runs no package."""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import http.client
import json
import os
import shutil
import socket
import sys
import threading
import time
import urllib.error
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, TypeVar

from ..fields import parse_object, shorten
from ..limits import MAX_LINE
from ..names import Json
from ..refusal import Refused, refuse_os_error
from .choice import Package, choose, refuse
from .index import Index, IndexLogin, Offer, host_indexes, origin_of, why_unreachable

T = TypeVar("T")

#: Files that are downloaded at the same time, and times that a file is requested.
_THREADS, _TRIES = 8, 2
#: Time between two reports of progress.
_REPORT_S = 0.5
_PIECE = 1 << 20
#: Errors of a connection. Others, such as a full disk, concern this host. Before Python 3.10, socket.timeout is no
#: TimeoutError.
_UNREACHABLE = (urllib.error.URLError, TimeoutError, socket.timeout, ConnectionError)


class PackageDownload:
    """One download into a folder.

    :param request: see :func:`download`
    :param report: gets the progress in words
    """

    def __init__(self, request: Json, report: Any) -> None:
        self.target: str = request["target"]
        self.folders: Sequence[str] = request["folders"]
        self.packages = [Package(one["name"], one["version"], tuple(one["hashes"])) for one in request["packages"]]
        self.ranks: Mapping[str, int] = {tag: rank for rank, tag in enumerate(request["tags"])}
        self.allow_builds: bool = request["allow_builds"]
        self.stall_s: float = request["stall_s"]
        self.indexes = indexes_of(request["index"], self.stall_s, request["pip"])
        self._report = report
        self._lock = threading.Lock()
        self._done, self._bytes, self._reported = 0, 0, 0.0

    def run(self) -> list[str]:
        """Return the names of the files, in the order of the packages.

        :raises Refused: the first problem
        """
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            futures = [pool.submit(self._fetch, package) for package in self.packages]
            try:
                for future in concurrent.futures.as_completed(futures):
                    future.result()
            except BaseException:
                for future in futures:
                    future.cancel()
                raise
            return [future.result() for future in futures]

    def _fetch(self, package: Package) -> str:
        found = self._from_folders(package)
        seen: list[Offer] = []
        if found is None:
            found = self._from_indexes(package, seen)
        if found is None:
            places = [*self.folders, *(index.url for index in self.indexes)] if package.hashes else self.folders
            raise refuse(package, [*seen, *self._local()], self.ranks, " and ".join(places) or "no index")
        with self._lock:
            self._done += 1
        self._progress(package)
        return found

    def _local(self) -> list[Offer]:
        return [Offer(name, os.path.join(folder, name), None) for folder in self.folders for name in _files_in(folder)]

    def _from_folders(self, package: Package) -> str | None:
        offer = choose(package, self._local(), self.ranks, allow_builds=self.allow_builds)
        if offer is None:
            return None
        target = os.path.join(self.target, offer.name)
        shutil.copyfile(offer.url, target)
        if package.hashes:
            _check_digest(package, target, offer.url)
        return offer.name

    def _from_indexes(self, package: Package, seen: list[Offer]) -> str | None:
        for index in self.indexes if package.hashes else ():
            offers = _retried(functools.partial(index.offers, package.name))
            offer = choose(package, offers, self.ranks, allow_builds=self.allow_builds)
            if offer is not None:
                return _retried(functools.partial(self._get, package, index, offer))
            seen += offers
        return None

    def _get(self, package: Package, index: Index, offer: Offer) -> str:
        name = os.path.basename(offer.name)
        target = os.path.join(self.target, name)
        where = f"The server of {package} ({offer.url.partition('?')[0].rpartition('@')[2]})"
        try:
            with index.open(offer.url) as answer, open(target, "wb") as file:
                self._copy(package, answer, file)
        except (*_UNREACHABLE, http.client.HTTPException) as error:
            raise Refused("index", f"{where} {why_unreachable(error, self.stall_s)}", package=str(package)) from error
        _check_digest(package, target, offer.url)
        return name

    def _copy(self, package: Package, source: Any, file: IO[bytes]) -> None:
        while piece := source.read(_PIECE):
            file.write(piece)
            with self._lock:
                self._bytes += len(piece)
            self._progress(package)

    def _progress(self, package: Package) -> None:
        with self._lock:
            if time.monotonic() - self._reported < _REPORT_S and self._done < len(self.packages):
                return
            self._reported = time.monotonic()
            text = f"{self._done} of {len(self.packages)} packages, {self._bytes / 2**20:.0f} MiB"
            self._report(f"downloads {package}: {text}")


def _retried(request: Callable[[], T]) -> T:
    """Return the result of a request, which is repeated if the index does not answer."""
    for _ in range(_TRIES - 1):
        try:
            return request()
        except Refused as error:
            if error.code != "index":
                raise
    return request()


def _files_in(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        message = f"environment.wheels: folder {shorten(folder)} cannot be read on this host: {error.strerror}"
        raise Refused("package", f"{message}. Mount it, or correct the path.") from error


def _check_digest(package: Package, path: str, source: str) -> None:
    for known in package.hashes:
        kind, _, digest = known.partition(":")
        with open(path, "rb") as file:
            if digest == digest_of(file, kind):
                return
    os.unlink(path)
    place = source.partition("?")[0].rpartition("@")[2]
    message = f"{os.path.basename(path)} from {place} has none of the hashes of the lock file"
    raise Refused("package", f"{message}. It is damaged, or another file than was locked.", package=str(package))


def digest_of(file: IO[bytes], kind: str) -> str:
    """Return the digest of a file.

    :param kind: e.g. ``sha256``
    """
    seen = hashlib.new(kind)
    while piece := file.read(_PIECE):
        seen.update(piece)
    return seen.hexdigest()


def indexes_of(index: Json | None, stall_s: float, pip: str | None) -> list[Index]:
    """Return the indexes of a request, else those that this machine is set up for.

    :param pip: wheel of pip that knows the index of pip, if any
    :raises Refused: there is none
    """
    if index is None:
        return [Index(url, None, stall_s) for url in host_indexes(os.environ, pip)]
    login = IndexLogin(index["login"], index.get("password") or "") if index.get("login") else None
    urls = index["urls"]
    # The credentials are for the server of the first one.
    return [Index(url, login if origin_of(url) == origin_of(urls[0]) else None, stall_s) for url in urls]


def download() -> None:
    """Download the files that a request on standard input names. Write progress and result as lines of JSON."""
    request = parse_object(sys.stdin.buffer.read(MAX_LINE)) or {}
    lock = threading.Lock()

    def write(document: Json) -> None:
        with lock:
            sys.stdout.write(json.dumps(document) + "\n")
            sys.stdout.flush()

    try:
        files = PackageDownload(request, lambda text: write({"progress": text})).run()
    except Refused as error:
        write(error.answer())
    except OSError as error:
        write(refuse_os_error(error).answer())
    else:
        write({"ok": True, "files": files})
