"""Names of trials in lists: the number, and the hyperparameters that differ between trials."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from airflow_provider_dtrain.core.hyperparameters.space import Path, dotted, is_constant, is_leaf
from airflow_provider_dtrain.core.safe_repr import printable_line
from airflow_provider_dtrain.core.search.value_text import value_text

#: Airflow keeps 250 characters of the name of a mapped task.
MAX_CHARS: Final = 200
_MAX_VALUE_CHARS: Final = 24
_MAX_METRIC_CHARS: Final = 40
_PLAIN: Final = (1e-2, 1e5)


def trial_name(
    number: int | None,
    hparams: Mapping[str, Any] | None,
    space: Mapping[str, Any] | None = None,
    *,
    task: tuple[str, int] | None = None,
) -> str:
    """Return a name such as ``3 | lr=3e-4 bs=256``. At most 200 characters.

    When nothing differs, it is that of the task, such as ``train`` or ``trial[3]``, and without a task ``number 3``.

    :param number: of the trial; None leaves it out
    :param hparams: its values, nested; None = not drawn yet
    :param space: the space of the values; leaves out values that are the same in all trials. None keeps all values
    :param task: id and map index of its task
    """
    if hparams is None:
        message = "not drawn yet"
    else:
        values = list(_values(hparams, space))
        names = _names(tuple(path for path, _ in values))
        message = " ".join(f"{name}={_shown(value)}" for name, (_, value) in zip(names, values, strict=True))
    if not message and task is not None:
        return task[0] if task[1] < 0 else f"{task[0]}[{task[1]}]"
    if not message:
        return "" if number is None else f"number {number}"
    return _cut(" | ".join(filter(None, ["" if number is None else str(number), message])), MAX_CHARS)


def ended_name(name: str, ending: str) -> str:
    """Return the name of a trial with the words about its end, such as ``5 | lr=3e-4 -> accuracy 0.914``.

    It has at most 200 characters; the hyperparameters are shortened first.
    """
    if not ending:
        return name
    end = f" -> {printable_line(ending, MAX_CHARS // 2)}"
    return _cut(name, MAX_CHARS - len(end)) + end


def metric_text(name: str, value: float | None) -> str:
    """Return a metric such as ``accuracy 0.914``. Names come from user code."""
    shown = "without a finite value" if value is None or not math.isfinite(value) else _number(value)
    return f"{printable_line(name, _MAX_METRIC_CHARS)} {shown}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def length_text(count: int, searcher: Mapping[str, Any] | None) -> str:
    """Return a training length such as ``2 epochs`` or ``1 batch``.

    :param searcher: of an effective configuration; without a length in it, the unit is ``units``
    """
    given = searcher if isinstance(searcher, Mapping) else {}
    length = given.get("max_length")
    units = [str(name) for name, most in length.items() if most is not None] if isinstance(length, Mapping) else []
    unit = (units or [str(given.get("time_metric") or "units")])[0]
    return f"{count:,} {_SINGULAR.get(unit, unit) if count == 1 else unit}"


def reached_text(count: int, searcher: Mapping[str, Any] | None) -> str:
    """Return a position in the training such as ``epoch 2``, or ``37 samples`` in a unit without a singular.

    :param searcher: as for :func:`length_text`
    """
    message = length_text(count, searcher)
    number, _, unit = message.partition(" ")
    singular = _SINGULAR.get(unit, unit)
    return f"{singular} {number}" if singular in _SINGULAR.values() and singular != "unit" else message


_SINGULAR: Final = {"batches": "batch", "records": "record", "epochs": "epoch", "units": "unit"}


@functools.lru_cache(maxsize=1000)
def _names(paths: tuple[Path, ...]) -> list[str]:
    """Return the last name of each path, more of it where that alone would be ambiguous."""
    texts = Counter(text for path in paths for text in {path[-1], ".".join(path)})
    return [path[-1] if texts[path[-1]] == 1 else text for path, text in zip(paths, dotted(paths), strict=True)]


def _values(values: Mapping[str, Any], space: Mapping[str, Any] | None, above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield (path, value) of the values that differ between trials, names sorted at each level."""
    for name in sorted(values):
        leaf = None if space is None else space.get(name)
        if isinstance(values[name], Mapping) and (space is None or not is_leaf(leaf)):
            yield from _values(values[name], leaf, (*above, name))
        elif space is None or not is_constant(leaf):
            yield (*above, name), values[name]


def _shown(value: Any) -> str:
    return _cut(value_text(value, _number), _MAX_VALUE_CHARS)


def _number(value: float) -> str:
    """Return a number with three digits, such as ``3e-4`` where that is easier to read."""
    low, high = _PLAIN
    if value == 0 or low <= abs(value) < high:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}" if exponent else mantissa
