"""Statements of the pages and the container files that must match the code."""

from __future__ import annotations

import dataclasses
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from airflow_provider_dtrain.core.config import ExperimentConfig
from airflow_provider_dtrain.core.external_jobs import JobPhase
from airflow_provider_dtrain.core.lifecycle.states import (
    TRANSITIONS,
    AllocationState,
    AttemptState,
    ExperimentState,
    HostState,
    TrialState,
)
from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind
from airflow_provider_dtrain.core.scheduling.model import PoolOptions
from airflow_provider_dtrain.core.scheduling.priority_tiers import OVERDUE, late_steps, level_of, wait_limit_s
from airflow_provider_dtrain.notifications.events import NotifyEvent
from airflow_provider_dtrain.notifications.notice import Notice
from airflow_provider_dtrain.store.queue.queue_rows import CLASS_NAMES
from airflow_provider_dtrain.store.records.pages import QueueClass
from airflow_provider_dtrain.store.store import Store

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "airflow_provider_dtrain"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
#: Pages about the present code. Records of decisions and the changelog keep the paths of their time.
#: kind -> its states
STATES = {
    "experiment": ExperimentState, "trial": TrialState, "attempt": AttemptState, "host": HostState,
    "allocation": AllocationState, "external job": JobPhase,
}  # fmt: skip
STRUCTURE = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")])


def fields(model: type[BaseModel]) -> Iterator[str]:
    """Return the names of all fields of a model and of the models inside it."""
    for name, field in model.model_fields.items():
        yield field.alias or name
        for inner in models_in(field.annotation):
            yield from fields(inner)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Return the models that a type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from models_in(part)


def test_the_page_of_options_is_written_from_the_provider_info() -> None:
    tool = runpy.run_path(str(ROOT / "scripts" / "tools" / "options_page.py"))
    assert (ROOT / "docs" / "options.md").read_text() == tool["page"]()


def test_the_tooltips_of_the_queue_are_the_meanings_of_its_classes() -> None:
    source = (ROOT / "ui" / "src" / "pages" / "queue" / "columns.tsx").read_text()
    (block,) = re.findall(r"CLASSES: [^=]*= \{\n(.*?)\n\};", source, re.S)
    tooltips = dict(re.findall(r'^  (\w+): "(.*)",$', block, re.M))
    page = (ROOT / "docs" / "scheduling.md").read_text()
    (table,) = re.findall(r"\| class \| meaning \|\n\|---\|---\|\n(.*?)\n\n", page, re.S)
    meanings = dict(re.findall(r"^\| (\w+) \| (.*) \|$", table, re.M))
    assert tooltips == {name: words.replace("`", "") for name, words in meanings.items()}
    # Best class first, as the code orders them.
    assert list(tooltips) == [CLASS_NAMES[level] for level in sorted(CLASS_NAMES)] == list(get_args(QueueClass))
    options = PoolOptions()
    values = {"max_wait": options.max_wait_s / 3600, "fresh": options.fresh_s / 3600, "young": options.young_s / 3600}
    for words in tooltips.values():
        for name, shown in re.findall(r"(\w+) \((\d+) (?:slot-hours|h)\)", words):
            assert values[name] == float(shown)
        assert [float(one) for one in re.findall(r"protected_share \(([\d.]+)\)", words)] in (
            [],
            [options.protected_share],
        )


def test_a_class_is_what_its_tooltip_says() -> None:
    options, hour = PoolOptions(), 3600.0
    at = {
        (held, late): CLASS_NAMES[level_of(4, held * hour, late, options)]
        for held in (0, 1.24, 1.25, 4.24, 4.25, 100)
        for late in (None, OVERDUE)
    }
    assert {name for (held, _), name in at.items() if held < 1.25} == {"fresh"}
    assert {name for (held, _), name in at.items() if 1.25 <= held < 4.25} == {"young"}
    assert {name for (held, late), name in at.items() if held >= 4.25 and late is None} == {"old"}
    assert {name for (held, late), name in at.items() if held >= 4.25 and late == OVERDUE} == {"overdue"}
    steps = {hours: late_steps(hours * hour, options.max_wait_s, options) for hours in (26.2, 26.3, 27.9, 28, 29.8)}
    assert steps == {26.2: None, 26.3: -1, 27.9: -1, 28: 0, 29.8: 1}


def test_a_wide_gang_is_protected_after_nine_tenths_of_the_wait() -> None:
    options = PoolOptions(max_wait_s=1000.0)
    assert [wait_limit_s(slots, 8, options) for slots in (0, 8, 9)] == [1000.0, 1000.0, 900.0]


