"""``dtrain`` reads the folder of the code from the user's file as the server's YAML reader does, or asks for it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_dtrain.client.local_config import own_model_dir
from airflow_provider_dtrain.core.config.yaml_reader import load_yaml
from airflow_provider_dtrain.errors import ConfigError
from tests.support.budgets import budget

VALUES = (
    "code", "./code", "../code", "/home/ann/my code", "'it''s'", '"a\\"b"', '"\\u00e9"', "code # a comment", "code#1",
    "~", "null", "", "''", '""', "été", "'#x' # c", "a-b_c.d", "'a: b'", "- a", "|", ">-", "&x code", "*x",
    "!override code", "[code]", "{a: b}", "a: b", "'open", '"open', "@x", "`x", "%x", "1", "true", "code\n  more",
    "code\n\n# c\n  more",
    "\tcode", "'a' b", "code\t# x", "? a", "!!str code", "\n  code",
)  # fmt: skip
PLACES = (
    "model_dir: {}\nname: x\n",
    "name: x\nmodel_dir: {}\n",
    "name: x\r\nmodel_dir: {}\r\n",
    "---\n# model_dir: other\nname: x\nmodel_dir : {}\nentrypoint: a\n",
    "  name: x\n  model_dir: {}\n",
    '"model_dir": {}\n',
    "'model_dir': {}\n",
    "\ufeffmodel_dir: {}\n",
    "%YAML 1.2\n---\nmodel_dir: {}\n",
)


def as_the_server(text: str) -> object:
    """Return the field as the server reads it, or the error."""
    try:
        found = load_yaml(text).get("model_dir")
    except ConfigError as error:
        return error
    return found or None


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_that_of_the_server_or_asked_for(place: str, value: str) -> None:
    text = place.format(value)
    try:
        found = own_model_dir(text)
    except ConfigError:
        return
    expected = as_the_server(text)
    # The server refuses values that are no text and files that are no YAML before anything is sent.
    assert found == expected or not isinstance(expected, str | None)


@pytest.mark.parametrize(
    "text",
    [
        "", "# only a comment\n", "name: x\n", "data:\n  model_dir: other\n", "text: |\n  model_dir: other\n",
        "- model_dir: x\n", "name: 'a\n  model_dir: x'\n", "{}", '{"name": "model_dir"}',
        '{"data": {"model_dir": "x"}}', "model_directory: x\n", "mymodel_dir: x\n", "model_dir2: x\n",
    ],
)  # fmt: skip
def test_a_field_of_this_name_elsewhere_is_another_field(text: str) -> None:
    assert own_model_dir(text) is None


@pytest.mark.parametrize(
    "text", ["{model_dir: code}", "model_dir: a\nmodel_dir: b\n", '{"model_dir": 7}', '{"model_dir"']
)
def test_another_form_is_asked_for(text: str) -> None:
    with pytest.raises(ConfigError, match="model_dir: dtrain cannot read this form"):
        own_model_dir(text)


@settings(max_examples=budget(200))
@given(st.dictionaries(st.text() | st.just("model_dir"), st.text() | st.none() | st.dictionaries(st.text(), st.text())))
def test_json_is_read_as_the_server_reads_it(document: dict[str, object]) -> None:
    text = json.dumps(document)
    try:
        found = own_model_dir(text)
    except ConfigError:
        assert isinstance(document["model_dir"], dict)
    else:
        assert found == (document.get("model_dir") or None)


LINES = (
    "model_dir: code", "model_dir:", "  model_dir: x", "name: x", "  - a", "# c", "---", "'a'", "  more", ": x", "{",
    "}", "model_dir: 'a", "b'", 'model_dir: "a', 'b"', "? model_dir", ": code", "<<: *a", "a: &a", "  b: 1", "|", "...",
    "model_dir: a: b", '"model_dir": z',
)  # fmt: skip


@settings(max_examples=budget(800))
@given(st.lists(st.sampled_from(LINES) | st.text("model_dir: '\"#ax-{}[]|>", max_size=15), max_size=6))
def test_no_text_is_read_as_a_folder_that_it_does_not_name(lines: list[str]) -> None:
    text = "\n".join(lines)
    try:
        found = own_model_dir(text)
    except ConfigError:
        return
    # A rare form of the key counts as none, so that the user is asked about what the server reads.
    expected = as_the_server(text)
    assert found is None or found == expected or not isinstance(expected, str | None)
