"""Files and images as input: each file is a row."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.train.errors import InputError, InputUnavailableError
from airflow_provider_dtrain.train.inference.inputs.batch import BadRow, InputBatch
from airflow_provider_dtrain.train.inference.inputs.listing import list_input
from airflow_provider_dtrain.train.inference.inputs.settings import InputSettings
from airflow_provider_dtrain.train.inference.inputs.sources import SourceFile, Sources, reason
from airflow_provider_dtrain.train.inference.libraries import require
from airflow_provider_dtrain.train.inference.shards import Shard, default_shard_rows

if TYPE_CHECKING:
    import pyarrow
    import torch

#: Limits of the default size of a shard, files.
LEAST_FILES, MOST_FILES = 8, 1024
#: Images that are decoded at the same time. Pillow decodes without Python's lock.
DECODE_THREADS = 4


class FileReader:
    """Reads each file as one row. Every rank lists the files once.

    :param decode: from path and bytes to the value that the processor gets
    :param column: name of this value
    """

    def __init__(
        self, settings: InputSettings, sources: Sources, column: str, decode: Callable[[str, bytes], Any] | None
    ) -> None:
        if settings.columns is not None or set(settings.passed) - {"path"}:
            raise InputError(
                "inputs.columns must not be set for files, and outputs.columns can only have 'path', got "
                f"{settings.columns} and {list(settings.passed)}."
            )
        self._settings = settings
        self._sources = sources
        self._column = column
        self._decode = decode
        self._files: Sequence[SourceFile] | None = None

    def shards(self, files: Sequence[SourceFile]) -> list[Shard]:
        """Return shards of consecutive files."""
        self._files = files
        total = len(files)
        size = self._settings.shard_rows or default_shard_rows(
            total, self._settings.batch_size, least=LEAST_FILES, most=MOST_FILES
        )
        shards: list[Shard] = []
        for start in range(0, total, size):
            chosen = files[start : start + size]
            details = {"version": _digest(chosen), "unit": "files"}
            shards.append(Shard(len(shards), chosen[0].path, start, start + len(chosen), len(chosen), start, details))
        return shards

    def batches(self, shard: Shard, batch_size: int) -> Iterator[InputBatch]:
        """Yield the files of a shard."""
        chosen = self._listed()[shard.start : shard.stop]
        if _digest(chosen) != shard.details["version"]:
            raise InputError(
                f"The input's files have changed since the inference began ({shard.label}). Start the run again."
            )
        with ThreadPoolExecutor(DECODE_THREADS) as threads:
            for start in range(0, len(chosen), batch_size):
                first = shard.first_row + start
                paths = [file.path for file in chosen[start : start + batch_size]]
                found = list(threads.map(self._decoded, paths, self._sources.contents(paths)))
                bad_rows = [
                    self._left_out(first + i, paths[i], error)
                    for i, error in enumerate(found)
                    if isinstance(error, InputError)
                ]
                if bad_rows:
                    left_out = {row.row_id - first for row in bad_rows}
                    ids = [first + i for i in range(len(paths)) if i not in left_out]
                    paths, found = ([values[i - first] for i in ids] for values in (paths, found))
                yield InputBatch(
                    {"path": paths, self._column: found},
                    len(paths),
                    _paths(paths) if self._settings.passed else None,
                    first,
                    row_ids=ids if bad_rows else None,
                    bad_rows=bad_rows,
                )

    def _decoded(self, path: str, content: bytes | InputError) -> Any:
        if isinstance(content, InputError) or self._decode is None:
            return content
        try:
            return self._decode(path, content)
        except InputError as error:
            return error

    def _left_out(self, row_id: int, path: str, error: InputError) -> BadRow:
        """Return the record of a file that cannot be read.

        :raises InputError: such files are not left out, or its storage does not answer now
        """
        if not self._settings.skips_bad_rows or isinstance(error, InputUnavailableError):
            raise error
        return BadRow(row_id, path, str(error))

    def _listed(self) -> Sequence[SourceFile]:
        if self._files is None:
            _, self._files = list_input(self._settings, self._sources)
        return self._files


def decode_image(path: str, content: bytes, *, orient: bool) -> torch.Tensor:
    """Return an image in RGB.

    :param orient: turn it as its EXIF orientation says, as phones store photographs
    :return: uint8 [3, height, width]
    :raises InputError: the file is no image, is cut, is too large, or has more than 8 bits per channel
    """
    import torch
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"mode {image.mode} has more than 8 bits per pixel; read it by inputs.format files")
            colors = (_upright(image) if orient else image).convert("RGB")
        height, width = colors.height, colors.width
        flat = torch.frombuffer(bytearray(colors.tobytes()), dtype=torch.uint8)
        return flat.reshape(height, width, 3).permute(2, 0, 1).contiguous()
    except Exception as error:
        # Pillow's own message has an address of memory.
        message = "its format is unknown" if isinstance(error, UnidentifiedImageError) else reason(error)
        raise InputError(f"{path} cannot be read as an image: {message}") from error


def _upright(image: Any) -> Any:
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # whatever Pillow raises for metadata that are damaged
        return image


def image_reader(settings: InputSettings, sources: Sources) -> FileReader:
    """Return a reader of images.

    :raises SetupError: Pillow is not installed
    """
    require("PIL.Image", "Reading images")
    return FileReader(settings, sources, "image", partial(decode_image, orient=settings.orient is not False))


def _paths(paths: list[str]) -> pyarrow.RecordBatch:
    pa = require("pyarrow", "Passing the column path through")
    return pa.RecordBatch.from_pydict({"path": pa.array(paths, pa.string())})


def _digest(files: Sequence[SourceFile]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.path}\0{file.content}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
