"""Schema of each command's answer: the fields that the rest of the package reads, with their types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict, TypeVar

from msgspec import Meta

from airflow_provider_dtrain.core.untrusted_fields import Count, Span
from airflow_provider_dtrain.errors import HostProtocolError
from airflow_provider_dtrain.hosts.wire import fields_of

#: Maximum number of entries of a list or an object in an answer.
MOST_ENTRIES = 100_000
#: Maximum number of packages of an interpreter. A host lists fewer.
PACKAGES_MOST = 5000


def check_answer(cmd: str, answer: Mapping[str, Any]) -> None:
    """Check that a successful answer has the fields of its command. Other fields may have any value.

    :raises WireError: a field is missing or of another type
    """
    if cmd in _ANSWERS:
        fields_of(answer, _ANSWERS[cmd], f"an answer to '{cmd}'")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Part of a file of a run."""

    #: Of the first byte. It is beyond the requested one if ``log_limit`` freed the bytes between them.
    offset: int
    data: bytes
    #: Bytes of the whole file.
    size: int


def piece_of(host: str, answer: Mapping[str, Any], *, offset: int, length: int) -> Piece:
    """Return the part of a file in an answer to ``read``.

    :param offset: first byte that was requested, negative: counted from the end
    :param length: most bytes that were requested
    :raises HostProtocolError: it is not the requested part
    """
    piece = Piece(offset=answer["offset"], data=answer["data"], size=answer["size"])
    first = max(0, piece.size + offset) if offset < 0 else offset
    if not first <= piece.offset <= max(first, piece.size) or len(piece.data) > length:
        raise HostProtocolError(
            host,
            f"Host '{host}' broke the protocol: it sent {len(piece.data)} bytes from {piece.offset} on of a file of "
            f"{piece.size}, instead of at most {length} from {offset} on.",
        )
    return piece


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Next bytes of a file of measurements."""

    stream: str
    #: Of the first byte. It is beyond the requested one if the host has dropped the bytes between them.
    offset: int
    data: bytes
    #: Bytes that the file ever had.
    end: int


def measurements_of(
    host: str, answer: Mapping[str, Any], *, streams: Mapping[str, int], most_bytes: int
) -> list[Measurements]:
    """Return the parts of files in an answer to ``telemetry``.

    :param streams: stream -> first byte that was requested
    :param most_bytes: most bytes that were requested
    :raises HostProtocolError: they are not the requested parts
    """
    found = []
    position = 0
    data: bytes = answer.get("data", b"")
    for part in answer["parts"]:
        end = position + part["bytes"]
        name, offset = part["stream"], part["offset"]
        piece = Measurements(stream=name, offset=offset, data=data[position:end], end=part["end"])
        position = end
        found.append(piece)
    names = [piece.stream for piece in found]
    is_asked = all(piece.stream in streams and piece.offset >= streams[piece.stream] for piece in found)
    if not is_asked or len(set(names)) < len(names) or position != len(data) or len(data) > most_bytes:
        raise HostProtocolError(
            host,
            f"Host '{host}' broke the protocol: it sent {len(data)} bytes of measurements that were not requested.",
        )
    return found


Port = Annotated[int, Meta(gt=0, lt=65536)]
Rank = Annotated[int, Meta(ge=0, lt=10**6)]
ExitCode = Annotated[int, Meta(gt=-(2**31), lt=2**31)]
Rate = Annotated[float, Meta(gt=0, lt=1e15)]
Text = Annotated[str, Meta(max_length=65_536)]
#: Name or version of a package.
Name = Annotated[str, Meta(max_length=256)]
Output = Annotated[str, Meta(max_length=1 << 20)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
EnvironmentUse = Literal["absent", "free", "run", "change"]
Item = TypeVar("Item")
# Types as values, which mypy does not follow.
Record: Any = TypedDict
Items: Any = Annotated[list[Item], Meta(max_length=MOST_ENTRIES)]  # type: ignore[valid-type]
Entries: Any = Annotated[dict[str, Item], Meta(max_length=MOST_ENTRIES)]  # type: ignore[valid-type]
Devices: Any = Annotated[list[Item], Meta(max_length=4096)]  # type: ignore[valid-type]
#: A field that may be missing or null.
Maybe: Any = NotRequired[Item | None]

_GPU = Record("_GPU", {"uuid": Text, "name": Text, "memory_bytes": Count})
_INTERFACE = Record("_INTERFACE", {"name": Text})
_FOLDER = Record("_FOLDER", {"writable": bool, "self": Text, "seen": Items[Text]})
_PROCESS = Record("_PROCESS", {"device": Any, "pid": Any, "name": Any, "user": Any, "memory_bytes": float})
_RANK = Record("_RANK", {"rank": Maybe[Rank], "pid": Maybe[Count], "exit_code": Maybe[ExitCode]})
_RUN = Record("_RUN", {
    "state": Maybe[Text], "reason": Maybe[Text], "launch": Maybe[Text], "unrenewed_s": Maybe[float],
    "token": Maybe[Count], "ranks": Maybe[Items[_RANK]],
})  # fmt: skip
_TARGET = Record("_TARGET", {
    "ok": bool, "address": Text, "port": Port, "source_address": Maybe[Text], "interface": Maybe[Text],
    "error": Maybe[Text],
})  # fmt: skip
_OFFER = Record("_OFFER", {"address": Text, "interface": Text, "speed_mbps": Maybe[ExitCode], "mtu": Maybe[Count]})
_STACK = Record("_STACK", {"rank": Rank, "pid": Count, "state": Text, "text": Text, "problem": Text})
_RECORDING = Record("_RECORDING", {"rank": Rank, "problem": Text})
_PART = Record("_PART", {"stream": Text, "offset": Count, "bytes": Count, "end": Count})
_FACTS = Record("_FACTS", {
    "python": Text, "machine": Text, "libc": Text, "executable": Text, "is_free_threaded": bool,
    "platform_release": Text, "platform_version": Text, "distributions": Entries[Text],
})  # fmt: skip
_ENVIRONMENT = Record("_ENVIRONMENT", {
    "digest": Digest, "is_complete": bool, "use": EnvironmentUse, "runs": Items[Text], "progress": Maybe[Text],
    "bytes": Count, "used_at": Span, "package_count": Count, "packages": Maybe[Items[Text]], "python": Maybe[Text],
    "interpreter": Maybe[Text], "lock": Maybe[Digest], "built_at": Maybe[Span], "built_s": Maybe[Span],
})  # fmt: skip
_PURGED = Record("_PURGED", {"count": Count, "bytes": Count})
_LEFT = Record("_LEFT", {"path": Text, "reason": Text})
#: Of an interpreter, and the CUDA for which its PyTorch was built.
Packages = Annotated[dict[Name, Name | None], Meta(max_length=PACKAGES_MOST)]
_IMAGE = Record("_IMAGE", {
    "python": Text | None, "executable": Text | None, "modules": Entries[Text | None], "packages": Maybe[Packages],
    "cuda": Maybe[Name],
})  # fmt: skip
_MATCH = Record("_MATCH", {"rank": Rank, "line": Text})

#: Command -> type of its answer.
_ANSWERS: Mapping[str, Any] = {cmd: Record(cmd, fields) for cmd, fields in {
    "clock": {"boottime_s": Span, "wall_s": Span},
    "probe": {
        "boottime_s": Span, "stores": Maybe[Entries[Count]], "problems": Maybe[Items[Text]],
        "doubts": Maybe[Items[Text]], "cpu_count": Maybe[Count], "memory_bytes": Maybe[Count],
        "disk_free_bytes": Maybe[Count], "python": Maybe[Text], "executable": Maybe[Text], "torch": Maybe[Text],
        "container_runtime": Maybe[Text], "gpus": Maybe[Devices[_GPU]], "interfaces": Maybe[Devices[_INTERFACE]],
        "environments": Maybe[Record("_TOTALS", {"count": Count, "bytes": Count})],
        "withheld_variables": Maybe[Devices[Text]],
    },
    "preflight": {
        "python": Text | None, "executable": Text | None, "modules": Entries[Text | None], "foreign": Items[_PROCESS],
        "problems": Items[Text], "shared": Entries[_FOLDER], "mounts": Items[Text], "packages": Maybe[Packages],
        "cuda": Maybe[Name], "driver": Maybe[Name],
    },
    "net_listen": {"port": Port, "addresses": Items[_OFFER]},
    "net_connect": {"results": Items[_TARGET]},
    "net_transfer": {"bytes_per_s": Rate, "round_trip_s": Annotated[float, Meta(gt=0, lt=60)]},
    "measure": {"results": Devices[Any], "exit_code": Maybe[ExitCode]},
    "environment": {
        "state": Text, "digest": Text | None, "refused_variables": Maybe[Items[Text]],
        "python": Maybe[Text], "progress": Maybe[Text], "build": Maybe[Text],
        "facts": Maybe[_FACTS], "has_uv": Maybe[bool], "damage": Maybe[Text], "packages": Maybe[Items[Text]],
        "built_s": Maybe[float], "code": Maybe[Text], "message": Maybe[Text], "package": Maybe[Text],
        "lines": Maybe[Items[Text]],
    },
    "environments": {"environments": Items[_ENVIRONMENT]},
    "remove_environment": {"use": EnvironmentUse, "size": Count, "runs": Items[Text]},
    "have": {"missing": Items[Text]},
    "prepare": {"state": Text, "port": Port | None, "image": Maybe[_IMAGE]},
    "image": {
        "runtime": Text | None, "image": Maybe[Text], "digest": Maybe[Text], "uid": Maybe[Count], "gid": Maybe[Count],
        "groups": Maybe[Items[Count]], "state_dir": Maybe[Text], "program": Maybe[Text], "libraries": Maybe[Text],
        "paths": Maybe[Entries[Text | None]],
    },
    "fence": {
        "clear": bool, "survivors": Maybe[Items[Any]], "foreign": Maybe[Items[Record("_SLOT", {"slot": Rank})]],
    },
    "match": {"matches": Entries[_MATCH], "unfinished": Items[Count], "refused": Entries[Text]},
    "status": {
        "runs": Maybe[Entries[_RUN]], "stores": Maybe[Entries[Count]],
        "slots": Maybe[Entries[Record("_HELD", {"held_by": Maybe[Text]}) | None]],
    },
    "read": {"size": Count, "offset": Count, "bytes": Count},
    "telemetry": {"parts": Items[_PART], "bytes": Count},
    "collect": {"sizes": Maybe[Entries[Count]], "archives": Maybe[Entries[Count]]},
    "purge": {
        "parts": Entries[_PURGED], "runs": Items[Text], "left": Items[_LEFT], "busy": Items[Text], "is_complete": bool,
        "remote_dir": Text, "state_dir": Text, "network": Text | None,
    },
    "stacks": {"ranks": Items[_STACK]},
    "profile": {"ranks": Items[_RECORDING]},
    "exec": {"exit_code": ExitCode | None, "timed_out": bool, "output": Output, "size_bytes": Count, "killed": Count},
    "remove_checkpoints": {"removed": Maybe[Items[Text]], "kept": Maybe[Entries[Text]]},
}.items()}  # fmt: skip
