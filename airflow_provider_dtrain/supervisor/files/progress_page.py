"""Page on which a rank writes its progress."""

from __future__ import annotations

from ..fields import Fields, parse_object
from ..file_access import read_bytes
from ..limits import PAGE_BYTES
from ..names import WORD, Json
from ..refusal import Refused


def read_page(path: str, now: float) -> Json:
    """Return the progress that a rank wrote, {} without a valid page.

    :param now: time on CLOCK_BOOTTIME, seconds
    """
    page = parse_object(read_bytes(path, PAGE_BYTES) or b"") or {}
    try:
        fields = Fields(page)
        return {
            "silent_s": round(max(0.0, now - fields.number("at", 0, 1e12)), 1),
            "still_s": round(max(0.0, now - fields.number("since", 0, 1e12)), 1),
            "steps": fields.integer("steps", 0, 1 << 62),
            "started": fields.flag("started"),
            "phase": fields.text("phase", WORD, limit=16),
            "what": fields.text("what", limit=60),
            "collectives": fields.integer("collectives", 0, 1 << 62) if "collectives" in page else 0,
            "held_s": round(max(0.0, now - fields.number("held_since", 0, 1e12)), 1) if "held_since" in page else 0.0,
            "raised": fields.text("raised", limit=120) if "raised" in page else "",
        }
    except Refused:
        return {}
