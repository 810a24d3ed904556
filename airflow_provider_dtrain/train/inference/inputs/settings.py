"""Settings of an input without code, and the formats that file names tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_dtrain.train.errors import InputError

FORMATS = ("parquet", "csv", "jsonl", "text", "files", "images")
#: Formats of texts, whose columns have the types that a user declares.
TEXT_FORMATS = ("csv", "jsonl")
#: Formats of files that may be compressed.
_OF_LINES = (*TEXT_FORMATS, "text")
#: Suffix -> format. ``files`` has none: any file is one.
SUFFIXES = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".txt": "text",
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"), "images"),
}
#: Suffix of a compressed file -> name of the codec in pyarrow.
CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
#: Setting -> the formats that it is for.
_ONLY_FOR = {"schema": TEXT_FORMATS, "delimiter": ("csv",), "orient": ("images",)}


@dataclass(frozen=True)
class InputSettings:
    """The group ``inference.inputs`` of the configuration."""

    paths: tuple[str, ...]
    #: One of :data:`FORMATS`; None: by the suffixes.
    format: str | None
    #: Columns of a table that the processor gets; None: all.
    columns: tuple[str, ...] | None
    #: Most rows of a shard; None: by the number of rows.
    shard_rows: int | None
    #: Columns of the input that are passed through to the output.
    passed: tuple[str, ...]
    #: Rows of a batch, for shards of whole batches; None: not known yet.
    batch_size: int | None = None
    #: Declared column of a text file -> text of its type.
    types: Mapping[str, str] = field(default_factory=dict)
    #: Character between the values of a CSV file; None: by the suffix.
    delimiter: str | None = None
    #: Whether images are turned as their EXIF orientation says; None: they are.
    orient: bool | None = None
    #: Whether a row that cannot be read is left out. Otherwise it fails its shard.
    skips_bad_rows: bool = False
    #: Whether the output is JSON lines, in which a JSON value stays as it is.
    writes_json: bool = False

    @classmethod
    def parse(
        cls,
        settings: Mapping[str, Any],
        passed: Sequence[str],
        batch_size: int | None = None,
        *,
        skips_bad_rows: bool = False,
        writes_json: bool = False,
    ) -> InputSettings:
        """Return the settings of the plain mapping.

        :param passed: ``inference.outputs.columns``
        :param batch_size: rows of a batch; None: not known yet
        :raises InputError: a value is not valid
        """
        path, columns = settings.get("path"), settings.get("columns")
        paths = (path,) if isinstance(path, str) else tuple(path or ())
        if not paths or not all(isinstance(one, str) and one for one in paths):
            raise InputError(f"inputs.path must be a path, a URL or a list of them, got {path!r}.")
        kind, shard_rows = settings.get("format"), settings.get("shard_rows")
        if kind is not None and kind not in FORMATS:
            raise InputError(f"inputs.format must be one of {', '.join(FORMATS)}, got {kind!r}.")
        if shard_rows is not None and (not isinstance(shard_rows, int) or shard_rows < 1):
            raise InputError(f"inputs.shard_rows must be a whole number from 1 on, got {shard_rows!r}.")
        if columns is not None and (not columns or not all(isinstance(one, str) for one in columns)):
            raise InputError(f"inputs.columns must be a list of at least one name, got {columns!r}.")
        types, delimiter = settings.get("schema") or {}, settings.get("delimiter")
        if not isinstance(types, Mapping):
            raise InputError(f"inputs.schema must be a map of columns to types, got {types!r}.")
        if delimiter is not None and not is_delimiter(delimiter):
            raise InputError(f"inputs.delimiter must be one ASCII character, such as ';', got {delimiter!r}.")
        return cls(
            paths=paths,
            format=kind,
            columns=None if columns is None else tuple(columns),
            shard_rows=shard_rows,
            passed=tuple(passed),
            batch_size=batch_size,
            types={str(name): str(text) for name, text in types.items()},
            delimiter=delimiter,
            orient=settings.get("orient"),
            skips_bad_rows=skips_bad_rows,
            writes_json=writes_json,
        )

    @property
    def read_columns(self) -> tuple[str, ...] | None:
        """Columns that are read, those of the processor first. None stands for all."""
        return None if self.columns is None else tuple(dict.fromkeys((*self.columns, *self.passed)))

    def check_format(self, kind: str) -> None:
        """Raise when a setting is for other formats.

        :param kind: format of the files
        :raises InputError: names the setting and its formats
        """
        given = {"schema": bool(self.types), "delimiter": self.delimiter is not None, "orient": self.orient is not None}
        for name, formats in _ONLY_FOR.items():
            if given[name] and kind not in formats:
                raise InputError(
                    f"inputs.{name} is for inputs of format {' and '.join(formats)}, and these are {kind}."
                )


def is_delimiter(value: Any) -> bool:
    """Return whether a value can be between the values of a CSV file."""
    return isinstance(value, str) and len(value) == 1 and value.isascii() and value not in '"\r\n\0'


def format_of(name: str) -> str | None:
    """Return the format that a file name tells, else None."""
    stem, suffix = split_codec(name)
    found = SUFFIXES.get(_suffix(stem))
    return found if found in _OF_LINES or suffix is None else None


def split_codec(name: str) -> tuple[str, str | None]:
    """Return a file name without the suffix of its compression, and pyarrow's name of the codec."""
    codec = CODECS.get(_suffix(name))
    return (name.rpartition(".")[0], codec) if codec else (name, None)


def _suffix(name: str) -> str:
    _, dot, suffix = name.rpartition("/")[2].rpartition(".")
    return f"{dot}{suffix}".lower()