def test_the_page_of_the_configuration_names_every_field() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`", page))))
    storages = {"bucket", "endpoint_url", "prefix", "container", "account_url"}
    assert set(fields(ExperimentConfig)) - named - storages == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_compose_file_names_files_and_services_that_exist() -> None:
    folder = ROOT / "docker"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        if build := service.get("build"):
            context = folder / build["context"]
            assert (context / build["dockerfile"]).is_file()
    hosts = [name for name, service in services.items() if service.get("command") == ["host.sh"]]
    environment = services["airflow"]["environment"]
    assert services["keys"]["command"] == ["make-keys.sh", *hosts]
    assert environment["DTRAIN_HOSTS"].split() == hosts
    for host in hosts:
        assert json.loads(environment[f"AIRFLOW_CONN_{host.upper().replace('-', '_')}"])["host"] == host
        assert f"{host}-keys:/keys/{host}" in services["keys"]["volumes"]
        assert f"{host}-keys:/keys:ro" in services[host]["volumes"]
    for file in folder.glob("Dockerfile.*"):
        copied = re.findall(r"^COPY (?:--chmod=\d+ )?([^-].*) \S+$", file.read_text(), re.MULTILINE)
        assert [name for line in copied for name in line.split() if not (ROOT / name).exists()] == []


def paths_in(page: str) -> set[str]:
    """Return the paths that a page names in code spans, if they begin with a folder of the repository or package."""
    # build/ has results of builds, on some machines.
    folders = {entry.name for root in (ROOT, PACKAGE) for entry in root.iterdir() if entry.is_dir()} - {"build"}
    spans = " ".join(re.findall(r"`([^`\n]+)`", page))
    named = re.findall(r"(?<![\w./~$-])[\w.-]+(?:/[\w.*-]*)+", spans)
    return {path for path in named if path.partition("/")[0] in folders}


@pytest.mark.parametrize("page", STRUCTURE, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_that_a_page_names_exist(page: Path) -> None:
    assert sorted(path for path in paths_in(page.read_text()) if not exists(path)) == []


def exists(path: str) -> bool:
    """Return whether a path, or a pattern such as ``core/*.py``, names a file of the repository or the package."""
    return any(list(root.glob(path.rstrip("/"))) for root in (ROOT, PACKAGE))


def test_the_map_has_every_folder_of_the_package() -> None:
    folders = {str(file.parent.relative_to(PACKAGE)) + "/" for file in PACKAGE.glob("*/**/*.py")}
    rows = set(re.findall(r"^\| `([\w/]+/)` \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE))
    unlisted = {"store/database/migrations/", "store/database/migrations/versions/"}
    assert folders - rows == unlisted


def test_the_map_has_every_component_of_the_store(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/s.db")
    store.close()
    table = (
        (ROOT / "docs" / "architecture.md").read_text().partition("| component | subject |\n")[2].partition("\n\n")[0]
    )
    named = [name for row in table.splitlines() for name in re.findall(r"`store\.(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(set(vars(store)) - {"store_id"})


def test_no_component_of_the_store_inherits_from_another_class(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/s.db")
    store.close()
    parts = [store, *(part for name, part in vars(store).items() if name != "store_id")]
    assert [type(part).__name__ for part in parts if type(part).__bases__ != (object,)] == []


def test_the_diagram_of_the_allocation_states_has_all_legal_changes() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    diagram = page.partition("stateDiagram-v2")[2].partition("```")[0]
    drawn = set(re.findall(r"^    (\w+) --> (\w+)(?::.*)?$", diagram, re.MULTILINE))
    legal = {(old, new) for old, following in TRANSITIONS["allocation"].items() for new in following}
    assert drawn == legal


def test_the_page_about_timelines_explains_every_kind_of_entry() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    table = page.partition("| kind | meaning |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([a-z_]+) \| (.+) \|$", table, re.MULTILINE)
    assert rows == [(kind.value, kind.meaning) for kind in TimelineKind]


def test_the_page_about_notifications_explains_every_event_and_fact() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| the ", page, re.MULTILINE)
    assert rows == [(event.value, event.meaning) for event in NotifyEvent]
    facts = {field.name for field in dataclasses.fields(Notice)} | {"html", "slack"}
    paragraph = page.partition("Templates find the facts as `dtrain`")[2].partition("\n\n")[0]
    assert facts <= set(re.findall(r"`(\w+)`", paragraph))


@pytest.mark.parametrize("kind", STATES)
def test_the_map_explains_every_state(kind: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition(f"| {kind} | meaning |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([a-z]+) \| (.+) \|$", table, re.MULTILINE)
    assert rows == [(state.value, state.meaning) for state in STATES[kind]]
