"""A trial is run again from its record with the rights of the user, and its weights are compared."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.hyperparameters.seeds import trial_seed
from airflow_provider_dtrain.engine.submission.search import plan_search
from airflow_provider_dtrain.engine.submission.submit import config_of, submit
from airflow_provider_dtrain.errors import ConfigError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.secrets import private_variables, seal
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.store.records.submissions import Submission
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey
from testbed.stores import host
from tests.support.api_world import Api, record_triggers
from tests.support.search_world import Search

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.each_change,
    pytest.mark.parametrize("url", ["sqlite"], indirect=True),
]
DAG = "dtrain_experiment"
CODE = "c0de" * 16
SECRET = "hidden-7f3a"  # noqa: S105 - a value that must never be shown
DOCUMENT: dict[str, Any] = {
    "name": "mine",
    "entrypoint": "python train.py",
    "resources": {"slots_per_trial": 1},
    "hyperparameters": {"lr": {"type": "log", "minval": -4, "maxval": -1}},
    "searcher": {
        "name": "async_halving", "metric": "loss", "max_trials": 9, "max_length": {"batches": 16}, "num_rungs": 3,
    },
    "reproducibility": {"experiment_seed": 5},
}  # fmt: skip


@pytest.fixture
def triggered(monkeypatch) -> list[tuple[dict[str, Any], str]]:
    return record_triggers(monkeypatch, "reproductions")


class World:
    """Trials of one experiment of ann, and their records."""

    def __init__(self, store, document: dict[str, Any] = DOCUMENT, *, user: str | None = "id of ann") -> None:
        store.hosts.add(host("a", slots=8))
        store.hosts.add(host("b", slots=8, pool="other"))
        store.payloads.put(CODE, b"code")
        self.store = store
        masked, sealed = seal(document)
        self.search = Search(store, name="mine", dag=DAG, run="original")
        self.search.config = store.configs.put(masked, origins={}, secrets=sealed).config_id
        granted = Submission(dag_id=DAG, run_id="original", config_id=self.search.config, payload=CODE, user_id=user)
        store.submissions.add(granted)
        self.search.plan(seed=5, max_trials=9)

    def trial(self, number: int = 0, **fields: Any) -> Ticket:
        values = {"slots": 1, "hparams": {"lr": 0.5}, "seed": trial_seed(5, number), "payload": CODE, **fields}
        return self.search.start(number, **values)


@pytest.fixture
def world(store) -> World:
    return World(store)


def api_of(store, name: str = "ann", **rights: Any) -> Api:
    return Api(store, name=name, **{"readable": ("mine", DAG), "hosts": False, "connections": (), **rights})


def reproduce(api: Api, trial_id: int, **secrets: str) -> Any:
    given = [{"name": name, "value": value} for name, value in secrets.items()]
    return api.answer("POST", f"/trials/{trial_id}/reproduce", json={"secrets": given})


def weights(step: int, *parts: str, kind: str = "weights", names: list[str] | None = None) -> dict[str, Any]:
    """Return a record whose digest follows from its parts."""
    text = "".join(part * 8 for part in parts)
    body = {"kind": kind, "step": step, "digest": (text * 64)[:64], "tensors": text}
    return body if names is None else {**body, "names": names}


NAMES = ["0.weight", "0.bias"]


# -- the request -----------------------------------------------------------------------------------
def test_a_trial_is_run_again_with_the_record_of_the_original(world, triggered):
    git = {"commit": "a" * 40, "is_clean": True, "problem": ""}
    store, ticket = world.store, world.trial(3, source={"git": git, "bundle": None})
    api = api_of(store)
    found = reproduce(api, ticket.trial_id)
    assert found.status_code == 202, found.text
    ((conf, run_id),) = triggered
    trial = store.trials.get(ticket.trial_id)
    assert conf["payload"] == CODE
    assert conf["config"]["config_id"] == trial.config_id
    assert store.submissions.find(DAG, run_id) == Submission(
        dag_id=DAG,
        run_id=run_id,
        config_id=trial.config_id,
        payload=CODE,
        user_id="id of ann",
        git=git,
        reproduces=ticket.trial_id,
    )
    assert [(event, extra["trial_id"]) for event, _, _, extra in api.logged] == [("trial_reproduce", ticket.trial_id)]


def test_a_trial_is_run_again_by_users_who_may_read_it_and_its_code_and_start_experiments(world, triggered):
    number = world.trial().trial_id
    hidden = reproduce(api_of(world.store, readable=("mine",)), number)
    missing = reproduce(api_of(world.store), 999)
    assert (hidden.status_code, missing.status_code) == (404, 404)
    messages = [one.json()["detail"]["message"] for one in (hidden, missing)]
    assert messages[0].replace(f"trial {number}", "") == messages[1].replace("trial 999", "")
    assert reproduce(api_of(world.store, trigger=False), number).status_code == 403
    refused = reproduce(api_of(world.store, code=False), number)
    assert (refused.status_code, refused.json()["detail"]["message"]) == (
        403,
        f"You may not read the code of DAG '{DAG}'.",
    )
    assert triggered == []


def test_names_in_the_configuration_need_the_rights_of_the_user_who_asks(store, triggered):
    storage = {"type": "s3", "bucket": "b", "conn_id": "aws_prod"}
    number = World(store, {**DOCUMENT, "checkpoint_storage": storage}).trial().trial_id
    refused = reproduce(api_of(store), number)
    assert refused.status_code == 422
    assert "aws_prod" in refused.text
    assert reproduce(api_of(store, connections=("aws_prod",)), number).status_code == 202


def test_a_source_checkpoint_of_a_hidden_trial_is_not_used(store, triggered):
    hidden = Search(store, name="theirs", dag="hidden", run="h")
    source = {**DOCUMENT["searcher"], "source_checkpoint": "trial:1"}
    world = World(store, {**DOCUMENT, "searcher": source})
    hidden.plan(max_trials=1)
    theirs = hidden.start(0, slots=1)
    ticket = world.trial()
    number = theirs.trial_id
    document = {**DOCUMENT, "searcher": {**source, "source_checkpoint": f"trial:{number}"}}
    world.search.config = store.configs.put(document, origins={}).config_id
    own = world.trial(1)
    assert reproduce(api_of(store), own.trial_id).status_code == 422
    assert reproduce(api_of(store, readable=(DAG, "hidden")), own.trial_id).status_code == 202
    assert ticket.trial_id != own.trial_id


def test_a_trial_whose_code_is_gone_is_refused(world, triggered):
    number = world.trial()
    world.search.end(number)
    for _ in world.store.retention.remove(world.store.db.now() + timedelta(days=1)):
        pass
    refused = reproduce(api_of(world.store), number.trial_id)
    assert refused.status_code == 409
    assert "its code was removed from the store" in refused.json()["detail"]["message"]


def test_a_batch_inference_is_refused(store, triggered):
    inference = {"processor": "p:P", "inputs": {"path": "/d"}, "outputs": {"path": "/o"}}
    document = {"name": "i", "resources": {"slots_per_trial": 1}, "inference": inference}
    number = World(store, document).trial().trial_id
    refused = reproduce(api_of(store), number)
    assert refused.status_code == 409
    assert "is a batch inference, which has no weights to compare" in refused.json()["detail"]["message"]


def test_a_trial_without_hyperparameters_is_refused(world, triggered):
    number = world.search.submit(0, hparams=None, payload=CODE).trial_id
    assert "has no hyperparameters yet" in reproduce(api_of(world.store), number).json()["detail"]["message"]
    assert triggered == []


# -- secrets ---------------------------------------------------------------------------------------
PRIVATE = {
    **DOCUMENT,
    "environment": {"variables": {"API_TOKEN": SECRET, "MODE": "fast"}, "public_variables": ["MODE"]},
    "data": {"secrets": {"key": "hidden-9c1b"}},
}


def test_secrets_are_copied_for_the_user_who_submitted_the_trial_alone(store, triggered):
    world = World(store, PRIVATE)
    number = world.trial().trial_id
    assert reproduce(api_of(store), number).status_code == 202
    assert triggered.pop()[0]["config"]["config_id"] == world.search.config
    for other in (api_of(store, "bob"), Api(store, name="root")):
        refused = reproduce(other, number)
        assert refused.status_code == 422
        problems = {one["path"]: one["message"] for one in refused.json()["detail"]["problems"]}
        assert problems.keys() == {"environment.variables.API_TOKEN", "data.secrets.key"}
        assert problems["environment.variables.API_TOKEN"].endswith("Give it again: --secret API_TOKEN")
        assert problems["data.secrets.key"].endswith("Give it again: --secret data.secrets.key")
        assert "hidden" not in refused.text
    assert triggered == []


def test_another_user_gives_the_secrets_again_and_gets_none_of_the_original(store, triggered):
    world = World(store, PRIVATE)
    number = world.trial().trial_id
    bob = api_of(store, "bob")
    given = {"API_TOKEN": "own-1", "data.secrets.key": "own-2"}
    assert reproduce(bob, number, API_TOKEN="own-1").status_code == 422
    found = reproduce(bob, number, **given)
    assert found.status_code == 202, found.text
    stored = store.configs.get(triggered.pop()[0]["config"]["config_id"])
    assert private_variables(stored.secrets) == {"API_TOKEN": "own-1"}
    assert stored.document == store.configs.get(world.search.config).document
    assert "own-" not in str(bob.logged)
    refused = reproduce(bob, number, **given, OTHER="x")
    assert [one["path"] for one in refused.json()["detail"]["problems"]] == ["OTHER"]


@pytest.mark.parametrize(("user", "status"), [(None, 422), ("id of bob", 422), ("id of ann", 202)])
def test_secrets_of_the_command_line_and_of_other_users_are_not_those_of_the_user(store, triggered, user, status):
    number = World(store, PRIVATE, user=user).trial().trial_id
    assert reproduce(api_of(store), number).status_code == status


# -- the plan --------------------------------------------------------------------------------------
@pytest.fixture
def again(world, triggered, tmp_path: Path):
    """Return a function that plans and submits the reproduction of a trial as the tasks do."""
    (tmp_path / "train.py").touch()

    def again(trial_id: int, run: str = "", **changed: Any) -> tuple[Any, Ticket]:
        store = world.store
        hook = DtrainHook(dataclasses.replace(settings(), sql_alchemy_conn=str(store.db.engine.url)))
        hook.__dict__["store"] = store
        assert reproduce(api_of(store), trial_id).status_code == 202
        conf, run_id = triggered.pop()
        key = TrialKey(dag_id=DAG, run_id=run_id, task_id="experiment.plan")
        (planned,) = plan_search(
            hook, key, conf["config"], None, tmp_path, payload=conf["payload"], needs_submission=True
        )
        trial_key = TrialKey(dag_id=DAG, run_id=run_id, task_id="experiment.trial", map_index=0)
        stored = config_of(hook, None, None, tmp_path, trial=planned)
        return planned, submit(hook, stored, key=trial_key, folder=tmp_path, trial=planned)

    return again


def test_the_reproduction_has_the_hyperparameters_the_seed_the_slots_and_the_pool_of_the_original(world, again):
    store, ticket = world.store, world.trial(3)
    planned, ticket_again = again(ticket.trial_id)
    one, other = store.trials.get(ticket.trial_id), store.trials.get(ticket_again.trial_id)
    same = ("seed", "hparams", "number", "config_id", "bracket", "max_restarts")
    assert [getattr(one, name) for name in same] == [getattr(other, name) for name in same]
    views = [store.attempts.get(each.attempt_id) for each in (one, other)]
    # The configuration names no pool, and there are several.
    assert [(view.pool, view.slots, view.payload) for view in views] == [("gpus", 1, CODE)] * 2
    assert planned["rungs"] == [1, 4, 16]
    assert other.experiment == f"trial {ticket.trial_id} of mine, again"
    assert store.searches.get(planned["search_id"]).max_trials == 1


def test_the_reproduction_of_a_trial_that_its_searcher_stopped_ends_at_the_same_rung(world, again):
    first, second = world.trial(0), world.trial(1)
    assert world.search.ask(first, 0, 0.1) == "continue"
    assert world.search.ask(second, 0, 0.2) == "stop"
    planned, ticket = again(second.trial_id)
    assert planned["rungs"] == [1]
    follower = Search(world.store, name="again")
    follower.follow(ticket.attempt_id)
    assert follower.ask(ticket, 0, 0.2) == "complete"


def test_the_plan_is_that_of_a_reproduction_only_with_the_granted_code_and_configuration(world, again, tmp_path):
    ticket = world.trial()
    planned, _ = again(ticket.trial_id)
    submission = next(
        found
        for run in world.store.experiments.list(dag_id=DAG)
        if (found := world.store.submissions.find(DAG, run.run_id)) is not None and found.reproduces is not None
    )
    key = TrialKey(dag_id=DAG, run_id=submission.run_id, task_id="experiment.plan")
    hook = DtrainHook(dataclasses.replace(settings(), sql_alchemy_conn=str(world.store.db.engine.url)))
    hook.__dict__["store"] = world.store
    config = {"config_id": submission.config_id, "digest": "x"}
    for payload in (None, "d" * 64):
        with pytest.raises(ConfigError, match="not those that its user submitted"):
            plan_search(hook, key, config, None, tmp_path, payload=payload, needs_submission=True)
    again_planned = plan_search(hook, key, config, None, tmp_path, payload=CODE, needs_submission=True)
    assert again_planned == [planned]


# -- the comparison --------------------------------------------------------------------------------
@pytest.fixture
def compared(world, again):
    """Return a function that compares the records of two trials, and the answer for the reproduction."""

    def compared(original: list[Any], reproduction: list[Any], *, ends: bool = True) -> dict[str, Any]:
        ticket = world.trial(3)
        world.search.commit(ticket, *original)
        world.search.end(ticket)
        _, other = again(ticket.trial_id)
        follower = Search(world.store, name="again")
        follower.follow(other.attempt_id)
        if reproduction:
            follower.commit(other, *reproduction)
        if ends:
            follower.end(other)
        api = api_of(world.store)
        found = api.get(f"/trials/{other.trial_id}/reproductions")
        assert found["by"] == []
        assert api.get(f"/trials/{ticket.trial_id}/reproductions") == {"of": None, "by": [found["of"]]}
        assert (found["of"]["original_id"], found["of"]["trial_id"]) == (ticket.trial_id, other.trial_id)
        return found["of"]

    return compared


def test_equal_weights_are_equal_and_the_numbers_of_checkpoints_and_steps_are_named(compared):
    records = [
        weights(1, "a", "b", kind="step_weights", names=NAMES), weights(2, "c", "b", kind="step_weights"),
        weights(2, "c", "b", names=NAMES),
    ]  # fmt: skip
    found = compared([*records, weights(3, "c", "d", kind="step_weights")], records)
    assert (found["verdict"], found["checkpoints"], found["steps"], found["step"]) == ("equal", 1, 2, None)
    assert "equal those of trial" in found["text"]
    assert "1 checkpoint and 2 steps were compared, 1 that only one of the trials has were not." in found["text"]
    assert "Data were not compared" in found["text"]


def test_the_first_step_and_tensor_that_differ_are_named(compared):
    steps = [weights(1, "a", "b", kind="step_weights", names=NAMES), weights(2, "c", "b", kind="step_weights")]
    other = [steps[0], weights(2, "c", "d", kind="step_weights"), weights(2, "c", "d", names=NAMES)]
    found = compared([*steps, weights(2, "c", "b", names=NAMES)], other)
    assert (found["verdict"], found["step"], found["tensor"]) == ("differs", 2, "0.bias")
    assert "first at step 2, in tensor 0.bias." in found["text"]


def test_nothing_to_compare_is_not_equal(compared):
    found = compared([weights(1, "a", names=NAMES[:1])], [weights(2, "a", names=NAMES[:1])])
    assert (found["verdict"], found["checkpoints"]) == ("nothing", 0)
    assert found["text"].startswith("Nothing was compared")


def test_a_reproduction_that_runs_is_pending_until_it_differs(compared):
    records = [weights(1, "a", names=NAMES[:1])]
    assert compared(records, records, ends=False)["verdict"] == "pending"


def test_an_answer_is_computed_again_only_after_a_change(world, again):
    ticket = world.trial(3)
    world.search.commit(ticket, weights(1, "a", names=NAMES[:1]))
    world.search.end(ticket)
    _, other = again(ticket.trial_id)
    follower = Search(world.store, name="again")
    follower.follow(other.attempt_id)
    api, path = api_of(world.store), f"/trials/{other.trial_id}/reproductions"

    def verdict(tag: str = "") -> tuple[int, str, str]:
        found = api.answer("GET", path, headers={"If-None-Match": tag})
        known = "" if found.status_code == 304 else found.json()["of"]["verdict"]
        return found.status_code, found.headers["ETag"], known

    status, tag, _ = verdict()
    assert (status, verdict(tag)) == (200, (304, tag, ""))
    follower.commit(other, weights(1, "a", names=NAMES[:1]))
    status, second, known = verdict(tag)
    assert (status, known) == (200, "pending")
    follower.end(other)
    assert verdict(second)[2] == "equal"


def test_a_reproduction_that_runs_and_differs_differs(compared):
    found = compared([weights(1, "a", names=NAMES[:1])], [weights(1, "b", names=NAMES[:1])], ends=False)
    assert (found["verdict"], found["tensor"]) == ("differs", "0.weight")
    assert "On GPUs, this is information" in found["text"]


def test_a_hostile_record_breaks_no_comparison(compared):
    hostile = [
        {"kind": "weights", "step": 2**63 - 1, "digest": "a" * 64, "tensors": "0" * 8, "names": []},
        {"kind": "weights", "step": 1, "digest": "b" * 64, "tensors": "0" * 2048, "names": ["<script>"] * 256},
    ]
    found = compared([weights(1, "a", names=NAMES[:1]), weights(2**63 - 1, "a")], hostile)
    assert (found["verdict"], found["step"], found["tensor"]) == ("differs", 1, None)
    assert "in tensors of another form" in found["text"]


def test_a_trial_that_the_user_may_not_read_is_not_named(world, store):
    own = world.trial(3)
    hidden = Search(store, name="theirs", dag="hidden", run="h")
    hidden.plan(max_trials=1)
    theirs = hidden.start(0, slots=1)
    # Each trial runs the other one again, as far as their submissions say.
    for trial, dag, run in ((theirs, DAG, "again"), (own, "hidden", "h")):
        granted = {"config_id": world.search.config, "payload": CODE, "user_id": None}
        store.submissions.add(Submission(dag_id=dag, run_id=run, reproduces=trial.trial_id, **granted))
    again = Search(store, name="again", dag=DAG, run="again")
    again.plan(max_trials=1)
    other = again.start(0, slots=1)
    assert api_of(store).get(f"/trials/{other.trial_id}/reproductions") == {"of": None, "by": []}
    assert api_of(store).get(f"/trials/{own.trial_id}/reproductions") == {"of": None, "by": []}
    all_rights = Api(store, name="root")
    assert all_rights.get(f"/trials/{other.trial_id}/reproductions")["of"]["original_id"] == theirs.trial_id
    assert [one["trial_id"] for one in all_rights.get(f"/trials/{own.trial_id}/reproductions")["by"]] == [
        theirs.trial_id
    ]
