"""Chunks of a rank's log: parts of limited size that hold whole lines."""

from __future__ import annotations

from typing import Final

#: Most bytes of a chunk, and of a line. A longer line counts as several.
CHUNK_BYTES: Final = 256 << 10


def cut(content: bytes, most: int = CHUNK_BYTES) -> list[bytes]:
    """Return content as chunks that end with a line. The last one may end inside a line."""
    chunks = []
    start = 0
    while len(content) - start > most:
        end = content.rfind(b"\n", start, start + most) + 1 or start + most
        chunks.append(content[start:end])
        start = end
    if start < len(content):
        chunks.append(content[start:])
    return chunks
