"""Filter expressions: what they mean, and where their errors point."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_provider_dtrain.core.expressions.names import FACTS, Kind, Name
from airflow_provider_dtrain.core.expressions.parser import (
    COMPARISONS_MOST,
    DEPTH_MOST,
    PARTS_MOST,
    VALUES_MOST,
    parse_expression,
    parse_group,
    parse_name,
)
from airflow_provider_dtrain.core.expressions.tokens import LENGTH_MOST
from airflow_provider_dtrain.core.expressions.tree import And, Comparison, Not, Or, names_of
from airflow_provider_dtrain.errors import ExpressionError
from airflow_provider_dtrain.store.run_table.fact_columns import OF_SEVERAL_ROWS, fact_column

PAGE = (Path(__file__).parents[2] / "docs" / "filters.md").read_text()
A, B, C = (Comparison(Name("fact", ("best",)), "=", (float(n),)) for n in (1, 2, 3))


def fact(name: str, operator: str, *values: object) -> Comparison:
    return Comparison(Name("fact", (name,)), operator, values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "meaning"),
    [
        ("best = 1 or best = 2 and best = 3", Or((A, And((B, C))))),
        ("not best = 1 and best = 2", And((Not(A), B))),
        ("not (best = 1 and best = 2)", Not(And((A, B)))),
        ("((best=1))or best =2 OR best= 3", Or((A, B, C))),
        ("NOT NOT best = 1.0e0", Not(Not(A))),
        ("params.optimizer.lr > -.5", Comparison(Name("params", ("optimizer", "lr")), ">", (-0.5,))),
        ("params.\"a.b\".'c d' ~ 'x'", Comparison(Name("params", ("a.b", "c d")), "~", ("x",))),
        ("metrics.val.acc <= 1", Comparison(Name("metrics", ("val.acc",)), "<=", (1.0,))),
        ("metrics.val/top-5 != null", Comparison(Name("metrics", ("val/top-5",)), "!=", (None,))),
        ("params.layers.0 = true", Comparison(Name("params", ("layers", "0")), "=", (True,))),
        ("params.in in (1, 'a', False)", Comparison(Name("params", ("in",)), "in", (1.0, "a", False))),
        ('state not in ("running","queued")', fact("state", "not in", "running", "queued")),
        ('state !~ "run"', fact("state", "!~", "run")),
        (r'name = "a\"b\\c\d"', fact("name", "=", 'a"b\\c\\d')),
        ('created > "2026-11-27"', fact("created", ">", datetime(2026, 11, 27, tzinfo=UTC))),
        ('created > "2026-11-27T01:00+01:00"', fact("created", ">", datetime(2026, 11, 27, tzinfo=UTC))),
        ("params.größe = 1\n\tand best = 1", And((Comparison(Name("params", ("größe",)), "=", (1.0,)), A))),
    ],
)
def test_an_expression_has_its_meaning(written: str, meaning: object) -> None:
    assert parse_expression(written) == meaning


@pytest.mark.parametrize(
    ("written", "at", "message"),
    [
        ("", 1, "a comparison is expected"),
        ("best", 5, "an operator is expected after best"),
        ("best >", 7, "a value is expected"),
        ("best > 1 best", 10, "'and', 'or' or the end is expected"),
        ("best > 1 and", 13, "a name is expected"),
        ("(best > 1", 10, "')' is expected"),
        ("best > 1)", 9, "'and', 'or' or the end is expected"),
        ("bset > 1", 1, "Did you mean best?"),
        ("metric.loss > 1", 1, "Did you mean metrics.loss?"),
        ("param.lr > 1", 1, "Did you mean params.lr?"),
        ("zzz > 1", 1, "Write metrics.NAME, params.NAME or one of: trial, "),
        ("state.x = 'a'", 1, "there is no 'state.x'"),
        ("params > 1", 8, "a name is expected after params"),
        ("params. > 1", 9, "a part of a name is expected after '.'"),
        (r'params."a\"b" > 1', 8, "must be printable, and have neither quotes nor backslashes"),
        ('params."" > 1', 8, "a part of a name must be printable"),
        ("best == 1", 6, "'==' is no operator: write ="),
        ("best <> 1", 6, "'<>' is no operator: write !="),
        ("best = 1 && best = 2", 10, "'&&' is no operator: write and"),
        ("! best = 1", 1, "'!' is no operator: write not"),
        ("best = 1 # x", 10, "'#' has no meaning here"),
        ("best = 1\x00", 9, "U+0000 has no meaning here"),
        ("best = \u202e1", 8, "U+202E has no meaning here"),
        ('name = "a\u202e"', 10, "the unprintable character U+202E"),
        ('name = "a', 8, 'the text has no closing "'),
        ("best = 1x", 9, "'1x' is neither a number nor a name"),
        ("best = 1e999", 8, "the number is too large"),
        ("state = running", 9, 'a text needs quotes, "running"'),
        ('state = "runing"', 9, "Did you mean running?"),
        ('state in ("running", "zzz")', 22, "It is one of: queued, "),
        ("state = 1", 9, "state is a text"),
        ("best = 'a'", 8, "best is a number"),
        ("metrics.loss = true", 16, "metrics.loss is a number"),
        ("replaced = 'yes'", 12, "replaced is a flag"),
        ("created > 5", 11, "created is a time"),
        ('created > "soon"', 11, "a time is expected"),
        ("state < 'a'", 7, "'<' compares numbers and times, and state is a text"),
        ("replaced > true", 10, "'>' compares numbers and times"),
        ("params.lr > 'a'", 13, "'>' needs a number"),
        ("params.lr ~ 1", 13, "'~' needs a text"),
        ('name ~ ""', 8, "'~' needs a text that is not empty"),
        ("best ~ 'a'", 6, "'~' searches texts, and best is a number"),
        ("best > null", 8, "null is compared by = and != only"),
        ("best in (1, null)", 13, "a list cannot have null: write best = null"),
        ("best in 1", 9, "'(' is expected after 'in'"),
        ("best in ()", 10, "a value is expected"),
        ("best in (1 2)", 12, "',' or ')' is expected"),
        ("best not 1", 10, "'in' is expected after 'not'"),
        ("x" * (LENGTH_MOST + 1), LENGTH_MOST + 1, f"at most {LENGTH_MOST} are read"),
        ("(" * (DEPTH_MOST + 1) + "best = 1", DEPTH_MOST + 1, f"more than {DEPTH_MOST} levels"),
        ("not " * DEPTH_MOST + "best = 1", 4 * DEPTH_MOST + 1, f"more than {DEPTH_MOST} levels"),
    ],
)
def test_an_error_points_at_the_character(written: str, at: int, message: str) -> None:
    with pytest.raises(ExpressionError) as raised:
        parse_expression(written)
    assert raised.value.at == at - 1
    first, shown, mark = str(raised.value).split("\n")
    assert first.startswith(f"The expression is wrong at character {at}: ")
    assert message in first
    # The mark stands below the character.
    assert mark.index("^") - 2 == min(at - 1, 40)
    assert len(shown) <= 72
    assert shown.isprintable()


def test_limits_are_reached_and_not_passed() -> None:
    assert len(list(names_of(parse_expression(" or ".join(["best = 1"] * COMPARISONS_MOST))))) == COMPARISONS_MOST
    parse_expression("not " * (DEPTH_MOST - 1) + "best = 1")
    parse_expression(f"best in ({','.join(['1'] * VALUES_MOST)})")
    parse_expression(".".join(["params", *"a" * PARTS_MOST]) + " = 1")
    for written in (
        " or ".join(["best = 1"] * (COMPARISONS_MOST + 1)),
        f"best in ({','.join(['1'] * (VALUES_MOST + 1))})",
        ".".join(["params", *"a" * (PARTS_MOST + 1)]) + " = 1",
    ):
        with pytest.raises(ExpressionError, match="at most|more than"):
            parse_expression(written)


@pytest.mark.parametrize("name", [Name("params", ("a b", "c.d", "0", "e-/f", "-x")), Name("metrics", ("val.acc",))])
def test_a_name_is_written_as_it_is_read(name: Name) -> None:
    assert parse_name(str(name)) == name


def test_groups_know_all_hyperparameters_together_and_columns_do_not() -> None:
    assert parse_group(" params ") is None
    assert parse_group("params.lr") == Name("params", ("lr",))
    with pytest.raises(ExpressionError, match="a name alone is expected here"):
        parse_name("best > 1")
    with pytest.raises(ExpressionError):
        parse_name("params")


def test_each_fact_has_a_column() -> None:
    for name, one in FACTS.items():
        is_column = name not in OF_SEVERAL_ROWS
        assert is_column == (one.kind is not Kind.TEXTS)
        if is_column:
            assert fact_column(name, datetime.now(UTC), is_postgresql=False) is not None


def test_the_page_has_the_grammar_of_the_parser_and_all_facts() -> None:
    import airflow_provider_dtrain.core.expressions.parser as parser

    grammar = re.search(r"    (expression = .*part       = word \| text)\n", str(parser.__doc__), re.DOTALL)
    assert grammar is not None
    assert re.sub("^    ", "", grammar[1], flags=re.MULTILINE) in PAGE
    for name, one in FACTS.items():
        choices = f": {', '.join(one.choices)}" if one.choices else ""
        assert f"| `{name}` | {one.kind} | {one.meaning}{choices} |" in PAGE


def test_the_error_and_the_limits_on_the_page_are_those_of_the_parser() -> None:
    with pytest.raises(ExpressionError) as raised:
        parse_expression("metric.loss > 3")
    assert f"```\n{raised.value}\n```" in PAGE
    words = f"at most {LENGTH_MOST:,} characters, {COMPARISONS_MOST} comparisons, {DEPTH_MOST} levels of `not`"
    assert words in PAGE
    assert f"and {VALUES_MOST} values in a list" in PAGE
