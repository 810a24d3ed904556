"""All files of an input, in the order of its rows, and their common format."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence

from airflow_provider_dtrain.train.errors import InputError
from airflow_provider_dtrain.train.inference.inputs.settings import FORMATS, InputSettings, format_of
from airflow_provider_dtrain.train.inference.inputs.sources import InputPath, SourceFile, Sources
from airflow_provider_dtrain.train.values import JsonObject

#: Most files that an identity lists one by one. It has a checksum of a longer listing.
LISTED_FILES = 1000


def list_input(settings: InputSettings, sources: Sources) -> tuple[str, list[SourceFile]]:
    """Return the format of an input, and its files in order.

    :raises InputError: no file is found, a file is found twice, or the files have several formats
    """
    entries = [sources.entry(path) for path in settings.paths]
    kind = settings.format or _common_format(entries)
    files: dict[str, SourceFile] = {}
    for entry in entries:
        for file in _chosen(entry, kind):
            if file.path in files:
                raise InputError(f"{file.path} is found twice by inputs.path. Remove one of the entries that match it.")
            files[file.path] = file
    return kind, list(files.values())


def identity_of(kind: str, settings: InputSettings, files: Sequence[SourceFile], rows: int | None) -> JsonObject:
    """Return the identity of an input of files, as plain JSON.

    :param rows: number of rows; None: not known before they are read
    """
    documents = [file.to_dict() for file in files]
    identity: JsonObject = {
        "format": kind,
        "columns": None if settings.read_columns is None else list(settings.read_columns),
        "shard_rows": settings.shard_rows,
        **({"schema": dict(settings.types)} if settings.types else {}),
        **({"delimiter": settings.delimiter} if settings.delimiter is not None else {}),
        **({"orient": settings.orient} if settings.orient is not None else {}),
        "rows": rows,
        "file_count": len(files),
        "bytes": sum(file.size for file in files),
    }
    if len(documents) <= LISTED_FILES:
        return {**identity, "files": documents}
    return {**identity, "files_sha256": hashlib.sha256(json.dumps(documents).encode()).hexdigest()}


def _common_format(entries: Sequence[InputPath]) -> str:
    found: dict[str | None, str] = {}
    for file in (file for entry in entries for file in entry.files):
        found.setdefault(format_of(file.path), file.path)
    if not found:
        raise InputError(f"No file was found at inputs.path {_paths(entries)}.")
    if None in found:
        raise InputError(
            f"The suffix of {found[None]} tells no format. Set inputs.format to one of {', '.join(FORMATS)}."
        )
    if len(found) > 1:
        (first, one), (second, other) = sorted((str(kind), path) for kind, path in found.items())[:2]
        raise InputError(
            f"inputs.path has files of several formats: {one} ({first}) and {other} ({second}). "
            f"Set inputs.format, or choose files by a pattern such as '*.{one.rpartition('.')[2]}'."
        )
    return str(next(iter(found)))


def _chosen(entry: InputPath, kind: str) -> Sequence[SourceFile]:
    """Return the files of an entry: of a folder those with a suffix of the format, else all."""
    if not entry.files:
        raise InputError(f"No file was found at inputs.path {entry.path}. Names that begin with _ or . are no input.")
    if kind == "files" or not entry.is_folder:
        return entry.files
    chosen = [file for file in entry.files if format_of(file.path) == kind]
    if not chosen:
        suffixes = Counter(file.path.rpartition("/")[2].partition(".")[2] or "none" for file in entry.files)
        listed = ", ".join(f"{suffix} ({count})" for suffix, count in suffixes.most_common(5))
        raise InputError(
            f"No file below {entry.path} has a suffix of the format {kind}. Suffixes found: {listed}. "
            f"Choose the files by a pattern: {entry.path.rstrip('/')}/*"
        )
    return chosen


def _paths(entries: Sequence[InputPath]) -> str:
    return ", ".join(entry.path for entry in entries)
