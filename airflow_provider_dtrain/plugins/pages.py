"""Registration of the pages: React apps that the Airflow UI loads from one bundle."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TypedDict

#: Folder of the built bundle, which the API serves at ``/dtrain/static``.
WWW = Path(__file__).resolve().parents[1] / "www"
#: Address of the folder. It has no leading slash, so that Airflow keeps a sub-path of ``[api] base_url``.
STATIC = "dtrain/static"


class ReactApp(TypedDict):
    """One entry of ``AirflowPlugin.react_apps``.

    The name is the label in the Airflow UI, and the global under which ``ui/src/main.tsx`` puts the component.
    """

    name: str
    bundle_url: str
    destination: str
    url_route: str
    nav_top_level: bool
    icon: str
    icon_dark_mode: str


@cache
def react_apps() -> list[ReactApp]:
    """Return the app in the navigation, and the tabs of DAG runs and task instances.

    Airflow loads a bundle per address, and does not run it again for a second app of the same address. So the query
    differs per app. It also has the hash of the bundle: a browser does not show the old pages after an upgrade.
    """
    bundle = WWW / "main.js"
    if not bundle.exists():
        return []
    version = hashlib.sha256(bundle.read_bytes()).hexdigest()[:12]

    def app(name: str, destination: str, route: str) -> ReactApp:
        return ReactApp(
            name=name,
            bundle_url=f"{STATIC}/main.js?app={destination}&v={version}",
            destination=destination,
            url_route=route,
            nav_top_level=destination == "nav",
            icon=f"{STATIC}/icon.svg",
            icon_dark_mode=f"{STATIC}/icon-dark.svg",
        )

    return [
        app("DTrain", "nav", "dtrain"),
        app("DTrain experiments", "dag_run", "dtrain-run"),
        app("DTrain trial", "task_instance", "dtrain-trial"),
    ]
