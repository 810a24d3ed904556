"""Images for containers: whether this host has a runtime and an image, and their download."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import tempfile
from collections.abc import Callable
from typing import Any

from ..fields import Fields
from ..files.layout import Layout
from ..limits import RUNTIME_S
from ..machine.container_runtime import RUNTIMES, find_runtime, run_command
from ..machine.processes import program
from ..machine.registry_login import RegistryLogin, login_settings
from ..names import Json
from ..refusal import Refused

#: Most characters of the name of a registry, of a user name and of a password. Tokens of clouds have thousands.
_LOGIN_LIMIT = 16 << 10


def image_request(layout: Layout, fields: Fields) -> Callable[[], Json]:
    """Check a request for an image, and return the work that provides it."""
    wanted = fields.text("runtime", re.compile("|".join(RUNTIMES)), default=None)
    image = fields.text("image", limit=1024)
    if image.startswith("-"):
        raise fields.bad("image", "must not begin with '-'")
    always = fields.flag("always", default=False)
    timeout_s = fields.number("limit_s", 1, 86400)
    paths = fields.texts("paths", limit=256, default=[])
    login = _login(fields.inner("login")) if fields.values.get("login") is not None else None
    return lambda: provide(layout, wanted, image, paths, login, always=always, timeout_s=timeout_s)


def _login(fields: Fields) -> RegistryLogin:
    values = [fields.values.get(name) for name in RegistryLogin._fields]
    if not all(isinstance(value, str) and 0 < len(value) <= _LOGIN_LIMIT and value.isprintable() for value in values):
        # No value is shown.
        raise fields.bad("", f"must have server, username and password of at most {_LOGIN_LIMIT} printable characters")
    return RegistryLogin(*map(str, values))


def provide(
    layout: Layout,
    wanted: str | None,
    image: str,
    paths: list[str],
    login: RegistryLogin | None = None,
    *,
    always: bool,
    timeout_s: float,
) -> Json:
    """Return the facts that the command of a container needs, once the image is here.

    ``runtime`` is None on a host without the wanted runtime.

    :param login: for the registry; None: the credentials that the account has stored on this host
    :param paths: folders and devices of this host that the container gets
    :param always: ask the registry for the image even if one of this name is here
    :raises Refused: ``image``, it cannot be provided; ``runtime``, the runtime does not answer
    """
    runtime = find_runtime(wanted)
    if runtime is None:
        return {"runtime": None}
    if runtime == "apptainer":
        facts = _apptainer(layout, image, login, always=always, timeout_s=timeout_s)
    else:
        facts = _of_daemon(runtime, image, login, always=always, timeout_s=timeout_s)
    return {
        "runtime": runtime,
        **facts,
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": os.getgroups(),
        "state_dir": layout.state_dir,
        "program": program(),
        "libraries": os.path.dirname(layout.library("")),
        "paths": {path: os.path.realpath(path) if os.path.exists(path) else None for path in paths},
    }


def _of_daemon(runtime: str, image: str, login: RegistryLogin | None, *, always: bool, timeout_s: float) -> Json:
    """Return an image of podman or docker, downloaded if it is not here or the caller requests it."""
    found = None if always else _inspect(runtime, image)
    if found is None:
        _pull([runtime, "pull", "--quiet"], [image], login, timeout_s)
        found = _inspect(runtime, image)
    if found is None:
        raise Refused("image", f"{runtime} has no image '{image}' after its download.")
    return found


def _inspect(runtime: str, image: str) -> Json | None:
    """Return id and digest of an image, None if this host does not have it."""
    done = run_command([runtime, "image", "inspect", image], RUNTIME_S)
    if done.status != 0:
        # Docker also fails without its daemon.
        answers = done if done.status is None else run_command([runtime, "version"], RUNTIME_S)
        if answers.status != 0:
            raise Refused("runtime", f"{runtime} does not answer: {answers.reason}.")
        return None
    try:
        found: Any = json.loads(done.output)[0]
        digests = found.get("RepoDigests") or [found.get("Digest") or found["Id"]]
        return {"image": str(found["Id"]), "digest": str(digests[0])}
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise Refused("runtime", f"{runtime} describes image '{image}' in an unknown form.") from error


def _pull(command: list[str], rest: list[str], login: RegistryLogin | None, timeout_s: float) -> None:
    """Download an image.

    :param rest: arguments after the options; the last one is the image
    """
    runtime = command[0]
    # Where podman and apptainer keep a download until it is complete. They leave it behind if they are killed.
    place = os.environ.get("TMPDIR", "/var/tmp")  # noqa: S108 - their own default
    with (
        tempfile.TemporaryDirectory(prefix="dtrain-pull-", dir=place) as folder,
        login_settings(runtime, login) as (options, variables),
    ):
        done = run_command([*command, *options, *rest], timeout_s, {"TMPDIR": folder, **variables})
    if done.status != 0:
        reason = done.reason if login is None else login.hidden(done.reason)
        raise Refused("image", f"{runtime} cannot provide image '{rest[-1]}': {reason}")


def _apptainer(layout: Layout, image: str, login: RegistryLogin | None, *, always: bool, timeout_s: float) -> Json:
    """Return the file of an image of apptainer: one of this host, or one made of an image of a registry."""
    path = image
    if not image.startswith("/"):
        name = image if "://" in image else f"docker://{image}"
        folder = os.path.join(layout.remote_dir, "images")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(folder, f"{hashlib.sha256(name.encode()).hexdigest()}.sif")
        if always or not os.path.exists(path):
            part = f"{path}.{random.getrandbits(48):012x}"
            try:
                _pull(["apptainer", "pull", "--force"], [part, name], login, timeout_s)
                os.replace(part, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part)
    try:
        with open(path, "rb") as file:
            digest = hashlib.sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise Refused("image", f"{path} cannot be read: {error.strerror}") from error
    return {"image": path, "digest": f"sha256:{digest.hexdigest()}"}
