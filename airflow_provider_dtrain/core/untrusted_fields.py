"""Types of the fields that hosts send, with their bounds, as msgspec checks them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

#: An integer from 0 that fits a column of 64 bits.
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
#: A plausible clock reading or duration in seconds.
Span = Annotated[float, Meta(ge=0, lt=1e12)]
#: A text of a frame.
ShortText = Annotated[str, Meta(max_length=4096)]
