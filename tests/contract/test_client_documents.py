"""Templates, explanations, checks and batch inferences of ``dtrain``: what ``airflow dtrain`` prints, by HTTP."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from airflow_provider_dtrain.cli._documents import StoreDocuments
from airflow_provider_dtrain.client.main import main, parser
from airflow_provider_dtrain.errors import ConfigError
from airflow_provider_dtrain.store.records.gangs import GangSubmission
from airflow_provider_dtrain.store.records.trials import TrialKey
from airflow_provider_dtrain.terminal import configs, templates
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.http_api import HttpApi
from tests.support.search_world import Search

pytestmark = pytest.mark.airflow
SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
CONFIG = "name: mine\nentrypoint: python train.py\nresources: {pool: gpus, slots_per_trial: 1}\n"
TEMPLATE = "# kept as it is\nmax_restarts: 3\n"


@pytest.fixture
def search(store) -> Search:
    store.hosts.add(host("a", slots=4))
    found = Search(store)
    found.plan(max_trials=4)
    found.start(0, slots=3)
    found.submit(1, slots=4)
    store.gangs.submit(GangSubmission(key=TrialKey(dag_id="d", run_id="r", task_id="sensor"), pool="gpus", slots=1))
    store.queue.schedule("gpus")
    store.templates.set("base", "max_restarts: 1\n", by="bob")
    store.templates.set("base", TEMPLATE, by="bob")
    return found


@pytest.fixture
def server(search, tmp_path, monkeypatch) -> Iterator[HttpApi]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    with HttpApi(Api(search.store)) as found:
        monkeypatch.setenv("DTRAIN_SERVER", found.url)
        monkeypatch.setenv("DTRAIN_TOKEN", "given")
        yield found


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(CONFIG)
    (tmp_path / "train.py").touch()
    return "mine.yaml"


COMMANDS = {
    "templates list": templates.list_templates,
    "templates list -d": templates.list_templates,
    "tpl describe base": templates.describe,
    "templates describe base --version 1": templates.describe,
    "templates versions base": templates.versions,
    "explain 1": configs.explain,
    "explain 2": configs.explain,
    "explain gang:GANG": configs.explain,
    "explain mine.yaml": configs.explain,
    "explain mine.yaml --template base": configs.explain,
    "configs validate mine.yaml": configs.validate,
    "configs validate mine.yaml --template base": configs.validate,
}


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["table", "json"])
def test_each_command_prints_what_airflow_dtrain_prints(server, search, config, capsys, form):
    gang = next(one.allocation_id for one in search.store.queue_view.tasks() if one.trial_id is None)
    hook = SimpleNamespace(store=search.store, ensure_local=lambda: None)
    for words, show in COMMANDS.items():
        argv = [*words.replace("GANG", str(gang)).split(), "-o", form]
        code = main(argv)
        remote = capsys.readouterr()
        assert code in (0, 3), (words, remote.err)
        assert (show(parser().parse_args(argv), StoreDocuments(hook)) or 0) == code, words
        here = capsys.readouterr().out
        if form == "json":
            remote_rows, rows = (without_times(json.loads(text)) for text in (remote.out, here))
            assert remote_rows == rows, words
        else:
            assert lines(remote.out) == lines(here), words
        assert remote.out.strip()


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith(("waited s", "held s"))]


def without_times(found: object) -> object:
    return {**found, "waited_s": 0, "held_s": 0} if isinstance(found, dict) else found


@SQLITE
def test_a_template_is_set_shown_and_removed(server, search, tmp_path, capsys):
    file = tmp_path / "new.yaml"
    file.write_text(TEMPLATE)
    assert main(["templates", "set", "new", str(file), "--dry-run"]) == 0
    assert [one.name for one in search.store.templates.list()] == ["base"]
    assert main(["templates", "set", "new", str(file), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "new", "version": 1}
    stored = search.store.templates.get("new")
    assert (stored.text, stored.set_by) == (TEMPLATE, "ann")
    assert main(["templates", "remove", "new"]) == 2
    assert main(["templates", "remove", "new", "-y"]) == 0
    shown = capsys.readouterr().err
    assert "dtrain templates describe new --version 1" in shown
    assert "airflow dtrain" not in shown
    assert [one.removed for one in search.store.templates.versions("new")] == [False, True]


@SQLITE
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_restarts: many\n", "(line 1)"),
        ("\nname: x\nsearcher: {name: nonsense}\n", "(line 3)"),
        ("checkpoint_storage: {type: s3, bucket: b, secret_key: open-sesame}\n", "a literal secret"),
        ("x: [" + "1," * 30_000 + "]\n", "values"),
        ("- a list\n", "line 1"),
        ("a: \x1b[31m\n", ""),
    ],
)
def test_a_template_with_problems_is_not_stored(server, search, tmp_path, capsys, text, message):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    for argv in (["templates", "set", "base", str(file)], ["configs", "validate", "--template", str(file)]):
        assert main(argv) == 1, argv
        shown = capsys.readouterr().err
        assert message in shown, shown
        assert "\x1b" not in shown
    # The route checks again, whatever a client sends.
    api = Api(search.store)
    assert api.refusal("PUT", "/templates/base", json={"text": text})[0] == 422
    assert search.store.templates.get("base").version == 2


@SQLITE
def test_templates_are_changed_with_the_right_to_all_connections_only(search):
    for api in (Api(search.store, hosts=False), team_of(search.store)):
        assert api.get("/templates/base")["text"] == TEMPLATE
        assert api.refusal("PUT", "/templates/base", json={"text": TEMPLATE})[:2] == (403, "forbidden")
        assert api.refusal("DELETE", "/templates/base")[:2] == (403, "forbidden")
        assert api.logged == []
    assert search.store.templates.get("base").version == 2
    api = Api(search.store)
    for name in ("..", "a b", "x" * 64, "<b>", "a/b", "%2e%2e", "\u202eevil"):
        assert api.answer("PUT", f"/templates/{name}", json={"text": TEMPLATE}).status_code in (404, 405, 422), name
    assert [one.name for one in search.store.templates.list()] == ["base"]


def team_of(store) -> Api:
    api = Api(store, team="a")
    api.facts.connection_teams = {"ssh_b": "b"}
    return api


@SQLITE
def test_gangs_of_dags_that_the_user_may_not_read_have_no_explanation(search):
    gang = next(one.allocation_id for one in search.store.queue_view.tasks() if one.trial_id is None)
    reader, blind = Api(search.store), Api(search.store, readable=set())
    assert reader.get(f"/gangs/{gang}/explanation")["request"] == f"gang:{gang}"
    for path, missing in ((f"/gangs/{gang}/explanation", "/gangs/999/explanation"), ("/trials/1/explanation",) * 2):
        refused, absent = blind.refusal("GET", path), reader.refusal("GET", missing.replace("/1/", "/999/"))
        assert refused[:2] == absent[:2] == (404, "not_found")


@SQLITE
def test_hints_and_errors_name_commands_of_this_program(server, search, config, capsys):
    argvs = (["explain", "999"], ["explain", "gang:999"], ["templates", "describe", "absent"], ["explain", "gang:x"])
    for argv in (*argvs, ["queue", "set", "nonsense"], ["trials", "describe", "999"], ["configs", "validate"]):
        try:
            assert main(argv) != 0
        except SystemExit as error:
            assert error.code == 2  # noqa: PT017 - argparse exits
        shown = "".join(capsys.readouterr())
        assert "airflow dtrain" not in shown, shown


@SQLITE
def test_a_path_of_a_template_is_refused_because_the_server_reads_no_files(server, config, capsys):
    assert main(["explain", config, "--template", "other.yaml"]) == 1
    assert "must be the name of a stored template" in capsys.readouterr().err


@pytest.fixture
def triggered(monkeypatch) -> list[dict]:
    found: list[dict] = []
    monkeypatch.setattr(
        "airflow_provider_dtrain.api.routes.configs.trigger", lambda conf, user, run_id: found.append(conf) or "run"
    )
    return found


@SQLITE
def test_a_batch_inference_is_started_from_options_alone(server, search, tmp_path, monkeypatch, triggered, capsys):
    (tmp_path / "predict.py").write_text("def predict(batch):\n    return batch\n")
    monkeypatch.chdir(tmp_path)
    argv = ["infer", "--processor", "predict:predict", "--input", "/data/a.csv", "--input", "/data/b.csv"]
    more = ["--to", "/results", "--slots", "2", "--batch-size", "64", "--on-bad-row", "skip", "--pool", "gpus"]
    assert main([*argv, *more, "-o", "json"]) == 0, capsys.readouterr()
    row = json.loads(capsys.readouterr().out)
    assert row["name"] == "predict"
    document = search.store.configs.get(triggered[0]["config"]["config_id"]).document
    assert document["inference"]["inputs"]["path"] == ["/data/a.csv", "/data/b.csv"]
    assert document["inference"]["outputs"]["path"] == "/results"
    assert (document["inference"]["batch_size"], document["inference"]["on_bad_row"]) == (64, "skip")
    assert (document["resources"]["slots_per_trial"], document["resources"]["pool"]) == (2, "gpus")


@SQLITE
def test_options_of_a_batch_inference_override_the_configuration(server, search, tmp_path, triggered, capsys):
    (tmp_path / "predict.py").write_text("def predict(batch):\n    return batch\n")
    (tmp_path / "label.yaml").write_text(
        "inference: {processor: predict:predict, inputs: {path: /data/a.csv}, outputs: {path: /old, columns: [id]}}\n"
        "resources: {pool: gpus, slots_per_trial: 1}\n"
    )
    assert main(["infer", str(tmp_path / "label.yaml"), "--to", "/new"]) == 0, capsys.readouterr()
    document = search.store.configs.get(triggered[0]["config"]["config_id"]).document
    assert document["name"] == "label"
    assert (document["inference"]["outputs"]["path"], document["inference"]["outputs"]["columns"]) == ("/new", ["id"])


@SQLITE
def test_a_batch_inference_with_problems_sends_no_code(server, triggered, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["infer", "--processor", "predict", "--to", "/results", "--batch-size", "many"]) == 1
    shown = capsys.readouterr().err
    assert "inference.batch_size" in shown
    assert "inference.processor" in shown
    assert triggered == []


def test_a_check_of_this_process_refuses_what_a_server_refuses(search):
    given = Namespace(name="x", folder=None, text="max_restarts: many\n")
    with pytest.raises(ConfigError, match="max_restarts"):
        StoreDocuments(SimpleNamespace(store=search.store)).set_template("base", given)
    assert search.store.templates.get("base").version == 2
