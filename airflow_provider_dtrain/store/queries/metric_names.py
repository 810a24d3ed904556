"""Names of metrics in answers: as many as a page can list."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_dtrain.resources.metrics import MetricName

#: Most names in one answer.
NAMES_MOST = 2000


def shown_names(keys: Sequence[MetricName]) -> list[MetricName]:
    """Return the first names, those of validations before those of training."""
    return list(keys[:NAMES_MOST])


def left_out_text(keys: Sequence[MetricName]) -> list[str]:
    """Return a sentence about names that are left out, for the limits of a trial. Empty: all are shown."""
    if len(keys) <= NAMES_MOST:
        return []
    words = f"The latest reports have {len(keys):,} metric names. The page lists {NAMES_MOST:,} of them: "
    return [words + "report fewer names, or read the rest with `airflow dtrain trials metrics`."]
