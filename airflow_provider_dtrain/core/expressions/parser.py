"""Parser of filter expressions.

::

    expression = all { "or" all }
    all        = term { "and" term }
    term       = "not" term | "(" expression ")" | comparison
    comparison = name operator value | name [ "not" ] "in" "(" value { "," value } ")"
    operator   = "=" | "!=" | "<" | "<=" | ">" | ">=" | "~" | "!~"
    value      = number | text | "true" | "false" | "null"
    name       = part { "." part }
    part       = word | text

A parser by recursive descent: the grammar has eight rules, and its errors name place, kind and similar names, which a
library of parsers does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final, cast

from airflow_provider_dtrain.core.expressions.names import ALL_PARAMS, FACTS, Kind, Name, Space, is_usable
from airflow_provider_dtrain.core.expressions.tokens import Token, tokens_of
from airflow_provider_dtrain.core.expressions.tree import And, Comparison, Expression, Not, Operator, Or, Value
from airflow_provider_dtrain.errors import ExpressionError

#: Most levels of ``not`` and parentheses, comparisons, values of ``in``, and parts of a name.
DEPTH_MOST: Final = 20
COMPARISONS_MOST: Final = 50
VALUES_MOST: Final = 100
PARTS_MOST: Final = 20
_KEYWORDS: Final = frozenset({"and", "or", "not", "in", "true", "false", "null"})
_CONSTANTS: Final[dict[str, Value]] = {"true": True, "false": False, "null": None}
_ORDERED: Final = frozenset({Kind.NUMBER, Kind.TIME, Kind.ANY})
_TEXTUAL: Final = frozenset({Kind.TEXT, Kind.TEXTS, Kind.ANY})


def parse_expression(source: str) -> Expression:
    """Return the parsed form of an expression.

    :raises ExpressionError: it is not one; the error has the place and similar names
    """
    return _Parser(source).whole()


def parse_name(source: str) -> Name:
    """Return the name of a column.

    :raises ExpressionError: it is no name
    """
    parser = _Parser(source)
    name = parser.name()
    parser.expect_end("a name alone is expected here")
    return name


class _Parser:
    """The tokens of one expression, and the place that was read so far."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens = tokens_of(source)
        self.place = 0
        self.depth = 0
        self.comparisons = 0

    @property
    def token(self) -> Token:
        """The next token."""
        return self.tokens[self.place]

    def error(self, message: str, token: Token | None = None) -> ExpressionError:
        """Return an error at a token, the next one by default."""
        return ExpressionError(message, self.source, (token or self.token).at)

    def is_word(self, word: str) -> bool:
        """Return whether the next token is a keyword."""
        return self.token.kind == "word" and self.token.text.lower() == word

    def take(self) -> Token:
        """Return the next token, and go behind it."""
        token = self.token
        self.place += token.kind != "end"
        return token

    def take_word(self, word: str) -> bool:
        """Go behind a keyword if it is next, and return whether it was."""
        found = self.is_word(word)
        self.place += found
        return found

    def expect(self, kind: str, message: str) -> Token:
        """Return the next token, which must be of a kind."""
        if self.token.kind != kind:
            raise self.error(message)
        return self.take()

    def expect_end(self, message: str) -> None:
        """Check that all tokens were read."""
        if self.token.kind != "end":
            raise self.error(message)

    def whole(self) -> Expression:
        if self.token.kind == "end":
            raise self.error("a comparison is expected, such as: metrics.loss < 0.5")
        found = self.expression()
        self.expect_end("'and', 'or' or the end is expected")
        return found

    def expression(self) -> Expression:
        parts = [self.all()]
        while self.take_word("or"):
            parts.append(self.all())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def all(self) -> Expression:
        parts = [self.term()]
        while self.take_word("and"):
            parts.append(self.term())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def term(self) -> Expression:
        self.depth += 1
        if self.depth > DEPTH_MOST:
            raise self.error(f"'not' and parentheses have more than {DEPTH_MOST} levels")
        found = self.nested()
        self.depth -= 1
        return found

    def nested(self) -> Expression:
        if self.take_word("not"):
            return Not(self.term())
        if self.token.kind != "(":
            return self.comparison()
        self.take()
        found = self.expression()
        self.expect(")", "')' is expected")
        return found

    def comparison(self) -> Expression:
        self.comparisons += 1
        if self.comparisons > COMPARISONS_MOST:
            raise self.error(f"there are more than {COMPARISONS_MOST} comparisons")
        name = self.name()
        at = self.token
        if self.is_word("in") or self.is_word("not"):
            is_not = self.take_word("not")
            if not self.take_word("in"):
                raise self.error("'in' is expected after 'not'")
            return Comparison(name, "not in" if is_not else "in", self.values(name))
        if at.kind != "operator":
            operators = "= != < <= > >= ~ !~ in"
            raise self.error(f"an operator is expected after {name}: {operators}")
        operator = cast("Operator", self.take().text)
        _check_operator(self, name, operator, at)
        token = self.token
        value = self.value(name)
        _check_value(self, operator, value, token)
        return Comparison(name, operator, (value,))

    def values(self, name: Name) -> tuple[Value, ...]:
        self.expect("(", "'(' is expected after 'in'")
        found = [self.listed(name)]
        while self.token.kind == ",":
            self.take()
            if len(found) == VALUES_MOST:
                raise self.error(f"a list has at most {VALUES_MOST} values")
            found.append(self.listed(name))
        self.expect(")", "',' or ')' is expected")
        return tuple(found)

    def listed(self, name: Name) -> Value:
        token = self.token
        value = self.value(name)
        if value is None:
            raise self.error(f"a list cannot have null: write {name} = null", token)
        return value

    def value(self, name: Name) -> Value:
        token = self.token
        value: Value
        if token.kind in ("number", "text"):
            value = token.number if token.kind == "number" else token.text
        elif token.kind == "word" and token.text.lower() in _CONSTANTS:
            value = _CONSTANTS[token.text.lower()]
        elif token.kind == "word":
            raise self.error(f'a value is expected: a text needs quotes, "{token.text}"')
        else:
            raise self.error(f"a value is expected, {_example(name)}")
        self.take()
        return _converted(self, name, value, token)

    def name(self) -> Name:
        first = self.token
        if first.kind not in ("word", "text") or (first.kind == "word" and first.text.lower() in _KEYWORDS):
            raise self.error("a name is expected, such as state, metrics.loss or params.lr")
        self.take()
        parts: list[str] = []
        while self.token.kind == ".":
            self.take()
            part = self.token
            if part.kind not in ("word", "text"):
                raise self.error("a part of a name is expected after '.'")
            if not is_usable(part.text):
                raise self.error("a part of a name must be printable, and have neither quotes nor backslashes")
            if len(parts) == PARTS_MOST:
                raise self.error(f"a name has at most {PARTS_MOST} parts")
            parts.append(self.take().text)
        return _name(self, first, parts)


