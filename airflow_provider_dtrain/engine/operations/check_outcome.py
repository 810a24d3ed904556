"""The outcome of a host check as a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.host_rates import by_host, findings, in_order
from airflow_provider_dtrain.resources.host_checks import HostCheck, HostTexts, MeasuredRate, SlowReference

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.attempt.host_rates import Measured
    from airflow_provider_dtrain.store.store import Store


def outcome(found: Measured, hosts: Sequence[str]) -> HostCheck:
    """Return the outcome of a check.

    :param hosts: those that were to be measured
    """
    slow = {one.rate.subject: one for one in found.slow}
    rates = []
    for rate in in_order(found.rates):
        named = slow.get(rate.subject)
        if named is None:
            rates.append(MeasuredRate.of(rate, finding=None))
        else:
            reference = SlowReference(basis=named.basis, reference=named.reference)
            rates.append(MeasuredRate.of(rate, slow=reference, finding=named.sentence))
    return HostCheck(
        hosts=list(hosts),
        rates=rates,
        problems=_texts(found.problems),
        findings=_texts(by_host(findings(found.rates, found.slow))),
    )


def evacuated(store: Store, found: HostCheck) -> HostCheck:
    """Drain the slow hosts of a check, and return its outcome with what became of them."""
    from airflow_provider_dtrain.engine.attempt.gang_check import CHECKED_BY

    sentences = []
    for one in found.findings:
        is_drained = store.hosts.condemn(one.host, "; ".join(one.texts), CHECKED_BY)
        sentences.append(
            f"Host '{one.host}' is drained, and gangs there resume elsewhere. To let it get gangs again: "
            f"airflow dtrain hosts enable {one.host}"
            if is_drained
            else f"Host '{one.host}' is not drained: it is not ready, or it is the last ready host of its pool."
        )
    return replace(found, evacuated=sentences)


def _texts(of_hosts: Mapping[str, Sequence[str]]) -> list[HostTexts]:
    return [HostTexts(host=host, texts=list(texts)) for host, texts in sorted(of_hosts.items()) if texts]
