"""Registration of the pages with Airflow: the React apps of the plugin."""

from __future__ import annotations

import re
from pathlib import Path

from airflow.api_fastapi.core_api.datamodels.plugins import ReactAppResponse

from airflow_provider_dtrain.plugins import pages
from airflow_provider_dtrain.plugins.dtrain_plugin import DtrainPlugin

ROOT = Path(__file__).resolve().parents[2]


def test_airflow_accepts_every_app():
    apps = [ReactAppResponse.model_validate(app) for app in DtrainPlugin().react_apps]
    assert {app.destination for app in apps} == {"nav", "dag_run", "task_instance"}


def test_no_two_apps_share_a_name_a_route_or_an_address():
    apps = pages.react_apps()
    for key in ("name", "url_route", "bundle_url"):
        assert len({app[key] for app in apps}) == len(apps)


def test_the_bundle_has_a_component_for_every_name():
    bundle = (pages.WWW / "main.js").read_text()
    assert [app["name"] for app in pages.react_apps() if app["name"] not in bundle] == []


def test_the_pages_link_to_the_route_of_the_navigation():
    source = (ROOT / "ui" / "src" / "app" / "paths.ts").read_text()
    route = next(app["url_route"] for app in pages.react_apps() if app["destination"] == "nav")
    assert re.search(r'ROOT = "(.+)"', source)[1] == f"/plugin/{route}"


def test_the_files_that_the_apps_name_are_in_the_bundle():
    for app in pages.react_apps():
        for key in ("bundle_url", "icon", "icon_dark_mode"):
            path = app[key].split("?")[0].removeprefix(f"{pages.STATIC}/")
            assert (pages.WWW / path).is_file()
