"""The folder of the code as the user's own file names it. A server must not choose what this machine sends.

``dtrain`` has no YAML parser, so this module reads one field of the usual forms and asks for the folder otherwise.
"""

from __future__ import annotations

import json
import re
from typing import Final

from airflow_provider_dtrain.errors import ConfigError, Problem

#: Next step where the folder of the code is not clear.
NAME_FOLDER: Final = (
    "Name the folder of the code: dtrain experiments create CONFIG FOLDER, or model_dir= of experiments.create"
)
_FIELD: Final = "model_dir"
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
#: The field with its value, and a comment.
_LINE: Final = re.compile(rf"""(?P<quote>["']?){_FIELD}(?P=quote)[ \t]*:(?:[ \t]+(?P<value>.*))?\Z""")
_SINGLE: Final = re.compile(r"'((?:[^']|'')*)'(?:[ \t]+#.*)?\Z")
_DOUBLE: Final = re.compile(r'("(?:[^"\\]|\\.)*")(?:[ \t]+#.*)?\Z')
_COMMENT: Final = re.compile(r"(?:\A|[ \t]+)#.*\Z")
#: First characters of values that are no plain text.
_OTHER_FORMS: Final = "|>&*!%@`[{\"'"


def own_model_dir(text: str) -> str | None:
    """Return ``model_dir`` of a configuration, None if it has none, or null.

    :param text: YAML or JSON
    :raises ConfigError: it has the field in a form that this module does not read
    """
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        return _of_json(text)
    lines = [line.rstrip() for line in text.lstrip("\ufeff").split("\n")]
    content = [line for line in lines if line and not line.lstrip().startswith(("#", "---", "%"))]
    if not content:
        return None
    depth = _depth(content[0])
    found = [
        (number, match["value"] or "")
        for number, line in enumerate(content)
        if _depth(line) == depth and (match := _LINE.match(line[depth:]))
    ]
    if not found:
        return None
    number, value = found[0]
    is_continued = number + 1 < len(content) and _depth(content[number + 1]) > depth
    if len(found) > 1 or is_continued:
        raise _unread()
    return _scalar(value)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _of_json(text: str) -> str | None:
    try:
        document = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError):
        if _FIELD in text:
            raise _unread() from None
        return None
    value = document.get(_FIELD)
    if value is not None and not isinstance(value, str):
        raise _unread()
    return value or None


def _scalar(value: str) -> str | None:
    if match := _SINGLE.match(value):
        return match[1].replace("''", "'") or None
    if match := _DOUBLE.match(value):
        try:
            # The escapes that JSON has, YAML has as well.
            return str(json.loads(match[1])) or None
        except ValueError:
            raise _unread() from None
    plain = _COMMENT.sub("", value).strip()
    if plain in _NULL:
        return None
    if plain.startswith(tuple(_OTHER_FORMS)) or plain.startswith(("- ", "? ")) or ": " in plain:
        raise _unread()
    return plain


def _unread() -> ConfigError:
    return ConfigError([Problem(path=_FIELD, message=f"dtrain cannot read this form of it. {NAME_FOLDER}")])
