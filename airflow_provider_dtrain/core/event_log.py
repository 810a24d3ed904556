"""Reader for events files of a host, with ``<crc32, 8 hex digits> <JSON>`` per line.

Every line becomes an event or a refusal.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.untrusted_json import (
    UntrustedInputError,
    is_count,
    is_number,
    parse_measurement,
    parse_object,
)

#: Longest line, including its newline. Hosts send whole lines within a window of this size, and the training
#: library writes no longer line.
LINE_LIMIT_BYTES = 1 << 20
MAX_DEPTH = 16
#: More than a line of :data:`LINE_LIMIT_BYTES` usually holds; `{},{},...` takes 25 MiB as objects.
MAX_VALUES = 300_000
#: The same for a line of measurements. One of a host with 64 GPUs has 8 KiB and 200 values.
MEASUREMENT_LIMIT_BYTES, MEASUREMENT_VALUES = 64 << 10, 4000
#: Metrics of one report, and characters of one name.
METRICS_LIMIT, METRIC_NAME_LIMIT = 1000, 256
#: Shards of a batch inference, characters of the words that name one, shards and columns that a manifest event lists.
SHARDS_LIMIT, LABEL_LIMIT, SKIPPED_LIMIT, COLUMNS_LIMIT = 10_000_000, 1024, 100, 4096
#: Rows, columns, and characters of a value of the first results of a batch inference.
PREVIEW_ROWS, PREVIEW_COLUMNS, PREVIEW_TEXT = 100, 40, 200
#: Bad rows that an event about a finished shard names.
BAD_ROWS_LIMIT = 20
#: Tensors, or groups of them, of which a record of weights has digests, and hexadecimal digits of each.
WEIGHTS_LIMIT, WEIGHT_DIGITS = 256, 8
#: Folders on full file systems that an event ``exit`` names.
MOUNTS_LIMIT = 16
#: Faults of GPUs that an event ``exit`` has.
FAULTS_LIMIT = 64
#: Facts of an event ``init`` that are kept, and characters of each.
RUNTIME_FIELDS, RUNTIME_LIMIT = ("python", "executable", "torch", "cuda", "cudnn", "nccl", "backend"), 256
#: Years up to 5138 are dates in every database.
_LATEST = 1e11
_HEX = re.compile(r"[0-9a-f]+", re.ASCII)
#: Kinds that only a supervisor writes, and those that only the control side does.
SUPERVISOR_KINDS = frozenset({"prepared", "started", "exit", "ended", "warning"})
OWN_KINDS = frozenset({"gap"})
#: Metrics that the training library records by itself. They are a group of their own in the store, beside those that
#: programs report, whose names are free.
BUILTIN_METRICS = frozenset({
    "samples_per_second", "tokens_per_second", "flops_per_second", "model_flops_utilization", "gradient_norm",
    *(f"gradient_norm_{number}" for number in range(2, 9)),
})  # fmt: skip
#: Kinds with digests of the weights: of a checkpoint, and of a step.
WEIGHTS = ("weights", "step_weights")


@dataclass(frozen=True)
class EventSource:
    """Writer of a file.

    :param rank: None for a host's supervisor
    :param ranks: all ranks of the host
    """

    rank: int | None
    ranks: frozenset[int]


class EventLine(NamedTuple):
    """Line of an events file."""

    #: Position in the frame, and length with the newline; bytes.
    start: int
    size: int
    #: None when it was refused.
    event: JsonObject | None
    #: Code of the refusal: ``corrupt``, ``invalid`` or ``unfinished``; and its text.
    code: str = ""
    reason: str = ""


class _LineRefused(Exception):
    """A line is not an event.

    :param code: as in :class:`EventLine`
    """

    def __init__(self, code: str, reason: str) -> None:
        self.code = code
        super().__init__(reason)


def read_lines(data: bytes, source: EventSource) -> Iterator[EventLine]:
    """Yield every line of a frame, in order. Raises nothing.

    :param data: bytes of an events file
    """
    start = 0
    while start < len(data):
        end = data.find(b"\n", start) + 1
        if not end:
            yield EventLine(start, len(data) - start, None, "unfinished", "a line without a newline at its end")
            return
        try:
            event = _parse(data[start : end - 1])
            _check(event, source)
            yield EventLine(start, end - start, event)
        except _LineRefused as error:
            yield EventLine(start, end - start, None, error.code, str(error))
        start = end


def read_measurements(data: bytes) -> Iterator[EventLine]:
    """Yield every whole line of a file of measurements, in order. Raises nothing.

    :param data: bytes of the file; an unfinished line at their end is left out
    """
    start = 0
    while end := data.find(b"\n", start) + 1:
        try:
            line = data[start : end - 1]
            yield EventLine(
                start, end - start, _parse(line, MEASUREMENT_LIMIT_BYTES, MEASUREMENT_VALUES, parse_measurement)
            )
        except _LineRefused as error:
            yield EventLine(start, end - start, None, error.code, str(error))
        start = end


def _parse(
    line: bytes,
    limit: int = LINE_LIMIT_BYTES,
    values: int = MAX_VALUES,
    parse: Callable[..., JsonObject] = parse_object,
) -> JsonObject:
    if len(line) >= limit:
        raise _LineRefused("invalid", f"a line of {len(line) + 1:,} bytes; at most {limit:,} are accepted")
    checksum, _, body = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        raise _LineRefused("corrupt", f"checksum {checksum[:8]!r} does not match its {len(body)} bytes")
    try:
        event = parse(body, depth=MAX_DEPTH, values=values)
    except UntrustedInputError as error:
        raise _LineRefused("invalid", str(error)) from None
    at = event.get("at")
    kind = event.get("kind")
    if not is_count(event.get("seq")) or not is_number(at) or not 0 <= (at or 0) < _LATEST:
        raise _LineRefused("invalid", "an event without a valid seq or at")
    if not isinstance(kind, str) or not 0 < len(kind) < 64 or not kind.isprintable():
        raise _LineRefused("invalid", "an event without a valid kind")
    return event


def _check(event: Mapping[str, Any], source: EventSource) -> None:
    kind = event["kind"]
    # A supervisor writes no other kinds, so the number of its events is bounded.
    if kind in OWN_KINDS or (kind in SUPERVISOR_KINDS) != (source.rank is None):
        writer = "a supervisor" if source.rank is None else f"rank {source.rank}"
        raise _LineRefused("invalid", f"an event '{kind}', which {writer} may not write")
    for name, fits in _FIELDS.get(kind, {}).items():
        if not fits(event.get(name), source):
            raise _LineRefused("invalid", f"an event '{kind}' whose '{name}' is {_shown(event.get(name))}")


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    text = ascii(value) if isinstance(value, str | int | float) else f"of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- fields ----------------------------------------------------------------------------------------
_Check = Callable[[Any, EventSource], bool]


def _maybe(fits: _Check) -> _Check:
    return lambda value, source: value is None or fits(value, source)


def _text(limit: int) -> _Check:
    return lambda value, _: isinstance(value, str) and len(value) <= limit


def _count(value: Any, _: EventSource) -> bool:
    return is_count(value)


def _number(value: Any, _: EventSource) -> bool:
    return is_number(value)


def _flag(value: Any, _: EventSource) -> bool:
    return isinstance(value, bool)


def _exit_code(value: Any, _: EventSource) -> bool:
    return type(value) is int and abs(value) < 2**31


def _own_rank(value: Any, source: EventSource) -> bool:
    return type(value) is int and value in source.ranks


def _metrics(value: Any, _: EventSource) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= METRICS_LIMIT
        and all(0 < len(name) <= METRIC_NAME_LIMIT and name.isprintable() for name in value)
        and all(number is None or is_number(number) for number in value.values())
    )


def _texts(value: Any, _: EventSource) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and len(item) <= 4096 for item in value)


def _error(value: Any, _: EventSource) -> bool:
    return isinstance(value, dict) and all(text is None or isinstance(text, str) for text in value.values())


def _started(value: Any, source: EventSource) -> bool:
    return isinstance(value, list) and all(
        isinstance(rank, dict) and _own_rank(rank.get("rank"), source) and is_count(rank.get("pid")) for rank in value
    )


def _place(value: Any, _: EventSource) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"phase", "what", "steps", "collectives", "still_s"}
        and all(isinstance(value.get(name), str) and len(value[name]) <= 60 for name in ("phase", "what"))
        and all(is_count(value.get(name)) for name in ("steps", "collectives"))
        and is_number(value.get("still_s"))
    )


def _faults(value: Any, _: EventSource) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= FAULTS_LIMIT
        and all(isinstance(one, dict) and is_count(one.get("xid")) and is_number(one.get("at")) for one in value)
        and all(isinstance(one.get("uuid"), str) and len(one["uuid"]) <= 96 for one in value)
    )


def _facts(value: Any, source: EventSource) -> bool:
    names = ("oom_kills", "memory_bytes", "peak_bytes", "open_files")
    return (
        isinstance(value, dict)
        and all(is_count(value.get(name)) for name in names)
        and _maybe(_count)(value.get("memory_limit_bytes"), source)
        and _texts(value.get("full"), source)
        and len(value["full"]) <= MOUNTS_LIMIT
        and _maybe(_faults)(value.get("faults"), source)
    )


def _shard(value: Any, _: EventSource) -> bool:
    return is_count(value) and value < SHARDS_LIMIT


def _skipped(value: Any, _: EventSource) -> bool:
    return isinstance(value, list) and len(value) <= SKIPPED_LIMIT


def _schema(value: Any, source: EventSource) -> bool:
    is_name = _text(METRIC_NAME_LIMIT)
    return (
        isinstance(value, dict)
        and len(value) <= COLUMNS_LIMIT
        and all(is_name(name, source) and is_name(kind, source) for name, kind in value.items())
    )


def _columns(value: Any, source: EventSource) -> bool:
    is_short = _text(PREVIEW_TEXT)
    return (
        isinstance(value, list)
        and len(value) <= PREVIEW_COLUMNS
        and all(
            isinstance(one, list) and len(one) == 2 and all(is_short(text, source) for text in one) for one in value
        )
    )


def _preview(value: Any, source: EventSource) -> bool:
    is_cell = _maybe(_text(PREVIEW_TEXT))
    return (
        isinstance(value, list)
        and len(value) <= PREVIEW_ROWS
        and all(isinstance(row, list) and len(row) <= PREVIEW_COLUMNS for row in value)
        and all(is_cell(cell, source) for row in value for cell in row)
    )


def _bad_rows(value: Any, source: EventSource) -> bool:
    return isinstance(value, list) and len(value) <= BAD_ROWS_LIMIT and all(_is_bad_row(row, source) for row in value)


def _is_bad_row(value: Any, source: EventSource) -> bool:
    if not isinstance(value, list) or len(value) != 3:
        return False
    row_id, name, error = value
    return _count(row_id, source) and _text(LABEL_LIMIT)(name, source) and _text(4096)(error, source)


def _digest(value: Any, _: EventSource) -> bool:
    return isinstance(value, str) and _HEX.fullmatch(value) is not None and len(value) == 64


def _digests(value: Any, _: EventSource) -> bool:
    is_hex = isinstance(value, str) and _HEX.fullmatch(value) is not None
    return is_hex and len(value) <= WEIGHTS_LIMIT * WEIGHT_DIGITS and len(value) % WEIGHT_DIGITS == 0


def _names(value: Any, _: EventSource) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= WEIGHTS_LIMIT
        and all(isinstance(name, str) and len(name) <= METRIC_NAME_LIMIT and name.isprintable() for name in value)
    )


def _timings(value: Any, _: EventSource) -> bool:
    return isinstance(value, dict) and len(value) <= METRICS_LIMIT and all(isinstance(v, dict) for v in value.values())


def _builtin(value: Any, source: EventSource) -> bool:
    return isinstance(value, dict) and value.keys() <= BUILTIN_METRICS and _metrics(value, source)


_WEIGHTS: Mapping[str, _Check] = {
    "step": _count,
    "digest": _digest,
    "tensors": _digests,
    "names": _maybe(_names),
}
_REPORT: Mapping[str, _Check] = {"step": _count, "metrics": _metrics, "epoch": _maybe(_number)}
#: Kind -> field -> check of its value, which is None when the field is missing. Other kinds are stored as they are.
_FIELDS: Mapping[str, Mapping[str, _Check]] = {
    "prepared": {"port": _maybe(_count)},
    "started": {"ranks": _started},
    "exit": {
        "rank": _own_rank, "exit_code": _maybe(_exit_code), "error": _maybe(_error), "log_tail": _maybe(_text(1 << 16)),
        "sent_signal": _maybe(_flag), "stack": _maybe(_text(1 << 16)), "place": _maybe(_place), "facts": _maybe(_facts),
    },
    "ended": {"reason": _text(64), "cause": _maybe(_text(64)), "first_failure": _maybe(_count)},
    "warning": {"text": _text(1024)},
    "init": dict.fromkeys(("device", *RUNTIME_FIELDS), _maybe(_text(RUNTIME_LIMIT))),
    "first_step": {},
    "report": _REPORT,
    "validation": _REPORT,
    "builtin": {**_REPORT, "metrics": _builtin},
    "checkpoint": {
        "step": _count, "path": _text(4096), "size_bytes": _maybe(_count), "sha256": _maybe(_text(64)),
        "metrics": _maybe(_metrics), "removed": _maybe(_texts),
    },
    **dict.fromkeys(WEIGHTS, _WEIGHTS),
    "rung": {"rung": _count, "units": _maybe(_count), "metric": _maybe(_number), "step": _maybe(_count)},
    "result": {},
    "returned": {"json": _text(LINE_LIMIT_BYTES), "part": _maybe(_count), "parts": _maybe(_count)},
    "stopped": {"step": _maybe(_count)},
    "invalid_hp": {"reason": _maybe(_text(1 << 16))},
    "shards": {
        "total": _shard, "missing": _shard, "rows": _maybe(_count), "rows_done": _count,
        "rows_bad": _maybe(_count), "location": _text(4096),
        "batch_size": _maybe(_count), "resumed": _flag, "finished": _maybe(_text(4096)),
    },
    "shard_started": {"shard": _shard, "label": _text(LABEL_LIMIT), "tries": _count},
    "shard_done": {
        "shard": _shard, "rows": _count, "rows_bad": _maybe(_count), "bad_rows": _maybe(_bad_rows), "bytes": _count,
        "part": _maybe(_text(4096)), "sha256": _text(64),
        "seconds": _number,
    },
    "shard_failed": {
        "shard": _shard, "label": _text(LABEL_LIMIT), "error": _text(4096), "tries": _count, "is_final": _flag,
    },
    "shard_skipped": {"shard": _shard, "label": _text(LABEL_LIMIT), "error": _text(4096)},
    "results_preview": {
        "shard": _shard, "label": _text(LABEL_LIMIT), "columns": _columns, "columns_in_all": _count, "rows": _preview,
    },
    "manifest": {
        "location": _text(4096), "rows": _count, "rows_bad": _count, "shards": _shard, "bytes": _count,
        "skipped": _skipped,
        "sha256": _text(64), "schema": _schema,
    },
    "media": {"step": _count},
    "trace": {"path": _text(4096), "step": _maybe(_count), "size_bytes": _maybe(_count)},
    "timings": {"batches": _maybe(_count), "names": _timings},
}  # fmt: skip
