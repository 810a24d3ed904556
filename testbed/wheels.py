"""Wheels, archives of sources and an index of them, made by the test: no network."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import shutil
import subprocess
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name


def make_wheel(
    folder: Path, name: str, version: str = "1.0", *, tag: str = "py3-none-any", files: dict[str, str] | None = None
) -> Path:
    """Write a wheel with one module of the package's name, which has ``VERSION``."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    content = {
        f"{module}.py": f"VERSION = {version!r}\n",
        **(files or {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in content.items())
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{module}-{version}-{tag}.whl"
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in content.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return place


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


#: Module of a backend that runs a file of the sources, and builds a wheel with one module of the package's name.
_BACKEND = """
import os, sys, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    with open("on_build.py") as file:
        exec(file.read(), {})
    with open("PKG-INFO") as file:
        name, version = (line.split()[1] for line in file.read().splitlines()[1:3])
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "VERSION = 'built'",
        f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(os.path.join(folder, f"{name}-{version}-py3-none-any.whl"), "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return f"{name}-{version}-py3-none-any.whl"
"""


def make_backend(folder: Path) -> Path:
    """Write the wheel of the package that builds those of :func:`make_source`."""
    return make_wheel(folder, "test-backend", files={"test_backend.py": _BACKEND})


def make_source(folder: Path, name: str, version: str = "1.0", *, on_build: str) -> Path:
    """Write an archive of sources whose build runs some code."""
    system = '[build-system]\nrequires = ["test-backend"]\nbuild-backend = "test_backend"\n'
    files = {
        "pyproject.toml": f'{system}[project]\nname = "{name}"\nversion = "{version}"\n',
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "on_build.py": on_build,
    }
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(place, "w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return place


def sha256(path: Path) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def locked(*files: Path) -> str:
    """Return the lines of a lock file for wheels."""
    lines = []
    for path in files:
        name, version = path.name.removesuffix(".tar.gz").split("-")[:2]
        lines.append(f"{name.replace('_', '-')}=={version} --hash={sha256(path)}\n")
    return "".join(lines)


class IndexServer:
    """A package index on loopback, with the files of a folder.

    :param login: ``user:password`` that it requires
    :param stalls: it accepts connections and never answers
    """

    def __init__(self, folder: Path, *, login: str | None = None, stalls: bool = False) -> None:
        self.folder, self.login, self.stalls = folder, login, stalls
        #: Paths and Authorization headers of all requests.
        self.requests: list[tuple[str, str | None]] = []
        #: Path -> URL that it is redirected to.
        self.redirects: dict[str, str] = {}
        #: Start of the URLs of files: another server, or "" for this one.
        self.files_at = ""
        #: Name of a file -> hash that the index claims for it.
        self.lists: dict[str, str] = {}
        #: Bytes of an answer after which the server hangs.
        self.sends_most: int | None = None
        self.ended = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/simple"

    def _answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        given = handler.headers.get("Authorization")
        self.requests.append((handler.path, given))
        if self.stalls:
            self.ended.wait(60)
            return
        wanted = None if self.login is None else "Basic " + base64.b64encode(self.login.encode()).decode()
        if wanted is not None and given != wanted:
            handler.send_error(401)
        elif handler.path in self.redirects:
            handler.send_response(302)
            handler.send_header("Location", self.redirects[handler.path])
            handler.end_headers()
        elif handler.path.startswith("/files/"):
            self._send(handler, (self.folder / handler.path.rpartition("/")[2]).read_bytes(), "application/zip")
        else:
            self._list(handler, handler.path.rstrip("/").rpartition("/")[2])

    def _list(self, handler: http.server.BaseHTTPRequestHandler, package: str) -> None:
        found = [
            path for path in sorted(self.folder.iterdir()) if canonicalize_name(path.name.split("-")[0]) == package
        ]
        if not found:
            handler.send_error(404)
            return
        links = "".join(self._link(path) for path in found)
        self._send(handler, f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), "text/html")

    def _link(self, path: Path) -> str:
        digest = self.lists.get(path.name, sha256(path)).replace(":", "=")
        return f'<a href="{self.files_at}/files/{path.name}#{digest}">{path.name}</a>'

    def _send(self, handler: http.server.BaseHTTPRequestHandler, body: bytes, kind: str) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: self.sends_most])
        if self.sends_most is not None and len(body) > self.sends_most:
            handler.wfile.flush()
            self.ended.wait(60)

    def downloads(self) -> int:
        return sum(path.startswith("/files/") for path, _ in self.requests)


@contextmanager
def index_server(folder: Path, **how: Any) -> Iterator[IndexServer]:
    found = IndexServer(folder, **how)
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.ended.set()
        found.server.shutdown()
        found.server.server_close()
        thread.join(10)


def uv_program() -> str | None:
    """Return the path of uv, None if it is not installed."""
    found = shutil.which("uv")
    if found is not None and "shims" in found:
        done = subprocess.run(["pyenv", "which", "uv"], capture_output=True, text=True, check=False)
        found = done.stdout.strip() or None
    return found


def until_ready(call: Any, *, most_s: float = 120) -> Any:
    """Return the answer of a host once it no longer builds."""
    deadline = time.monotonic() + most_s
    while True:
        answer = call()
        if answer["state"] != "building":
            return answer
        assert time.monotonic() < deadline, answer
