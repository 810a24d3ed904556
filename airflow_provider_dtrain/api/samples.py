"""Hyperparameters of an experiment's trials, kept so that an answer reads those of the changed trials only."""

from __future__ import annotations

import json
import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.search.dimensions import Dimension, value_at
from airflow_provider_dtrain.store.records.pages import TrialColumns

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.store import Store

#: Characters of hyperparameters, as JSON, that a process keeps. Their values take about twice as many bytes.
KEPT_CHARACTERS = 16 << 20
#: Number of the sample, length of its JSON, and the values of the dimensions.
_Sample = tuple[int, int, tuple[Any, ...]]


class Samples:
    """Values of hyperparameters by experiment. A trial that gets another sample is read again.

    It is asked only for experiments that the user may read.

    :param kept_characters: limit over all experiments; those that were not requested for longest are dropped
    """

    def __init__(self, kept_characters: int = KEPT_CHARACTERS) -> None:
        self.kept_characters = kept_characters
        self._lock = threading.Lock()
        self._experiments: dict[Hashable, dict[int, _Sample]] = {}

    def columns(
        self, store: Store, experiment_id: int, of: Sequence[Dimension], trials: TrialColumns
    ) -> dict[str, Sequence[Any]]:
        """Return the values of each trial by the name of the dimension, None where a trial has none."""
        key = (store.store_id, experiment_id, tuple(one.path for one in of))
        with self._lock:
            known = self._experiments.get(key, {})
        nothing: _Sample = (0, 0, (None,) * len(of))
        found: dict[int, _Sample] = {}
        changed = []
        for trial_id, sample in zip(trials.trial_ids, trials.samples, strict=True):
            kept = known.get(trial_id, nothing) if sample else nothing
            found[trial_id] = kept
            if kept[0] != sample:
                changed.append(trial_id)
        read = store.trial_table.samples(experiment_id, changed)
        for (trial_id, (sample, text)), hparams in zip(read.items(), parsed(read), strict=True):
            found[trial_id] = (sample, len(text), tuple(value_at(hparams, one.path) for one in of))
        self._keep(key, found)
        values = zip(*(sample[2] for sample in found.values()), strict=True)
        return (
            {one.name: column for one, column in zip(of, values, strict=False)}
            if found
            else {one.name: () for one in of}
        )

    def _keep(self, key: Hashable, found: dict[int, _Sample]) -> None:
        with self._lock:
            self._experiments.pop(key, None)
            self._experiments[key] = found
            sizes = {one: sum(sample[1] for sample in of.values()) for one, of in self._experiments.items()}
            total = sum(sizes.values())
            for one in list(self._experiments):
                if total <= self.kept_characters:
                    break
                del self._experiments[one]
                total -= sizes[one]


def parsed(samples: Mapping[int, tuple[int, str]]) -> list[dict[str, Any]]:
    """Return the hyperparameters of samples of the store, in their order. One parse of all takes half the time."""
    return json.loads(f"[{','.join(text for _, text in samples.values())}]")  # type: ignore[no-any-return]
