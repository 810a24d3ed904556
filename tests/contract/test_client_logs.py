"""``dtrain trials logs``, on the API behind a real HTTP server and a line that drops."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import pytest

from airflow_provider_dtrain.client.address import address
from airflow_provider_dtrain.client.logs import LogReader
from airflow_provider_dtrain.client.main import main, parser
from airflow_provider_dtrain.client.operations import ServerOperations
from airflow_provider_dtrain.client.reconnection import Patience
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.client.source import ServerSource
from airflow_provider_dtrain.errors import StaleWatchError, UserError
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.cutting_proxy import CuttingProxy
from tests.support.http_api import HttpApi
from tests.support.search_world import Search

pytestmark = pytest.mark.airflow
TAIL = 64 << 10


@pytest.fixture
def search(store):
    store.hosts.add(host("a", slots=4))
    return Search(store)


class Log:
    """The log of rank 0 of a trial that writes at random."""

    def __init__(self, search: Search) -> None:
        self.search, self.random, self.content = search, random.Random(1), b""
        self.ticket = search.start(0, slots=2)

    def write(self, most: int = 3000) -> None:
        self.content += bytes(self.random.randrange(256) for _ in range(self.random.randrange(most)))
        watch = self.search.watches[self.ticket.attempt_id]
        commit = self.search.store.events.commit_log
        commit(self.ticket.attempt_id, watch, "a", 0, None, self.content[-TAIL:], tail_end=len(self.content))

    def end(self) -> None:
        self.search.end(self.ticket)


@pytest.fixture
def log(search) -> Log:
    return Log(search)


@pytest.fixture
def server(api: Api, log, tmp_path, monkeypatch) -> Iterator[HttpApi]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    # No follower serves these trials, and Airflow has no DAG for operations.
    monkeypatch.setattr("airflow_provider_dtrain.client.operations.FOLLOWER_S", 0.0)
    with HttpApi(api) as found:
        monkeypatch.setenv("DTRAIN_SERVER", found.url)
        yield found


def test_a_follower_prints_each_byte_once_over_a_line_that_drops(server, log, capfdbinary):
    pauses: list[float] = []
    rounds = iter(range(25))

    def sleep(_: float) -> None:
        """The trial writes while the follower sleeps, and ends after a while."""
        pauses.append(_)
        if next(rounds, None) is None:
            log.end()
        else:
            log.write()

    args = parser().parse_args(["trials", "logs", "1", "-f"])
    with CuttingProxy(address(server.url).port, seed=3, most=6000) as proxy:
        session = Session(address(proxy.url), "given", sleep=lambda _: None)
        patience = Patience(session, lambda _: None, sleep=lambda _: None)
        operations = ServerOperations(session, patience)
        reader = LogReader(ServerSource(session), args, patience=patience, operations=operations, sleep=sleep)
        assert reader.follow() == 0
        assert proxy.cuts > 5
    assert capfdbinary.readouterr().out == log.content
    assert len(log.content) > 20_000


def test_a_log_is_followed_while_the_follower_of_its_trial_is_gone_and_another_one_takes_over(
    server, log, search, capfdbinary
):
    store, ticket = search.store, log.ticket
    args = parser().parse_args(["trials", "logs", "1", "-f"])
    log.write()
    steps = 0

    def sleep(_: float) -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            # Nothing comes from the first follower any longer, and its later writes count for nothing.
            stale = search.watches[ticket.attempt_id]
            search.watches[ticket.attempt_id] = store.attempts.watch(ticket.attempt_id, watcher="another triggerer")
            with pytest.raises(StaleWatchError):
                store.events.commit_log(ticket.attempt_id, stale, "a", 0, None, b"of the dead", tail_end=10**6)
        if steps in (1, 5, 6):
            log.write()
        if steps == 7:
            log.end()

    session = Session(address(server.url), "given")
    patience = Patience(session, lambda _: None)
    operations = ServerOperations(session, patience)
    reader = LogReader(ServerSource(session), args, patience=patience, operations=operations, sleep=sleep)
    assert reader.follow() == 0
    assert steps == 7
    assert capfdbinary.readouterr().out == log.content


def test_output_that_only_the_host_has_is_named_with_the_command(server, log, capfdbinary):
    for _ in range(50):
        log.write(6000)
    assert main(["trials", "logs", "1"]) == 0
    shown = capfdbinary.readouterr()
    assert shown.out == log.content[-TAIL:]
    start = len(log.content) - TAIL
    assert f"airflow dtrain trials logs 1 --rank 0 --from 0 --to {start}".encode() in shown.err


class HostOperations:
    """Operations of a host that sends the log, or does not answer."""

    def __init__(self, log: Log, shown: list[bytes], is_away: bool) -> None:
        self.log, self.shown, self.is_away = log, shown, is_away

    def run(self, _result, kind, body, put):
        # Output from before the request to the host.
        self.shown.append(sys.stdout.buffer.getvalue() if hasattr(sys.stdout, "buffer") else b"")
        assert kind == "log"
        if self.is_away:
            raise UserError("Host 'a' does not answer.")
        put(self.log.content[body["start"] : body["end"]])


@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_terminal_gets_the_stored_end_of_an_ended_trial_before_its_host_has_answered(
    server, log, search, monkeypatch, capsysbinary, is_known, is_away
):
    for _ in range(30):
        log.write(9000)
    content = log.content
    if not is_known:
        watch = search.watches[log.ticket.attempt_id]
        search.store.events.commit_log(log.ticket.attempt_id, watch, "a", 0, None, content[-TAIL:], tail_end=None)
    log.end()
    session = Session(address(server.url), "given")
    shown: list[bytes] = []
    args = parser().parse_args(["trials", "logs", "1"])
    reader = LogReader(
        ServerSource(session),
        args,
        patience=Patience(session, lambda _: None),
        operations=HostOperations(log, shown, is_away),
        end_first=True,
    )
    monkeypatch.setattr("airflow_provider_dtrain.terminal.log_text._is_regular_file", lambda: True)
    assert reader.show() == 0
    out, err = capsysbinary.readouterr()
    assert shown == [content[-TAIL:]]
    assert out == content[-TAIL:] + (b"" if is_away else content)
    assert (b"Host 'a' does not answer." in err) == is_away


def test_parts_of_a_log_are_chosen_by_bytes(server, log, capfdbinary):
    log.write()
    log.write()
    for options, part in (
        (["--from", "100", "--to", "200"], log.content[100:200]),
        (["--from", "100"], log.content[100:]),
        (["--tail", "1"], log.content[-1024:]),
    ):
        assert main(["trials", "logs", "1", *options]) == 0
        assert capfdbinary.readouterr().out == part
    assert main(["trials", "logs", "1", "--tail", "1", "--from", "3"]) == 1


def test_a_rank_whose_end_alone_is_known_is_printed_once(server, log, search, capfdbinary):
    exits = {"kind": "exit", "rank": 0, "exit_code": 0, "log_tail": "last words", "error": None}
    search.commit(log.ticket, exits, stream="supervisor.events")
    assert main(["trials", "logs", "1"]) == 0
    assert capfdbinary.readouterr().out == b"last words"
    search.end(log.ticket)
    assert main(["trials", "logs", "1", "-f", "--all"]) == 0
    assert capfdbinary.readouterr().out == b"[rank 0] last words\n"


def test_a_waiting_trial_has_no_log_yet(server, search, capsys):
    search.submit(1, slots=4)
    assert main(["trials", "logs", "2"]) == 3
    assert "waits for its slots" in capsys.readouterr().err


def test_an_unknown_rank_and_attempt_are_named(server, log, capsys):
    log.write()
    assert main(["trials", "logs", "1", "--rank", "7"]) == 1
    assert "has no rank 7; it has 0 to 0" in capsys.readouterr().err
    assert main(["trials", "logs", "1", "--attempt", "9"]) == 1
    assert "has no attempt 9" in capsys.readouterr().err


def test_logs_need_the_right_to_read_task_logs(search, log, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    log.write()
    with HttpApi(Api(search.store, logs=False)) as found:
        assert main(["trials", "logs", "1", "--server", found.url]) == 1
    assert "You may not read task logs" in capsys.readouterr().err
