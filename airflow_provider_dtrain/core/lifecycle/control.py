"""Control requests of users to trials and experiments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypedDict

#: What a user controls as a whole.
Noun = Literal["trial", "experiment"]
#: A request that a follower carries out.
ControlRequest = Literal["pause", "stop", "kill"]
#: A request, or the end of a pause.
Verb = Literal["pause", "activate", "stop", "kill"]
#: A change of a host; of a slot ``enable`` or ``disable``.
HostVerb = Literal["enable", "disable"]


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """Time by which no gang may be left on a draining host."""

    #: Aware; a time that has passed means at once.
    by: datetime
    #: Gangs that cannot resume from a checkpoint are ended then, and start again.
    kills: bool = False


class Change(TypedDict, total=False):
    """Change of a trial or an experiment. A field that is missing keeps its value."""

    #: Empty: the name from the configuration.
    display_name: str
    description: str
    #: All tags that it has from now on.
    tags: Sequence[str]
    #: Besides the tags that it has.
    add_tags: Sequence[str]
    #: An absent tag is ignored.
    remove_tags: Sequence[str]
    #: Of its gangs, waiting or running: 1 to 99, smaller first.
    priority: int
    #: Share of an experiment relative to other ones, > 0.
    weight: float
    #: Most slots that the gangs of an experiment hold together; 0: no cap.
    max_slots: int
    #: Project of an experiment, which its trials share.
    project: str
    #: Lists leave an archived experiment out.
    archived: bool


#: Fields of a change that decide about the queue. The other ones are labels.
OF_QUEUE: Final = frozenset({"priority", "weight", "max_slots"})
#: Fields of a change that decide where pages and lists show an experiment.
OF_PLACE: Final = frozenset({"project", "archived"})
#: Whether lists have archived experiments: not, only these, or all experiments.
Archived = Literal["no", "only", "all"]
