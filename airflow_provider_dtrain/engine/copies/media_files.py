"""Media of a trial among the copies of its outputs on this machine."""

from __future__ import annotations

import os
from collections import defaultdict
from datetime import UTC, datetime
from typing import Final

from airflow_provider_dtrain.core.media_names import MediaKind, MediaName, media_name
from airflow_provider_dtrain.core.regular_files import open_below
from airflow_provider_dtrain.core.untrusted_json import UntrustedInputError
from airflow_provider_dtrain.engine.copies.output_generations import Generation
from airflow_provider_dtrain.resources.media import MediaItem, MediaSeries, TrialMedia

#: Most files of one answer, and most bytes of a file. The training library writes no larger one.
ITEMS_MOST: Final = 2000
FILE_LIMIT_BYTES: Final = 4 << 20


def media_of(found: Generation | None) -> TrialMedia:
    """Return the media of a copy, None = there is no copy."""
    items: dict[tuple[str, int, MediaKind], tuple[int, MediaItem]] = {}
    for path, file in found.manifest.files.items() if found is not None else ():
        name = media_name(path)
        if name is None or file.size_bytes > FILE_LIMIT_BYTES:
            continue
        place = (name.key, name.step, name.kind)
        if place not in items or items[place][0] < name.attempt:
            at = datetime.fromtimestamp(file.modified_at, UTC)
            items[place] = (name.attempt, _item(name, path, file.size_bytes, at))
    latest = sorted(items, key=lambda place: place[1])[-ITEMS_MOST:]
    series: dict[str, list[MediaItem]] = defaultdict(list)
    for place in latest:
        series[place[0]].append(items[place][1])
    rows = [MediaSeries(key=key, items=series[key]) for key in sorted(series)]
    return TrialMedia(series=rows, truncated=len(items) > ITEMS_MOST)


def _item(name: MediaName, path: str, size_bytes: int, at: datetime) -> MediaItem:
    return MediaItem(step=name.step, attempt=name.attempt, kind=name.kind, path=path, size_bytes=size_bytes, at=at)


def read_media(found: Generation | None, path: str) -> tuple[MediaName, bytes]:
    """Return meaning and content of a file. Blocks.

    :raises FileNotFoundError: the copy has no such file
    :raises UntrustedInputError: it is larger than any that the library writes
    """
    name = media_name(path)
    if found is None or name is None or path not in found.manifest.files:
        raise FileNotFoundError(path)
    try:
        descriptor = open_below(found.folder, path)
    except OSError as error:
        raise FileNotFoundError(path) from error
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(FILE_LIMIT_BYTES + 1)
    if len(content) > FILE_LIMIT_BYTES:
        raise UntrustedInputError(f"it has more than {FILE_LIMIT_BYTES} bytes")
    return name, content
