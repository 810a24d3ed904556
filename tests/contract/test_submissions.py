"""Names of connections, checkpoints and code are used with the rights of the user who requests a DAG run."""

from __future__ import annotations

import dataclasses
import io
import tarfile
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.dags import experiment_dag
from airflow_provider_dtrain.engine.submission.granted import check_planned, check_search
from airflow_provider_dtrain.engine.submission.search import plan_search
from airflow_provider_dtrain.errors import ConfigError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.secrets import private_variables, seal
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.operators.search import PlanTrialsOperator, SelectBestTrialOperator
from airflow_provider_dtrain.operators.trial import TrialOperator
from airflow_provider_dtrain.store.records.submissions import Submission
from airflow_provider_dtrain.store.records.trials import TrialKey
from testbed.stores import host
from tests.support.api_world import Api, record_triggers
from tests.support.search_world import Search
from tests.support.task_facts import task_of

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.each_change,
    pytest.mark.parametrize("url", ["sqlite"], indirect=True),
]
SINGLE = "name: mine\nentrypoint: python train.py\nresources: {pool: gpus, slots_per_trial: 1}\n"
BUCKET = "checkpoint_storage: {type: s3, bucket: b, conn_id: aws_prod}\n"
DAG = "dtrain_experiment"
PLAN = TrialKey(dag_id=DAG, run_id="direct", task_id="experiment.plan")


@pytest.fixture
def triggered(monkeypatch) -> list[tuple[dict[str, Any], str]]:
    return record_triggers(monkeypatch, "configs")


@pytest.fixture
def hidden(store) -> Search:
    """An experiment of a DAG that its users may not read, with a trial that has ended and has a checkpoint."""
    store.hosts.add(host("a", slots=8))
    found = Search(store, name="theirs", dag="hidden")
    document = {"entrypoint": "python train.py", "resources": {"pool": "gpus", "slots_per_trial": 1}}
    found.config = store.configs.put(document, origins={}).config_id
    found.plan(max_trials=1)
    ticket = found.start(0, slots=1)
    found.validate(ticket, loss=0.5)
    found.commit(ticket, {"kind": "checkpoint", "step": 1, "path": "checkpoints/step-1", "removed": []})
    store.checkpoints.add_copy(store.checkpoints.of_trial(ticket.trial_id)[0].checkpoint_id, "/copies/theirs/step-1")
    found.end(ticket)
    return found


def api_of(store, name: str = "ann", **rights: Any) -> Api:
    return Api(store, name=name, **{"readable": ("mine", DAG), "hosts": False, "connections": (), **rights})


def problems(api: Api, config: str, **body: Any) -> dict[str, str]:
    """Return the errors of a configuration that is neither valid nor started."""
    found = api.answer("POST", "/configs/validate", json={"config": config, **body}).json()["problems"]
    errors = {one["path"]: one["message"] for one in found if one["severity"] == "error"}
    status, _, message = api.refusal("POST", "/experiments", json={"config": config, **body})
    assert status == 422
    assert all(path in message for path in errors)
    return errors


def start(api: Api, config: str, **body: Any) -> int:
    return int(api.answer("POST", "/experiments", json={"config": config, **body}).status_code)


# -- the API asks for the rights of the user -------------------------------------------------------
def test_a_connection_is_used_by_users_who_may_read_it(store, hidden, triggered):
    (path,) = problems(api_of(store), SINGLE + BUCKET)
    assert path == "checkpoint_storage.conn_id"
    assert (triggered, store.submissions.find(DAG, "direct")) == ([], None)
    assert start(api_of(store, connections=("aws_prod",)), SINGLE + BUCKET) == 202
    ((conf, run_id),) = triggered
    assert store.submissions.find(DAG, run_id) == Submission(
        dag_id=DAG, run_id=run_id, config_id=conf["config"]["config_id"], payload=None, user_id="id of ann"
    )
    assert "aws_prod" in str(store.configs.get(conf["config"]["config_id"]).document)


