"""Tokens of a user on this machine: one file per server, which only the user can read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from airflow_provider_dtrain.client.decoder import Answer
from airflow_provider_dtrain.errors import LoginError, ServerError

#: Most bytes of a file. A token has less than 4 KiB.
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Login:
    """A token of a user on a server."""

    server: str
    user: str
    token: str
    #: File of the certificates that the login trusted instead of the system's.
    ca: str | None = None

    def __repr__(self) -> str:
        """Return a text without the token."""
        return f"Login(server={self.server!r}, user={self.user!r})"


def folder() -> Path:
    """Return the folder of the files, ``$XDG_CONFIG_HOME/dtrain``."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    # A relative path is not valid there.
    base = Path(given) if given.startswith("/") else Path.home() / ".config"
    return base / "dtrain"


def load(server: str) -> Login | None:
    """Return the login of a server, None without one.

    :raises LoginError: other users can read the file, or it is damaged or that of another server
    """
    path = _path(server)
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LoginError(f"{path} cannot be read: {error.strerror}.") from None
    if mode & 0o077:
        raise LoginError(
            f"{path} can be read by other users (mode {mode:03o}), so its token is not used. Log in again: dtrain login"
        )
    try:
        found = Answer(data).record(Login)
    except ServerError:
        raise LoginError(f"{path} is damaged. Log in again: dtrain login") from None
    if found.server != server:
        raise LoginError(f"{path} has the token of another server, which is not sent. Log in again: dtrain login")
    return found


def save(login: Login) -> Path:
    """Write a login to its file, and return the path. The server becomes the default one."""
    path = _path(login.server)
    _write(path, json.dumps(asdict(login)))
    _write(folder() / "server", login.server + "\n")
    return path


def remove(server: str) -> bool:
    """Remove the login of a server, and return whether there was one."""
    try:
        _path(server).unlink()
    except FileNotFoundError:
        return False
    return True


def trusted(server: str) -> str | None:
    """Return the file of certificates that the login of a server trusted, None for the system's."""
    with contextlib.suppress(LoginError):
        found = load(server)
        return found.ca if found is not None else None
    return None


def last_server() -> str | None:
    """Return the server of the last login."""
    with contextlib.suppress(OSError):
        return (folder() / "server").read_text()[:2000].strip() or None
    return None


def _path(server: str) -> Path:
    """Return the file of a server. Long URLs that begin alike have different files."""
    digest = hashlib.sha256(server.encode()).hexdigest()[:16]
    return folder() / "logins" / f"{quote(server, safe='')[:150]}.{digest}.json"


def _write(path: Path, text: str) -> None:
    """Write a file of mode 0600. It appears under its name once it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    new.replace(path)
