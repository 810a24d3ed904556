"""Credentials of a registry, for the command of a runtime that downloads an image."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..file_access import read_json
from ..names import Json


class RegistryLogin(NamedTuple):
    """User name and password for one registry."""

    server: str
    username: str
    password: str

    @property
    def encoded(self) -> str:
        """The form that the files of runtimes and HTTP have."""
        return base64.b64encode(f"{self.username}:{self.password}".encode()).decode()

    @property
    def document(self) -> Json:
        """Content of the files of podman and docker."""
        # Docker writes its own registry as the URL of the first version.
        names = [self.server, *(["https://index.docker.io/v1/"] if self.server == "docker.io" else [])]
        return {"auths": {name: {"auth": self.encoded} for name in names}}

    def hidden(self, text: str) -> str:
        """Return a text of a runtime, which may repeat what a registry answers, without the credentials."""
        for secret in (self.encoded, self.password):
            text = text.replace(secret, "********")
        return text


class LoginSettings(NamedTuple):
    """Arguments, variables and inherited descriptors of a command of a runtime."""

    options: list[str]
    variables: Mapping[str, str]
    descriptors: tuple[int, ...]


@contextlib.contextmanager
def login_settings(runtime: str, login: RegistryLogin | None, folder: str) -> Iterator[LoginSettings]:
    """Yield the settings with which a runtime uses some credentials, until the end of the block.

    They are in a file of /dev/shm without a name, which the command inherits, or in variables: on no disk and in no
    argument. Without any, the runtime uses those that the account has stored on this host.

    :param folder: for settings of docker
    """
    if login is None:
        yield LoginSettings([], {}, ())
        return
    if runtime == "apptainer":
        names = {"APPTAINER_DOCKER_USERNAME": login.username, "APPTAINER_DOCKER_PASSWORD": login.password}
        yield LoginSettings([], names, ())
        return
    document = login.document
    if runtime == "docker":
        document = {**_docker_settings(), **document}
    with tempfile.TemporaryFile(dir="/dev/shm") as file:  # noqa: S108 - it has no name there
        file.write(json.dumps(document).encode())
        file.flush()
        # Rootless podman runs in a user namespace of its own, from which it cannot read those of this process.
        path = f"/proc/self/fd/{file.fileno()}"
        if runtime == "podman":
            yield LoginSettings(["--authfile", path], {}, (file.fileno(),))
            return
        os.symlink(path, os.path.join(folder, "config.json"))
        contexts = os.path.join(_docker_folder(), "contexts")
        if os.path.isdir(contexts):
            # They name the daemon.
            os.symlink(contexts, os.path.join(folder, "contexts"))
        yield LoginSettings([], {"DOCKER_CONFIG": folder}, (file.fileno(),))


def _docker_folder() -> str:
    return os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")


def _docker_settings() -> Json:
    """Return the settings of docker for this account, without those that name other credentials."""
    found = read_json(os.path.join(_docker_folder(), "config.json")) or {}
    return {name: value for name, value in found.items() if name not in ("auths", "credsStore", "credHelpers")}