def test_a_connection_of_another_team_is_not_used(store, hidden, triggered):
    api = api_of(store, connections=("aws_prod",), team="a")
    api.facts.connection_teams = {"aws_prod": "b"}
    assert list(problems(api, SINGLE + BUCKET)) == ["checkpoint_storage.conn_id"]
    api.facts.connection_teams = {"aws_prod": "a"}
    assert start(api, SINGLE + BUCKET) == 202


def test_a_connection_that_comes_from_a_template_or_a_pool_needs_the_right_too(store, hidden, triggered):
    store.templates.set("bucket", BUCKET, by="root")
    assert list(problems(api_of(store), SINGLE, template="bucket")) == ["checkpoint_storage.conn_id"]
    store.pools.set("gpus", defaults={"checkpoint_storage": {"type": "s3", "bucket": "b", "conn_id": "aws_prod"}})
    assert list(problems(api_of(store), SINGLE)) == ["checkpoint_storage.conn_id"]
    assert triggered == []


def source(named: str) -> str:
    return f"{SINGLE}searcher: {{name: single, metric: loss, source_checkpoint: '{named}'}}\n"


def weights(named: str) -> str:
    inference = f"{{processor: 'p:P', inputs: {{path: /d}}, outputs: {{path: /o}}, weights: '{named}'}}"
    return f"name: mine\nresources: {{pool: gpus, slots_per_trial: 1}}\ninference: {inference}\n"


@pytest.mark.parametrize("text", [source, weights])
@pytest.mark.parametrize("form", ["trial:{}", "trial:{}:latest", "trial:{}:1"])
def test_a_checkpoint_of_a_hidden_trial_looks_like_one_that_does_not_exist(store, hidden, triggered, text, form):
    ((_, theirs),) = problems(api_of(store), text(form.format(1))).items()
    ((_, missing),) = problems(api_of(store), text(form.format(999))).items()
    assert theirs.replace("trial 1", "") == missing.replace("trial 999", "")
    assert start(api_of(store, readable=("hidden", DAG)), text(form.format(1))) == 202


@pytest.mark.parametrize("named", ["/copies/theirs/step-1", "/copies/theirs/step-1/", "/var/lib/airflow/copy"])
def test_a_path_is_used_if_a_trial_that_the_user_may_read_wrote_it(store, hidden, triggered, named):
    assert list(problems(api_of(store), source(named))) == ["searcher.source_checkpoint"]
    may = start(api_of(store, readable=("hidden", DAG)), source(named))
    assert may == (202 if "theirs" in named else 422)


def test_the_name_of_a_hidden_experiment_names_no_weights(store, hidden, triggered):
    ((_, theirs),) = problems(api_of(store), weights("experiment:theirs")).items()
    ((_, missing),) = problems(api_of(store), weights("experiment:nothing")).items()
    assert theirs.replace("theirs", "") == missing.replace("nothing", "")
    assert list(problems(api_of(store), weights("experiment:1"))) == ["inference.weights"]
    assert start(api_of(store, readable=("hidden", DAG)), weights("experiment:theirs")) == 202
    stored = store.configs.get(triggered[0][0]["config"]["config_id"]).document
    assert stored["inference"]["weights"] == "trial:1:best"


@pytest.mark.parametrize("folder", ["/etc", "../airflow", "code/../../etc"])
def test_code_is_below_the_folder_of_the_dag(store, hidden, triggered, folder):
    assert list(problems(api_of(store), f"{SINGLE}model_dir: {folder}\n")) == ["model_dir"]


COLLECTED = """\
name: mine
resources: {pool: gpus, slots_per_trial: 1}
inference: {processor: 'p:P', inputs: {path: /d}, outputs: {path: /opt/airflow/dags, overwrite: true}, collect: true}
"""


def test_results_are_written_to_no_folder_of_the_airflow_machine(store, hidden, triggered):
    assert list(problems(api_of(store), COLLECTED)) == ["inference.collect"]


# -- code ------------------------------------------------------------------------------------------
def archive() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("train.py"), io.BytesIO(b""))
    return out.getvalue()


