"""Images, tables and texts of a trial that learns digits, as the training library writes them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.train.reports import media_data
from airflow_provider_dtrain.train.reports.media_images import Pixels, png

#: Steps at which the trial reports.
STEPS = (100, 200, 300, 400)
_SIDE, _CLASSES = 96, 6


def media_of(trial_id: int) -> Mapping[str, bytes]:
    """Return the files of a trial: path among its outputs -> content. Each trial has other ones."""
    files: dict[str, bytes] = {}
    for number, step in enumerate(STEPS):
        draw = random.Random(f"{trial_id}/{step}")  # noqa: S311 - pictures to look at
        quality = 0.35 + 0.15 * number + 0.01 * (trial_id % 5)
        _put(files, "samples%2Freconstruction", step, "image.png", _rings(trial_id, quality))
        _put(files, "validation%2Fconfusion", step, "matrix.json", _document(_confusion(draw, quality)))
        _put(files, "validation%2Fprecision-recall", step, "curve.json", _document(_curve(draw, quality)))
        _put(files, "weights%2Flayer1", step, "histogram.json", _document(_weights(draw, number)))
    worst = [{"sample": f"digit-{trial_id}-{row}.png", "label": row % 10, "loss": 3.2 - row / 4} for row in range(8)]
    _put(files, "worst samples", STEPS[-1], "table.json", _document(media_data.table(worst, None)))
    _put(files, "notes", STEPS[-1], "text.txt", b"the 8 <b>looks</b> like a 3 & the 1 like a 7\n")
    return files


def _put(files: dict[str, bytes], key: str, step: int, name: str, content: bytes) -> None:
    files[f"work/media/{key}/{step}-attempt1-{name}"] = content


def _document(document: media_data.Document) -> bytes:
    return json.dumps(document.content).encode()


def _rings(trial_id: int, quality: float) -> bytes:
    """Return a picture that becomes sharper with the quality."""
    data = bytearray()
    for y in range(_SIDE):
        for x in range(_SIDE):
            far = math.hypot(x - _SIDE / 2, y - _SIDE / 2)
            wave = 0.5 + 0.5 * math.sin(far / (3 + trial_id % 4)) * min(1.0, quality)
            data += bytes((int(255 * wave), int(255 * wave * y / _SIDE), int(160 * (1 - wave))))
    return png(Pixels(_SIDE, _SIDE, 3, bytes(data), False))


def _samples(draw: random.Random, quality: float) -> tuple[list[int], list[int]]:
    targets = [draw.randrange(_CLASSES) for _ in range(600)]
    predictions = [one if draw.random() < quality else draw.randrange(_CLASSES) for one in targets]
    return targets, predictions


def _confusion(draw: random.Random, quality: float) -> media_data.Document:
    return media_data.confusion_matrix(*_samples(draw, quality), [f"digit {one}" for one in range(_CLASSES)])


def _curve(draw: random.Random, quality: float) -> media_data.Document:
    targets: list[Any] = [draw.randrange(2) for _ in range(400)]
    return media_data.pr_curve(targets, [one * quality + draw.gauss(0, 0.4) for one in targets])


def _weights(draw: random.Random, number: int) -> media_data.Document:
    return media_data.histogram([draw.gauss(0, 0.05 * (number + 1)) for _ in range(2000)], 48)
