"""Facts of the external scheduler of a pool, requested and stored."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.scheduler_facts import to_document

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.scheduler_facts import SchedulerFacts
    from airflow_provider_dtrain.hosts.schedulers.base import ExternalScheduler
    from airflow_provider_dtrain.store.records.trials import Pool
    from airflow_provider_dtrain.store.store import Store

#: A submission requests older facts again. Commands that show them always do.
FRESH = timedelta(hours=1)


def refreshed(store: Store, pool: Pool, scheduler: ExternalScheduler) -> SchedulerFacts:
    """Return the facts of a scheduler, and store them. Blocks.

    :raises SchedulerAwayError: the scheduler does not answer
    """
    facts = scheduler.describe()
    store.pools.note_facts(pool.name, to_document(facts))
    return facts


def refresh_stale(store: Store, pool: Pool, scheduler: ExternalScheduler) -> None:
    """Store the facts of a scheduler if those in the store are old. Blocks.

    :raises SchedulerAwayError: the scheduler does not answer
    """
    if pool.facts is None or store.db.now() - pool.facts.at > FRESH:
        refreshed(store, pool, scheduler)