def test_code_is_used_by_the_users_who_have_sent_it(store, hidden, triggered):
    bob, ann, content = api_of(store, "bob"), api_of(store, "ann"), archive()
    digest = bob.answer("POST", "/code", content=content).json()["digest"]
    assert bob.answer("GET", f"/code/{digest}").status_code == 200
    assert ann.refusal("GET", f"/code/{digest}")[0] == 404
    assert list(problems(ann, SINGLE, payload=digest)) == ["payload"]
    assert start(bob, SINGLE, payload=digest) == 202
    assert ann.answer("POST", "/code", content=content).json()["digest"] == digest
    assert start(ann, SINGLE, payload=digest) == 202


def test_code_that_was_removed_is_sent_again(store, hidden):
    api = api_of(store)
    digest = api.answer("POST", "/code", content=archive()).json()["digest"]
    assert [one.kind for one in store.retention.remove(store.db.now() + timedelta(days=1))].count("payloads") == 1
    assert api.refusal("GET", f"/code/{digest}")[0] == 404
    store.payloads.put(digest, archive())
    assert api.refusal("GET", f"/code/{digest}")[0] == 404


def test_the_code_of_a_fork_needs_the_right_to_read_code_and_no_other_fork_gives_it(store, hidden, triggered):
    mine = Search(store, name="mine", dag="mine")
    mine.plan(task="plan", max_trials=1)
    digest = "c0de" * 16
    store.payloads.put(digest, b"code")
    mine.submit(0, payload=digest)
    number = mine.view.experiment_id
    assert start(api_of(store), SINGLE, fork_of=number) == 202
    assert triggered[-1][0]["payload"] == digest
    assert start(api_of(store, code=False), SINGLE, fork_of=number) == 202
    assert triggered[-1][0]["payload"] is None
    assert api_of(store, code=False).get(f"/experiments/{number}/fork")["payload_digest"] is None
    assert list(problems(api_of(store, code=False), SINGLE, fork_of=number, payload=digest)) == ["payload"]
    assert api_of(store).refusal("POST", "/experiments", json={"config": SINGLE, "fork_of": 1})[0] == 404


# -- secrets of a fork -----------------------------------------------------------------------------
def test_secrets_go_to_a_fork_of_the_user_who_submitted_them_and_of_no_other_user(store, hidden, triggered):
    secret = f"{SINGLE}environment: {{variables: {{API_TOKEN: hidden-7f3a}}}}\n"
    masked = secret.replace("hidden-7f3a", "'********'")
    bob = api_of(store, "bob")
    assert start(bob, secret) == 202
    conf, run_id = triggered.pop()
    theirs = Search(store, name="b", dag=DAG, run=run_id)
    theirs.config = conf["config"]["config_id"]
    number = theirs.plan(max_trials=1).experiment_id
    assert start(bob, masked, fork_of=number) == 202
    kept = store.configs.get(triggered.pop()[0]["config"]["config_id"])
    assert private_variables(kept.secrets) == {"API_TOKEN": "hidden-7f3a"}
    # Equal rights, or those of an administrator, do not matter: code can show all secrets that it gets.
    for other in (api_of(store, "ann"), Api(store, name="root")):
        assert list(problems(other, masked, fork_of=number)) == ["environment.variables.API_TOKEN"]
    assert triggered == []


def test_secrets_of_a_dag_file_go_to_no_fork(store, hidden, triggered):
    document, sealed = seal({"name": "e", "environment": {"variables": {"API_TOKEN": "hidden-7f3a"}}})
    mine = Search(store, name="mine", dag="mine")
    mine.config = store.configs.put(document, origins={}, secrets=sealed).config_id
    number = mine.plan(max_trials=1).experiment_id
    masked = f"{SINGLE}environment: {{variables: {{API_TOKEN: '********'}}}}\n"
    assert list(problems(api_of(store), masked, fork_of=number)) == ["environment.variables.API_TOKEN"]


