"""Images as PNG files: pixels of arrays and tensors, without a library for images."""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

from airflow_provider_dtrain.train.errors import MediaError

#: Most pixels of an image. The API server shows no larger one.
PIXELS_LIMIT = 16 << 20
PNG_SIGNATURE, JPEG_SIGNATURE = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
#: Channels of an image -> colour type of a PNG file.
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
_EXPECTED = (
    "An image must be a NumPy array or tensor of shape (height, width), (height, width, channels) or "
    "(channels, height, width) with 1, 3 or 4 channels, a Pillow image, or the bytes of a PNG or JPEG file"
)


class Pixels(NamedTuple):
    """Pixels of an image, row by row: 8 bits per channel."""

    width: int
    height: int
    #: 1 (grey), 3 (RGB) or 4 (RGBA).
    channels: int
    data: bytes
    #: Values outside 0..1 were clipped, or NaN became 0.
    is_clipped: bool


def pixels_of(image: Any) -> Pixels:
    """Return a copy of the pixels of an image.

    :param image: NumPy array or torch tensor on any device, of shape (height, width), (height, width, channels) or
        (channels, height, width), with 1, 3 or 4 channels; uint8 of 0..255, bool, or floats of 0..1; or a Pillow image
    :raises MediaError: it has another type, shape or dtype, or too many pixels
    """
    if callable(getattr(image, "convert", None)) and hasattr(image, "mode"):
        return _of_pillow(image)
    if not hasattr(image, "shape") or not hasattr(image, "dtype"):
        raise MediaError(f"{_EXPECTED}, got {type(image).__name__}.")
    shape = tuple(int(size) for size in image.shape)
    height, width, channels = _layout(shape)
    if channels_come_first(shape):
        image = image.permute(1, 2, 0) if hasattr(image, "permute") else image.transpose(1, 2, 0)
    is_tensor = hasattr(image, "detach")
    dtype = str(image.dtype).rpartition(".")[2]
    convert = _tensor_bytes if is_tensor else _array_bytes
    if dtype not in ("uint8", "bool") and not dtype.startswith(("float", "bfloat")):
        raise MediaError(f"The values of an image must be uint8 (0..255), bool or floats (0..1), got {dtype}.")
    data, is_clipped = convert(image, dtype)
    return Pixels(width, height, channels, data, is_clipped)


def png(pixels: Pixels) -> bytes:
    """Return the PNG file of some pixels."""
    stride = pixels.width * pixels.channels
    view = memoryview(pixels.data)
    rows = bytearray()
    for start in range(0, len(view), stride):
        # Each row begins with its filter, 0 = none.
        rows += b"\x00"
        rows += view[start : start + stride]
    header = struct.pack(">IIBBBBB", pixels.width, pixels.height, 8, _COLOUR_TYPES[pixels.channels], 0, 0, 0)
    body = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows, 6)) + _chunk(b"IEND", b"")
    return PNG_SIGNATURE + body


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def channels_come_first(shape: tuple[int, ...]) -> bool:
    """Return whether a shape is (channels, height, width). (3, 5, 3) is not: the last size decides where both fit."""
    return len(shape) == 3 and shape[2] not in _COLOUR_TYPES and shape[0] in _COLOUR_TYPES


def _layout(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return height, width and channels.

    :raises MediaError: it is not the shape of an image
    """
    if len(shape) == 2:
        found: tuple[int, ...] = (*shape, 1)
    elif channels_come_first(shape):
        found = (*shape[1:], shape[0])
    elif len(shape) == 3 and shape[2] in _COLOUR_TYPES:
        found = shape
    else:
        raise MediaError(f"{_EXPECTED}, got shape {shape}.")
    if not 0 < found[0] * found[1] <= PIXELS_LIMIT:
        raise MediaError(f"An image must have 1 to {PIXELS_LIMIT:,} pixels, got {found[0]} x {found[1]}.")
    return found[0], found[1], found[2]


def _of_pillow(image: Any) -> Pixels:
    width, height = image.size
    _layout((height, width))
    grey = image.mode in ("1", "L")
    mode = "L" if grey else "RGBA" if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info else "RGB"
    return Pixels(width, height, {"L": 1, "RGB": 3, "RGBA": 4}[mode], image.convert(mode).tobytes(), False)


def _array_bytes(array: Any, dtype: str) -> tuple[bytes, bool]:
    if dtype == "uint8":
        return array.tobytes(), False
    if dtype == "bool":
        return (array.astype("uint8") * 255).tobytes(), False
    # A NaN is not inside: it fails both comparisons.
    is_clipped = not bool(((array >= 0) & (array <= 1)).all())
    array = array.astype("float32")
    # astype returned a copy, so that the values of the caller stay.
    array[array != array] = 0  # noqa: PLR0124
    return (array * 255 + 0.5).clip(0, 255).astype("uint8").tobytes(), is_clipped


def _tensor_bytes(tensor: Any, dtype: str) -> tuple[bytes, bool]:
    import ctypes

    is_clipped = False
    tensor = tensor.detach()
    if dtype == "bool":
        tensor = tensor.byte() * 255
    elif dtype != "uint8":
        tensor = tensor.float()
        is_clipped = not bool(((tensor >= 0) & (tensor <= 1)).all())
        tensor = (tensor.nan_to_num(0.0) * 255 + 0.5).clamp(0, 255).byte()
    tensor = tensor.cpu().contiguous()
    # Without NumPy, this is the only fast way to the bytes of a tensor.
    return ctypes.string_at(tensor.data_ptr(), tensor.numel()), is_clipped
