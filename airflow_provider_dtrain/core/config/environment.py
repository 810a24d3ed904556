"""Section ``environment``: the programs, packages and variables that the ranks find on their host."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from airflow_provider_dtrain.core.config.types import (
    CodePath,
    Line,
    Name,
    Python,
    Secret,
    Section,
    VariableName,
    VariableValue,
    refuse,
)
from airflow_provider_dtrain.core.safe_repr import shown

_DEVICE_KINDS: Final = ("cpu", "cuda", "rocm")
_VERSION: Final = re.compile(r"3\.\d{1,2}\Z", re.ASCII)
_CAPABILITY: Final = re.compile(r"[A-Z][A-Z_]{1,30}\Z", re.ASCII)
#: Fields that say how the packages of a lock file are installed.
_OF_REQUIREMENTS: Final = ("system_site_packages", "wheels", "allow_builds", "index_conn_id")


def _image(value: Any) -> Any:
    images = [value] if isinstance(value, str) else list(value.values()) if isinstance(value, dict) else [None]
    known = not isinstance(value, dict) or (value and all(key in _DEVICE_KINDS for key in value))
    if not known or not all(isinstance(image, str) and image.strip() and image.isprintable() for image in images):
        raise refuse(f"must be the name of an image, or a map of {', '.join(_DEVICE_KINDS)}, got {shown(value)}")
    return value


def _python(value: Any) -> Any:
    if isinstance(value, float):
        raise refuse(f"{value} is a number, in which 3.1 and 3.10 are the same. Quote the version: '3.12'")
    return value


def _in_code(value: str) -> str:
    if value.startswith("/"):
        raise refuse(f"{shown(value)} is absolute; a path relative to model_dir is accepted")
    return value


def _capability(value: str) -> str:
    name = value.upper().removeprefix("CAP_")
    if not _CAPABILITY.match(name):
        raise refuse(f"{shown(value)} is not the name of a capability such as SYS_PTRACE")
    return name


def _user_name(value: str) -> str:
    if ":" in value:
        raise refuse(f"{shown(value)} has a colon, which ends the name of a user in HTTP")
    return value


Capability = Annotated[str, AfterValidator(_capability)]
FileOfCode = Annotated[CodePath, AfterValidator(_in_code)]


class RegistryAuth(Section):
    """Credentials for the registry of the image."""

    username: Annotated[Line, AfterValidator(_user_name)]
    password: Secret = Field(repr=False)
    #: Name or URL of the registry. None: that of the image.
    server: Line | None = None


class Environment(Section):
    """Execution environment of the ranks."""

    #: Version, absolute path or bare name of the interpreter on the host.
    python: Annotated[Python | None, BeforeValidator(_python)] = None
    #: Lock file in the code whose packages the hosts install. None: the ranks use the packages of the interpreter.
    requirements: FileOfCode | None = None
    #: The ranks also find the packages of the interpreter, e.g. the torch of the host.
    system_site_packages: bool = False
    #: Folder of wheels: relative to the code, with which it is sent, or an absolute path on the hosts.
    wheels: CodePath | None = None
    #: Install packages that have no wheel, whose build runs their code.
    allow_builds: bool = False
    #: Connection of Airflow with the package index and its credentials. None: the index that the host is set up for.
    index_conn_id: Name | None = None
    #: Seconds for a host to build the environment. Packages for GPUs have gigabytes, and the gang keeps its slots.
    build_timeout: Annotated[float, Field(gt=0, le=86_400)] = 3600.0
    #: Script in the code whose variables the ranks get. A login shell runs it before Python is started.
    setup: FileOfCode | None = None
    variables: dict[VariableName, VariableValue] = {}
    #: Names of variables whose values are shown and stored as they are. All others are secrets.
    public_variables: list[VariableName] = []
    #: Image of a container, or one for each kind of device.
    image: Annotated[str | dict[str, str], BeforeValidator(_image)] | None = None
    #: ``auto``: the ranks run in the image where the hosts can run containers. ``required``: nowhere else.
    container: Literal["auto", "required", "off"] = "auto"
    #: Download the image before each launch, even if the host has one of its name.
    force_pull_image: bool = False
    registry_auth: RegistryAuth | None = None
    #: Connection of Airflow with the registry and its credentials.
    registry_conn_id: Name | None = None
    add_capabilities: list[Capability] = []
    drop_capabilities: list[Capability] = []

    @model_validator(mode="after")
    def _one_source(self) -> Environment:
        if self.is_contained and (self.requirements is not None or self.setup is not None):
            raise refuse("image is combined with requirements or setup; remove one of them, or set container to 'off'")
        return self

    @model_validator(mode="after")
    def _one_login(self) -> Environment:
        if self.registry_auth is not None and self.registry_conn_id is not None:
            raise refuse("registry_auth cannot be combined with registry_conn_id; remove one of them")
        return self

    @property
    def is_contained(self) -> bool:
        """Return whether the ranks run in a container on hosts that can run one."""
        return self.image is not None and self.container != "off"

    @property
    def interpreter(self) -> str | None:
        """Path or name of the interpreter on the host, or None for the supervisor's."""
        is_version = self.python is not None and _VERSION.match(self.python)
        return f"python{self.python}" if is_version else self.python

    def files(self) -> Iterator[str]:
        """Yield the paths of the files and folders of the code that the section names. Some may not exist."""
        if self.requirements is not None:
            yield self.requirements
            folder, name = posixpath.split(self.requirements)
            if name == "pyproject.toml":
                yield posixpath.join(folder, "uv.lock")
            elif name.endswith(".py"):
                yield f"{self.requirements}.lock"
        if self.setup is not None:
            yield self.setup
        if self.wheels is not None and not self.wheels.startswith("/"):
            yield self.wheels

    def without_requirements(self) -> Iterator[str]:
        """Yield the fields that have no effect because the section names no lock file."""
        for name in _OF_REQUIREMENTS if self.requirements is None else ():
            if getattr(self, name) not in (None, False):
                yield name
