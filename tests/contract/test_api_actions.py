"""Actions of pages: their effect, rights, audit entries, and refusals. Rights are given, see ``api_world``."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.core.config import assemble
from airflow_provider_dtrain.core.config.yaml_reader import load_yaml
from airflow_provider_dtrain.store.database.tables import allocations, audit, trials
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.search_world import Search

pytestmark = [pytest.mark.airflow, pytest.mark.parametrize("url", ["sqlite"], indirect=True)]
CONFIG = """\
name: mine
entrypoint: python train.py
hyperparameters:
  lr: {type: log, minval: -4, maxval: -1}
searcher:
  name: random
  metric: loss
  max_trials: 3
  max_length: {batches: 10}
resources: {pool: gpus, slots_per_trial: 2}
"""


@pytest.fixture
def search(store):
    store.hosts.add(host("a", slots=8))
    found = Search(store)
    found.plan(max_trials=4)
    return found


def done(api, path, method="POST", **body):
    answer = api.answer(method, path, json=body)
    assert answer.status_code in (200, 202), answer.text
    assert answer.json()["message"]
    return answer.json()


def test_a_host_is_drained_enabled_and_disabled_with_the_name_of_the_user(api, search):
    ticket = search.start(0, slots=1)
    assert done(api, "/hosts/a/drain", reason="fan is loud")["host"]["state"] == "draining"
    assert search.store.hosts.get("a").state_reason == "fan is loud"
    assert done(api, "/hosts/a/enable")["host"]["name"] == "a"
    answer = done(api, "/hosts/a/disable")
    assert str(ticket.trial_id) in answer["message"]
    assert search.store.trials.get(ticket.trial_id).kill_requested_by == "ann"
    assert [event for event, *_ in api.logged] == ["host_drain", "host_enable", "host_disable"]
    with search.store.db.engine.connect() as conn:
        assert "ann" in set(conn.scalars(sa.select(audit.c.by)))


def test_a_slot_is_disabled_and_enabled(api, search):
    assert done(api, "/hosts/a/slots/2/disable")["host"]["slots"][2]["is_enabled"] is False
    assert done(api, "/hosts/a/slots/2/enable")["host"]["slots"][2]["is_enabled"] is True
    assert api.refusal("POST", "/hosts/a/slots/99/enable")[:2] == (404, "not_found")
    assert api.refusal("POST", "/hosts/none/drain", json={})[:2] == (404, "not_found")


def test_a_lost_host_is_enabled_only_by_a_command_that_can_reach_it(api, search):
    search.store.hosts.set_state("a", "unreachable")
    status, code, _ = api.refusal("POST", "/hosts/a/enable")
    assert (status, code) == (409, "conflict")


def test_a_trial_is_paused_activated_stopped_and_killed(api, search):
    ticket = search.submit(0, slots=1)
    of = f"/trials/{ticket.trial_id}"
    assert done(api, f"{of}/pause")["trial"]["state"] == "paused"
    assert done(api, f"{of}/activate")["trial"]["state"] == "queued"
    assert api.refusal("POST", f"{of}/activate")[:2] == (409, "conflict")
    done(api, f"{of}/stop")
    done(api, f"{of}/kill")
    view = search.store.trials.get(ticket.trial_id)
    assert (view.stop_requested_by, view.kill_requested_by) == ("ann", "ann")
    assert {dag for _, _, dag, _ in api.logged} == {"d"}


def test_priorities_are_changed_within_their_range(api, search):
    ticket = search.submit(0, slots=1)
    done(api, f"/trials/{ticket.trial_id}", "PATCH", priority=7)
    done(api, f"/experiments/{search.view.experiment_id}", "PATCH", priority=9)
    with search.store.db.engine.connect() as conn:
        assert list(conn.scalars(sa.select(allocations.c.priority))) == [9]
    for wrong in (0, 100, "high"):
        status = api.refusal("PATCH", f"/trials/{ticket.trial_id}", json={"priority": wrong})[0]
        assert status == 422


@pytest.mark.parametrize("rights", [{"hosts": False}, {"editable": ()}])
def test_a_change_needs_the_rights_to_all_of_its_fields(search, rights):
    api, ticket = Api(search.store, **rights), search.submit(0, slots=1)
    for of in (f"/trials/{ticket.trial_id}", f"/experiments/{search.view.experiment_id}"):
        assert api.refusal("PATCH", of, json={"tags": ["a"], "priority": 5})[0] == 403
    assert search.store.attempts.get(ticket.attempt_id).priority == 42
    assert search.store.labels.get("trial", ticket.trial_id).tags == ()
    assert api.logged == []


@pytest.mark.parametrize("action", ["pause", "stop", "kill"])
def test_an_experiment_is_paused_stopped_or_killed(api, search, action):
    search.submit(0, slots=1)
    of = f"/experiments/{search.view.experiment_id}"
    assert done(api, f"{of}/{action}")["experiment"]["control_request"] == action
    assert search.store.experiments.get(search.view.experiment_id).requested_by == "ann"


def test_labels_change_only_what_is_given(api, search):
    of = f"/experiments/{search.view.experiment_id}"
    done(api, of, "PATCH", display_name=" Big run ", tags=["b", "a", "a"])
    row = done(api, of, "PATCH", description="why")["experiment"]
    assert (row["display_name"], row["description"], row["tags"]) == ("Big run", "why", ["a", "b"])
    ticket = search.submit(0)
    assert done(api, f"/trials/{ticket.trial_id}", "PATCH", tags=["t"])["trial"]["tags"] == ["t"]


@pytest.mark.parametrize("tags", [[""], ["a,b"], ["x" * 64], ["\x00"], [str(number) for number in range(21)]])
def test_a_tag_that_is_not_usable_is_refused(api, search, tags):
    of = f"/experiments/{search.view.experiment_id}"
    assert api.refusal("PATCH", of, json={"tags": tags})[:2] == (422, "invalid")


ACTIONS = [
    ("POST", "/trials/{trial}/pause", {}), ("POST", "/trials/{trial}/activate", {}),
    ("POST", "/trials/{trial}/stop", {}), ("POST", "/trials/{trial}/kill", {}),
    ("PATCH", "/trials/{trial}", {"tags": []}),
    ("POST", "/experiments/{experiment}/pause", {}), ("POST", "/experiments/{experiment}/activate", {}),
    ("POST", "/experiments/{experiment}/stop", {}), ("POST", "/experiments/{experiment}/kill", {}),
    ("PATCH", "/experiments/{experiment}", {"tags": []}),
    ("PATCH", "/experiments/{experiment}", {"project": "x"}),
    ("POST", "/experiments/actions", {"action": "tag", "experiment_ids": [1], "tags": ["a"]}),
]  # fmt: skip
OF_HOSTS = [
    ("POST", "/hosts/a/drain", {}), ("POST", "/hosts/a/enable", {}), ("POST", "/hosts/a/disable", {}),
    ("POST", "/hosts/a/slots/0/enable", {}), ("POST", "/hosts/a/slots/0/disable", {}),
    ("PATCH", "/trials/{trial}", {"priority": 5}),
    ("PATCH", "/experiments/{experiment}", {"weight": 2}),
]  # fmt: skip


def statuses(api, search, actions, **headers):
    ids = {"trial": search.submit(0, slots=1).trial_id, "experiment": search.view.experiment_id}
    return {
        api.answer(method, path.format(**ids), json=body, headers=headers).status_code for method, path, body in actions
    }


def test_a_user_who_may_only_read_changes_nothing(search):
    reader = Api(search.store, editable=(), hosts=False, trigger=False)
    assert statuses(reader, search, ACTIONS + OF_HOSTS) == {403}
    assert reader.refusal("POST", "/experiments", json={"config": CONFIG})[:2] == (403, "forbidden")
    assert reader.logged == []
    assert search.store.experiments.get(search.view.experiment_id).control_request is None


def test_a_user_who_may_not_read_the_dag_finds_nothing_to_change(search):
    assert statuses(Api(search.store, readable=()), search, ACTIONS + OF_HOSTS[-2:]) == {404}


def test_a_request_of_another_site_changes_nothing(api, search):
    assert statuses(api, search, ACTIONS + OF_HOSTS, **{"X-Dtrain": "0"}) == {403}
    assert api.refusal("POST", "/hosts/a/drain", json={}, headers={"X-Dtrain": ""})[1] == "cross_site"
    bearer = {"X-Dtrain": "", "Authorization": "Bearer token"}
    assert api.answer("POST", "/hosts/a/drain", json={}, headers=bearer).status_code == 200
    basic = {"X-Dtrain": "", "Authorization": "Basic dXNlcg=="}
    assert api.answer("POST", "/hosts/a/drain", json={}, headers=basic).status_code == 403


def test_a_valid_configuration_has_a_summary(api):
    page = api.answer("POST", "/configs/validate", json={"config": CONFIG}).json()
    assert [one for one in page["problems"] if one["severity"] == "error"] == []
    summary = page["summary"]
    assert (summary["name"], summary["method"], summary["trials"], summary["slots_per_trial"]) == (
        "mine",
        "random",
        3,
        2,
    )
    assert (summary["pool"], summary["fits"]) == ("gpus", True)


def problems(api, text, **body):
    page = api.answer("POST", "/configs/validate", json={"config": text, **body}).json()
    assert page["summary"] is None
    return [(one["path"], one["line"], one["column"]) for one in page["problems"]]


def test_problems_are_at_their_lines(api):
    wrong = CONFIG.replace("max_trials: 3", "max_trials: many").replace("slots_per_trial: 2", "slots: 2")
    assert ("searcher.max_trials", 8, 3) in problems(api, wrong)
    assert ("resources.slots", 10, 25) in problems(api, wrong)
    assert problems(api, "name: [")[0][1] == 2 or problems(api, "name: [")[0][1] == 1
    assert problems(api, "a: 1\nb: {c: !nope 2}\n")[0] == ("b.c", 2, 8)


@pytest.mark.parametrize("named", ["../x.yaml", "/etc/passwd.yaml", "none"])
def test_a_template_is_a_stored_one_and_never_a_file(api, named):
    assert problems(api, CONFIG, template=named)[0][0] == "template"
    assert problems(api, CONFIG + f"template: {named}\n")[0][0] == "template"


def test_a_missing_choice_among_pools_is_a_problem_of_the_configuration(api, search):
    search.store.hosts.add(host("b", slots=8, pool="other"))
    text = "name: mine\nentrypoint: python train.py\nresources: {slots_per_trial: many}\n"
    assert [at for at, *_ in problems(api, text)] == ["resources.slots_per_trial"]
    assert problems(api, text.replace("many", "2")) == [("resources.pool", 3, 1)]


@pytest.mark.parametrize("text", ["", "[1]", "[" * 5000, "a: &a [*a]", "x" * 2_000_000, "\x00", "- " * 10_000])
def test_hostile_texts_are_answered(api, text):
    answer = api.answer("POST", "/configs/validate", json={"config": text})
    assert answer.status_code in (200, 422)


def test_an_experiment_is_started_by_the_dag_with_the_stored_configuration(api, search, monkeypatch):
    started = []
    monkeypatch.setattr(
        "airflow_provider_dtrain.api.routes.configs.trigger",
        lambda conf, user, run_id: started.append((conf, user)) or "run-1",
    )
    page = done(api, "/experiments", config=CONFIG)
    assert (page["dag_id"], page["run_id"]) == ("dtrain_experiment", "run-1")
    ((conf, user),) = started
    assert (user, conf["payload"]) == ("ann", None)
    assert search.store.configs.get(conf["config"]["config_id"]).document["name"] == "mine"
    assert api.logged[-1][:3] == ("experiment_start", "ann", "dtrain_experiment")
    assert "entrypoint" not in str(api.logged)


def test_without_its_dag_an_experiment_is_not_started_and_the_answer_names_the_command(search):
    api = Api(search.store, dag=False)
    status, code, message = api.refusal("POST", "/experiments", json={"config": CONFIG})
    assert (status, code) == (409, "conflict")
    assert "airflow dtrain init" in message


@pytest.fixture
def dags(tmp_path):
    (tmp_path / "dag.py").touch()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    (tmp_path / "out").symlink_to("/")
    return tmp_path


def code(store, dags, line, **body):
    api = Api(store, dag_file=str(dags / "dag.py"))
    page = api.answer("POST", "/configs/validate", json={"config": CONFIG + line, **body}).json()
    errors = [(one["path"], one["message"]) for one in page["problems"] if one["severity"] == "error"]
    assert (page["summary"] is None) == bool(errors)
    return errors or page["summary"]["code"]


def test_the_code_of_a_configuration_is_checked_where_the_server_sees_it(search, dags):
    assert str(dags / "code") in code(search.store, dags, "model_dir: code\n")
    ((path, words),) = code(search.store, dags, "model_dir: cod\n")
    assert (path, f"{dags} has no folder 'cod'" in words) == ("model_dir", True)
    ((path, words),) = code(search.store, dags, "")
    assert (path, "no file 'train.py'" in words) == ("entrypoint", True)


def test_the_code_that_the_server_must_not_read_is_named_as_not_checked(search, dags):
    for line in ("model_dir: out\n", "model_dir: out/etc\n"):
        assert "does not check it" in code(search.store, dags, line)
    for access in ({"trigger": False, "dag_file": str(dags / "dag.py")}, {"dag_file": str(dags / "gone.py")}, {}):
        answer = Api(search.store, **access).answer("POST", "/configs/validate", json={"config": CONFIG})
        assert "does not see it" in answer.json()["summary"]["code"]


def test_an_experiment_without_its_script_is_not_started(search, dags):
    api = Api(search.store, dag_file=str(dags / "dag.py"))
    assert api.refusal("POST", "/experiments", json={"config": CONFIG})[:2] == (422, "invalid")
    assert api.logged == []


def test_a_fork_shows_what_was_written_and_uses_the_code_while_the_store_has_it(api, search, dags):
    search.store.templates.set("base", "scheduling_unit: 7\n", by="ann")
    found = assemble({"scheduling_unit": 7}, load_yaml(CONFIG))
    kept = search.store.configs.put(found.document, origins=found.origins, template="base", template_version=1)
    search.config, search.name, search.view = kept.config_id, "other", None
    search.plan(task="other")
    number = search.view.experiment_id
    assert api.get(f"/experiments/{number}/fork")["code_removed"] is False
    digest = "c0de" * 16
    search.store.payloads.put(digest, b"code")
    search.submit(0, payload=digest)
    source = api.get(f"/experiments/{number}/fork")
    assert (load_yaml(source["yaml"]), source["template"]) == (load_yaml(CONFIG), "base")
    search.store.templates.set("base", "scheduling_unit: 8\n", by="ann")
    source = api.get(f"/experiments/{number}/fork")
    assert (load_yaml(source["yaml"])["scheduling_unit"], source["template"]) == (7, None)
    assert code(search.store, dags, "", fork_of=number) == f"The stored code of experiment {number} ({digest[:12]})."
    with search.store.db.engine.begin() as conn:
        conn.execute(trials.update().values(payload=None))
    source = api.get(f"/experiments/{number}/fork")
    assert (source["payload_digest"], source["code_removed"]) == (None, True)
    assert code(search.store, dags, "model_dir: code\n", fork_of=number).startswith("Folder ")


def test_a_fork_shows_no_secrets(api, search):
    document = {"name": "e", "environment": {"environment_variables": {"API_TOKEN": "hidden-7f3a"}}}
    search.config = search.store.configs.put(document, origins={}).config_id
    search.name = "other"
    search.view = None
    search.plan(task="other")
    source = api.get(f"/experiments/{search.view.experiment_id}/fork")
    assert "hidden-7f3a" not in str(source)
    text = CONFIG + source["yaml"].partition("name: e\n")[2]
    for body in ({}, {"fork_of": search.view.experiment_id}):
        assert problems(api, text, **body) == [("environment.environment_variables.API_TOKEN", 13, 5)]
