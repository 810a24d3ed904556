"""Names of trials, as Airflow shows them for mapped task instances."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.search.names import trial_name

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.store import Store

#: Most spaces that a process keeps.
SPACES_MAX = 500


class Names:
    """Names of trials. A configuration never changes, so its space is read once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spaces: dict[tuple[str, int], Mapping[str, Any] | None] = {}

    def of_trial(
        self, store: Store, config_id: int | None, number: int, hparams: Mapping[str, Any] | None, *, is_drawn: bool
    ) -> str:
        """Return the name of a trial: its number and the hyperparameters that differ between trials."""
        space = None if config_id is None else self._space(store, config_id)
        return trial_name(number, hparams if is_drawn else None, space)

    def _space(self, store: Store, config_id: int) -> Mapping[str, Any] | None:
        key = (store.store_id, config_id)
        with self._lock:
            if key in self._spaces:
                return self._spaces[key]
        space = store.configs.get(config_id).document.get("hyperparameters")
        with self._lock:
            while len(self._spaces) >= SPACES_MAX:
                del self._spaces[next(iter(self._spaces))]
            self._spaces[key] = space
        return space
