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
from ..limits import IMAGE_S, RUNTIME_S
from ..machine.container_runtime import RUNTIMES, find_runtime, run_command
from ..machine.processes import program
from ..names import Json
from ..refusal import Refused
from .login import RegistryLogin, login_settings
from .stored import StoredImage, folder_of

#: Beginning of the names of folders with files of a download.
DOWNLOADS = "dtrain-pull-"
#: Most characters of the name of a registry, of a user name and of a password. Tokens of clouds have thousands.
_LOGIN_LIMIT = 16 << 10


def image_request(layout: Layout, fields: Fields) -> Callable[[], Json]:
    """Check a request for an image, and return the work that provides it."""
    wanted = fields.text("runtime", re.compile("|".join(RUNTIMES)), default=None)
    image = fields.text("image", limit=1024)
    if image.startswith("-"):
        raise fields.bad("image", "must not begin with '-'")
    always = fields.flag("always", default=False)
    timeout_s = fields.number("limit_s", 1, IMAGE_S)
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
    os.makedirs(folder_of(layout), mode=0o700, exist_ok=True)
    if runtime == "apptainer":
        facts = _apptainer(layout, image, login, always=always, timeout_s=timeout_s)
    else:
        facts = _of_daemon(layout, runtime, image, login, always=always, timeout_s=timeout_s)
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


def _of_daemon(
    layout: Layout, runtime: str, image: str, login: RegistryLogin | None, *, always: bool, timeout_s: float
) -> Json:
    """Return an image of podman or docker, downloaded if it is not here or the caller requests it."""
    stored = StoredImage.of(layout, runtime, image)
    found = None if always else _inspect(runtime, image)
    is_here = found is not None
    if found is None:
        _pull([runtime, "pull", "--quiet"], [image], login, timeout_s)
        found = _inspect(runtime, image)
    if found is None:
        raise Refused("image", f"{runtime} has no image '{image}' after its download.")
    stored.note_use(None if is_here else found["image"], found.pop("bytes"))
    return found


def _inspect(runtime: str, image: str) -> Json | None:
    """Return id, digest and size of an image, None if this host does not have it."""
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
        return {"image": str(found["Id"]), "digest": str(digests[0]), "bytes": int(found.get("Size") or 0)}
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise Refused("runtime", f"{runtime} describes image '{image}' in an unknown form.") from error


def _pull(command: list[str], rest: list[str], login: RegistryLogin | None, timeout_s: float) -> None:
    """Download an image.

    :param rest: arguments after the options; the last one is the image
    """
    runtime = command[0]
    # podman and apptainer keep a download here until it is complete, and leave it behind if they are killed.
    with (
        tempfile.TemporaryDirectory(prefix=DOWNLOADS, dir=place_of_downloads()) as folder,
        login_settings(runtime, login, folder) as settings,
    ):
        argv = [*command, *settings.options, *rest]
        done = run_command(argv, timeout_s, {"TMPDIR": folder, **settings.variables}, settings.descriptors)
    if done.status != 0:
        reason = done.reason if login is None else login.hidden(done.reason)
        raise Refused("image", f"{runtime} cannot provide image '{rest[-1]}': {reason}")


def place_of_downloads() -> str:
    """Return the folder in which podman keeps downloads by default."""
    return os.environ.get("TMPDIR", "/var/tmp")  # noqa: S108 - podman's own default


def _apptainer(layout: Layout, image: str, login: RegistryLogin | None, *, always: bool, timeout_s: float) -> Json:
    """Return the file of an image of apptainer: one of this host, or one made of an image of a registry."""
    path = image
    if not image.startswith("/"):
        name = image if "://" in image else f"docker://{image}"
        stored = StoredImage.of(layout, "apptainer", name)
        path = f"{stored.path.removesuffix('.json')}.sif"
        is_here = not always and os.path.exists(path)
        if not is_here:
            part = f"{path}.{random.getrandbits(48):012x}"
            try:
                _pull(["apptainer", "pull", "--force"], [part, name], login, timeout_s)
                os.replace(part, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part)
        stored.note_use(None if is_here else path, os.stat(path).st_size)
    try:
        with open(path, "rb") as file:
            digest = hashlib.sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise Refused("image", f"{path} cannot be read: {error.strerror}") from error
    return {"image": path, "digest": f"sha256:{digest.hexdigest()}"}
