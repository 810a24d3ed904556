"""Registry of images on loopback: the part of the protocol that a download needs, with basic and with token login."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_TOKEN = "token-of-the-registry"  # noqa: S105 - of this test server


class Registry:
    """A running registry.

    :param login: ``user:password`` that a download needs; None: none
    :param kind: of the login
    """

    def __init__(self, login: str | None, kind: Literal["basic", "token"]) -> None:
        self.login, self.kind = login, kind
        #: Name of an image -> its manifest.
        self.manifests: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        #: Paths that were requested.
        self.requests: list[str] = []
        #: Requests for blobs do not get an answer while it is set, and the rest of one that has begun waits.
        self.hangs = threading.Event()
        #: Body of refusals.
        self.refusal = "authentication required"
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                registry.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def add(self, name: str, files: Mapping[str, bytes], **config: Any) -> str:
        """Add an image with one layer, and return its digest."""
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            for path, content in files.items():
                member = tarfile.TarInfo(path)
                member.size, member.mode = len(content), 0o755
                tar.addfile(member, io.BytesIO(content))
        packed = gzip.compress(layer.getvalue(), mtime=0)
        document = {
            "architecture": "amd64", "os": "linux", "config": config,
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer.getvalue())]},
        }  # fmt: skip
        described = json.dumps(document).encode()
        for blob in (packed, described):
            self.blobs[_digest(blob)] = blob
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _entry(described, "application/vnd.docker.container.image.v1+json"),
            "layers": [_entry(packed, "application/vnd.docker.image.rootfs.diff.tar.gzip")],
        }
        content = json.dumps(manifest).encode()
        self.manifests[name] = content
        return _digest(content)

    def answer(self, request: Any) -> None:
        self.requests.append(request.path)
        path = request.path.partition("?")[0]
        if path == "/token":
            if self._may(request, "Basic", self.login):
                self._send(request, 200, json.dumps({"token": _TOKEN, "expires_in": 300}).encode(), "application/json")
            else:
                self._refuse(request)
            return
        is_basic = self.kind == "basic"
        if not self._may(request, "Basic" if is_basic else "Bearer", self.login if is_basic else _TOKEN):
            self._refuse(request)
        elif path == "/v2/":
            self._send(request, 200, b"{}", "application/json")
        elif "/manifests/" in path:
            name, _, tag = path.removeprefix("/v2/").partition("/manifests/")
            by_digest = {_digest(content): content for content in self.manifests.values()}
            found = by_digest.get(tag) or self.manifests.get(f"{name}:{tag}")
            self._send(
                request, 200 if found else 404, found or _error("MANIFEST_UNKNOWN", "manifest unknown"), _MANIFEST
            )
        else:
            found = self.blobs.get(path.rpartition("/")[2])
            self._send(request, 200 if found else 404, found or b"", "application/octet-stream", slow=True)

    def _may(self, request: Any, kind: str, needed: str | None) -> bool:
        if self.login is None:
            return True
        own = base64.b64encode(str(needed).encode()).decode() if kind == "Basic" else needed
        return str(request.headers.get("Authorization")) == f"{kind} {own}"

    def _refuse(self, request: Any) -> None:
        challenge = 'Basic realm="registry"'
        if self.kind == "token":
            challenge = f'Bearer realm="http://{self.address}/token",service="registry"'
        text = self.refusal.replace("<authorization>", str(request.headers.get("Authorization")))
        self._send(request, 401, _error("UNAUTHORIZED", text), "application/json", challenge=challenge)

    def _send(
        self, request: Any, status: int, body: bytes, kind: str, *, challenge: str | None = None, slow: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            request.send_response(status)
            request.send_header("Content-Type", kind)
            request.send_header("Content-Length", str(len(body)))
            request.send_header("Docker-Content-Digest", _digest(body))
            if challenge is not None:
                request.send_header("WWW-Authenticate", challenge)
            request.end_headers()
            if request.command == "HEAD":
                return
            begin = len(body) // 2 if slow else 0
            request.wfile.write(body[:begin])
            while slow and self.hangs.is_set():
                time.sleep(0.01)
            request.wfile.write(body[begin:])

    def close(self) -> None:
        self.hangs.clear()
        self.server.shutdown()
        self.server.server_close()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _entry(content: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": kind, "size": len(content), "digest": _digest(content)}


def _error(code: str, message: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": message}]}).encode()


@contextlib.contextmanager
def registry(folder: Path, login: str | None = None, kind: Literal["basic", "token"] = "basic") -> Iterator[Registry]:
    """Run a registry, whose settings for podman are in a folder."""
    found = Registry(login, kind)
    conf = folder / "registries.conf"
    conf.write_text(f'[[registry]]\nlocation = "{found.address}"\ninsecure = true\n')
    try:
        yield found
    finally:
        found.close()


def settings(folder: Path) -> dict[str, str]:
    """Return the variables with which podman reaches a registry of :func:`registry` without TLS."""
    return {"CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf")}
