"""Groups of failures with the same cause. Numbers, paths, addresses, ranks and hosts may differ. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_dtrain.core.lifecycle.failure_cause import CauseKind

#: First line of the message of a rank's failure: the rank, and its own error.
FAILED_RANK: Final = re.compile(r"Rank (?P<where>\d+ on host '[^']*' failed first \([^)]*\)): (?P<own>.+)")
#: Place of a part that differs between the failures of a group.
DIFFERS: Final = "..."
#: Characters of a first line that are compared.
_COMPARED_CHARS = 2000

#: Parts of a message that may differ although the cause is the same.
_VARYING = re.compile(
    r"""
      (?<=[Hh]ost\ ')[^']*(?=')                  # the name of a host
    | (?<=on\ ')[^']*(?=')
    | (?<=[Rr]anks\ )\d[\d, and]*\d             # 0, 1 and 3
    | \d\d:\d\d:\d\d\ UTC
    | \w+://[^\s'",;)]+
    | (?<![\w.])(?:~|\.{1,2})?/[^\s'",:;)]+     # a path with a slash at its beginning
    | \b0x[0-9a-fA-F]+
    | \b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4,12}){4}\b
    | (?:(?<=[\s\[])|^)(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{1,4}\b
    | [-+]?\d+(?:[.,:]\d+)*(?:[eE][-+]?\d+)?
    """,
    re.VERBOSE,
)
_PLACE = re.compile(r", at (?P<place>[^\s,]+:\d+(?: in [^\s,]+)?)")
#: Ranks with the same error, at the end of a cause.
_AS_RANKS = re.compile(r", as ranks? [\d, and]+(?: more)?$")
#: Kinds in which the line of the program is part of the cause: the same error elsewhere is another defect.
_OF_PLACE = frozenset({None, CauseKind.EXCEPTION.value})


@dataclass(frozen=True, kw_only=True)
class FailedTrial:
    """A trial that failed, with its failure as stored."""

    trial_id: int
    failure: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class CauseGroup:
    """Trials that failed with the same cause."""

    #: The cause in one line, with ``...`` for parts that differ.
    cause: str
    #: Trials in the order of the input. The first one is the example.
    trials: Sequence[FailedTrial]


def own_cause(failure: Mapping[str, Any]) -> str:
    """Return the first line of a failure without rank, host, time and advice."""
    line = str(failure.get("message") or failure.get("error") or "").strip().partition("\n")[0][:_COMPARED_CHARS]
    found = FAILED_RANK.fullmatch(line)
    own = line if found is None else found["own"]
    kind = failure.get("cause_kind")
    advice = CauseKind(kind).advice if kind in set(CauseKind) else ""
    own = own.removesuffix(advice).rstrip() if advice else own
    return own if found is None else _AS_RANKS.sub("", own.rstrip(" ."))


def blamed_rank(failure: Mapping[str, Any]) -> int | None:
    """Return the rank that a failure blames, None if it blames none."""
    if type(failure.get("rank")) is int:
        return int(failure["rank"])
    found = FAILED_RANK.match(str(failure.get("message") or "").partition("\n")[0])
    return None if found is None else int(found["where"].partition(" ")[0])


def cause_groups(failed: Iterable[FailedTrial]) -> list[CauseGroup]:
    """Return the failures by their causes, the largest group first."""
    groups: dict[tuple[object, ...], list[FailedTrial]] = {}
    for one in failed:
        groups.setdefault(cause_key(one.failure), []).append(one)
    found = sorted(groups.values(), key=len, reverse=True)
    return [CauseGroup(cause=_common([own_cause(one.failure) for one in group]), trials=group) for group in found]


def headline(groups: Sequence[int], failed: int, ended: int, *, is_over: bool) -> str:
    """Return how many trials failed, and how many of them alike.

    :param groups: sizes of the groups, the largest one first
    :param ended: trials that have ended, failed ones included
    :param is_over: no trial runs or waits
    """
    if ended == failed == 1:
        return "The only trial failed." if is_over else "The first trial that ended failed."
    of = f"{ended} {'trial' if ended == 1 else 'trials'}" if is_over else f"{ended} trials that have ended"
    most = groups[0] if groups else 0
    if failed == 1:
        return f"1 of {of} failed."
    if most == failed:
        return f"{failed} of {of} failed with the same error."
    if most < 2:
        return f"{failed} of {of} failed, each with another error."
    return f"{failed} of {of} failed, {most} of them with the same error."


def cause_key(failure: Mapping[str, Any]) -> tuple[object, ...]:
    """Return a value that is the same for failures with the same cause."""
    own = own_cause(failure)
    kind = failure.get("cause_kind")
    place = _PLACE.search(own) if kind in _OF_PLACE else None
    return (failure.get("error"), kind, place and place["place"], *_parts(own)[::2])


def _parts(text: str) -> list[str]:
    """Return a text as parts that have to be equal, and between them parts that may differ."""
    parts, last = [], 0
    for found in _VARYING.finditer(text):
        parts += [text[last : found.start()], found[0]]
        last = found.end()
    return [*parts, text[last:]]


def _common(texts: Sequence[str]) -> str:
    """Return texts with the same fixed parts as one, in which the parts that differ are left out."""
    columns = zip(*map(_parts, texts), strict=True)
    return "".join(column[0] if len(set(column)) == 1 else DIFFERS for column in columns)
