"""Screenshots as PNG files with a palette, a third of the size that the browser writes."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

from playwright.sync_api import Page

COLORS = 256
#: Counts the colours of a picture, keeps the most frequent ones, and maps each pixel to the nearest of them. Bright
#: colours count more than grey ones. Colours that differ in the last two bits of a channel count as one.
_REDUCE = """
async ([source, most]) => {
  const bitmap = await createImageBitmap(await (await fetch('data:image/png;base64,' + source)).blob());
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext('2d');
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height);
  const bins = new Map();
  for (let at = 0; at < data.length; at += 4) {
    const key = ((data[at] >> 2) << 12) | ((data[at + 1] >> 2) << 6) | (data[at + 2] >> 2);
    const bin = bins.get(key);
    if (bin === undefined) bins.set(key, [1, data[at], data[at + 1], data[at + 2]]);
    else { bin[0] += 1; bin[1] += data[at]; bin[2] += data[at + 1]; bin[3] += data[at + 2]; }
  }
  const weight = ([count, r, g, b]) => count + 8 * (Math.max(r, g, b) - Math.min(r, g, b)) / 255;
  const ranked = [...bins.values()].sort((a, b) => weight(b) - weight(a)).slice(0, most);
  const palette = ranked.map(([count, r, g, b]) => [r / count, g / count, b / count].map(Math.round));
  const nearest = new Map();
  const place = (key, r, g, b) => {
    let [best, least] = [0, Infinity];
    palette.forEach(([pr, pg, pb], index) => {
      const distance = (pr - r) ** 2 + (pg - g) ** 2 + (pb - b) ** 2;
      if (distance < least) [best, least] = [index, distance];
    });
    nearest.set(key, best);
    return best;
  };
  const pixels = new Uint8Array(data.length / 4);
  for (let at = 0; at < data.length; at += 4) {
    const [r, g, b] = [data[at], data[at + 1], data[at + 2]];
    const key = ((r >> 2) << 12) | ((g >> 2) << 6) | (b >> 2);
    pixels[at / 4] = nearest.get(key) ?? place(key, r, g, b);
  }
  const parts = [];
  for (let at = 0; at < pixels.length; at += 32768) {
    parts.push(String.fromCharCode(...pixels.subarray(at, at + 32768)));
  }
  return { width: bitmap.width, height: bitmap.height, palette, pixels: btoa(parts.join('')) };
}
"""


def with_palette(page: Page, picture: bytes) -> bytes:
    """Return a PNG picture with at most 256 colours.

    :param page: of a browser, which reads the picture
    :param picture: PNG without transparency
    """
    found: dict[str, Any] = page.evaluate(_REDUCE, [base64.b64encode(picture).decode(), COLORS])
    width, height, pixels = found["width"], found["height"], base64.b64decode(found["pixels"])
    rows = b"".join(b"\0" + pixels[width * row : width * (row + 1)] for row in range(height))
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", bytes(channel for color in found["palette"] for channel in color)),
            _chunk(b"IDAT", zlib.compress(rows, 9)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
