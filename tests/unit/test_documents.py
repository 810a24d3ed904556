from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
import yaml

from airflow_provider_dtrain.core.config import ExperimentConfig
from airflow_provider_dtrain.core.config.merge import RESET, Override
from airflow_provider_dtrain.core.config.yaml_reader import MAX_BYTES, check_shape, load_yaml, plain_scalar
from airflow_provider_dtrain.errors import ConfigError


def refused(text: str | bytes) -> str:
    """Return the message with which the text is refused, and sees that this is quick."""
    started = time.process_time()
    with pytest.raises(ConfigError) as error:
        load_yaml(text, source="train.yaml")
    assert time.process_time() - started < 5
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-0.1", -0.1),
        ("+12", 12),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("on", "on"),
        ("yes", "yes"),
        ("off", "off"),
        ("n", "n"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("2024-01-01", "2024-01-01"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 1", "1"),
        ("!!float 1", 1.0),
        ("-.inf", -math.inf),
        ("1e", "1e"),
        ("\u0663", "\u0663"),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    loaded = load_yaml(f"a: {text}")["a"]
    assert loaded == value
    assert type(loaded) is type(value)


def test_nan_is_read() -> None:
    assert math.isnan(load_yaml("a: .nan")["a"])
    assert plain_scalar("") is None


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null", b""])
def test_an_empty_document_is_an_empty_map(text: str) -> None:
    assert load_yaml(text) == {}


def test_collections_and_block_text_are_plain_data() -> None:
    assert load_yaml("a: [1, {b: 2}]\nc: |\n  x\n  y\nd: >-\n  x\n  y\n") == {
        "a": [1, {"b": 2}],
        "c": "x\ny\n",
        "d": "x y",
    }


@pytest.mark.parametrize(
    ("text", "words"), [("[1]", "list at the top"), ("7", "int at the top"), ("a", "str at the top")]
)
def test_something_else_than_a_map_is_refused(text: str, words: str) -> None:
    assert words in refused(text)


@pytest.mark.parametrize(
    "text", ["a: [", "a: b: c", "\t- x", "a: *b", "a: \x00", "a: '\ud800'", b"a: \xff\xfe", "{a: 1"]
)
def test_broken_text_is_a_configuration_error(text: str | bytes) -> None:
    assert "train.yaml" in refused(text)


def test_a_syntax_error_names_its_line() -> None:
    assert "line 3" in refused("a: 1\nb: 2\nc: ]\n")


def test_a_second_document_is_refused() -> None:
    assert "second document" in refused("a: 1\n---\nb: 2\n")


def test_every_duplicate_key_is_named() -> None:
    message = refused("a: 1\nb: {c: 1, c: 2}\na: 3\n'a': 4\n")
    assert "b.c: the key is given twice (line 2" in message
    assert message.count("given twice") == 3


@pytest.mark.parametrize("key", ["1", "true", "null", "1.5"])
def test_keys_that_are_not_strings_are_refused(key: str) -> None:
    assert "is not a string: quote it" in refused(f"a: {{{key}: x}}")


@pytest.mark.parametrize("text", ["{[1]: 2}", "{{a: 1}: 2}", "? [a]\n: b\n"])
def test_collections_as_keys_are_refused(text: str) -> None:
    assert "as a key" in refused(text)


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system ['true']",
        "!!python/name:os.system ''",
        "!!python/object:airflow_provider_dtrain.errors.UserError {}",
        "!!binary aGVsbG8=",
        "!!set {a, b}",
        "!!timestamp 2024-01-01",
        "!include other.yaml",
        "!<tag:example.org,2000:x> 1",
    ],
)
def test_tags_that_build_something_are_refused(value: str) -> None:
    assert "is refused; accepted: !override, !reset" in refused(f"a: {value}")


def test_a_tag_that_does_not_fit_is_refused() -> None:
    assert "'abc' is not a valid int" in refused("a: !!int abc")


def test_override_and_reset_become_their_python_values() -> None:
    loaded = load_yaml("a: !override [1]\nb: !reset\nc: !reset [x]\nd: !override 1e-3\ne: !override {f: !reset ''}\n")
    assert loaded == {
        "a": Override([1]),
        "b": RESET,
        "c": RESET,
        "d": Override(1e-3),
        "e": Override({"f": RESET}),
    }


def test_aliases_give_values_of_their_own() -> None:
    loaded = load_yaml("a: &x {b: [1]}\nc: *x\nd: &y 5\ne: [*y, *y]\n")
    assert loaded == {"a": {"b": [1]}, "c": {"b": [1]}, "d": 5, "e": [5, 5]}
    assert loaded["a"] is not loaded["c"]
    assert loaded["a"]["b"] is not loaded["c"]["b"]


def test_merge_keys_give_way_to_keys_written_out() -> None:
    loaded = load_yaml("a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  z: 9\n  <<: [*a, *b]\nd: {<<: *a}\n'<<': 1\n")
    assert loaded["c"] == {"x": 1, "y": 1, "z": 9}
    assert loaded["d"] == {"x": 1, "y": 1}
    assert loaded["<<"] == 1


