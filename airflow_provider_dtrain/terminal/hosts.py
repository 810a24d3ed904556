"""``hosts describe``, and the outcome of ``hosts check``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.host_rates import metric_name, metric_text
from airflow_provider_dtrain.terminal.cluster import host_row, slot_rows_of
from airflow_provider_dtrain.terminal.output import FAILURE, hint, is_table, note, show, show_one

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable

    from airflow_provider_dtrain.resources.host_checks import HostCheck, HostDescription, MeasuredRate
    from airflow_provider_dtrain.terminal.source import Source


def describe(args: Namespace, source: Source) -> None:
    """Show a host: state, facts of its last probe, findings, results of its checks, and its slots."""
    found = source.host(args.host)
    if not is_table(args):
        show_one(args, asdict(found))
        return
    show_one(args, _head(found), with_empty=False)
    print()
    show(args, slot_rows_of(found.host, found.holders), empty="No slots.")
    print()
    show(args, rate_rows(found.rates, with_times=True), empty="The host was not checked yet.")
    hint(f"airflow dtrain hosts {'probe' if found.rates else 'check'} {args.host}")


def _head(found: HostDescription) -> dict[str, Any]:
    host = found.host
    own = ("host", "pool", "state", "reason", "connection", "job", "environments", "empty_by")
    row = {name: value for name, value in host_row(host).items() if name in own}
    facts = {fact.name: fact.text for fact in found.facts}
    return {
        **row,
        "state_since": host.state_since,
        "slow_ranks": host.slow_ranks or None,
        "findings": host.findings or None,
        "last_probe": found.probed_at,
        **facts,
    }


def rate_rows(rates: Iterable[MeasuredRate], *, with_times: bool = False) -> list[dict[str, Any]]:
    """Return the columns of results for a terminal."""
    return [
        {
            "host": _place(one),
            "measured": metric_name(one.metric),
            "rate": metric_text(one.metric, one.value),
            **({"at": one.at} if with_times else {}),
            "finding": one.finding,
        }
        for one in rates
    ]


def _place(rate: MeasuredRate) -> str:
    if rate.to is not None:
        return f"{rate.host} to {rate.to}"
    return rate.host if rate.slot is None else f"{rate.host} slot {rate.slot}"


def show_check(args: Namespace, found: HostCheck) -> int:
    """Print the outcome of a check, and return the exit code: 1 if a host is slow or could not be measured."""
    whole = [{name: value for name, value in asdict(one).items() if name != "at"} for one in found.rates]
    show(args, rate_rows(found.rates) if is_table(args) else whole)
    for one in found.problems:
        for text in one.texts:
            note(f"{one.host}: {text}")
    for one in found.findings:
        note(f"Host '{one.host}' is slow: {'; '.join(one.texts)}")
    for sentence in found.evacuated:
        note(sentence)
    measured = {rate.host for rate in found.rates}
    if found.findings or not measured.issuperset(found.hosts):
        return FAILURE
    note(f"{len(found.hosts)} host(s) are as fast as their peers and as they were.")
    return 0
