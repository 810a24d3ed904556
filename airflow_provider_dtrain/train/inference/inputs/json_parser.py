"""Objects of JSON lines, with the text of each value as it was written."""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from airflow_provider_dtrain.train.values import JsonObject

_SPACES = re.compile(r"[ \t\n\r]*")
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_NEXT = re.compile(r'[ \t\n\r]*(?:,[ \t\n\r]*"|(\}))')
_FIRST = re.compile(r'[ \t\n\r]*\{[ \t\n\r]*(?:"|(\}))')


class LineParser:
    """Parses the object of a line.

    :param keeps_texts: also return the texts of its values, which takes two to three times as long
    """

    def __init__(self, *, keeps_texts: bool) -> None:
        self._keeps_texts = keeps_texts
        self._members = 0
        self._scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
        self._decode = json.JSONDecoder(object_pairs_hook=self._object).decode

    def parse(self, line: str) -> tuple[JsonObject, dict[str, str]]:
        """Return name -> value, and name -> the value's text.

        :raises ValueError: it is no JSON object, or has a name twice
        """
        if not self._keeps_texts:
            return self._values(line), {}
        try:
            return self._with_texts(line)
        except (ValueError, StopIteration):
            # Python's own decoder says what is wrong.
            self._values(line)
            raise

    def _values(self, line: str) -> JsonObject:
        row = self._decode(line)
        if not isinstance(row, dict):
            raise ValueError(f"it is no object, it is {line.strip()[:100]}")
        if len(row) != self._members:
            raise ValueError("the object has a name twice")
        return row

    def _object(self, pairs: list[tuple[str, Any]]) -> JsonObject:
        # The outermost object comes last.
        self._members = len(pairs)
        return dict(pairs)

    def _with_texts(self, line: str) -> tuple[JsonObject, dict[str, str]]:
        values: JsonObject = {}
        texts: dict[str, str] = {}
        found = _match(_FIRST, line, 0)
        while not found[1]:
            name, at = scanstring(line, found.end())
            start = _match(_COLON, line, at).end()
            values[name], at = self._scan(line, start)
            if name in texts:
                raise ValueError(f"the object has the name {name!r} twice")
            texts[name] = line[start:at]
            found = _match(_NEXT, line, at)
        if _match(_SPACES, line, found.end()).end() < len(line):
            raise ValueError("extra data")
        return values, texts


def _match(pattern: re.Pattern[str], line: str, at: int) -> re.Match[str]:
    found = pattern.match(line, at)
    if found is None:
        raise ValueError(f"unexpected character {at}")
    return found