def _name(parser: _Parser, first: Token, parts: Sequence[str]) -> Name:
    if first.kind == "word" and first.text in ("params", "metrics"):
        if not parts:
            raise parser.error(f"a name is expected after {first.text}, such as {first.text}.lr", parser.token)
        # Names of metrics have no groups, but may have dots.
        path = tuple(parts) if first.text == "params" else (".".join(parts),)
        return Name(cast("Space", first.text), path)
    if first.kind == "word" and not parts and first.text in FACTS:
        return Name("fact", (first.text,))
    written = ".".join([first.text, *parts])
    if parts and (space := similar(first.text, ("params", "metrics"))):
        raise parser.error(f"there is no {written!r}. Did you mean {space}.{'.'.join(parts)}?", first)
    if close := similar(written, tuple(FACTS)):
        raise parser.error(f"there is no {written!r}. Did you mean {close}?", first)
    raise parser.error(f"there is no {written!r}. Write metrics.NAME, params.NAME or one of: {', '.join(FACTS)}", first)


def similar(name: str, known: Sequence[str]) -> str | None:
    """Return the most similar of some names, None if none is similar."""
    return next(iter(get_close_matches(name[:100], known, n=1, cutoff=0.6)), None)


def parse_group(source: str) -> Name | None:
    """Return the name by which trials are grouped, None for all hyperparameters together.

    :raises ExpressionError: it is no name
    """
    return None if source.strip() == ALL_PARAMS else parse_name(source)


def _check_operator(parser: _Parser, name: Name, operator: Operator, at: Token) -> None:
    if operator in ("<", "<=", ">", ">=") and name.kind not in _ORDERED:
        raise parser.error(f"'{operator}' compares numbers and times, and {name} is a {name.kind}", at)
    if operator in ("~", "!~") and name.kind not in _TEXTUAL:
        raise parser.error(f"'{operator}' searches texts, and {name} is a {name.kind}", at)


def _check_value(parser: _Parser, operator: Operator, value: Value, token: Token) -> None:
    if operator in ("=", "!="):
        return
    if value is None:
        raise parser.error("null is compared by = and != only", token)
    if operator in ("~", "!~"):
        if not isinstance(value, str) or not value:
            raise parser.error(f"'{operator}' needs a text that is not empty", token)
    elif isinstance(value, str | bool):
        raise parser.error(f"'{operator}' needs a number", token)


def _converted(parser: _Parser, name: Name, value: Value, token: Token) -> Value:
    """Return a value as the type of a name."""
    if value is None or name.kind is Kind.ANY:
        return value
    is_flag, is_text = isinstance(value, bool), isinstance(value, str)
    kind = Kind.FLAG if is_flag else Kind.TEXT if is_text else Kind.NUMBER
    if name.kind is Kind.TIME and isinstance(value, str):
        return _time(parser, value, token)
    if kind is not (Kind.TEXT if name.kind is Kind.TEXTS else name.kind):
        raise parser.error(f"{name} is a {name.kind}: {_example(name)}", token)
    choices = FACTS[name.path[0]].choices if name.space == "fact" else ()
    operator = parser.tokens[parser.place - 2].text
    if choices and value not in choices and operator not in ("~", "!~"):
        close = similar(str(value), choices)
        hint = f"Did you mean {close}?" if close else f"It is one of: {', '.join(choices)}"
        raise parser.error(f"no {name} is {str(value)[:100]!r}. {hint}", token)
    return value


def _time(parser: _Parser, text: str, token: Token) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise parser.error('a time is expected, such as "2026-11-27" or "2026-11-27T08:30+01:00"', token) from None


def _example(name: Name) -> str:
    return {
        Kind.NUMBER: f"such as: {name} = 0.5",
        Kind.TIME: f'such as: {name} > "2026-11-27"',
        Kind.FLAG: f"such as: {name} = true",
    }.get(name.kind, f'such as: {name} = "text"')
