"""Requests for environments, checked field by field, and the digest that names an environment."""

from __future__ import annotations

import hashlib
import json
import re

from ..fields import Fields
from ..names import DIGEST, WORD, Json

_HASH = re.compile(r"(sha256|sha384|sha512):[0-9a-f]{64,128}", re.ASCII)
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,127}", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9_]+-[A-Za-z0-9_]+-[A-Za-z0-9_]+", re.ASCII)
_URL = re.compile(r"https?://[!-~]+", re.ASCII)
#: Fields that describe an environment to its ranks. They are part of its digest.
_DESCRIBING = ("lock", "wheels", "python", "system_site_packages", "allow_builds")


def check_environment(fields: Fields) -> Json:
    """Return the description of an environment."""
    return {
        #: SHA-256 of the packages, and of the wheels that are sent with the code.
        #: None: the ranks use the packages of the interpreter.
        "lock": fields.text("lock", DIGEST, default=None),
        "wheels": fields.text("wheels", default=None),
        "python": fields.text("python", default=None),
        "system_site_packages": fields.flag("system_site_packages", default=False),
        "allow_builds": fields.flag("allow_builds", default=False),
    }


def check_setup(fields: Fields) -> Json | None:
    """Return the setup script of an environment, None without one."""
    if fields.values.get("setup") is None:
        return None
    setup = fields.inner("setup")
    return {"payload": setup.text("payload", DIGEST), "path": setup.text("path")}


def digest_of(description: Json, identity: Json) -> str:
    """Return the name of an environment.

    :param description: from :func:`check_environment`
    :param identity: of the interpreter
    """
    document = {"format": 1, "interpreter": identity, **{name: description[name] for name in _DESCRIBING}}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def check_packages(fields: Fields) -> Json:
    """Return what a build needs beside the description of its environment."""
    packages = [Fields(item, f"packages.{index}") for index, item in enumerate(fields.items("packages", limit=10_000))]
    return {
        #: Distinguishes this build from others of the same environment.
        "id": fields.text("id", WORD),
        "packages": [
            {
                "name": one.text("name", _NAME, limit=256),
                "version": one.text("version", _VERSION, limit=128),
                "hashes": one.texts("hashes", _HASH, limit=4096),
            }
            for one in packages
        ],
        #: Of usable wheels, the best first.
        "tags": fields.texts("tags", _TAG, least=1, limit=20_000),
        "payload": fields.text("payload", DIGEST, default=None),
        #: Archive with uv, None without one.
        "uv": fields.text("uv", DIGEST, default=None),
        "index": _index(fields),
        "timeout_s": fields.number("timeout_s", 0.01, 86400),
        #: Time for each answer of an index, and for each part of one.
        "stall_s": fields.number("stall_s", 0.01, 3600),
    }


def _index(fields: Fields) -> Json | None:
    if fields.values.get("index") is None:
        return None
    index = fields.inner("index")
    return {
        "urls": index.texts("urls", _URL, least=1, limit=16),
        "login": index.text("login", default=None),
        "password": index.text("password", limit=64 << 10, default=None),
    }


def check_build(fields: Fields) -> Json:
    """Return the request that the process of a build reads."""
    return {
        **check_environment(fields),
        **check_packages(fields),
        "digest": fields.text("digest", DIGEST),
        "facts": fields.inner("facts").values,
    }
