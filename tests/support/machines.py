"""Helpers of the store's state machines: an empty store, and runs until every needed event has occurred."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.support.budgets import budget, is_nightly

#: A memory file system if available: the tests are about the order of operations, not the disk.
FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
#: Histories per machine; None: the machine's own number. ``python -m tests.property.soak`` sets a much larger number.
EXAMPLES = int(os.environ["DTRAIN_MACHINE_EXAMPLES"]) if "DTRAIN_MACHINE_EXAMPLES" in os.environ else None
#: Steps of one history of the store's machine.
STEPS = 40


class Crash(Exception):
    """The process died before its commit."""


def run_until_seen(
    machine: type[RuleBasedStateMachine], seen: Counter[str], needed: Sequence[str], *, examples: int, steps: int
) -> None:
    """Run histories of a machine until every needed event has occurred.

    Runs with two and four times as many histories follow when an event is missing.

    :param seen: number of occurrences per event, counted by the machine, so that a run that did nothing cannot pass
    :param needed: events that must occur
    :param examples: number of histories, a quarter of it for each change, unless the environment sets it
    :param steps: most steps of a history
    """
    seen.clear()
    for factor in (1, 2, 4):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=factor * (EXAMPLES or budget(2 * examples)),
                stateful_step_count=steps,
                deadline=None,
                derandomize=EXAMPLES is None and not is_nightly(),
                suppress_health_check=list(HealthCheck),
            ),
        )
        if all(seen[what] for what in needed):
            return
    assert [what for what in needed if not seen[what]] == [], seen
