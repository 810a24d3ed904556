"""Names of filter expressions: facts of a trial, hyperparameters and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from airflow_provider_dtrain.core.lifecycle.states import TRIAL_ENDED, TRIAL_LIVE


class Kind(StrEnum):
    """Type of the values of a name."""

    NUMBER = "number"
    TEXT = "text"
    #: Compared with a text such as "2026-11-27" or "2026-11-27T08:30"; in UTC without an offset.
    TIME = "time"
    FLAG = "flag"
    #: Several texts. It equals a text if one of them does.
    TEXTS = "texts"
    #: A hyperparameter: number, text or flag.
    ANY = "any"


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A property that each trial has."""

    kind: Kind
    meaning: str
    #: All values, of a text with few of them; empty: any.
    choices: Sequence[str] = ()


def _fact(kind: Kind, meaning: str, *choices: str) -> Fact:
    return Fact(kind=kind, meaning=meaning, choices=choices)


#: All facts by name. ``store/run_table/fact_columns.py`` has the column of each.
FACTS: Final[Mapping[str, Fact]] = {
    "trial": _fact(Kind.NUMBER, "id of the trial"),
    "number": _fact(Kind.NUMBER, "number within the experiment, from 0"),
    "name": _fact(Kind.TEXT, "display name of the trial"),
    "state": _fact(Kind.TEXT, "state of the trial", *map(str, (*TRIAL_LIVE, *TRIAL_ENDED))),
    "tag": _fact(Kind.TEXTS, "tags of the trial and of its experiment"),
    "experiment": _fact(Kind.TEXT, "display name of the experiment, else its name"),
    "experiment_id": _fact(Kind.NUMBER, "id of the experiment"),
    "owner": _fact(Kind.TEXT, "user who submitted the experiment"),
    "project": _fact(Kind.TEXT, "project of the experiment"),
    "archived": _fact(Kind.FLAG, "its experiment is archived"),
    "dag": _fact(Kind.TEXT, "id of the DAG"),
    "run": _fact(Kind.TEXT, "id of the DAG run"),
    "task": _fact(Kind.TEXT, "id of the task"),
    "best": _fact(Kind.NUMBER, "best value of the searcher's metric"),
    "best_step": _fact(Kind.NUMBER, "step of this value"),
    "rung": _fact(Kind.NUMBER, "highest rung that it reached"),
    "bracket": _fact(Kind.NUMBER, "bracket of the search"),
    "seed": _fact(Kind.NUMBER, "seed of the trial"),
    "restarts": _fact(Kind.NUMBER, "restarts after failures of the code"),
    "error": _fact(Kind.TEXT, "type of the error of a failed trial"),
    "pool": _fact(Kind.TEXT, "pool of the latest attempt"),
    "slots": _fact(Kind.NUMBER, "slots of the latest attempt"),
    "created": _fact(Kind.TIME, "time of the submission"),
    "started": _fact(Kind.TIME, "time at which its ranks ran first"),
    "ended": _fact(Kind.TIME, "time of the end"),
    "duration": _fact(Kind.NUMBER, "seconds from the first start to the end, or until now"),
    "never_fits": _fact(Kind.FLAG, "it waits, and no set of the pool's hosts can serve it"),
    "replaced": _fact(Kind.FLAG, "its task was cleared, or its experiment was planned anew"),
}

Space = Literal["fact", "params", "metrics"]
#: Group of all hyperparameters together.
ALL_PARAMS: Final = "params"


@dataclass(frozen=True, order=True)
class Name:
    """A name in an expression, or of a column."""

    space: Space
    #: Of a hyperparameter: the names of the groups around it, and its own. Else one part.
    path: tuple[str, ...]

    @property
    def kind(self) -> Kind:
        """Type of its values."""
        if self.space == "fact":
            return FACTS[self.path[0]].kind
        return Kind.NUMBER if self.space == "metrics" else Kind.ANY

    def __str__(self) -> str:
        """Return the name as it is written in an expression."""
        parts = [part if is_plain(part) else f'"{part}"' for part in self.path]
        return ".".join(parts if self.space == "fact" else [self.space, *parts])


def is_plain(part: str) -> bool:
    """Return whether a part of a name needs no quotes."""
    return bool(part) and not part[0].isdigit() and part[0] not in "-/" and all(map(is_name_character, part))


def is_name_character(character: str) -> bool:
    """Return whether a name without quotes may have a character."""
    return character.isalnum() or character in "_-/"


def is_usable(part: str) -> bool:
    """Return whether a part of a name can be written in an expression: both databases find it."""
    return bool(part) and part.isprintable() and not set(part) & {'"', "\\"}
