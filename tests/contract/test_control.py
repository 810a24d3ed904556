"""Control requests in the process of Airflow and by HTTP: the same answers and effects at both doors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from airflow_provider_dtrain.api.init_dags import OPERATIONS_DAG_ID, DagState
from airflow_provider_dtrain.cli import _in_process
from airflow_provider_dtrain.client.client import Client
from airflow_provider_dtrain.client.control import ServerControl
from airflow_provider_dtrain.core.lifecycle.control import Deadline
from airflow_provider_dtrain.engine.operations.execution import serve
from airflow_provider_dtrain.errors import ConflictError, DtrainError, NotFoundError, UserError
from airflow_provider_dtrain.store.database.tables import allocations, attempts, audit
from airflow_provider_dtrain.store.records.operations import Through
from airflow_provider_dtrain.store.records.pages import Labels
from airflow_provider_dtrain.terminal.control import Control
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.http_api import HttpApi
from tests.support.search_world import Search

pytestmark = [pytest.mark.airflow, pytest.mark.parametrize("url", ["sqlite"], indirect=True)]
CARRIED_OUT = {
    "in process": "The process that followed trial 1 is gone: this command carried it out.",
    "http": "The process that followed trial 1 is gone: run run-1 of the DAG dtrain_operations carries it out.",
}


@pytest.fixture
def search(store):
    store.hosts.add(host("a", slots=8))
    return Search(store)


@pytest.fixture
def api(search, monkeypatch) -> Api:
    """The API of a user whose DAG runs for operations execute them at once."""
    found = Api(search.store, operations=True)

    def trigger(conf: dict, user: str, dag_id: str) -> str:
        serve(found._hook(), search.store.operations.take(conf["operation"], Through.DAG))
        return "run-1"

    monkeypatch.setattr("airflow_provider_dtrain.api.host_work.trigger", trigger)
    return found


@pytest.fixture(params=["in process", "http"])
def door(request) -> str:
    return request.param


@pytest.fixture
def control(door, api, tmp_path, monkeypatch) -> Iterator[Control]:
    if door == "in process":
        monkeypatch.setattr(_in_process, "user", lambda: "ann")
        yield _in_process.control_of(api._hook())
        return
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with HttpApi(api) as server:
        monkeypatch.setenv("DTRAIN_SERVER", server.url)
        monkeypatch.setenv("DTRAIN_TOKEN", "given")
        yield ServerControl(Client().session)


def five_minutes_pass(store) -> None:
    """Set the last signs of life of all followers and waiters back."""
    before = store.db.now() - timedelta(minutes=5)
    with store.db.engine.begin() as conn:
        for table in (attempts, allocations):
            conn.execute(table.update().values(renewed_at=before))


def audited(store) -> set[tuple[str, str, str]]:
    with store.db.engine.connect() as conn:
        return {(row.by, row.action, row.subject) for row in conn.execute(audit.select())}


def test_a_followed_trial_is_paused_activated_stopped_and_killed(control, search):
    search.start(0, slots=1)
    store = search.store
    said = [control.request("trial", 1, verb) for verb in ("pause", "activate", "stop", "kill")]
    assert said == [
        "Trial 1 was asked to release its slots. It has no checkpoint, and its program does not use the library: it "
        "resumes with the files that it has written.",
        "The pause of trial 1 is cancelled: it keeps running. If its ranks have just been asked to stop, it resumes "
        "from there automatically.",
        "Trial 1 was asked to end with its result so far. If it runs, it writes a checkpoint first.",
        "Trial 1 will be stopped on every host by the process that follows it, within seconds.",
    ]
    assert store.trials.get(1).state == "running", "its follower carries it out"
    actions = ("pause requested", "activated", "stop requested", "kill requested")
    assert {("ann", action, "trial 1") for action in actions} <= audited(store)


def test_a_trial_that_waits_is_paused_at_once_and_killed_by_its_waiter(control, search):
    search.submit(0, slots=1)
    assert control.request("trial", 1, "pause") == "Trial 1 is paused. It keeps its place in the queue."
    assert control.request("trial", 1, "activate").endswith("it waits for slots at its place in the queue.")
    with pytest.raises(ConflictError, match="Trial 1 is not paused: queued"):
        control.request("trial", 1, "activate")
    assert "The process that waits for it ends it" in control.request("trial", 1, "kill")


@pytest.mark.parametrize(("verb", "state"), [("stop", "stopped"), ("kill", "killed")])
def test_a_trial_whose_follower_is_gone_is_ended_at_once(control, door, search, verb, state):
    search.submit(0, slots=1)
    five_minutes_pass(search.store)
    assert control.request("trial", 1, verb) == f"The request to {verb} trial 1 is stored. {CARRIED_OUT[door]}"
    assert search.store.trials.get(1).state == state
    with pytest.raises(ConflictError, match=f"Trial 1 has ended already: {state}"):
        control.request("trial", 1, verb)


@pytest.mark.parametrize(("verb", "effect"), [("stop", "asked to end"), ("kill", "killed within seconds")])
def test_trials_of_an_experiment_whose_followers_are_gone_are_ended_at_once(control, door, search, verb, effect):
    search.submit(0, slots=1)
    five_minutes_pass(search.store)
    search.start(1, slots=1)
    said = control.request("experiment", search.view.experiment_id, verb)
    assert said.startswith(f"Experiment 1: 2 trials {effect}")
    assert said.endswith(CARRIED_OUT[door])
    assert [search.store.trials.get(number).state for number in (1, 2)] == [
        {"stop": "stopped", "kill": "killed"}[verb],
        "running",
    ]


def test_a_trial_that_waits_without_a_process_is_paused_without_one(control, search):
    search.submit(0, slots=1)
    five_minutes_pass(search.store)
    assert control.request("trial", 1, "pause") == "Trial 1 is paused. It keeps its place in the queue."


def test_an_experiment_is_paused_and_resumed(control, search):
    search.submit(0, slots=1)
    assert control.request("experiment", 1, "pause").startswith("Experiment 1: 1 trial paused")
    assert search.store.trials.get(1).state == "paused"
    assert control.request("experiment", 1, "activate") == "Experiment 1 is resumed: 1 trial back in the queue."


def test_priority_share_and_labels_are_changed(control, search):
    search.submit(0, slots=4)
    assert control.set("trial", 1, {"priority": 7}) == "Trial 1 has priority 7."
    assert control.set("experiment", 1, {"priority": 9}) == "Experiment 1 has priority 9."
    assert search.store.attempts.get(1).priority == 9
    assert control.set("experiment", 1, {"weight": 2.5, "max_slots": 2}) == (
        "Experiment 1 has weight 2.5, max_slots 2. Warning: trials that request more slots can never start: 1"
    )
    both = control.set("trial", 1, {"display_name": "first", "add_tags": ["a", "b"], "priority": 8})
    assert both == "Trial 1 has priority 8. The labels of trial 1 are changed."
    assert control.set("trial", 1, {"remove_tags": ["a", "c"]}) == "The labels of trial 1 are changed."
    labels = search.store.labels.get("trial", 1)
    assert (labels.display_name, labels.tags) == ("first", ("b",))


@pytest.mark.parametrize(
    ("noun", "change"),
    [
        ("trial", {"priority": 7, "display_name": "first", "add_tags": ["a,b"]}),
        ("trial", {"priority": 7, "display_name": "first", "weight": 2.0}),
        ("trial", {"priority": 7, "max_slots": 2}),
        ("experiment", {"priority": 7, "display_name": "first", "add_tags": ["a,b"]}),
        ("experiment", {"display_name": "first", "priority": 7, "max_slots": -1}),
        ("experiment", {"weight": 2.0, "display_name": "first", "priority": 100}),
    ],
)
def test_a_change_of_which_a_part_is_not_possible_changes_nothing(control, search, noun, change):
    search.submit(0, slots=1)
    with pytest.raises(UserError):
        control.set(noun, 1, change)
    view = search.store.experiments.get(1)
    assert (search.store.attempts.get(1).priority, view.weight, view.max_slots) == (42, 1.0, None)
    assert search.store.labels.get(noun, 1) == Labels()


def test_a_change_without_a_field_is_refused(control, search):
    search.submit(0, slots=1)
    with pytest.raises(UserError, match="Nothing to set"):
        control.set("trial", 1, {})


def test_the_priority_of_a_trial_that_has_ended_is_not_changed(control, search):
    search.end(search.start(0, slots=1))
    with pytest.raises(ConflictError, match="has ended"):
        control.set("trial", 1, {"priority": 7, "display_name": "first"})
    assert search.store.labels.get("trial", 1) == Labels()


def test_a_host_is_drained_enabled_and_disabled(control, search):
    ticket, store = search.start(0, slots=1), search.store
    assert control.drain("a") == "Host 'a' gets no new gangs. Running trials may finish."
    assert (store.hosts.get("a").state, store.hosts.get("a").state_reason) == ("draining", "drained by ann")
    assert control.host("a", "enable") == "Host 'a' gets gangs again."
    assert control.host("a", "disable") == f"Host 'a' is disabled. Trials {ticket.trial_id} are killed."
    assert store.trials.get(ticket.trial_id).kill_requested_by == "ann"
    assert store.hosts.get("a").state == "disabled"
    assert {("ann", f"host {state}", "a") for state in ("draining", "ready", "disabled")} <= audited(store)


def test_a_host_is_evacuated_by_a_deadline_and_a_dry_run_changes_nothing(control, search):
    search.start(0, slots=1, preemptible=True)
    search.start(1, slots=1, preemptible=False)
    store = search.store
    by = store.db.now() + timedelta(hours=2)
    deadline = Deadline(by=by, kills=True)
    expected = control.drain("a", "fan", deadline=deadline, dry_run=True)
    assert store.hosts.get("a").state == "ready"
    assert control.drain("a", "fan", deadline=deadline) == expected
    head, saves, ends = expected.split("\n")
    assert head.startswith("Host 'a' gets no new gangs. It is to be empty by ")
    assert saves.startswith("Trial 1 of 'e' saves at its next step and resumes elsewhere if it has not ended by ")
    assert ends.startswith("Trial 2 of 'e' is ended and starts again if it has not ended by ")
    found = store.hosts.get("a")
    assert (found.state, found.state_reason, found.drain_by, found.drain_kills) == ("draining", "fan", by, True)
    control.host("a", "enable")
    assert store.hosts.get("a").drain_by is None


def test_a_slot_is_disabled_and_enabled(control, search):
    disabled = "Slot 2 of host 'a' is disabled. A trial that holds it continues."
    assert control.host("a", "disable", slot=2) == disabled
    assert [slot.index for slot in search.store.hosts.slots() if not slot.enabled] == [2]
    assert control.host("a", "enable", slot=2) == "Slot 2 of host 'a' is enabled."
    assert all(slot.enabled for slot in search.store.hosts.slots())
    with pytest.raises(NotFoundError):
        control.host("a", "disable", slot=99)


NO_ANSWER = {
    "in process": "Host 'a' stays unreachable: ",
    "http": "On the machine of Airflow: airflow dtrain hosts enable a",
}


def test_a_host_that_does_not_answer_is_not_enabled(control, door, search):
    search.store.hosts.set_state("a", "unreachable")
    with pytest.raises(DtrainError, match=NO_ANSWER[door]):
        control.host("a", "enable")
    assert search.store.hosts.get("a").state == "unreachable"


@pytest.mark.parametrize("noun", ["trial", "experiment"])
def test_what_does_not_exist_is_refused(control, noun):
    for act in (
        lambda: control.request(noun, 99, "kill"),
        lambda: control.request(noun, 99, "pause"),
        lambda: control.set(noun, 99, {"priority": 5}),
        lambda: control.set(noun, 99, {"description": "why"}),
    ):
        with pytest.raises(NotFoundError, match=f"There is no {noun} 99"):
            act()


def test_without_the_dag_the_answer_names_the_command_and_the_request_is_stored(api, search):
    search.submit(0, slots=1)
    five_minutes_pass(search.store)
    api.facts.dags[OPERATIONS_DAG_ID] = DagState(exists=False)
    answer = api.answer("POST", "/trials/1/kill")
    assert answer.status_code == 200
    message = answer.json()["message"]
    assert message.startswith("The request to kill trial 1 is stored. The process that followed trial 1 is gone.")
    assert "Airflow knows no DAG dtrain_operations" in message
    assert message.endswith("Or on the machine of Airflow: airflow dtrain trials kill 1")
    assert search.store.trials.get(1).kill_requested_by == "ann"


def test_a_request_that_no_user_reads_waits_for_its_dag_run_for_an_hour(api, search, monkeypatch):
    search.submit(0, slots=1)
    five_minutes_pass(search.store)
    started: list[int] = []

    def trigger(conf: dict, user: str, dag_id: str) -> str:
        started.append(conf["operation"])
        return "run-1"

    monkeypatch.setattr("airflow_provider_dtrain.api.host_work.trigger", trigger)
    assert api.answer("POST", "/trials/1/kill").status_code == 200
    moment = search.store.db.now()
    monkeypatch.setattr(search.store.db, "now", lambda: moment + timedelta(minutes=50))
    assert api.answer("POST", "/operations/doctor", json={}).status_code == 201
    taken = search.store.operations.take(started[0], Through.DAG)
    assert taken is not None
    serve(api._hook(), taken)
    assert search.store.trials.get(1).state == "killed"
