"""What the state machines of the store share: an empty store, and histories until enough has happened."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from airflow_provider_dtrain.store.repository import migrate

#: Memory, where there is some: what is tested is the order of things, not the disk.
FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
#: Histories of each machine; None: its own number. ``python -m bench.soak_steps`` takes many more.
EXAMPLES = int(os.environ["DTRAIN_MACHINE_EXAMPLES"]) if "DTRAIN_MACHINE_EXAMPLES" in os.environ else None


class Crash(Exception):
    """The process died before its commit."""


@functools.cache
def empty_store() -> str:
    """Return the path of a migrated store, made once."""
    folder = tempfile.mkdtemp(prefix="dtrain-machine-", dir=FOLDER)
    atexit.register(shutil.rmtree, folder)
    migrate(f"sqlite:///{folder}/s.db")
    return f"{folder}/s.db"


def run_until_seen(
    machine: type[RuleBasedStateMachine], seen: Counter[str], needed: Sequence[str], *, examples: int, steps: int
) -> None:
    """Run histories of a machine; what few of them have not come to, more of them do.

    :param seen: what happened, counted by the machine, so that a run that did nothing cannot pass
    :param examples: histories, unless the environment says how many; the same ones each time
    """
    seen.clear()
    for factor in (1, 2, 4):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=factor * (EXAMPLES or examples), stateful_step_count=steps, deadline=None,
                derandomize=EXAMPLES is None, suppress_health_check=list(HealthCheck),
            ),
        )  # fmt: skip
        if all(seen[what] for what in needed):
            return
    assert [what for what in needed if not seen[what]] == [], seen
