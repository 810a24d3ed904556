"""Filter expressions: what is written from a tree is read as the same tree, and no text breaks the parser."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dtrain.core.expressions.names import FACTS, Kind, Name, is_usable
from airflow_provider_dtrain.core.expressions.parser import parse_expression, parse_name
from airflow_provider_dtrain.core.expressions.tokens import LENGTH_MOST, tokens_of
from airflow_provider_dtrain.core.expressions.tree import And, Comparison, Expression, Not, Or, Value, names_of
from airflow_provider_dtrain.errors import ExpressionError

PARTS = st.text(min_size=1, max_size=12).filter(is_usable) | st.sampled_from(["lr", "weight decay", "not", "0", "a.b"])
NAMES = (
    st.sampled_from([Name("fact", (one,)) for one in FACTS])
    | st.builds(lambda path: Name("params", tuple(path)), st.lists(PARTS, min_size=1, max_size=4))
    | st.builds(lambda part: Name("metrics", (part,)), PARTS)
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(max_size=20).filter(str.isprintable)
OF_KIND = {
    Kind.NUMBER: NUMBERS,
    Kind.TEXTS: TEXTS,
    Kind.FLAG: st.booleans(),
    Kind.ANY: NUMBERS | TEXTS | st.booleans(),
    Kind.TIME: st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(lambda at: at.replace(tzinfo=UTC)),  # noqa: DTZ001
}
#: Pieces of expressions, right and wrong ones.
PIECES = st.sampled_from(
    ["params", "metrics", ".", "lr", '"', "'", "\\", "best", "state", "=", "==", "!=", "!", "~", "<", ">=", "(", ")",
     "in", "not", "and", "or", "null", "true", "1", "-1e5", "1e999", ",", " ", "\n", "\u202e", "\x00", "ß", "tag"]
)  # fmt: skip


@st.composite
def comparisons(draw: st.DrawFn) -> Comparison:
    name = draw(NAMES)
    choices = FACTS[name.path[0]].choices if name.space == "fact" else ()
    values = st.sampled_from(choices) if choices else OF_KIND.get(name.kind, TEXTS)
    if draw(st.booleans()):
        operator = draw(st.sampled_from(["in", "not in"]))
        return Comparison(name, operator, tuple(draw(st.lists(values, min_size=1, max_size=3))))
    return Comparison(name, draw(st.sampled_from(["=", "!="])), (draw(values | st.none()),))


EXPRESSIONS = st.recursive(
    comparisons(),
    lambda part: (
        st.builds(Not, part)
        | st.builds(lambda parts: And(tuple(parts)), st.lists(part, min_size=2, max_size=3))
        | st.builds(lambda parts: Or(tuple(parts)), st.lists(part, min_size=2, max_size=3))
    ),
    max_leaves=6,
)


def written(expression: Expression) -> str:
    """Return an expression with parentheses around each part."""
    match expression:
        case And(parts=parts):
            return " and ".join(f"({written(part)})" for part in parts)
        case Or(parts=parts):
            return " or ".join(f"({written(part)})" for part in parts)
        case Not(part=part):
            return f"not ({written(part)})"
        case Comparison(name=name, operator=operator, values=values):
            listed = ", ".join(map(literal, values))
            return f"{name} {operator} ({listed})" if operator.endswith("in") else f"{name} {operator} {listed}"


def literal(value: Value) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case float():
            return repr(value)
        case datetime():
            return f'"{value.isoformat()}"'
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def outcome(text: str) -> Expression | ExpressionError:
    """Return the expression of a text, or its error."""
    try:
        return parse_expression(text)
    except ExpressionError as error:
        return error


@given(EXPRESSIONS)
def test_an_expression_is_read_as_it_was_written(expression: Expression) -> None:
    text = written(expression)
    found = outcome(text)
    # The limits hold for what is written.
    is_beyond = isinstance(found, ExpressionError) and ("levels" in str(found) or len(text) > LENGTH_MOST)
    assert is_beyond or found == expression, text


@given(NAMES)
def test_a_name_is_read_as_it_is_written(name: Name) -> None:
    assert parse_name(str(name)) == name


@given(st.text(max_size=200) | st.lists(PIECES, max_size=40).map("".join) | st.lists(PIECES, max_size=40).map(" ".join))
def test_any_text_is_an_expression_or_an_error_with_a_place_inside_of_it(text: str) -> None:
    found = outcome(text)
    if isinstance(found, ExpressionError):
        assert 0 <= found.at <= len(text)
        assert len(str(found)) < 2000
    else:
        assert all(parse_name(str(name)) == name for name in names_of(found))


@pytest.mark.parametrize(
    "text", ["(" * LENGTH_MOST, "not " * (LENGTH_MOST // 4), "a." * (LENGTH_MOST // 2), "1" * LENGTH_MOST]
)
def test_a_long_text_of_one_piece_is_an_error(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_expression(text)


@given(st.text(max_size=100))
def test_tokens_are_in_the_order_of_the_text(text: str) -> None:
    try:
        places = [token.at for token in tokens_of(text)]
    except ExpressionError:
        return
    assert places == sorted(set(places))
    assert places[-1] == len(text)
