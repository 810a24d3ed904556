"""Shards of a batch inference to which failures are attributed. Pure functions.

A rank records a shard before it processes it. A rank that dies leaves the shard that it worked on as its last record.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_dtrain.core.untrusted_json import is_count

#: Exit status of a rank that gave up a shard after its own retries. The library's program has the same number.
EXIT_BAD_SHARD: Final = 66
#: Failures after which a shard ends the run, or is set aside.
MOST_SHARD_FAILURES: Final = 3
#: Attempts in a row that may fail in shards without finishing one. Then it is the processor that fails, not its input.
MOST_FRUITLESS: Final = 30
#: Kinds of events that a rank writes about a shard; all but the first one end its work on the shard.
STARTED, DONE, FAILED, SKIPPED = "shard_started", "shard_done", "shard_failed", "shard_skipped"
SHARD_KINDS: Final = (STARTED, DONE, FAILED, SKIPPED)


@dataclass(frozen=True, kw_only=True)
class BlamedShard:
    """Shard that a rank worked on when it ended."""

    index: int
    #: Source and rows in words.
    label: str
    #: Shards that the attempt finished.
    finished: int = 0

    @classmethod
    def of(cls, failure: Mapping[str, Any] | None) -> BlamedShard | None:
        """Return the shard that a stored failure was attributed to, or None."""
        shard = (failure or {}).get("shard")
        if not isinstance(shard, Mapping) or not is_count(shard.get("index")):
            return None
        finished = shard.get("finished", 0)
        count = int(finished) if is_count(finished) else 0
        return cls(index=int(shard["index"]), label=str(shard.get("label") or ""), finished=count)


def unfinished_shard(events: Iterable[Mapping[str, Any]]) -> BlamedShard | None:
    """Return the shard that a rank started last, unless the rank has finished with it.

    :param events: bodies of the rank's events of :data:`SHARD_KINDS`, in order
    """
    last: BlamedShard | None = None
    for event in events:
        if event["kind"] == STARTED:
            last = BlamedShard(index=int(event["shard"]), label=str(event["label"]))
        elif last is not None and event.get("shard") == last.index:
            last = None
    return last


def shard_failures(failures: Iterable[Mapping[str, Any] | None]) -> dict[int, int]:
    """Return the number of failures that were attributed to each shard.

    :param failures: failures of a trial's attempts
    """
    blamed = [shard.index for failure in failures if (shard := BlamedShard.of(failure)) is not None]
    return dict(Counter(blamed))


def fruitless_in_a_row(failures: Iterable[Mapping[str, Any] | None]) -> int:
    """Return how many of the latest attempts failed in a shard and had finished none.

    :param failures: failures of earlier attempts, latest first
    """
    blamed = (BlamedShard.of(failure) for failure in failures)
    return len(list(itertools.takewhile(lambda shard: shard is not None and not shard.finished, blamed)))
