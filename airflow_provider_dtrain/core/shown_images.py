"""Images of hosts that a browser may show: PNG and JPEG by their content, within a limit of pixels."""

from __future__ import annotations

import struct
from typing import Final, Literal, NamedTuple

from airflow_provider_dtrain.core.untrusted_json import UntrustedInputError

#: Most pixels of an image: a browser needs four bytes for each, however small the file is.
PIXELS_LIMIT: Final = 16 << 20
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8\xff"
#: Chunks that the pixels of a PNG file need. Others hold texts, colour profiles and animations, and have no limit.
_KEPT: Final = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
#: Markers of JPEG: frames with the size, those without a length, start of the scan, end of the image.
_FRAMES: Final = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)))
_SCAN, _END = 0xDA, 0xD9


class ShownImage(NamedTuple):
    """An image for a browser."""

    media_type: Literal["image/png", "image/jpeg"]
    width: int
    height: int
    content: bytes


def shown_image(content: bytes) -> ShownImage:
    """Return an image with what its pixels need. Its type is that of the content, whatever its name says.

    :raises UntrustedInputError: it is no whole PNG or JPEG file, or has too many pixels
    """
    if content.startswith(_PNG):
        found = _png(content)
    elif content.startswith(_JPEG):
        found = _jpeg(content)
    else:
        raise UntrustedInputError("it is no PNG or JPEG file")
    if not 0 < found.width * found.height <= PIXELS_LIMIT:
        raise UntrustedInputError(
            f"it has {found.width} x {found.height} pixels, and an image of 1 to {PIXELS_LIMIT} pixels is shown"
        )
    return found


def _png(content: bytes) -> ShownImage:
    kept = [_PNG]
    kinds: list[bytes] = []
    at = len(_PNG)
    while not kinds or kinds[-1] != b"IEND":
        length = int.from_bytes(content[at : at + 4], "big")
        kind, end = content[at + 4 : at + 8], at + 12 + length
        if len(kind) < 4 or end > len(content):
            raise UntrustedInputError("the PNG file is cut")
        if (kind == b"IHDR") != (not kinds) or (kind == b"IHDR" and length != 13):
            raise UntrustedInputError("the PNG file does not begin with its size, or has it twice")
        kinds.append(kind)
        if kind in _KEPT:
            kept.append(content[at:end])
        at = end
    width, height = struct.unpack_from(">II", kept[1], 8)
    return ShownImage("image/png", width, height, b"".join(kept))


def _jpeg(content: bytes) -> ShownImage:
    at = 2
    size: tuple[int, int] | None = None
    while True:
        if content[at : at + 1] != b"\xff":
            raise UntrustedInputError("the JPEG file is cut, or has no frame")
        marker = content[at + 1] if at + 1 < len(content) else _END
        if marker == 0xFF:
            at += 1
            continue
        length = int.from_bytes(content[at + 2 : at + 4], "big")
        if marker == _SCAN and size is not None:
            return ShownImage("image/jpeg", size[1], size[0], content)
        if marker in (_SCAN, _END) or length < 2 or at + 2 + length > len(content):
            raise UntrustedInputError("the JPEG file is cut, or has no frame")
        if marker in _FRAMES:
            if size is not None or length < 8:
                raise UntrustedInputError("the JPEG file has several frames")
            size = struct.unpack_from(">HH", content, at + 5)
        at += 2 + length
