"""Facts of configurations that records show. A configuration never changes, so a process reads each one once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from cachetools import LRUCache

from airflow_provider_dtrain.core.lifecycle.trial_text import units_of

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.records.trials import Config
    from airflow_provider_dtrain.store.store import Store

#: Configurations whose facts a process keeps.
FACTS_MOST: Final = 2000


@dataclass(frozen=True, kw_only=True)
class ConfigFacts:
    """Facts of one configuration."""

    #: Of the hyperparameters.
    space: Mapping[str, Any] | None
    #: Unit of the lengths of training.
    units: str
    #: Metric of the searcher.
    metric: str | None
    smaller_is_better: bool
    is_inference: bool


_lock: Final = Lock()
_kept: Final[LRUCache[tuple[str, int], ConfigFacts]] = LRUCache(FACTS_MOST)


def config_facts(store: Store, config_ids: Collection[int]) -> dict[int, ConfigFacts]:
    """Return the facts of configurations by id. Those that are not kept are read by one statement."""
    with _lock:
        found = {one: kept for one in set(config_ids) if (kept := _kept.get((store.store_id, one))) is not None}
    if missing := set(config_ids) - found.keys():
        new = {config.config_id: _facts(config) for config in store.configs.some(missing)}
        found |= new
        with _lock:
            for config_id, facts in new.items():
                _kept[store.store_id, config_id] = facts
    return found


def _facts(config: Config) -> ConfigFacts:
    searcher = config.document.get("searcher") or {}
    return ConfigFacts(
        space=config.document.get("hyperparameters"),
        units=units_of(searcher),
        metric=searcher.get("metric"),
        smaller_is_better=bool(searcher.get("smaller_is_better", True)),
        is_inference=bool(config.document.get("inference")),
    )
