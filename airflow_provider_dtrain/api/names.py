"""Names of trials, as Airflow shows them for mapped task instances."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.search.names import trial_name

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.store import Store

#: Most spaces that a process keeps.
SPACES_MAX = 500
#: Most names that a process keeps, of about 300 bytes each.
NAMES_MAX = 20_000


class Names:
    """Names of trials. A configuration never changes, so its space is read once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spaces: dict[tuple[str, int], Mapping[str, Any] | None] = {}
        self._names: dict[tuple[str, int | None, int, str | None, tuple[str, int]], str] = {}

    def of_trial(
        self,
        store: Store,
        config_id: int | None,
        number: int,
        hparams: Mapping[str, Any] | None,
        task: tuple[str, int],
        *,
        is_drawn: bool,
    ) -> str:
        """Return the name of a trial: its number and the hyperparameters that differ between trials, or its task.

        :param task: id and map index
        """
        space = None if config_id is None else self._space(store, config_id)
        return trial_name(number, hparams if is_drawn else None, space, task=task)

    def of_json(
        self, store: Store, config_id: int | None, number: int, hparams: str | None, task: tuple[str, int]
    ) -> str:
        """Return the name of a trial of which the hyperparameters are JSON. Its values decide, so it can be kept.

        :param hparams: None = not drawn yet
        :param task: id and map index
        """
        key = (store.store_id, config_id, number, hparams, task)
        name = self._names.get(key)
        if name is None:
            values = None if hparams is None else json.loads(hparams)
            name = self.of_trial(store, config_id, number, values, task, is_drawn=hparams is not None)
            with self._lock:
                while len(self._names) >= NAMES_MAX:
                    del self._names[next(iter(self._names))]
                self._names[key] = name
        return name

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
