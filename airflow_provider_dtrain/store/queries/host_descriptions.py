"""One host with its facts and the results of its checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.host_facts import summary
from airflow_provider_dtrain.resources.host_checks import HostDescription, HostFact, MeasuredRate
from airflow_provider_dtrain.store.queries.hosts import cluster_details

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.store import Store

#: Items of a fact, such as GPUs, and characters of a text.
_ITEMS_MOST, _TEXT_MOST = 64, 2000


def host_description(store: Store, rights: Rights, name: str) -> HostDescription:
    """Return a host. Its facts need the right to edit its connection, because they have addresses.

    :raises NotFoundError: it does not exist
    """
    record = store.hosts.get(name)
    cluster = cluster_details(store, rights, record.pool, name)
    host = next(one for one in cluster.hosts if one.name == name)
    held = {str(slot.allocation_id) for slot in host.slots if slot.allocation_id is not None}
    may_change = bool(rights.may_change([record]))
    return HostDescription(
        host=host,
        holders={key: one for key, one in cluster.holders.items() if key in held},
        probed_at=store.hosts.facts_at(name),
        facts=list(_facts(record.facts)) if may_change and record.facts else [],
        rates=[MeasuredRate.of(rate, finding=finding, at=rate.at) for rate, finding in store.host_rates.latest(name)],
    )


def _facts(facts: Mapping[str, Any]) -> Iterator[HostFact]:
    for name, value in summary(facts).items():
        text = ", ".join(map(str, value[:_ITEMS_MOST])) if isinstance(value, list) else str(value)
        yield HostFact(name=name, text=text[:_TEXT_MOST] or "none")