@pytest.mark.parametrize(
    ("text", "words"), [("a: {<<: 1}", "takes a map"), ("a: {<<: {b: 1}, <<: {c: 1}}", "given twice")]
)
def test_wrong_merge_keys_are_refused(text: str, words: str) -> None:
    assert words in refused(text)


def bomb(levels: int, width: int) -> str:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines)


def test_an_alias_bomb_is_refused_before_it_expands() -> None:
    text = bomb(9, 9)
    assert len(text) < 500
    assert "once aliases are expanded" in refused(text)


def test_a_merge_key_bomb_is_refused() -> None:
    lines = ["a0: &a0 {k0: 1, k1: 1}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 9)]
    assert "once aliases are expanded" in refused("\n".join(lines))


def test_a_chain_of_aliases_cannot_nest_too_deep() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 200)]
    assert "nested deeper than 64" in refused("\n".join(lines))


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "a: &x 1\nb: &x [*x]"])
def test_a_value_cannot_contain_itself(text: str) -> None:
    assert "no finished anchor" in refused(text)


@pytest.mark.parametrize("text", ["[" * 500_000, "{a: " * 200_000, "- " * 300_000, "a: " + "[" * 65 + "]" * 65])
def test_deep_nesting_is_refused(text: str) -> None:
    assert "train.yaml" in refused(text)


def test_many_values_are_refused() -> None:
    assert "more than 100000 values" in refused("a:\n" + "- 1\n" * 200_000)


@pytest.mark.parametrize("size", [MAX_BYTES + 1, 10 * MAX_BYTES])
def test_large_text_is_refused_by_its_size_alone(size: int) -> None:
    started = time.process_time()
    assert f"{size} bytes; at most 1048576" in refused("a" * size)
    assert time.process_time() - started < 0.5


def test_size_counts_bytes_and_not_characters() -> None:
    assert "1 MiB" in refused("a: " + "ä" * (MAX_BYTES // 2))
    assert len(load_yaml("a: " + "x" * (MAX_BYTES - 10))["a"]) == MAX_BYTES - 10


def test_a_number_of_many_digits_is_refused() -> None:
    assert "5000 digits" in refused("a: " + "9" * 5000)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a:\n\tb: 1", 2, 1),
        ("a: 1\n\tb: 1", 2, 1),
        ("\ta: 1", 1, 1),
        ("a:\n  b: 1\n\tc: 2", 3, 1),
        ("a: |\n\ttext\n", 2, 1),
        ("a:\n \t b: 1", 2, 2),
        ("a:\r\n\tb: 1", 2, 1),
    ],
)
def test_a_tab_is_called_a_tab(text: str, line: int, column: int) -> None:
    message = f"not YAML: a tab, where YAML is indented with spaces (line {line}, column {column})"
    assert message in refused(text)
    assert message in refused(text.encode())


def test_another_character_is_not_called_a_tab() -> None:
    assert "a tab" not in refused("a:\n  b: @x\n\t\n")
    assert load_yaml("a:\tb\nc: [1,\n\t2]\n") == {"a": "b", "c": [1, 2]}


def test_quoted_text_of_a_secret_is_not_in_the_message() -> None:
    assert "hunter2" not in refused("secret_key: 'hunter2'\nb: [\n")


def test_the_loader_agrees_with_pyyaml_on_plain_documents() -> None:
    document: dict[str, Any] = {"a": [1, 2.5, "x y", True, None, {"b": {}}], "c": {"d": [], "e": "12:30", "f": "on"}}
    assert load_yaml(yaml.safe_dump(document)) == document


def test_python_documents_are_checked_for_shape() -> None:
    endless: dict[str, Any] = {}
    endless["a"] = [endless]
    assert "nested deeper" in check_shape(endless)[-1].message
    shared: Any = [1]
    for _ in range(40):
        shared = [shared, shared]
    assert "more than 100000" in check_shape({"a": shared})[-1].message
    bad = {"a": {1: 2}, "b": {3}, "c": float("nan"), "d": Override([object()]), "e": RESET, "f": (1, None)}
    problems = check_shape(bad)
    assert sorted(problem.path for problem in problems) == ["a", "b", "c", "d.0"]


@pytest.mark.parametrize("name", ["\x1b]0;HP\x07", "a\nb", "a\tb", "\u202eabc", "a\x9b", "\x7f"])
@pytest.mark.parametrize("field", ["hyperparameters", "data"])
def test_a_name_with_a_control_character_is_refused(name: str, field: str) -> None:
    for document in ({field: {name: 3}}, {field: {"group": {name: 3}}}, {field: {"list": [{name: 3}]}}):
        (problem,) = check_shape(document)
        assert problem.path.startswith(field)
        assert problem.message.endswith("has a control character")
        assert problem.message.isprintable()
        with pytest.raises(ConfigError, match="has a control character"):
            ExperimentConfig.model_validate({"entrypoint": "python a.py", **document})
        with pytest.raises(ConfigError, match="has a control character"):
            ExperimentConfig.parse_yaml(json.dumps({"entrypoint": "python a.py", **document}))
    assert check_shape({field: {"größe 学習率": 3}}) == []
