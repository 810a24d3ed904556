"""Control requests of users to trials and experiments."""

from __future__ import annotations

from typing import Literal

#: What a user controls as a whole.
Noun = Literal["trial", "experiment"]
#: A request that a follower carries out.
ControlRequest = Literal["pause", "stop", "kill"]
#: A request, or the end of a pause.
Verb = Literal["pause", "activate", "stop", "kill"]
