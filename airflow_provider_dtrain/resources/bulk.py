"""Actions on several experiments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What a user can do to several experiments at once.
BulkAction = Literal["archive", "unarchive", "move", "tag", "stop", "kill", "delete"]


@dataclass(frozen=True, kw_only=True)
class Freed:
    """Data that the deletion of experiments removes. Task logs of Airflow, configurations and code stay."""

    trials: int = 0
    #: Those that still exist, with their bytes as reported.
    checkpoints: int = 0
    checkpoint_bytes: int = 0
    #: Hosts with folders of its runs, which hold logs and outputs.
    hosts: int = 0
    #: Rows of the store, with the ends of logs.
    rows: int = 0

    def __add__(self, other: Freed) -> Freed:
        """Return the sum. Hosts of both may be the same, so their number is the larger one."""
        sums = {name: value + getattr(other, name) for name, value in vars(self).items()}
        return Freed(**{**sums, "hosts": max(self.hosts, other.hosts)})


@dataclass(frozen=True, kw_only=True)
class BulkOutcome:
    """Outcome of an action for one experiment."""

    experiment_id: int
    #: Empty: there is none with this id that the user may read.
    name: str
    is_refused: bool
    #: What happens, or why it was refused.
    message: str


@dataclass(frozen=True, kw_only=True)
class BulkResult:
    """Outcome of an action, or with a dry run what it would do."""

    outcomes: list[BulkOutcome]
    done_count: int
    refused_count: int
    #: None: the action removes nothing.
    freed: Freed | None
    #: What happens to all that were not refused.
    message: str
