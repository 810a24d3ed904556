"""Tiers of tests: tests that run for each change, and tests of the nightly tier.

A test runs for each change if a change in its code is likely to break it and no faster test would notice. All tests do,
except those with the marker ``nightly`` and cases on PostgreSQL. The marker ``each_change`` is the exception from both.
The nearest marker counts: that of the parameters, else that of the test, else that of its module. A marker with
arguments is for the cases of these ids: ``@pytest.mark.nightly("fp16-2")``.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

#: Marker of the tests that run for each change.
CHANGE = "change"
_TIERS = ("nightly", "each_change")


def mark_tiers(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that run for each change.

    :raises pytest.UsageError: a marker names a case that does not exist, or two markers contradict each other
    """
    for item in items:
        _check_levels(item)
        if runs_for_each_change(item):
            item.add_marker(CHANGE)
    if not any("::" in argument for argument in config.args):
        _check_ids(items)


def runs_for_each_change(item: pytest.Item) -> bool:
    """Return whether a test runs for each change."""
    case = _case(item)
    for marker in (*_marks(item), *item.iter_markers()):
        if marker.name in _TIERS and (not marker.args or case in marker.args):
            return marker.name == "each_change"
    return "postgresql" not in _parameters(item).values()


def _check_levels(item: pytest.Item) -> None:
    """Check that a test or a module has at most one of both markers for all its cases: of two, one has no effect."""
    markers = [(node, marker) for node, marker in item.iter_markers_with_node() if marker not in _marks(item)]
    levels = Counter(id(node) for node, marker in markers if marker.name in _TIERS and not marker.args)
    if any(count > 1 for count in levels.values()):
        raise pytest.UsageError(f"The markers nightly and each_change contradict each other: {item.nodeid}")


def _marks(item: pytest.Item) -> tuple[pytest.Mark, ...]:
    """Return the markers of the parameters."""
    return tuple(item.callspec.marks) if hasattr(item, "callspec") else ()


def _parameters(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _case(item: pytest.Item) -> str:
    """Return the id of the parameters, empty without parameters."""
    return item.callspec.id if hasattr(item, "callspec") else ""


def _check_ids(items: list[pytest.Item]) -> None:
    cases: dict[str, set[str]] = defaultdict(set)
    named: dict[str, set[str]] = defaultdict(set)
    for item in items:
        test = item.nodeid.partition("[")[0]
        cases[test].add(_case(item))
        named[test].update(case for name in _TIERS for marker in item.iter_markers(name) for case in marker.args)
    wrong = [f"{test}[{case}]" for test in named for case in sorted(named[test] - cases[test])]
    if wrong:
        raise pytest.UsageError(f"A marker nightly or each_change names cases that do not exist: {', '.join(wrong)}")