# -- the tasks accept what was granted -------------------------------------------------------------
@pytest.fixture
def hook(store, tmp_path: Path) -> DtrainHook:
    store.hosts.add(host("b", slots=1, pool="other"))
    (tmp_path / "train.py").touch()
    found = DtrainHook(dataclasses.replace(settings(), sql_alchemy_conn=str(store.db.engine.url)))
    found.__dict__["store"] = store
    return found


def plan(hook: DtrainHook, folder: Path, key: TrialKey, config: Any, *, strict: bool = True, **given: Any) -> Any:
    given = {"template": None, "payload": None, **given}
    template = given.pop("template")
    return plan_search(hook, key, config, template, folder, needs_submission=strict, **given)


def refused(hook: DtrainHook, folder: Path, config: Any, key: TrialKey = PLAN, **given: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan(hook, folder, key, config, **given)
    assert not [one for one in hook.store.experiments.list() if one.dag_id == DAG]
    return [one.path for one in caught.value.problems]


def test_a_run_that_was_triggered_in_airflow_gets_no_connection_no_checkpoint_and_no_code(hook, hidden, tmp_path):
    sealed = hook.store.configs.put({"name": "theirs", "entrypoint": "python train.py"}, origins={})
    hook.store.payloads.put("c0de" * 16, b"code")
    hook.store.templates.set("bucket", BUCKET, by="root")
    (tmp_path / "other.yaml").write_text(SINGLE)
    stored = {"config_id": sealed.config_id, "digest": sealed.digest}
    assert refused(hook, tmp_path, stored) == ["config"]
    assert refused(hook, tmp_path, SINGLE, payload="c0de" * 16) == ["payload"]
    assert refused(hook, tmp_path, "other.yaml") == ["config"]
    assert refused(hook, tmp_path, SINGLE, template="other.yaml") == ["template"]
    assert refused(hook, tmp_path, SINGLE + BUCKET) == ["checkpoint_storage.conn_id"]
    assert refused(hook, tmp_path, SINGLE, template="bucket") == ["checkpoint_storage.conn_id"]
    for named in ("trial:1", "/copies/theirs/step-1", "s3://b/step-1"):
        assert refused(hook, tmp_path, source(named)) == ["searcher.source_checkpoint"]
        assert refused(hook, tmp_path, weights(named)) == ["inference.weights"]
    assert refused(hook, tmp_path, weights("experiment:theirs")) == ["inference.weights"]
    assert refused(hook, tmp_path, COLLECTED) == ["inference.collect"]
    assert refused(hook, tmp_path, f"{SINGLE}model_dir: {tmp_path}\n") == ["model_dir"]
    hook.store.pools.set("gpus", defaults={"checkpoint_storage": {"type": "s3", "bucket": "b", "conn_id": "aws_prod"}})
    assert refused(hook, tmp_path, SINGLE) == ["checkpoint_storage.conn_id"]


def test_a_run_that_was_triggered_in_airflow_runs_a_configuration_without_such_names(hook, tmp_path):
    assert len(plan(hook, tmp_path, PLAN, SINGLE.replace("gpus", "other"))) == 1


def test_a_dag_file_keeps_the_rights_of_its_author(hook, hidden, tmp_path):
    key = dataclasses.replace(PLAN, dag_id="own")
    assert plan(hook, tmp_path, key, SINGLE + BUCKET, strict=False)
    theirs = hook.store.configs.put({"entrypoint": "python train.py"}, origins={})
    stored = {"config_id": theirs.config_id, "digest": theirs.digest}
    assert plan(hook, tmp_path, key, stored, strict=False, name="again", payload="c0de" * 16)


def test_a_run_uses_what_its_submission_grants_and_nothing_else(hook, hidden, triggered, tmp_path):
    api = api_of(hook.store, connections=("aws_prod",))
    digest = api.answer("POST", "/code", content=archive()).json()["digest"]
    assert start(api, SINGLE + BUCKET, payload=digest) == 202
    conf, run_id = triggered.pop()
    assert start(api, SINGLE) == 202
    other = triggered.pop()[0]
    key = dataclasses.replace(PLAN, run_id=run_id)
    for given in (other, {**conf, "payload": None}, {**conf, "payload": "c0de" * 16}, {**other, "payload": digest}):
        assert refused(hook, tmp_path, given["config"], key, payload=given["payload"]) == ["config"]
    assert refused(hook, tmp_path, SINGLE + BUCKET, key, payload=digest) == ["config"]
    # Another run, or another DAG, has not this submission.
    for wrong in (PLAN, dataclasses.replace(key, dag_id="own")):
        assert refused(hook, tmp_path, conf["config"], wrong, payload=digest) == ["config", "payload"]
    (trial,) = plan(hook, tmp_path, key, conf["config"], payload=digest)
    assert trial["payload"] == digest
    # A retry, and a clear by another user, run the same configuration with the same code.
    assert plan(hook, tmp_path, key, conf["config"], payload=digest) == [trial]
    (again,) = plan(hook, tmp_path, dataclasses.replace(key, max_tries=1), conf["config"], payload=digest)
    first, second = (hook.store.searches.get(one["search_id"]) for one in (trial, again))
    assert (second.generation, second.seed) == (2, first.seed)
    documents = [hook.store.configs.get(one.config_id).document for one in (first, second)]
    assert documents[0]["checkpoint_storage"] == documents[1]["checkpoint_storage"]


def test_a_trial_of_an_edited_xcom_is_refused(hook, hidden, triggered, tmp_path):
    assert start(api_of(hook.store), SINGLE) == 202
    conf, run_id = triggered.pop()
    key = dataclasses.replace(PLAN, run_id=run_id)
    (trial,) = plan(hook, tmp_path, key, conf["config"])
    theirs = hidden.view.search_id
    check_planned(hook.store, key, trial)
    assert start(api_of(hook.store, "bob"), SINGLE) == 202
    conf, run_id = triggered.pop()
    (of_bob,) = plan(hook, tmp_path, dataclasses.replace(PLAN, run_id=run_id), conf["config"])
    for edited in (
        {**trial, "search_id": theirs},
        {**trial, "search_id": None},
        {**trial, "payload": "c0de" * 16},
        None,
    ):
        with pytest.raises(ConfigError):
            check_planned(hook.store, key, edited)
    check_search(hook.store, key, trial["search_id"])
    for wrong in (of_bob["search_id"], theirs, None, str(trial["search_id"])):
        with pytest.raises(ConfigError):
            check_search(hook.store, key, wrong)


def test_each_task_of_the_dag_that_starts_experiments_asks_for_a_submission(store):
    tasks = experiment_dag().task_dict
    for name in ("experiment.plan", "experiment.best"):
        assert tasks[name].needs_submission is True
    assert tasks["experiment.trial"].partial_kwargs["needs_submission"] is True


@pytest.mark.parametrize("strict", [True, False])
def test_the_operators_ask_as_they_are_told(hook, hidden, tmp_path, monkeypatch, strict):
    monkeypatch.setattr("airflow_provider_dtrain.hooks.dtrain.DtrainHook", lambda: hook)
    monkeypatch.setattr("airflow_provider_dtrain.operators.search.note_pages", lambda *_, **__: None)
    ti = SimpleNamespace(dag_id=DAG, run_id="direct", task_id="t", map_index=0, max_tries=0)
    context: Any = {"ti": ti, "dag": SimpleNamespace(fileloc=f"{tmp_path}/dag.py"), "outlet_events": {}}
    theirs = [{"search_id": hidden.view.search_id, "number": 0, "payload": None}]
    planned = PlanTrialsOperator(task_id="p", config=SINGLE + BUCKET, needs_submission=strict)
    best = SelectBestTrialOperator(task_id="b", plan=theirs, needs_submission=strict)
    trial = TrialOperator(task_id="t", trial=theirs[0], needs_submission=strict)
    key = dataclasses.replace(PLAN, task_id="t", map_index=0)
    for run in (
        lambda: planned.execute(context),
        lambda: best.execute(context),
        lambda: trial._submit(hook, task_of(key, tmp_path)),
    ):
        if strict:
            with pytest.raises(Exception, match="checkpoint_storage.conn_id|search_id"):
                run()
        else:
            run()
