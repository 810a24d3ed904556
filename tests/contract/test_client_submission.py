"""``dtrain experiments create``, ``fork`` and control requests, on the API behind a real HTTP server."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import http.client
import io
import json
import re
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.api import code_archive
from airflow_provider_dtrain.api.code_archive import ARCHIVE_MOST, digest_of
from airflow_provider_dtrain.client.address import address
from airflow_provider_dtrain.client.main import main
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.errors import PayloadError, UsageError, UserError
from airflow_provider_dtrain.hooks.secrets import seal
from airflow_provider_dtrain.hosts import work_tree
from airflow_provider_dtrain.hosts.payload import LIMIT_BYTES, pack
from airflow_provider_dtrain.resources.provenance import GitState
from airflow_provider_dtrain.store.database.tables import submissions
from airflow_provider_dtrain.terminal.following import given_secrets
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.http_api import HttpApi
from tests.support.search_world import Search

pytestmark = pytest.mark.airflow
CONFIG = "name: mine\nmodel_dir: code\nentrypoint: python train.py\nresources: {pool: gpus, slots_per_trial: 1}\n"


@pytest.fixture
def search(store):
    store.hosts.add(host("a", slots=4))
    found = Search(store)
    found.plan(max_trials=4)
    found.start(0, slots=1)
    return found


@pytest.fixture
def triggered(monkeypatch) -> list[dict]:
    found: list[dict] = []

    def trigger(conf: dict, user: str, run_id: str) -> str:
        found.append(conf)
        return "manual__1"

    monkeypatch.setattr("airflow_provider_dtrain.api.routes.configs.trigger", trigger)
    return found


@pytest.fixture
def server(api, tmp_path, monkeypatch) -> Iterator[HttpApi]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    with HttpApi(api) as found:
        monkeypatch.setenv("DTRAIN_SERVER", found.url)
        monkeypatch.setenv("DTRAIN_TOKEN", "given")
        yield found


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "train.py").write_text("print('hello')\n")
    (folder / "mine.yaml").write_text(CONFIG)
    return folder


def test_code_and_configuration_reach_the_dag_run(server, api, search, triggered, project, capsys):
    assert main(["experiments", "create", str(project / "mine.yaml")]) == 0, capsys.readouterr()
    (conf,) = triggered
    assert conf["payload"] == pack(project / "code").digest
    assert search.store.payloads.get(conf["payload"]) == pack(project / "code").content
    assert search.store.configs.get(conf["config"]["config_id"]).document["name"] == "mine"
    assert [entry[0] for entry in api.logged] == ["code_store", "experiment_start"]
    assert "manual__1" in capsys.readouterr().out
    assert main(["experiments", "create", str(project / "mine.yaml")]) == 0
    assert [entry[0] for entry in api.logged].count("code_store") == 1


def test_all_problems_of_a_configuration_are_told_before_anything_is_sent(server, api, triggered, project, capsys):
    (project / "mine.yaml").write_text("entrypoint: python train.py\nslots: 4\nsearcher: {name: nonsense}\n")
    assert main(["experiments", "create", str(project / "mine.yaml")]) == 1
    shown = capsys.readouterr().err
    assert "(line 2)" in shown
    assert "searcher" in shown
    assert (triggered, api.logged) == ([], [])


def test_two_hundred_megabytes_of_code_are_refused_with_the_limit_before_the_upload(
    server, api, triggered, project, capsys
):
    with (project / "code" / "data.bin").open("wb") as file:
        file.truncate(200 << 20)
    assert main(["experiments", "create", str(project / "mine.yaml")]) == 1
    shown = capsys.readouterr().err
    assert "200.0 MiB in 2 files, at most 96.0 MiB" in shown
    assert "data.bin (200.0 MiB)" in shown
    assert (triggered, api.logged) == ([], [])


def test_a_server_refuses_a_larger_archive_without_reading_it(server, api):
    with pytest.raises(UserError, match="at most 100 MiB"):
        Session(address(server.url), "given").send_bytes("/code", bytes(ARCHIVE_MOST + 1), "application/gzip")
    assert api.logged == []


def test_a_server_ends_reading_an_archive_whose_length_was_not_named(server, api):
    connection = http.client.HTTPConnection("127.0.0.1", address(server.url).port, timeout=60)
    # A client may send on after the answer, or find that the connection is closed.
    with contextlib.suppress(ConnectionError):
        parts = (bytes(1 << 20) for _ in range(200))
        connection.request("POST", "/dtrain/api/v1/code", parts, {"Authorization": "Bearer given"}, encode_chunked=True)
    response = connection.getresponse()
    assert (response.status, b"at most 100 MiB" in response.read()) == (413, True)
    connection.close()
    assert api.logged == []


@pytest.mark.parametrize("path", ["/configs/validate", "/experiments", "/operations/exec"])
@pytest.mark.parametrize("is_named", [True, False], ids=["named", "chunked"])
def test_a_server_reads_no_large_request_in_json_whatever_the_client_says(server, api, path, is_named):
    connection = http.client.HTTPConnection("127.0.0.1", address(server.url).port, timeout=60)
    read: list[int] = []
    pieces = (read.append(1) or bytes(1 << 20) for _ in range(200))
    headers = {"Content-Type": "application/json", "Authorization": "Bearer given"}
    headers |= {"Content-Length": str(200 << 20)} if is_named else {}
    with contextlib.suppress(ConnectionError):
        connection.request("POST", f"/dtrain/api/v1{path}", pieces, headers, encode_chunked=not is_named)
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["detail"]["code"]) == (413, "invalid")
    connection.close()
    assert api.logged == []


def test_an_archive_is_checked_without_its_content_in_memory():
    packed = gzip.compress(tarred(("data", bytes(90 << 20))), 1)
    tracemalloc.start()
    try:
        digest_of(packed)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def archive(*members: tuple[str, bytes | str]) -> bytes:
    return gzip.compress(tarred(*members))


def tarred(*members: tuple[str, bytes | str]) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, content in members:
            one = tarfile.TarInfo(name)
            if isinstance(content, str):
                one.type, one.linkname = tarfile.SYMTYPE, content
                tar.addfile(one)
            else:
                one.size = len(content)
                tar.addfile(one, io.BytesIO(content))
    return plain.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive",
        gzip.compress(b"no tar"),
        archive(("a", b"x"))[:-4],
        archive(("../a", b"x")),
        archive(("/a", b"x")),
        archive(("a", "../b")),
        archive(("d/a", "../../b")),
        archive(("a", "/etc/passwd")),
        gzip.compress(bytes(LIMIT_BYTES + (64 << 20)), 1),
        archive(("a", b"x")) + b"more",
        archive(("a", b"x")) + archive(("b", b"x")),
    ],
    ids=["empty", "text", "no-tar", "cut", "up", "root", "link", "deep-link", "absolute-link", "bomb", "more", "two"],
)
def test_an_archive_that_no_host_would_unpack_is_refused(content):
    with pytest.raises(PayloadError):
        digest_of(content)


def test_an_archive_has_a_limited_number_of_entries_and_of_bytes(monkeypatch):
    monkeypatch.setattr(code_archive, "MEMBERS_MOST", 3)
    three = archive(*((str(number), b"") for number in range(3)))
    assert digest_of(three) == hashlib.sha256(three).hexdigest()
    with pytest.raises(PayloadError, match="more than 3 entries"):
        digest_of(archive(*((str(number), b"") for number in range(4))))
    monkeypatch.setattr(code_archive, "LIMIT_BYTES", 10)
    with pytest.raises(PayloadError, match="more than"):
        digest_of(archive(("a", b"x" * 6), ("b", b"x" * 6)))


def test_packed_code_is_accepted_with_its_links(project):
    (project / "code" / "sub").mkdir()
    (project / "code" / "sub" / "link").symlink_to("../train.py")
    payload = pack(project / "code")
    assert digest_of(payload.content) == payload.digest


def test_code_that_the_store_does_not_have_cannot_be_started(server, triggered):
    with pytest.raises(UserError, match="you have sent no code"):
        Session(address(server.url), "given").send("POST", "/experiments", {"config": CONFIG, "payload": "0" * 64})
    assert triggered == []


def test_without_the_right_to_start_nothing_is_stored(search, project, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DTRAIN_TOKEN", "given")
    with HttpApi(Api(search.store, trigger=False)) as found:
        assert main(["experiments", "create", str(project / "mine.yaml"), "--server", found.url]) == 1
    assert "You may not trigger the DAG" in capsys.readouterr().err
    assert not search.store.payloads.has(pack(project / "code").digest)


def test_a_followed_experiment_ends_with_the_exit_code_of_its_dag_run(server, triggered, project, capsys):
    for state, code in (("success", 1), ("failed", 1)):
        server.run_state = state
        assert main(["experiments", "create", str(project / "mine.yaml"), "--follow"]) == code
        assert f"ended {state} before its plan" in capsys.readouterr().err


@pytest.fixture
def followed(server, search, triggered, project, monkeypatch, capsys):
    """Follow an experiment with a trial until its DAG run has a state, and return exit code, JSON and messages."""
    monkeypatch.setattr("airflow_provider_dtrain.terminal.following.POLL_S", 0.01)
    found = Search(search.store, name="mine", dag="dtrain_experiment", run="manual__1")
    found.plan(metric="loss")

    def follow(run_state: str, *, failure: dict | None = None) -> tuple[int, dict, list[str]]:
        ticket = found.start(0, slots=1)
        found.validate(ticket, loss=0.5)
        found.end(ticket, **({"state": "errored", "failure": failure} if failure else {}))
        server.run_state = run_state
        code = main(["experiments", "create", str(project / "mine.yaml"), "--follow", "-o", "json"])
        shown = capsys.readouterr()
        return code, json.loads(shown.out), shown.err.splitlines()

    return follow


def test_a_followed_experiment_prints_its_result_as_json(followed):
    code, row, messages = followed("success")
    assert code == 0
    assert (row["name"], row["dag_run"], row["state"], row["trials"]) == (
        "mine",
        "manual__1",
        "running",
        {"completed": 1},
    )
    assert row["experiment_id"] > 1
    assert messages[-1] == f"Experiment {row['experiment_id']} succeeded; best loss 0.5 (trial 2)."
    assert row["page"].endswith(f"/plugin/dtrain/experiments/{row['experiment_id']}")


def test_what_a_followed_dag_run_waits_for_is_named_at_once(server, triggered, project, monkeypatch, capsys):
    states = iter(["queued", "queued", "running", "failed"])
    monkeypatch.setattr("airflow_provider_dtrain.terminal.following.POLL_S", 0.01)
    server.run_state = lambda: next(states)
    assert main(["experiments", "create", str(project / "mine.yaml"), "--follow"]) == 1
    shown = capsys.readouterr().err
    assert shown.count("DAG run manual__1 is queued: it waits for Airflow's scheduler.") == 1
    assert shown.count("DAG run manual__1 is running: its task experiment.plan") == 1
    assert re.search(rf"^The code is {project / 'code'}, packed to [\d.]+ (B|KiB)\.$", shown, re.MULTILINE), shown


def test_a_followed_experiment_that_fails_names_the_cause(followed):
    code, row, messages = followed("failed", failure={"kind": "user", "error": "E", "message": "rank 0: my mistake"})
    assert code == 1
    assert messages[-1] == f"Experiment {row['experiment_id']} failed. Trial 2: rank 0: my mistake"


def test_a_change_that_the_line_does_not_show_prints_no_line(server, search, triggered, project, monkeypatch, capsys):
    found = Search(search.store, name="mine", dag="dtrain_experiment", run="manual__1")
    number = found.plan().experiment_id
    tags = iter(["a", "b", "c"])

    def state() -> str:
        if (tag := next(tags, None)) is None:
            return "success"
        search.store.control.set("experiment", number, tags=[tag], by="ann")
        return "running"

    monkeypatch.setattr("airflow_provider_dtrain.terminal.following.POLL_S", 0.01)
    server.run_state = state
    assert main(["experiments", "create", str(project / "mine.yaml"), "--follow"]) == 0
    assert capsys.readouterr().err.count("4 to come") == 1


@pytest.mark.parametrize(
    ("words", "check"),
    [
        ("trials stop 1 -y", lambda store: store.trials.get(1).stop_requested_by == "ann"),
        ("trials kill 1 -y", lambda store: store.trials.get(1).kill_requested_by == "ann"),
        ("experiments pause 1 -y", lambda store: store.experiments.get(1).control_request == "pause"),
        ("experiments stop 1 -y", lambda store: store.experiments.get(1).control_request == "stop"),
        ("experiments kill 1 -y", lambda store: store.experiments.get(1).control_request == "kill"),
        ("trials set 1 --tag a --name first", lambda store: store.labels.get("trial", 1).tags == ("a",)),
        ("experiments set 1 --priority 7", lambda store: store.attempts.get(1).priority == 7),
    ],
)
def test_a_control_request_reaches_the_store(server, search, capsys, words, check):
    assert not check(search.store)
    assert main(words.split()) == 0, capsys.readouterr()
    assert check(search.store)


def test_a_question_is_not_answered_without_a_terminal(server, search, capsys):
    assert main(["trials", "kill", "1"]) == 2
    assert "add --yes" in capsys.readouterr().err
    assert search.store.trials.get(1).kill_requested_by is None


def test_an_experiment_whose_code_is_not_stored_yet_is_not_forked(server, store, triggered, project, capsys):
    planned = Search(store, name="planned").plan(task="other")
    for words in ([], [str(project / "mine.yaml")]):
        assert main(["experiments", "fork", str(planned.experiment_id), *words]) == 1
        assert "has no trial yet" in capsys.readouterr().err
    assert triggered == []


def test_a_fork_starts_with_the_configuration_of_the_other_experiment(server, search, triggered, capsys):
    document = {"name": "e", "entrypoint": "python train.py", "resources": {"pool": "gpus", "slots_per_trial": 1}}
    search.config = search.store.configs.put(document, origins={}).config_id
    search.name, search.view = "other", None
    search.plan(task="other")
    digest = "c0de" * 16
    search.store.payloads.put(digest, b"code")
    search.submit(3, payload=digest)
    number = str(search.view.experiment_id)
    assert main(["experiments", "fork", number]) == 0, capsys.readouterr()
    (conf,) = triggered
    assert conf["payload"] == digest
    kept = search.store.configs.get(conf["config"]["config_id"]).document
    assert (kept["name"], kept["entrypoint"]) == ("e", "python train.py")


def test_a_fork_names_the_private_variables_that_its_user_must_give_again(server, search, triggered, capsys):
    document = {
        "name": "e",
        "entrypoint": "python train.py",
        "resources": {"pool": "gpus", "slots_per_trial": 1},
        "environment": {"variables": {"TOKEN": "hush-1", "MODE": "fast"}, "public_variables": ["MODE"]},
    }
    masked, sealed = seal(document)
    search.config = search.store.configs.put(masked, origins={}, secrets=sealed).config_id
    search.name, search.view = "other", None
    search.plan(task="other")
    digest = "c0de" * 16
    search.store.payloads.put(digest, b"code")
    search.submit(3, payload=digest)
    assert main(["experiments", "fork", str(search.view.experiment_id)]) == 1
    message = capsys.readouterr().err
    assert "environment.variables.TOKEN: the value is masked" in message
    assert "MODE" not in message
    assert "hush" not in message
    assert triggered == []


def submitted(store) -> list:
    with store.db.engine.connect() as conn:
        return conn.execute(sa.select(submissions).order_by(submissions.c.created_at)).all()


def test_the_state_of_the_code_in_git_is_that_of_the_users_machine_and_a_fork_has_that_of_its_code(
    server, store, triggered, project, capsys, monkeypatch
):
    state = GitState(commit="a" * 40, is_clean=False)
    seen: list[Path] = []
    monkeypatch.setattr(work_tree, "git_state", lambda folder: seen.append(folder) or state)
    assert main(["experiments", "create", str(project / "mine.yaml")]) == 0, capsys.readouterr()
    assert seen == [project / "code"]
    (run,) = submitted(store)
    assert run.git == dataclasses.asdict(state)
    planned = Search(store, name="mine", dag=run.dag_id, run=run.run_id)
    planned.plan()
    planned.submit(0, payload=run.payload, source={"git": run.git, "bundle": None})
    monkeypatch.setattr(work_tree, "git_state", None)
    assert main(["experiments", "fork", str(planned.view.experiment_id)]) == 0, capsys.readouterr()
    latest = submitted(store)[-1]
    assert (latest.git, latest.payload) == (run.git, run.payload)


@pytest.mark.parametrize("git", [{"commit": "a; rm"}, {"commit": "A" * 40}, {"problem": "x" * 501}, {"is_clean": "?"}])
def test_a_state_in_git_that_no_client_sends_is_refused(api, search, triggered, git):
    body = {"config": CONFIG, "git": git}
    assert api.refusal("POST", "/experiments", json=body)[0] == 422
    assert triggered == []


# -- a trial that runs again -----------------------------------------------------------------------
WEIGHTS = {"kind": "weights", "step": 1, "digest": "ab" * 32, "tensors": "01234567", "names": ["0.weight"]}


@pytest.fixture
def rerun(server, search, monkeypatch, capsys):
    """Run a trial again with other records, and return the exit code, stdout and messages."""
    store = search.store
    store.payloads.put("c" * 64, b"code")
    original = Search(store, name="mine", run="own")
    original.plan(max_trials=1)
    ticket = original.start(0, slots=1, payload="c" * 64)
    original.commit(ticket, WEIGHTS)
    original.end(ticket)
    monkeypatch.setattr("airflow_provider_dtrain.terminal.following.POLL_S", 0.01)
    server.run_state = "success"

    def rerun(records: list[dict], *words: str) -> tuple[int, str, list[str]]:
        def trigger(conf: dict, user: str, run_id: str) -> str:
            again = Search(store, name="again", dag="dtrain_experiment", run=run_id)
            again.plan(max_trials=1)
            other = again.start(0, slots=1)
            if records:
                again.commit(other, *records)
            again.end(other)
            return run_id

        monkeypatch.setattr("airflow_provider_dtrain.api.routes.reproductions.trigger", trigger)
        code = main(["trials", "reproduce", str(ticket.trial_id), *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err.splitlines()

    return rerun


@pytest.mark.parametrize(
    ("records", "code", "words"),
    [
        ([WEIGHTS], 0, "The weights of trial 3 equal those of trial 2 bit for bit."),
        ([{**WEIGHTS, "digest": "cd" * 32, "tensors": "76543210"}], 4, "first at the checkpoint of step 1, in tensor"),
        ([{**WEIGHTS, "step": 2}], 5, "Nothing was compared"),
        ([], 5, "Nothing was compared"),
    ],
    ids=["equal", "differs", "other-steps", "no-records"],
)
def test_a_trial_that_runs_again_ends_with_the_exit_code_of_its_comparison(rerun, records, code, words):
    found, _, messages = rerun(records, "--follow")
    assert (found, any(words in one for one in messages)) == (code, True), messages


def test_a_program_without_the_metric_ends_with_the_comparison_although_no_best_trial_is_chosen(rerun, server):
    server.run_state = "failed"
    code, _, messages = rerun([WEIGHTS], "--follow")
    assert code == 0
    assert "bit for bit" in messages[-1]
    assert not any("failed" in one for one in messages)


def test_the_comparison_is_part_of_the_json_of_a_trial_that_runs_again(rerun):
    _, shown, _ = rerun([WEIGHTS], "--follow", "-o", "json")
    row = json.loads(shown)
    assert (row["trial"], row["reproduction"]["verdict"], row["reproduction"]["checkpoints"]) == (2, "equal", 1)
    assert main(["trials", "describe", "3"]) == 0


def test_without_follow_a_trial_that_runs_again_is_not_compared(rerun):
    code, _, messages = rerun([WEIGHTS])
    assert code == 0
    assert not any("The weights" in one for one in messages)


def test_a_trial_shows_the_one_that_it_runs_again_and_those_that_run_it_again(rerun, capsys):
    rerun([WEIGHTS])
    for number, words in (("2", "reproduced.trial 3"), ("3", "reproduces")):
        assert main(["trials", "describe", number, "-o", "plain"]) == 0
        assert words in capsys.readouterr().out
    assert main(["trials", "describe", "2", "-o", "json"]) == 0
    (again,) = json.loads(capsys.readouterr().out)["reproductions"]["by"]
    assert (again["original_id"], again["trial_id"], again["verdict"]) == (2, 3, "equal")


def test_a_secret_is_taken_from_the_environment_or_from_the_argument(monkeypatch):
    monkeypatch.setenv("TOKEN", "from here")
    monkeypatch.delenv("OTHER", raising=False)
    assert given_secrets(["TOKEN", "data.secrets.key=a=b", "EMPTY="]) == {
        "TOKEN": "from here", "data.secrets.key": "a=b", "EMPTY": "",
    }  # fmt: skip
    assert given_secrets(None) == {}
    with pytest.raises(UsageError, match="--secret OTHER needs a variable OTHER in the environment"):
        given_secrets(["OTHER"])
