"""Names of trials that a process of the API server keeps."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

from airflow_provider_dtrain.store.queries.names import name_of

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.store import Store

#: Most names that a process keeps, of about 300 bytes each.
NAMES_MAX = 20_000


class Names:
    """Names of trials by their hyperparameters as JSON, which decide the name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[tuple[str, int | None, int, str | None, tuple[str, int]], str] = {}

    def of_json(
        self, store: Store, config_id: int | None, number: int, hparams: str | None, task: tuple[str, int]
    ) -> str:
        """Return the name of a trial, see :func:`name_of`.

        :param hparams: None = not drawn yet
        :param task: id and map index
        """
        key = (store.store_id, config_id, number, hparams, task)
        name = self._names.get(key)
        if name is None:
            name = name_of(store, config_id, number, None if hparams is None else json.loads(hparams), task)
            with self._lock:
                while len(self._names) >= NAMES_MAX:
                    del self._names[next(iter(self._names))]
                self._names[key] = name
        return name
