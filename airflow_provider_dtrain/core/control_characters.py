"""Characters that change how a terminal or an editor shows the text around them, and their visible form."""

from __future__ import annotations

import re
from typing import Final

#: Control characters (C0 and C1), separators of lines and paragraphs, surrogates, and invisible format characters that
#: change the direction of text, hide in it or annotate it. Newlines, tabs and the joiners of emoji and scripts stay.
CONTROLS: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u070f\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    "\ufff9-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff"
)
_CONTROL: Final = re.compile(f"[{CONTROLS}]")


def escaped(text: str) -> str:
    """Return a text whose control characters are visible: escapes as Python, YAML and JSON have them."""
    return _CONTROL.sub(visible, text)


def visible(found: re.Match[str]) -> str:
    """Return the visible form of the characters that a pattern found."""
    return found[0].encode("unicode_escape").decode()


def is_one_line(text: str) -> bool:
    """Return whether a text has neither control characters nor newlines nor tabs."""
    return _CONTROL.search(text) is None and "\n" not in text and "\t" not in text
