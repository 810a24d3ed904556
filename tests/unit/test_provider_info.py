"""The provider info that Airflow reads is valid, complete and correct."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest

from airflow_provider_dtrain import __version__
from airflow_provider_dtrain.get_provider_info import get_provider_info

ROOT = Path(__file__).resolve().parents[2]
INFO = get_provider_info()
OPTIONS = INFO["config"]["dtrain"]["options"]
MODULES = [
    module
    for key in ("operators", "sensors", "hooks", "triggers")
    for entry in INFO[key]
    for module in entry["python-modules"]
]
OBJECTS = [
    *INFO["cli"],
    *INFO["extra-links"],
    *(entry["class-name"] for entry in INFO["task-decorators"]),
    *(entry["plugin-class"] for entry in INFO["plugins"]),
]


def test_the_description_fits_the_schema_of_airflow() -> None:
    schema = json.loads(Path(airflow.__file__).with_name("provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)


def test_the_package_name_is_the_name_of_the_distribution() -> None:
    assert metadata.distribution(INFO["package-name"]).version == __version__


def test_the_installed_entry_point_leads_to_the_description() -> None:
    points = [
        point
        for point in metadata.entry_points(group="apache_airflow_provider")
        if point.dist and point.dist.name == INFO["package-name"]
    ]
    assert [point.load() for point in points] == [get_provider_info]


def test_the_links_of_the_distribution_are_those_of_the_provider() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["urls"].values()) == {entry["external-doc-url"] for entry in INFO["integrations"]}


def test_the_installed_entry_point_leads_to_the_plugin() -> None:
    from airflow_provider_dtrain.plugins.dtrain_plugin import DtrainPlugin

    points = [
        point
        for point in metadata.entry_points(group="airflow.plugins")
        if point.dist and point.dist.name == INFO["package-name"]
    ]
    assert [point.load() for point in points] == [DtrainPlugin]


@pytest.mark.parametrize("module", MODULES)
def test_every_named_module_can_be_imported(module: str) -> None:
    importlib.import_module(module)


@pytest.mark.parametrize("path", OBJECTS)
def test_every_named_object_exists(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


def test_every_module_with_an_operator_a_trigger_or_a_hook_is_named() -> None:
    package = Path(importlib.import_module("airflow_provider_dtrain").__file__ or "").parent
    found = {
        f"airflow_provider_dtrain.{folder}.{file.stem}"
        for folder in ("operators", "sensors", "triggers")
        for file in (package / folder).glob("[a-z]*.py")
        if "class " in file.read_text()
    }
    assert found <= set(MODULES)


@pytest.mark.parametrize("name", OPTIONS)
def test_airflow_reads_the_default_of_every_option_with_its_type(name: str) -> None:
    from airflow.sdk.configuration import conf

    getters = {"string": conf.get, "integer": conf.getint, "float": conf.getfloat, "boolean": conf.getboolean}
    option = OPTIONS[name]
    assert str(getters[option["type"]]("dtrain", name)) == option["default"]


def test_the_settings_take_their_values_from_these_options() -> None:
    from airflow_provider_dtrain.hooks.settings import settings

    values = settings()
    assert values.orphan_timeout_s == 900
    assert values.kill_grace_s == 30
    assert values.log_limit_bytes == 268435456
    assert values.task_log_rate_bytes_per_s == 4_000_000
    assert values.sql_alchemy_conn.endswith("/dtrain.db")


class Recorder:
    """Airflow's configuration, which records the options of ``[dtrain]`` that are read."""

    def __init__(self, conf: Any) -> None:
        self.conf, self.asked = conf, set[str]()

    def __getattr__(self, name: str) -> Any:
        getter = getattr(self.conf, name)

        def get(section: str, option: str, **more: Any) -> Any:
            self.asked.add(option)
            return getter(section, option, **more)

        return get


def test_every_documented_option_is_read_and_every_option_that_is_read_is_documented(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow.sdk import configuration

    from airflow_provider_dtrain.hooks.settings import settings

    recorder = Recorder(configuration.conf)
    monkeypatch.setattr(configuration, "conf", recorder)
    settings()
    assert recorder.asked == set(OPTIONS)
    page = (Path(__file__).parents[2] / "docs" / "options.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(OPTIONS)


def test_every_setting_is_used_by_code_outside_the_settings() -> None:
    from airflow_provider_dtrain.hooks import settings

    package = Path(settings.__file__).parents[1]
    used = {
        node.attr
        for file in package.rglob("*.py")
        if file != Path(settings.__file__)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert {field.name for field in dataclasses.fields(settings.Settings)} <= used


def test_only_the_database_url_is_marked_as_secret() -> None:
    assert [name for name, option in OPTIONS.items() if option.get("sensitive")] == ["sql_alchemy_conn"]
