"""Names of the files of media, as the training library gives them. A host may send any other name."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, cast
from urllib.parse import quote, unquote

MediaKind = Literal["image", "text", "table", "histogram", "matrix", "curve"]
#: Folder of the files among the outputs of a trial.
FOLDER: Final = "work/media"
#: Most characters of a key, and of its form in a path.
KEY_CHARS, KEY_FILE_CHARS = 100, 200
_NAME: Final = re.compile(
    r"(0|[1-9]\d{0,14})-attempt([1-9]\d{0,8})-(?:(image)\.(?:png|jpg)|(text)\.txt|(table|histogram|matrix|curve)\.json)",
    re.ASCII,
)


class MediaName(NamedTuple):
    """Meaning of a file name."""

    key: str
    step: int
    attempt: int
    kind: MediaKind


def media_name(path: str) -> MediaName | None:
    """Return the meaning of the path of an output, None if the library gives no file this path."""
    head, _, name = path.rpartition("/")
    folder, _, encoded = head.rpartition("/")
    found = _NAME.fullmatch(name)
    if folder != FOLDER or found is None or len(encoded) > KEY_FILE_CHARS:
        return None
    key = unquote(encoded, errors="replace")
    # One key has one form, so that no two folders show the same key.
    if quote(key, safe=" ,=+()[]").replace(".", "%2E") != encoded:
        return None
    if not key.isprintable() or key != key.strip() or not 0 < len(key) <= KEY_CHARS:
        return None
    return MediaName(key, int(found[1]), int(found[2]), cast("MediaKind", found[3] or found[4] or found[5]))
