"""Stacks of ranks, and results of commands beside them, as records."""

from __future__ import annotations

from dataclasses import dataclass

#: Most bytes of the output that a host sends.
OUTPUT_BYTES = 1 << 20
#: Longest time limit of a command in seconds.
EXEC_MOST_S = 3600


@dataclass(frozen=True, kw_only=True)
class RankStack:
    """The stacks of one rank, or the reason why there are none."""

    rank: int
    host: str
    pid: int
    text: str
    problem: str


@dataclass(frozen=True, kw_only=True)
class Stacks:
    """Stacks of ranks, and hosts that did not answer."""

    ranks: list[RankStack]
    #: Sentences about hosts without an answer.
    problems: list[str]


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """Ranks that record their next batches, and those that do not."""

    ranks: list[int]
    #: Sentences about ranks and hosts that record nothing.
    problems: list[str]


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """Result of a command beside a rank."""

    #: None: it was killed with its channel. Negative: the number of the signal that ended it.
    exit_code: int | None
    timed_out: bool
    #: Standard output and standard error, cut after :data:`OUTPUT_BYTES`.
    output: str
    #: Bytes of the whole output.
    size_bytes: int
    #: Processes that the command left behind.
    killed: int
