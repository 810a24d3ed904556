"""Tables, histograms, confusion matrices and curves as JSON documents of bounded size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from airflow_provider_dtrain.train.errors import MediaError
from airflow_provider_dtrain.train.values import JsonObject

#: Bounds of a document. The API server shows no larger one.
ROWS_LIMIT, COLUMNS_LIMIT, CELL_CHARS = 1000, 100, 1000
TEXT_CHARS = 100_000
BINS_LIMIT, CLASSES_LIMIT, POINTS_LIMIT = 512, 100, 500


class Document(NamedTuple):
    """A JSON document, and the sentence about the part of it that was left out."""

    content: JsonObject
    #: Empty: it is whole.
    left_out: str = ""


def values_of(values: Any) -> list[Any]:
    """Return the values of a one-dimensional array, tensor or sequence.

    :raises MediaError: it is none
    """
    found = values.tolist() if callable(getattr(values, "tolist", None)) else values
    if isinstance(found, (str, bytes, Mapping)) or not isinstance(found, Iterable):
        raise MediaError(f"Values must be an array, tensor or sequence of numbers, got {type(values).__name__}.")
    found = list(found)
    if found and isinstance(found[0], (list, tuple)):
        raise MediaError("Values must have one dimension.")
    return found


def table(rows: Any, columns: Sequence[str] | None) -> Document:
    """Return the document of a table.

    :param rows: mappings of column -> value, sequences of values, or a pandas DataFrame
    :param columns: names of the columns; default: keys of the first mapping, or columns of the DataFrame
    :raises MediaError: the rows have no columns, or another number of values than there are columns
    """
    if hasattr(rows, "columns") and hasattr(rows, "values") and not isinstance(rows, Mapping):
        columns = columns or [str(name) for name in rows.columns]
        rows = rows.values.tolist()
    found = list(rows)
    if columns is None and found and isinstance(found[0], Mapping):
        columns = [str(name) for name in found[0]]
    if not columns:
        raise MediaError("A table needs columns: pass rows as mappings, or name the columns.")
    names = [str(name) for name in columns]
    shown = [_row(row, names) for row in found[:ROWS_LIMIT]]
    cut = len(found) > ROWS_LIMIT or len(names) > COLUMNS_LIMIT
    words = f"{len(found)} rows and {len(names)} columns, of which at most {ROWS_LIMIT} and {COLUMNS_LIMIT} are kept"
    content = {
        "columns": [name[:CELL_CHARS] for name in names[:COLUMNS_LIMIT]],
        "rows": [row[:COLUMNS_LIMIT] for row in shown],
        "rows_total": len(found),
    }
    return Document(content, words if cut else "")


def _row(row: Any, names: Sequence[str]) -> list[Any]:
    values = [row.get(name) for name in names] if isinstance(row, Mapping) else list(row)
    if len(values) != len(names):
        raise MediaError(f"A row of a table must have {len(names)} values, as many as columns, got {len(values)}.")
    return [_cell(value) for value in values]


def _cell(value: Any) -> Any:
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 1 << 53:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return str(value)[:CELL_CHARS]


def histogram(values: Any, bins: int) -> Document:
    """Return the document of a histogram with bins of equal width.

    :param values: array or tensor of any shape, or a sequence of numbers
    :param bins: number of bins, 1 to 512
    :raises MediaError: the bins are not valid, or a value is no number
    """
    if type(bins) is not int or not 1 <= bins <= BINS_LIMIT:
        raise MediaError(f"bins of a histogram must be a whole number from 1 to {BINS_LIMIT}, got {bins!r}.")
    if hasattr(values, "detach"):
        counts, lowest, highest, total = _tensor_bins(values.detach().flatten(), bins)
    elif hasattr(values, "dtype") and hasattr(values, "ravel"):
        counts, lowest, highest, total = _array_bins(values.ravel(), bins)
    else:
        counts, lowest, highest, total = _list_bins(values_of(values), bins)
    width = (highest - lowest) / bins
    edges = [lowest + width * index for index in range(bins)] + [highest]
    content = {"edges": edges, "counts": counts, "left_out": total - sum(counts)}
    return Document(content)


def _bounds(lowest: float, highest: float) -> tuple[float, float]:
    # As numpy.histogram does for values that are all alike. Around large values, 0.5 would be lost to rounding.
    margin = max(0.5, abs(lowest) * 1e-6)
    return (lowest - margin, highest + margin) if lowest == highest else (lowest, highest)


def _tensor_bins(tensor: Any, bins: int) -> tuple[list[int], float, float, int]:
    finite = tensor.float()
    finite = finite[finite.isfinite()]
    if not finite.numel():
        return [0] * bins, 0.0, 1.0, int(tensor.numel())
    lowest, highest = _bounds(float(finite.min()), float(finite.max()))
    # The histogram of CUDA is not deterministic, and programs may forbid such operations.
    counts = finite.cpu().histc(bins, lowest, highest)
    return [int(count) for count in counts.tolist()], lowest, highest, int(tensor.numel())


def _array_bins(array: Any, bins: int) -> tuple[list[int], float, float, int]:
    try:
        floats = array.astype("float64")
    except (TypeError, ValueError) as error:
        raise MediaError(f"Values of a histogram must be numbers: {error}") from None
    finite = floats[abs(floats) < math.inf]
    if not finite.size:
        return [0] * bins, 0.0, 1.0, int(array.size)
    lowest, highest = _bounds(float(finite.min()), float(finite.max()))
    finite.sort()
    width = (highest - lowest) / bins
    below = [0, *finite.searchsorted([lowest + width * index for index in range(1, bins)]).tolist(), finite.size]
    return [after - before for before, after in zip(below, below[1:])], lowest, highest, int(array.size)


def _list_bins(values: Sequence[Any], bins: int) -> tuple[list[int], float, float, int]:
    try:
        finite = [float(value) for value in values if math.isfinite(value)]
    except TypeError as error:
        raise MediaError(f"Values of a histogram must be numbers: {error}") from None
    counts = [0] * bins
    if not finite:
        return counts, 0.0, 1.0, len(values)
    lowest, highest = _bounds(min(finite), max(finite))
    for value in finite:
        counts[min(bins - 1, int((value - lowest) / (highest - lowest) * bins))] += 1
    return counts, lowest, highest, len(values)


def confusion_matrix(targets: Sequence[Any], predictions: Sequence[Any], labels: Sequence[str] | None) -> Document:
    """Return the document of a confusion matrix: one row per true class, one column per predicted class.

    :param targets: true class of each sample, from 0 on
    :param predictions: predicted class of each sample
    :param labels: names of the classes; default: their numbers
    :raises MediaError: the lengths differ, a class is no whole number or has no name, or there are too many classes
    """
    if len(targets) != len(predictions):
        raise MediaError(f"There must be one prediction per target, got {len(targets)} and {len(predictions)}.")
    highest = max((int(one) for one in (*targets, *predictions)), default=-1)
    classes = len(labels) if labels is not None else highest + 1
    if not 0 < classes <= CLASSES_LIMIT:
        raise MediaError(f"A confusion matrix must have 1 to {CLASSES_LIMIT} classes, got {classes}.")
    counts = [[0] * classes for _ in range(classes)]
    for target, prediction in zip(targets, predictions):
        if not (0 <= target < classes and 0 <= prediction < classes) or target != int(target):
            raise MediaError(f"A class must be a whole number from 0 to {classes - 1}, got {target} and {prediction}.")
        counts[int(target)][int(prediction)] += 1
    names = [str(one)[:CELL_CHARS] for one in labels] if labels is not None else [str(one) for one in range(classes)]
    return Document({"labels": names, "counts": counts})


def pr_curve(targets: Sequence[Any], scores: Sequence[Any]) -> Document:
    """Return the document of precision over recall, for all thresholds of a score.

    The average precision is the sum of precisions, weighted by the growth of the recall, as scikit-learn defines it.

    :param targets: 1 or true for samples of the class, else 0 or false
    :param scores: score of each sample, higher for the class
    :raises MediaError: the lengths differ, a target is neither 0 nor 1, a score is NaN, or no sample is of the class
    """
    if len(targets) != len(scores):
        raise MediaError(f"There must be one score per target, got {len(targets)} and {len(scores)}.")
    if any(target not in (0, 1) for target in targets) or any(score != score for score in scores):  # noqa: PLR0124
        raise MediaError("Targets of a precision-recall curve must be 0 or 1, and scores numbers.")
    positives = sum(int(target) for target in targets)
    if not positives:
        raise MediaError("A precision-recall curve needs at least one sample of the class.")
    pairs = sorted(zip(scores, targets), key=lambda pair: -pair[0])
    recalls, precisions, average, hits = [0.0], [1.0], 0.0, 0
    for number, (score, target) in enumerate(pairs, 1):
        hits += int(target)
        # Samples with the same score are on the same side of each threshold.
        if number == len(pairs) or pairs[number][0] != score:
            average += (hits / positives - recalls[-1]) * hits / number
            recalls.append(hits / positives)
            precisions.append(hits / number)
    kept = _spread(len(recalls))
    content = {
        "x_label": "recall",
        "y_label": "precision",
        "x": [recalls[index] for index in kept],
        "y": [precisions[index] for index in kept],
        "note": f"average precision {average:.4f}",
    }
    return Document(content)


def _spread(count: int) -> list[int]:
    """Return evenly spread indexes with the first and the last one, at most :data:`POINTS_LIMIT`."""
    if count <= POINTS_LIMIT:
        return list(range(count))
    return sorted({round(index * (count - 1) / (POINTS_LIMIT - 1)) for index in range(POINTS_LIMIT)})
