"""Operations: work on hosts that users request through the API, from the request to its content."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from airflow_provider_dtrain.api.init_dags import OPERATIONS_DAG_ID, DagState
from airflow_provider_dtrain.client.answers import Checks, Nothing
from airflow_provider_dtrain.client.client import Client
from airflow_provider_dtrain.client.main import main
from airflow_provider_dtrain.client.operations import ServerOperations
from airflow_provider_dtrain.client.reconnection import Patience
from airflow_provider_dtrain.core.redaction import Redactor
from airflow_provider_dtrain.engine.operations.execution import PIECE_BYTES, _Content, serve
from airflow_provider_dtrain.engine.operations.follower import serving
from airflow_provider_dtrain.engine.operations.ranks import NotWantedError, exec_in_rank
from airflow_provider_dtrain.errors import ConflictError, NotFoundError, UserError
from airflow_provider_dtrain.store import operations as of_store
from airflow_provider_dtrain.store.database.tables import operation_pieces
from airflow_provider_dtrain.store.records.operations import STORE_MOST, USER_MOST, OperationKind, Through
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.http_api import HttpApi
from tests.support.search_world import Search

pytestmark = [pytest.mark.airflow]


@pytest.fixture
def search(store):
    store.hosts.add(host("a", slots=4))
    return Search(store)


def requested(
    store, *, by: str = "ann", through: Through = Through.DAG, kind: OperationKind = OperationKind.PROBE
) -> int:
    return store.operations.request(kind, None, {"hosts": []}, by=by, through=through)


def pieces(store) -> int:
    with store.db.engine.connect() as connection:
        return len(connection.execute(operation_pieces.select()).all())


def test_content_is_read_by_its_offset_and_then_removed(store):
    number = requested(store)
    assert store.operations.take(number, Through.FOLLOWER) is None
    assert store.operations.take(number, Through.DAG).operation_id == number
    assert store.operations.take(number, Through.DAG) is None
    assert store.operations.write(number, 0, b"abcd") == 4
    assert store.operations.write(number, 4, b"efgh") == 8
    assert store.operations.write(number, 4, b"a second writer") is None
    assert store.operations.read(number, 0, 3) == b"abc"
    assert store.operations.read(number, 3, 100) == b"defgh"
    assert store.operations.read(number, 3, 100) == b"defgh"
    assert store.operations.read(number, 6, 100) == b"gh"
    assert (pieces(store), store.operations.unread_bytes(number)) == (1, 2)
    with pytest.raises(ConflictError, match="has bytes 6 to 8, not byte 5"):
        store.operations.read(number, 5, 1)
    with pytest.raises(ConflictError):
        store.operations.read(number, 9, 1)
    store.operations.done(number, {"end": 8})
    assert store.operations.write(number, 8, b"late") is None
    assert store.operations.read(number, 8, 100) == b""
    assert pieces(store) == 0
    store.operations.failed(number, "too late")
    assert (store.operations.get(number).state, store.operations.get(number).error) == ("done", None)


def test_users_have_few_operations_at_one_time(store):
    first = requested(store)
    for _ in range(USER_MOST - 1):
        requested(store)
    with pytest.raises(ConflictError, match=f"You have {USER_MOST} requests to hosts"):
        requested(store)
    store.operations.failed(first, "cancelled")
    requested(store)
    for number in range(STORE_MOST - USER_MOST):
        requested(store, by=f"user {number}")
    with pytest.raises(ConflictError, match="All users together have"):
        requested(store, by="bob")


def test_an_operation_fails_when_its_process_is_silent_and_ends_when_its_reader_has_gone(store, monkeypatch):
    moment = store.db.now()
    monkeypatch.setattr(store.db, "clock", lambda: moment)
    number = requested(store)
    assert store.operations.take(number, Through.DAG) is not None
    store.operations.write(number, 0, b"x")
    moment += of_store.SILENT - timedelta(seconds=1)
    assert store.operations.poll(number).state == "running"
    assert store.operations.beat(number)
    moment += of_store.READER_LOST + timedelta(seconds=1)
    assert not store.operations.beat(number)
    assert store.operations.poll(number).error == "the process that executed it has not answered for 60 s"
    moment += of_store.READER_LOST + timedelta(seconds=1)
    requested(store)
    assert pieces(store) == 0
    moment += of_store.KEPT
    requested(store)
    with pytest.raises(NotFoundError):
        store.operations.get(number)


def test_control_requests_take_no_place_of_others_and_need_no_reader(store, monkeypatch):
    moment = store.db.now()
    monkeypatch.setattr(store.db, "clock", lambda: moment)
    for _ in range(USER_MOST - 1):
        requested(store, kind=OperationKind.CONTROL)
    number = requested(store, kind=OperationKind.CONTROL)
    with pytest.raises(ConflictError, match="You have"):
        requested(store, kind=OperationKind.CONTROL)
    requested(store)
    store.operations.take(number, Through.DAG)
    for _ in range(150):
        moment += of_store.SILENT - timedelta(seconds=1)
        assert store.operations.beat(number)
    requested(store, kind=OperationKind.CONTROL)
    assert store.operations.get(number).state == "running"
    assert store.operations.get(number - 1).error == "no DAG run carried it out in time"
    moment += of_store.SILENT + timedelta(seconds=1)
    requested(store, kind=OperationKind.CONTROL)
    assert store.operations.get(number).error == "the process that executed it has not answered for 60 s"


def test_content_waits_in_the_store_for_a_slow_reader_and_ends_with_it(store, monkeypatch):
    monkeypatch.setattr("airflow_provider_dtrain.engine.operations.execution.WINDOW_BYTES", 2 * PIECE_BYTES)
    number = requested(store)
    store.operations.take(number, Through.DAG)
    whole = bytes(range(256)) * (5 * PIECE_BYTES // 256) + b"end"
    content = _Content(store, number, lambda: True, Redactor())
    writer = threading.Thread(target=content.put, args=(whole,))
    writer.start()
    found, most = b"", 0
    while len(found) < len(whole):
        found += store.operations.read(number, len(found), 3 * PIECE_BYTES)
        most = max(most, pieces(store))
    writer.join()
    assert found == whole
    assert most <= 3
    with pytest.raises(NotWantedError):
        _Content(store, number, lambda: False, Redactor()).put(whole)


# -- the API and the client ----------------------------------------------------------------------


@pytest.fixture
def executed(store, monkeypatch) -> list[dict]:
    """Let a run of the DAG execute its operation at once, in a thread."""
    found: list[dict] = []

    def trigger(conf: dict, user: str, dag_id: str) -> str:
        found.append({**conf, "user": user, "dag_id": dag_id})
        taken = store.operations.take(conf["operation"], Through.DAG)
        threading.Thread(target=serve, args=(api_of(store)._hook(), taken)).start()
        return "run-1"

    monkeypatch.setattr("airflow_provider_dtrain.api.host_work.trigger", trigger)
    return found


def api_of(store, **rights) -> Api:
    return Api(store, **{"operations": True, **rights})


@pytest.fixture
def server(store, tmp_path, monkeypatch) -> Iterator[HttpApi]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with HttpApi(api_of(store)) as found:
        monkeypatch.setenv("DTRAIN_SERVER", found.url)
        monkeypatch.setenv("DTRAIN_TOKEN", "given")
        yield found


def test_a_run_of_the_dag_executes_what_a_user_requests(server, store, search, executed, capsys):
    assert main(["doctor", "-o", "plain"]) == 1
    shown = capsys.readouterr()
    assert "by run run-1 of the DAG dtrain_operations" in shown.err
    assert "host a" in shown.out
    capsys.readouterr()
    assert main(["hosts", "probe", "a", "-o", "json"]) == 1
    assert store.hosts.get("a").state == "unreachable"
    # The client has a record for these rows, so a new column needs a field there.
    (sent,) = store.operations.get(executed[-1]["operation"]).result["rows"]
    assert json.loads(capsys.readouterr().out)[0].keys() == sent.keys()
    search.submit(0, slots=2)
    assert main(["trials", "stack", "1"]) == 3
    assert "Trial 1 has no running ranks: its attempt 1 is waiting" in capsys.readouterr().err
    assert [one["user"] for one in executed] == ["ann"] * 3
    with pytest.raises(ConflictError, match="no running ranks"):
        Client().trials.get(1).stacks()


def test_the_store_keeps_nothing_of_what_a_client_has_received(server, store, search, monkeypatch):
    search.submit(0, slots=2)
    content = bytes(range(256)) * 9000

    def trigger(conf: dict, user: str, dag_id: str) -> str:
        store.operations.take(conf["operation"], Through.DAG)
        for start in range(0, len(content), PIECE_BYTES):
            store.operations.write(conf["operation"], start, content[start : start + PIECE_BYTES])
        store.operations.done(conf["operation"], {"name": "step-1"})
        return "run-1"

    monkeypatch.setattr("airflow_provider_dtrain.api.host_work.trigger", trigger)
    received: list[bytes] = []
    session = Client().session
    operations = ServerOperations(session, Patience(session, print))
    body = {"trial_id": 1, "checkpoint_id": 1}
    assert operations.run(Nothing, "checkpoint", body, put=received.append) == Nothing()
    assert b"".join(received) == content
    assert pieces(store) == 0


def test_a_follower_executes_what_it_can_and_the_dag_the_rest(server, store, search, executed, monkeypatch, capsys):
    search.start(0, slots=2)
    with serving(api_of(store)._hook(), 1, Redactor):
        assert main(["trials", "stack", "1"]) == 1
    assert "No stacks of the ranks on host 'a'" in capsys.readouterr().err
    assert not executed
    monkeypatch.setattr("airflow_provider_dtrain.client.operations.FOLLOWER_S", 0.0)
    assert main(["trials", "stack", "1"]) == 1
    assert [one["dag_id"] for one in executed] == ["dtrain_operations"]


def test_a_page_that_is_opened_again_waits_for_the_same_copy_of_a_log(search):
    search.submit(0, slots=2)
    api, body = Api(search.store), {"trial_id": 1, "keep": True, "through": "follower"}
    first = api.answer("POST", "/operations/log", json=body).json()["operation_id"]
    for _ in range(2 * USER_MOST):
        assert api.answer("POST", "/operations/log", json=body).json()["operation_id"] == first
    other = api.answer("POST", "/operations/log", json={**body, "rank": 1}).json()["operation_id"]
    bobs = Api(search.store, name="bob").answer("POST", "/operations/log", json=body).json()["operation_id"]
    bytes_ = api.answer("POST", "/operations/log", json={**body, "keep": False}).json()["operation_id"]
    assert len({first, other, bobs, bytes_}) == 4
    api.answer("DELETE", f"/operations/{first}")
    assert api.answer("POST", "/operations/log", json=body).json()["operation_id"] not in (first, other, bobs, bytes_)


def test_without_follower_and_dag_the_answer_gives_the_command(search):
    search.submit(0, slots=2)
    api = Api(search.store)
    for kind, body, command in (
        ("log", {"trial_id": 1, "rank": 2, "start": 5, "end": 9}, "trials logs 1 --rank 2 --from 5 --to 9"),
        ("stacks", {"trial_id": 1}, "trials stack 1"),
        ("profile", {"trial_id": 1}, "trials trace 1"),
        ("outputs", {"trial_id": 1}, "trials download 1"),
        ("probe", {"hosts": ["a"]}, "hosts probe a"),
    ):
        status, code, message = api.refusal("POST", f"/operations/{kind}", json=body)
        assert (status, code) == (409, "conflict")
        assert "airflow dtrain init" in message
        assert message.endswith(f"airflow dtrain {command}")


@pytest.mark.parametrize(
    ("state", "step"),
    [
        (DagState(exists=False), "airflow dtrain init"),
        (DagState(exists=True, is_paused=True), "airflow dags unpause dtrain_operations"),
        (DagState(exists=True, is_broken=True), "has import errors"),
    ],
    ids=["missing", "paused", "broken"],
)
def test_a_dag_that_cannot_run_is_named_with_the_next_step_and_the_command(search, monkeypatch, state, step):
    search.submit(0, slots=2)
    monkeypatch.setenv("AIRFLOW__DTRAIN__ALLOW_EXEC", "True")
    api = Api(search.store, operations=state)
    for kind, body, command in (
        ("exec", {"trial_id": 1, "rank": 2, "argv": ["ls", "a b"]}, "trials exec 1 --rank 2 --timeout 60 -- ls 'a b'"),
        ("outputs", {"trial_id": 1, "list_only": True}, "trials outputs 1"),
        ("checkpoint", {"trial_id": 1, "checkpoint_id": 3}, "trials checkpoints 1"),
        ("doctor", {}, "doctor"),
    ):
        message = api.refusal("POST", f"/operations/{kind}", json=body)[2]
        assert step in message
        assert message.endswith(f"\nOr on the machine of Airflow: airflow dtrain {command}")


def test_a_dag_run_that_airflow_refuses_is_answered_with_the_command(search, monkeypatch):
    def refuse(conf: dict, user: str, dag_id: str) -> str:
        raise ConflictError(f"The DAG {dag_id} has not the parameters of the one that the provider writes.")

    monkeypatch.setattr("airflow_provider_dtrain.api.host_work.trigger", refuse)
    status, code, message = api_of(search.store).refusal("POST", "/operations/doctor", json={})
    assert (status, code) == (409, "conflict")
    assert message.startswith("The DAG dtrain_operations has not the parameters")
    assert message.endswith("Or on the machine of Airflow: airflow dtrain doctor")


def test_a_dag_that_is_paused_after_the_request_ends_it_and_a_late_run_is_named(server, store, monkeypatch, capsys):
    routes = "airflow_provider_dtrain.api.routes.operations"
    monkeypatch.setattr("airflow_provider_dtrain.api.host_work.trigger", lambda conf, user, dag_id: "run-9")
    monkeypatch.setattr(f"{routes}.run_state", lambda dag_id, run: "queued")
    monkeypatch.setattr("airflow_provider_dtrain.client.operations.QUIET_S", 0.0)
    facts = server.api.facts
    polls = iter(range(20))

    def pause(_: float) -> None:
        assert next(polls, None) is not None, "the request does not end"
        monkeypatch.setattr(f"{routes}.RUN_CHECK", timedelta(seconds=-1))
        facts.dags[OPERATIONS_DAG_ID] = DagState(exists=True, is_paused=True)

    operations = ServerOperations(Client().session, Patience(Client().session, print), notify=print, sleep=pause)
    with pytest.raises(UserError) as caught:
        operations.run(Checks, "doctor", {})
    assert capsys.readouterr().out.count("Run run-9 has not begun. Check that Airflow's scheduler runs") == 1
    assert "airflow dags unpause dtrain_operations" in str(caught.value)
    assert str(caught.value).endswith("Or on the machine of Airflow: airflow dtrain doctor")


def test_a_command_needs_the_option_and_both_rights_and_is_logged(search, executed, monkeypatch):
    search.submit(0, slots=2)
    body = {"trial_id": 1, "rank": 0, "argv": ["rm", "a b"], "timeout_s": 5}
    for rights, words in (({"editable": ()}, "edit runs of DAG"), ({"hosts": False}, "change hosts")):
        status, _, message = api_of(search.store, **rights).refusal("POST", "/operations/exec", json=body)
        assert status == 403
        assert words in message
    api = api_of(search.store)
    status, _, message = api.refusal("POST", "/operations/exec", json=body)
    assert (status, message) == (409, "Commands in the environment of ranks are off.")
    assert api.logged == [("exec", "ann", "d", {"trial_id": 1, "rank": 0, "command": "rm 'a b'"})]
    assert not executed
    # The worker has the option too, and its own word is the last one.
    monkeypatch.setenv("AIRFLOW__DTRAIN__ALLOW_EXEC", "True")
    assert api.answer("POST", "/operations/exec", json=body).status_code == 201
    assert len(executed) == 1


def test_the_process_that_runs_a_command_checks_the_option_and_the_limit(search):
    hook = api_of(search.store)._hook()
    with pytest.raises(UserError, match="are off. To allow them, set"):
        exec_in_rank(hook, 1, 0, ["true"], 5, by="ann")
    hook.settings = dataclasses.replace(hook.settings, allow_exec=True)
    with pytest.raises(UserError, match="from 1 to 3600, got 3601"):
        exec_in_rank(hook, 1, 0, ["true"], 3601, by="ann")


def test_only_its_user_reads_an_operation_and_only_while_the_user_has_the_rights(search):
    search.submit(0, slots=2)
    store = search.store
    number = store.operations.request(OperationKind.LOG, 1, {}, by="ann", through=Through.FOLLOWER)
    assert api_of(store).get(f"/operations/{number}")["state"] == "waiting"
    for rights in ({"name": "bob"}, {"readable": ()}):
        assert api_of(store, **rights).refusal("GET", f"/operations/{number}/content")[0] == 404
        assert api_of(store, **rights).refusal("DELETE", f"/operations/{number}")[0] == 404
    assert api_of(store, logs=False).refusal("GET", f"/operations/{number}")[0] == 403
    assert api_of(store).answer("DELETE", f"/operations/{number}").json()["error"] == "ann cancelled it"


def test_a_dag_run_that_ends_without_taking_its_operation_ends_it(search, monkeypatch):
    routes = "airflow_provider_dtrain.api.routes.operations"
    monkeypatch.setattr("airflow_provider_dtrain.api.host_work.trigger", lambda conf, user, dag_id: "run-9")
    monkeypatch.setattr(f"{routes}.run_state", lambda dag_id, run: states.pop(0))
    states = ["running", "failed"]
    api = api_of(search.store)
    number = api.answer("POST", "/operations/doctor", json={}).json()["operation_id"]
    assert api.get(f"/operations/{number}")["state"] == "waiting"
    monkeypatch.setattr(f"{routes}.RUN_CHECK", timedelta(seconds=-1))
    assert api.get(f"/operations/{number}")["state"] == "waiting"
    found = api.get(f"/operations/{number}")
    assert found["state"] == "failed"
    assert "run run-9 of the DAG dtrain_operations ended without executing it (failed)" in found["error"]
