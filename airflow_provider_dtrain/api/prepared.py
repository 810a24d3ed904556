"""Answers as bytes: rendered once, and compressed once."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel
from pydantic_core import to_json

#: Airflow's server compresses longer answers in its event loop if the application has not done it.
COMPRESSED_FROM_BYTES = 1024
#: The level that costs a third of the usual one, for 10 % more bytes.
_LEVEL = 1
_HEADERS = {"Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}


class Body:
    """Body of an answer, plain and compressed."""

    def __init__(self, plain: bytes) -> None:
        self.plain = plain

    def __len__(self) -> int:
        return len(self.plain)

    @cached_property
    def compressed(self) -> bytes:
        """The body as gzip."""
        return gzip.compress(self.plain, _LEVEL, mtime=0)

    def answer(self, request: Request, tag: str) -> Response:
        """Return the answer to a request.

        :param tag: value of the header ``ETag``
        """
        headers = {**_HEADERS, "ETag": tag}
        if len(self.plain) < COMPRESSED_FROM_BYTES or "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(self.plain, media_type="application/json", headers=headers)
        headers["Content-Encoding"] = "gzip"
        return Response(self.compressed, media_type="application/json", headers=headers)


def rendered(result: Any) -> Body:
    """Return an answer as JSON.

    :param result: a model, plain records with the fields of one, or the JSON of such records
    """
    if isinstance(result, bytes):
        return Body(result)
    if isinstance(result, BaseModel):
        return Body(result.model_dump_json().encode())
    return Body(as_json(result))


def as_json(record: Any) -> bytes:
    """Return a plain record as JSON. As in models, NaN and infinities become null."""
    return to_json(record, inf_nan_mode="null")


def compact(record: Any) -> Any:
    """Return a record of ``resources/`` as plain values, without the fields that have their defaults.

    A record that occurs several times is converted once.
    """
    return _compact(record, {})


def _compact(value: Any, known: dict[int, Any]) -> Any:
    kind: type = type(value)
    if kind is list:
        return [_compact(one, known) for one in value]
    if kind is dict:
        return {name: _compact(one, known) for name, one in value.items()}
    if (own := _defaults(kind)) is None:
        return value
    if (found := known.get(id(value))) is None:
        found = known[id(value)] = {
            name: _compact(of, known) for name, default in own if (of := getattr(value, name)) != default
        }
    return found


@cache
def _defaults(kind: type) -> tuple[tuple[str, Any], ...] | None:
    """Return names and defaults of the fields of a dataclass, None for another type."""
    return tuple((one.name, one.default) for one in fields(kind)) if is_dataclass(kind) else None


def with_list(record: dict[str, Any], name: str, items: Iterable[bytes]) -> bytes:
    """Return the JSON of a record with one more field, a list of items that are rendered already."""
    return b"%s,%s:[%s]}" % (as_json(record)[:-1], as_json(name), b",".join(items))


def with_parts(record: dict[str, Any], name: str, items: Iterable[bytes], of: str, fields: Iterable[bytes]) -> bytes:
    """Return the JSON of a record with a list and an object more, whose parts are rendered already.

    :param name: of the list
    :param of: name of the object, whose fields are given as ``"NAME":VALUE``
    """
    joined = (b",".join(items), b",".join(fields))
    return b"%s,%s:[%s],%s:{%s}}" % (as_json(record)[:-1], as_json(name), joined[0], as_json(of), joined[1])
