"""Injected failures: kinds with the causes that must be found, variations of rank, size and time, and their runs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.pair import register_pair

if TYPE_CHECKING:
    from testbed.netns import NamespaceHosts
    from tests.support.engines import Engine

#: Parent of the control groups with a memory limit in which some kinds run.
GROUPS = Path("/sys/fs/cgroup/memory")

#: Kinds written before the classifier, and those written afterwards.
BEFORE = (
    "exception", "exception_in_thread", "exception_hidden", "exit_code", "hard_exit", "early_end", "killed",
    "terminated", "segfault", "abort", "disk_full", "disk_full_in_torch", "quota", "descriptors", "threads",
    "host_memory", "host_memory_in_torch", "device_memory", "device_assert", "device_broken", "module", "file",
    "not_finite", "loader_worker", "hang", "missing", "stopped", "order",
)  # fmt: skip
AFTER = ("kernel_kill", "kernel_kill_of_worker", "wrapped", "cleanup")

#: Kind -> ``cause_kind``, and words of the first line. The default log policies apply, and do not come before it.
EXPECTED: dict[str, tuple[str, str]] = {
    "exception": ("exception", r"KeyError: 'label', at causes.py:\d+ in take"),
    "exception_in_thread": ("exception", r"KeyError: 'label'"),
    "exception_hidden": ("exception", r"after KeyError: 'label'"),
    "exit_code": ("exit_code", r"exit code 3"),
    "hard_exit": ("exit_code", r"exit code 7"),
    "early_end": ("early_end", r"ended with exit code 0"),
    "killed": ("killed", r"SIGKILL\): not sent by dtrain"),
    "terminated": ("killed", r"SIGTERM"),
    "segfault": ("crashed", r"SIGSEGV\), at causes.py:\d+ in fail"),
    "abort": ("crashed", r"SIGABRT\), at causes.py:\d+ in fail"),
    "disk_full": ("disk_full", r"No space left on device.*at causes.py:\d+ in fail"),
    "disk_full_in_torch": ("disk_full", r"at causes.py:\d+ in fail"),
    "quota": ("disk_full", r"quota exceeded: '/home/data/model.pt'"),
    "descriptors": ("open_files", r"the limit is 64 files"),
    "threads": ("processes", r"can't start new thread"),
    "host_memory": ("host_memory", r"MemoryError"),
    "host_memory_in_torch": ("host_memory", r"allocate"),
    "device_memory": ("device_memory", r"20.00 GiB"),
    "device_assert": ("device_error", r"device-side assert"),
    "device_broken": ("device_broken", r"uncorrectable NVLink error"),
    "module": ("missing_module", r"a_module_that_is_missing"),
    "file": ("exception", r"part-00017.parquet"),
    "not_finite": ("not_finite", r"loss is NaN"),
    "loader_worker": ("loader_worker", r"loader worker"),
    "hang": ("hang", r"which it never entered.*is at causes.py:\d+ in fail"),
    "missing": ("missing", r"never entered .*collective number \d+.*it was at causes.py:\d+ in fail"),
    "stopped": ("stopped", r"stopped by a signal"),
    "order": ("mismatch", r"different orders"),
    "kernel_kill": ("out_of_memory", r"the kernel was out of memory.*the rank had used \d+\.\d [MG]iB"),
    "kernel_kill_of_worker": ("out_of_memory", r"loader worker"),
    "wrapped": ("exception", r"KeyError: 'label'"),
    "cleanup": ("exception", r"after KeyError: 'label'"),
}
#: Kinds that take a minute each.
SLOW = ("order",)


@dataclass(frozen=True)
class Variation:
    """Hosts and ranks of the gang, the rank that fails, and the steps before that."""

    hosts: int
    ranks: int
    failing: int
    steps: int

    @property
    def slots(self) -> int:
        """Slots that each host offers, so that the gang needs as many hosts."""
        return self.ranks // self.hosts


VARIATIONS = (
    Variation(2, 2, 1, 0), Variation(1, 2, 0, 3), Variation(2, 4, 2, 20), Variation(2, 2, 0, 12), Variation(1, 2, 1, 3),
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """Cause that was found for an injected failure."""

    #: First line of the failure, and its ``cause_kind``.
    line: str
    cause_kind: str
    #: From the end of the first rank to that of the trial, seconds.
    took_s: float
    #: Deviation from the expected cause; empty if it is right.
    problem: str
    #: True: a rank or host that has not caused the failure is named.
    is_blamed_wrongly: bool


def needs(kind: str) -> str:
    """Return what this machine lacks for a kind, empty if nothing."""
    if kind.startswith("kernel_kill") and not os.access(GROUPS, os.W_OK):
        return "needs the memory controller of cgroup v1"
    return ""


def remove_groups() -> None:
    """Remove the control groups of runs that have ended."""
    for group in GROUPS.rglob("dtrain-causes-*"):
        group.rmdir()


async def injected(
    engine: Engine, pair: NamespaceHosts, patch: pytest.MonkeyPatch, kind: str, variation: Variation, *, most_s: float
) -> Found:
    """Run a trial that fails in this way, and return the cause that was found.

    :param pair: two hosts
    :param patch: of the connections to them
    """
    register_pair(engine.hook, pair, patch, slots=variation.slots)
    ticket = engine.submit(document(kind, variation))
    outcome = await engine.carry(ticket, most_s=most_s)
    ended_at = time.time()
    assert outcome is not None
    assert outcome.failure is not None
    # A host that is at fault is left out, so the trial may have failed on the other one as well.
    store = engine.hook.store
    attempts = [one.attempt_id for one in store.attempts.of_trial(ticket.trial_id)]
    exits = next(filter(None, (store.events.of_attempt(one, kinds=("exit",)) for one in reversed(attempts))), [])
    assert exits, outcome.failure
    [host] = {event.host for event in exits if event.body["rank"] == variation.failing}
    line = outcome.failure.message.partition("\n")[0]
    problem = problem_of(kind, variation, outcome.failure, host)
    return Found(
        line=line,
        cause_kind=str(outcome.failure.cause_kind),
        took_s=round(ended_at - min(event.body["at"] for event in exits), 1),
        problem=problem,
        is_blamed_wrongly=named_in(line) not in ([], [(str(variation.failing), host)]),
    )


def document(kind: str, variation: Variation, **more: Any) -> dict[str, Any]:
    """Return the configuration of a trial that fails in this way."""
    # Before its first step a rank may take any time, so it cannot hang there. The end of the gang must not come before
    # the time-out of the process group.
    steps = max(variation.steps, 3) if kind == "hang" else variation.steps
    return {
        "name": "causes",
        "entrypoint": ["python", "causes.py", kind, str(variation.failing), str(steps)],
        "model_dir": "code",
        "max_restarts": 0,
        "hang_timeout": 60 if kind == "missing" else 8,
        "resources": {"slots_per_trial": variation.ranks, "resource_pool": "pair"},
        "environment": {"variables": {"OMP_NUM_THREADS": "1"}},
        **more,
    }


def cases() -> Iterator[tuple[str, Variation]]:
    """Yield every variation of every kind, slow kinds last."""
    for variation in VARIATIONS:
        yield from ((kind, variation) for kind in EXPECTED if kind not in SLOW)
    for kind in SLOW:
        yield from ((kind, variation) for variation in VARIATIONS)


def named_in(line: str) -> list[tuple[str, str]]:
    """Return rank and host that a first line blames, [] without one."""
    return re.findall(r"^Rank (\d+) on (?:host )?'?([\w-]+)'?", line)


def problem_of(kind: str, variation: Variation, failure: Any, host: str) -> str:
    """Return what is wrong with the cause that was found, empty if it is right.

    :param host: host of the failing rank
    """
    cause_kind, words = EXPECTED[kind]
    line = failure.message.partition("\n")[0]
    named = named_in(line)
    if kind == "order":
        if named:
            return f"a rank is blamed: {line}"
    elif named != [(str(variation.failing), host)]:
        return f"wrong rank or host {named}, expected rank {variation.failing} on {host}: {line}"
    if failure.cause_kind != cause_kind:
        return f"kind {failure.cause_kind}, expected {cause_kind}: {line}"
    return "" if re.search(words, line) else f"without {words!r}: {line}"
