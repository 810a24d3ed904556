"""Tokens of filter expressions."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Literal

from airflow_provider_dtrain.core.expressions.names import is_name_character
from airflow_provider_dtrain.errors import ExpressionError

#: Most characters of an expression.
LENGTH_MOST: Final = 2000
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_OPERATORS: Final = ("!=", "<=", ">=", "!~", "=", "<", ">", "~")
_INSTEAD: Final = {"==": "=", "<>": "!=", "=~": "~", "&&": "and", "||": "or", "!": "not", "&": "and", "|": "or"}

TokenKind = Literal["word", "text", "number", "operator", "(", ")", ",", ".", "end"]


@dataclass(frozen=True)
class Token:
    """One token with its place."""

    kind: TokenKind
    #: Of a text without its quotes, and of the end empty.
    text: str
    #: Index of its first character.
    at: int
    number: float = 0.0


def tokens_of(source: str) -> list[Token]:
    """Return the tokens of an expression, with one of the kind ``end`` at last.

    :raises ExpressionError: it is too long, or has a character or number that no token has
    """
    if len(source) > LENGTH_MOST:
        raise ExpressionError(f"it has {len(source)} characters, at most {LENGTH_MOST} are read", source, LENGTH_MOST)
    found: list[Token] = []
    at = 0
    while at < len(source):
        if source[at] in " \t\r\n":
            at += 1
            continue
        token, at = _token(source, at, found)
        found.append(token)
    return [*found, Token("end", "", len(source))]


def _token(source: str, at: int, before: list[Token]) -> tuple[Token, int]:
    first = source[at]
    for wrong, right in _INSTEAD.items():
        if source.startswith(wrong, at) and not source.startswith(("!=", "!~"), at):
            raise ExpressionError(f"'{wrong}' is no operator: write {right}", source, at)
    if first in "\"'":
        return _text(source, at)
    for operator in _OPERATORS:
        if source.startswith(operator, at):
            return Token("operator", operator, at), at + len(operator)
    # A part of a name may begin with a digit.
    last = before[-1].kind if before else "end"
    is_part = last == "." or (first == "." and last in ("word", "text"))
    if not is_part and (number := _NUMBER.match(source, at)) and number.group():
        return _number(source, at, number.group())
    if first in "(),.":
        return Token(first, first, at), at + 1  # type: ignore[arg-type]
    end = at
    while end < len(source) and is_name_character(source[end]):
        end += 1
    if end == at:
        shown = repr(first) if first.isprintable() else f"U+{ord(first):04X}"
        raise ExpressionError(f"{shown} has no meaning here: names with special characters need quotes", source, at)
    return Token("word", source[at:end], at), end


def _number(source: str, at: int, text: str) -> tuple[Token, int]:
    end = at + len(text)
    if end < len(source) and is_name_character(source[end]):
        raise ExpressionError(f"{source[at : end + 1]!r} is neither a number nor a name", source, end)
    value = float(text)
    if not math.isfinite(value):
        raise ExpressionError("the number is too large", source, at)
    return Token("number", text, at, value), end


def _text(source: str, at: int) -> tuple[Token, int]:
    quote, characters, end = source[at], [], at + 1
    while end < len(source) and source[end] != quote:
        if source[end] == "\\" and source[end + 1 : end + 2] in {quote, "\\"}:
            end += 1
        if not source[end].isprintable():
            raise ExpressionError(f"the text has the unprintable character U+{ord(source[end]):04X}", source, end)
        characters.append(source[end])
        end += 1
    if end >= len(source):
        raise ExpressionError(f"the text has no closing {quote}", source, at)
    return Token("text", "".join(characters), at), end + 1
