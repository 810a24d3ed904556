"""Differences between the facts of several things, of which some are not known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

#: Name -> value of one subject. A value that is None exists, and is not known. None: nothing of the subject is known.
Facts = Mapping[str, str | None] | None
#: Value that exists and is not known, beside things that lack it.
UNKNOWN: Final = "unknown"
#: Facts of a subject that are spelled out where another thing has none; of more, the number is enough.
_SPELLED: Final = 2


@dataclass(frozen=True)
class Difference:
    """A value in which things differ, or that cannot be compared."""

    #: ``configuration``, ``code``, ``git``, ``packages`` ...
    subject: str
    #: Path or name within the subject; empty: the subject has one value, or is not known as a whole.
    name: str
    #: In the order of the things; None: absent, or not known.
    values: list[str | None]
    #: A value is not known, so whether the things differ is not known either.
    is_unknown: bool


def fact_differences(things: Sequence[Mapping[str, Facts]]) -> tuple[list[Difference], list[str]]:
    """Return what differs or is not known, and the subjects of which all is known and equal.

    :param things: subject -> its facts, the same subjects for each thing
    """
    found: list[Difference] = []
    same = []
    for subject in things[0]:
        rows = list(_differences(subject, [thing[subject] for thing in things]))
        found += rows
        if not rows:
            same.append(subject)
    return found, same


def _differences(subject: str, facts: Sequence[Facts]) -> Iterator[Difference]:
    known = [one for one in facts if one is not None]
    if len(known) < len(facts):
        yield Difference(subject, "", [None if one is None else _summary(one) for one in facts], is_unknown=True)
        return
    for name in sorted({name for one in known for name in one}):
        is_unknown = any(name in one and one[name] is None for one in known)
        # A fact that one thing lacks differs, whatever its value is for the other.
        is_unknown = is_unknown and all(name in one for one in known)
        values = [one.get(name) for one in known]
        if len({name in one for one in known}) > 1:
            values = [UNKNOWN if name in one and one[name] is None else one.get(name) for one in known]
        if is_unknown or len(set(values)) > 1:
            yield Difference(subject, name, values, is_unknown)


def _summary(facts: Mapping[str, str | None]) -> str:
    if set(facts) == {""}:
        return facts[""] or ""
    if len(facts) <= _SPELLED:
        return ", ".join(f"{name} {UNKNOWN if value is None else value}" for name, value in facts.items())
    return f"{len(facts)} known"
