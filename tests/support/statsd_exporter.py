"""Series that the StatsD exporter of Prometheus makes of lines, by a mapping.

The exporter is a Go program without a package in the indexes that tests use, so these are its rules in short.

Source: ``pkg/line/line.go``, ``pkg/mapper/mapper.go`` and ``pkg/exporter/exporter.go`` of prometheus/statsd_exporter.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

Labels = tuple[tuple[str, str], ...]
#: Name -> labels -> value: a total for a counter, a sum or count, the last value for a gauge.
Page = dict[str, dict[Labels, float]]


def exported(lines: Iterable[str], mappings: Sequence[dict[str, Any]]) -> Page:
    """Return the page that Prometheus would read after these lines.

    :param mappings: of the exporter's configuration, parsed
    """
    page: Page = defaultdict(lambda: defaultdict(float))
    for line in lines:
        head, _, rest = line.partition(":")
        value, kind, *_ = rest.split("|")
        stat, *tags = head.split(",")
        labels = tuple(sorted((name, text) for name, _, text in (tag.partition("=") for tag in tags)))
        mapping = _mapping(stat, mappings)
        if mapping.get("action") != "drop":
            _record(page, mapping, labels, kind, float(value))
    return page


def _record(page: Page, mapping: dict[str, Any], labels: Labels, kind: str, value: float) -> None:
    name = mapping["name"]
    if kind == "g":
        page[name][labels] = value
    elif kind == "c":
        page[name][labels] += value
    else:
        assert kind == "ms", kind
        page[f"{name}_sum"][labels] += value / 1000 * mapping.get("scale", 1)
        page[f"{name}_count"][labels] += 1


def _mapping(stat: str, mappings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the rule for a name, with the name that it gives. Globs come before regular expressions."""
    globs = [rule for rule in mappings if rule.get("match_type", "glob") == "glob"]
    for rule in globs:
        if re.fullmatch(re.escape(rule["match"]).replace(r"\*", "([^.]*)"), stat):
            return rule
    for rule in mappings:
        if rule not in globs and (found := re.search(rule["match"], stat)):
            return {**rule, "name": found.expand(re.sub(r"\$\{(\d+)\}", r"\\g<\1>", rule["name"]))}
    return {"name": re.sub(r"\W", "_", stat)}
