"""A browser gets images by their content alone, without what their pixels do not need."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dtrain.core.shown_images import PIXELS_LIMIT, shown_image
from airflow_provider_dtrain.core.untrusted_json import UntrustedInputError
from airflow_provider_dtrain.train.reports import media_images
from airflow_provider_dtrain.train.reports.media_images import Pixels, png

SIGNATURE = b"\x89PNG\r\n\x1a\n"
PLAIN = png(Pixels(3, 2, 1, bytes(range(6)), False))


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def header(width: int, height: int) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))


def segment(marker: int, data: bytes) -> bytes:
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(data) + 2) + data


def jpeg(*segments: bytes, width: int = 5, height: int = 4, frame: int = 0xC0) -> bytes:
    size = segment(frame, struct.pack(">BHHB", 8, height, width, 1) + b"\x01\x11\x00")
    scan = segment(0xDA, b"\x01\x01\x00\x00\x3f\x00")
    return b"\xff\xd8" + b"".join(segments) + size + scan + b"\x00" * 10 + b"\xff\xd9"


def reason(content: bytes) -> str:
    with pytest.raises(UntrustedInputError) as caught:
        shown_image(content)
    return str(caught.value)


def test_images_of_the_training_library_are_shown_as_they_are() -> None:
    assert shown_image(PLAIN) == ("image/png", 3, 2, PLAIN)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
        b"<!doctype html><script>alert(1)</script>",
        b"GIF89a\x01\x00\x01\x00",
        b"RIFF\x00\x00\x00\x00WEBP",
        b"BM",
        b"\xef\xbb\xbf<svg/>",
        b"\x00\x00\x01\x00",
        b"%PDF-1.7",
        b"\x89PNG",
        b"\xff\xd8",
        b" " + PLAIN,
        b"<!--" + PLAIN,
    ],
)
def test_other_types_are_refused_whatever_they_say_they_are(content: bytes) -> None:
    assert reason(content) == "it is no PNG or JPEG file"


def test_texts_profiles_animations_and_what_follows_the_end_are_left_out() -> None:
    bomb = zlib.compress(b"a" * 1_000_000)
    extra = [
        chunk(b"zTXt", b"a\0\0" + bomb),
        chunk(b"iCCP", b"a\0\0" + bomb),
        chunk(b"acTL", struct.pack(">II", 10**6, 0)),
    ]
    at = len(SIGNATURE) + 25
    content = PLAIN[:at] + b"".join(extra) + PLAIN[at:] + b"<script>alert(1)</script>"
    assert shown_image(content) == ("image/png", 3, 2, PLAIN)


def test_palettes_and_transparency_are_kept() -> None:
    content = SIGNATURE + header(1, 1) + chunk(b"PLTE", b"abc") + chunk(b"tRNS", b"a") + chunk(b"IDAT") + chunk(b"IEND")
    assert shown_image(content).content == content


@pytest.mark.parametrize(("width", "height"), [(65_535, 65_535), (4097, 4096), (2**31, 2**31), (0, 5), (5, 0)])
def test_small_files_with_many_pixels_are_refused(width: int, height: int) -> None:
    content = SIGNATURE + header(width, height) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND")
    assert f"it has {width} x {height} pixels" in reason(content)
    if max(width, height) <= 65_535:
        assert f"it has {width} x {height} pixels" in reason(jpeg(width=width, height=height))


def test_the_largest_image_of_the_library_is_shown() -> None:
    assert media_images.PIXELS_LIMIT == PIXELS_LIMIT
    content = SIGNATURE + header(4096, 4096) + chunk(b"IDAT") + chunk(b"IEND")
    assert shown_image(content)[:3] == ("image/png", 4096, 4096)


@pytest.mark.parametrize("frame", [0xC0, 0xC1, 0xC2])
def test_jpeg_files_have_the_size_of_their_frame(frame: int) -> None:
    content = jpeg(segment(0xE0, b"JFIF\0"), segment(0xFE, b"a comment"), b"\xff", frame=frame)
    assert shown_image(content) == ("image/jpeg", 5, 4, content)


def test_another_library_reads_what_is_shown() -> None:
    pillow = pytest.importorskip("PIL.Image")
    for kind in ("PNG", "JPEG"):
        target = io.BytesIO()
        pillow.new("RGB", (7, 5), (200, 10, 10)).save(target, kind)
        found = shown_image(target.getvalue())
        assert (found.width, found.height) == (7, 5)
        assert pillow.open(io.BytesIO(found.content)).getpixel((0, 0))[0] > 190


SECOND_FRAME = segment(0xC0, struct.pack(">BHHB", 8, 60_000, 60_000, 1) + b"\x01\x11\x00")


@pytest.mark.parametrize(
    "content",
    [
        PLAIN[:20],
        PLAIN[:-1],
        PLAIN[:-12],
        SIGNATURE,
        SIGNATURE + chunk(b"IDAT") + PLAIN[8:],
        SIGNATURE + chunk(b"IHDR", b"short") + chunk(b"IEND"),
        SIGNATURE + header(1, 1) + header(60_000, 60_000) + PLAIN[33:],
        SIGNATURE + struct.pack(">I", 2**31) + b"IHDR",
        jpeg()[:10],
        b"\xff\xd8\xff",
        b"\xff\xd8\xff\xd9",
        b"\xff\xd8" + segment(0xDA, b""),
        b"\xff\xd8\xff\xe0\x00\x00",
        b"\xff\xd8\xff\xe0\xff\xff",
        jpeg(SECOND_FRAME),
        b"\xff\xd8" + segment(0xC0, b"abc"),
        b"\xff\xd8" + b"\xff" * 100,
    ],
)
def test_damaged_files_are_refused(content: bytes) -> None:
    assert "the PNG file" in reason(content) or "the JPEG file" in reason(content)


@given(
    st.binary(max_size=60), st.sampled_from([b"", SIGNATURE, SIGNATURE + header(2, 2), b"\xff\xd8\xff", jpeg()[:25]])
)
def test_any_bytes_are_shown_or_refused(content: bytes, start: bytes) -> None:
    try:
        found = shown_image(start + content)
    except UntrustedInputError:
        return
    assert found.width * found.height <= PIXELS_LIMIT


@given(st.integers(0, len(PLAIN) - 1), st.binary(min_size=1, max_size=3))
def test_changed_bytes_never_raise_another_error(at: int, change: bytes) -> None:
    changed: Any = PLAIN[:at] + change + PLAIN[at + len(change) :]
    try:
        shown_image(changed)
    except UntrustedInputError:
        return
