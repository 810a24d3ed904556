"""Registries of images, by the names that the files of container runtimes give them."""

from __future__ import annotations

import re
from typing import Final

#: Registry of an image whose name has none, and the other names that programs write for it.
DOCKER_HUB: Final = "docker.io"
_NAMES_OF_HUB: Final = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"})


def registry_of(image: str) -> str:
    """Return the registry of an image, with its port."""
    name = re.sub(r"^[a-z]+://", "", image)
    first, slash, _ = name.partition("/")
    is_server = bool(slash) and ("." in first or ":" in first or first == "localhost")
    return server_name(first) if is_server else DOCKER_HUB


def server_name(text: str) -> str:
    """Return a registry that a user named or that the address of a URL names, e.g. ``https://index.docker.io/v1/``."""
    name = re.sub(r"^[a-z]+://", "", text.strip().lower()).partition("/")[0]
    return DOCKER_HUB if name in _NAMES_OF_HUB else name
