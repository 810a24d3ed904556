"""Values in error messages: shortened, and without possible secrets."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any, Final

#: Hint for a value that contains Jinja.
JINJA: Final = (
    "The value contains Jinja, which Airflow renders only in a config that a DAG passes to an operator, "
    "not in a file: write a plain value here, and let the DAG set another one with overrides"
)
#: Longest text that a message repeats.
LIMIT: Final = 60
_SECRET_NAME: Final = re.compile(
    r"PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|ACCOUNT_?KEY"
    r"|(?:^|[_-])(?:TOKENS?|AUTH)(?:[_-]|$)|[_-](?:KEY|PWD|DSN|SAS)$",
    re.IGNORECASE,
)
_MARKS: Final = re.compile("[=:]")
_NAME_CHARS: Final = f"{string.ascii_letters}{string.digits}_.-"
#: Longest name that is looked at before a mark.
_NAME_MOST: Final = 100
_FORMS: Final = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@"  # user and password in a URL
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{12}|\bgh[pousr]_\w{16}|\bhf_\w{16}|\bsk-[\w-]{16}|\bxox[abprs]-|\beyJ[\w-]{10}|-----BEGIN"
    r"|^(?=\S*[a-z])(?=\S*[A-Z])(?=\S*\d)[\w+/=~-]{32,}$"
)
_SEARCHED: Final = 10_000


def names_secret(name: str) -> bool:
    """Return whether a name indicates that its value is a secret, such as ``DB_PASSWORD``."""
    return bool(_SECRET_NAME.search(name[:_SEARCHED]))


def may_be_secret(text: str) -> bool:
    """Return whether a text looks like a secret, or like an assignment of one (``DB_PASSWORD=...``)."""
    part = text[:_SEARCHED]
    return bool(_FORMS.search(part)) or any(map(names_secret, _assigned(part)))


def _assigned(text: str) -> set[str]:
    """Return the names before each ``=`` and ``:``, in time that grows with the length of the text."""
    ends = (part[-2 * _NAME_MOST :].rstrip(" \t\"'") for part in _MARKS.split(text)[:-1])
    return {end[len(end.rstrip(_NAME_CHARS)) :][-_NAME_MOST:] for end in ends}


def shown(value: object) -> str:
    """Return a value for use in a message: short, strings quoted, no secrets, no contents of maps."""
    if isinstance(value, str):
        return _shown_text(value)
    if isinstance(value, int) and not isinstance(value, bool):
        digits = int(value.bit_length() * 0.30103) + 1
        return repr(value) if digits <= LIMIT else f"an integer of about {digits} digits"
    if value is None or isinstance(value, (bool, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        is_plain = len(value) <= 5 and all(isinstance(item, (int, float)) for item in value)
        return f"[{', '.join(map(shown, value))}]" if is_plain else f"a list of {len(value)}"
    return "a map" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def _shown_text(value: str) -> str:
    if may_be_secret(value):
        return f"a text of {len(value)} characters"
    return repr(value) if len(value) <= LIMIT else f"{value[: LIMIT - 4]!r}..."


def printable_line(text: str, most: int) -> str:
    """Return a text as one line of printable characters, shortened to ``most`` characters."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 10 * most]).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def as_sentence(text: object) -> str:
    """Return a text of another program as a sentence, so that another one can follow."""
    message = str(text).strip()
    return message if not message or message.endswith((".", "!", "?", ":")) else f"{message}."


def is_jinja(value: Any) -> bool:
    """Return whether a value is a text that Airflow would render as a template."""
    return isinstance(value, str) and ("{{" in value or "{%" in value)
