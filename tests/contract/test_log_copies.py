"""Complete logs in the store: copied from a host by an operation, read by lines and times, searched and sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_dtrain.cli._store_source import StoreSource
from airflow_provider_dtrain.client.main import main
from airflow_provider_dtrain.core.logs.chunks import CHUNK_BYTES
from airflow_provider_dtrain.core.logs.query import LogQuery
from airflow_provider_dtrain.core.redaction import Redactor
from airflow_provider_dtrain.engine.logs import search as of_search
from airflow_provider_dtrain.engine.operations.log_copy import copy_log
from airflow_provider_dtrain.engine.operations.rank_log import attempt_of, rank_of, read_log
from airflow_provider_dtrain.engine.operations.ranks import NotWantedError
from airflow_provider_dtrain.errors import ConflictError, HostUnreachableError
from airflow_provider_dtrain.store import log_copies as of_copies
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.http_api import HttpApi
from tests.support.rank_logs import LogHost
from tests.support.search_world import Search

pytestmark = pytest.mark.airflow
SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
SECRET = "hunter2-token"  # noqa: S105 - a value that must never be shown


@pytest.fixture
def search(store):
    store.hosts.add(host("a", slots=4))
    return Search(store)


@pytest.fixture
def ticket(search):
    return search.start(0, slots=2)


@pytest.fixture
def logs(store, ticket) -> LogHost:
    return LogHost(store)


def copied(logs: LogHost, rank: int = 0, **options: Any) -> int:
    hook = logs.hook()
    view = attempt_of(hook, 1, None)
    mask = Redactor([SECRET])
    return copy_log(hook, view, rank_of(hook, view, rank), redactor=mask, **options)


def tail(search: Search, ticket, content: bytes, end: int | None) -> None:
    watch = search.watches[ticket.attempt_id]
    search.store.events.commit_log(ticket.attempt_id, watch, "a", 0, None, content, tail_end=end)


def test_a_log_that_grows_is_copied_once_in_whole_lines_and_numbered(search, ticket, logs, store, api):
    logs.write(0, b"one\ntwo\npart")
    assert copied(logs) == 8
    logs.reads.clear()
    logs.write(0, b" done\nfour\n")
    assert copied(logs) == 23
    assert ("rank0.log", 0, 2**20) not in logs.reads
    found = api.get("/trials/1/log/lines", rank=0)
    assert [(row["number"], row["offset"], row["text"]) for row in found["rows"]] == [
        (0, 0, "one"),
        (1, 4, "two"),
        (2, 8, "part done"),
        (3, 18, "four"),
    ]
    assert (found["total"], found["copied_bytes"], found["is_complete"], found["is_over"]) == (4, 23, False, False)


def test_the_copy_of_an_ended_rank_is_complete_and_the_host_is_not_asked_again(search, ticket, logs, store, api):
    logs.write(0, b"one\nlast without an end")
    search.end(ticket)
    assert copied(logs) == 23
    logs.is_away = True
    assert copied(logs) == 23
    found = api.get("/trials/1/log/lines", first=-1, tail=True)
    assert (found["is_complete"], found["first"], found["rows"][0]["text"]) == (True, 1, "last without an end")
    assert api.answer("GET", "/trials/1/log/text").content == b"one\nlast without an end"


def test_many_lines_of_all_lengths_come_back_by_their_number(ticket, logs, api):
    long = b"x" * (3 * CHUNK_BYTES // 2)
    lines = [b"line %d" % number for number in range(60_000)]
    content = b"\n".join([*lines, long, b"", b"end"]) + b"\n"
    logs.write(0, content)
    copied(logs)
    total = api.get("/trials/1/log/lines")["total"]
    # The long line counts as two.
    assert total == len(lines) + 4
    for first in (0, 123, 29_999, 59_500):
        rows = api.get("/trials/1/log/lines", first=first, count=500)["rows"]
        assert [row["text"] for row in rows] == [f"line {number}" for number in range(first, first + 500)]
    rows = api.get("/trials/1/log/lines", first=-4)["rows"]
    assert [(row["chars"], len(row["text"])) for row in rows[:2]] == [
        (CHUNK_BYTES, 4000),
        (len(long) - CHUNK_BYTES, 4000),
    ]
    assert [row["text"] for row in rows[2:]] == ["", "end"]
    sent = api.answer("GET", "/trials/1/log/text")
    assert sent.content == content
    assert 'filename="trial-1-attempt-1-rank-0.log"' in sent.headers["content-disposition"]


def test_small_pieces_become_few_chunks_and_a_second_writer_changes_nothing(ticket, store):
    append = store.log_copies.append
    for number in range(200):
        append(ticket.attempt_id, 0, 100 * number, b"x" * 99 + b"\n")
    assert append(ticket.attempt_id, 0, 0, b"another content\n").end == 20_000
    assert append(ticket.attempt_id, 0, 19_900, b"y" * 99 + b"\nnew\n").end == 20_004
    with pytest.raises(ConflictError, match="ends at byte 20004, so bytes from 30000 on do not follow"):
        append(ticket.attempt_id, 0, 30_000, b"later\n")
    chunks = store.log_copies.chunks(ticket.attempt_id, 0, line=0, most=10)
    assert [(one.start, one.end, one.first_line, one.lines) for one in chunks] == [(0, 20_004, 0, 201)]
    assert chunks[0].content.endswith(b"x\nnew\n")


def test_bytes_that_the_host_has_freed_are_a_line_that_names_them(ticket, logs, api):
    logs.write(0, b"head\n" + b"z" * 1000 + b"\ntail\n")
    logs.freed = (5, 1006)
    copied(logs)
    rows = api.get("/trials/1/log/lines")["rows"]
    texts = [row["text"] for row in rows]
    assert texts == ["head", "", "[bytes 5 to 1006 (1001 B) were left out by log_limit]", "tail"]
    assert rows[-1]["offset"] == 1006


def test_lines_have_the_times_of_the_host_on_the_clock_of_this_machine(ticket, store, api):
    logs = LogHost(store, clock_offset_s=3600.0)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for minute in range(5):
        logs.write(0, b"step %d\nmore\n" % minute, (begin + timedelta(hours=1, minutes=minute)).timestamp())
    logs.write(0, b"not sampled yet\n")
    copied(logs)
    rows = api.get("/trials/1/log/lines")["rows"]
    assert [row["at"] for row in rows[2:4]] == ["2026-01-01T00:01:00Z"] * 2
    assert rows[-1]["at"] is None
    at = api.get("/trials/1/log/lines", at="2026-01-01T00:02:30Z", count=1)
    assert (at["first"], at["rows"][0]["text"]) == (6, "step 3")
    assert api.get("/trials/1/log/lines", at="2030-01-01T00:00:00Z")["first"] == 10
    found = api.get("/trials/1/log/search", since="2026-01-01T00:01:00Z", until="2026-01-01T00:02:00+00:00")
    assert [row["text"] for row in found["rows"]] == ["step 1", "more", "step 2", "more"]


def test_secrets_are_masked_before_a_log_is_stored(ticket, logs, api):
    logs.write(0, b"it is hunter2-token\n")
    copied(logs)
    assert api.get("/trials/1/log/lines")["rows"][0]["text"] == "it is " + "*" * len(SECRET)


def test_a_copy_whose_user_has_gone_ends_with_what_was_copied(ticket, logs, store):
    logs.write(0, b"x" * 99 + b"\n")
    with pytest.raises(NotWantedError):
        copied(logs, is_wanted=lambda: False)
    assert copied(logs) == 100


# -- the stored end of a log -----------------------------------------------------------------------
@pytest.mark.parametrize("is_known", [True, False])
def test_the_stored_end_continues_the_copy_without_a_line_twice(search, ticket, logs, api, is_known):
    content = b"".join(b"line %d\n" % number for number in range(100))
    logs.write(0, content[:-80])
    copied(logs)
    tail(search, ticket, content[-400:], len(content) if is_known else None)
    found = api.get("/trials/1/log/lines", count=1000, tail=True)
    texts = [row["text"] for row in found["rows"] + found["tail"]]
    assert texts == content.decode().splitlines()
    assert found["tail"][-1]["number"] == 99
    assert api.answer("GET", "/trials/1/log/text").content == content


def test_the_stored_end_is_all_there_is_when_the_host_is_gone(search, ticket, logs, api):
    tail(search, ticket, b"half a line\nERROR at the end\n", 5000)
    logs.is_away = True
    with pytest.raises(HostUnreachableError):
        copied(logs)
    found = api.get("/trials/1/log/lines", tail=True)
    assert (found["total"], found["rows"]) == (0, [])
    assert [(row["number"], row["text"], row["level"]) for row in found["tail"]] == [
        (None, "half a line", None),
        (None, "ERROR at the end", "error"),
    ]
    rows = api.get("/trials/1/log/search", text="error")["rows"]
    assert [row["text"] for row in rows] == ["ERROR at the end"]
    assert b"[bytes 0 to 4971 are on the host only]" in api.answer("GET", "/trials/1/log/text").content


@SQLITE
def test_a_complete_copy_is_read_instead_of_a_host_that_does_not_answer(search, ticket, logs, store):
    content = b"head\n" + b"z" * 1000 + b"\n" + b"line\n" * 100_000
    logs.write(0, content)
    logs.freed = (5, 1006)
    hook = logs.hook()

    def text(offset: int = 0, end: int | None = None) -> bytes:
        view = attempt_of(hook, 1, None)
        pieces = read_log(hook, view, rank_of(hook, view, 0), offset, end, redactor=Redactor())
        return b"".join(piece.mark + piece.data for piece in pieces)

    copied(logs)
    parts = ((0, None), (-12, None), (3, 1010), (500, 700), (1006, 300_000), (10**7, None))
    from_host = [text(*part) for part in parts]
    logs.is_away = True
    # More may follow, so the copy is not the log.
    with pytest.raises(HostUnreachableError):
        text()
    logs.is_away = False
    search.end(ticket)
    copied(logs)
    logs.is_away = True
    assert [text(*part) for part in parts] == from_host
    assert b"left out by log_limit" in from_host[0]


# -- search ----------------------------------------------------------------------------------------
@pytest.mark.nightly
def test_a_search_is_paged_and_each_line_is_found_once(ticket, logs, api):
    content = b"".join(b"%s %d\n" % (b"ERROR odd" if number % 2 else b"fine", number) for number in range(50_000))
    logs.write(0, content)
    copied(logs)
    found: list[int] = []
    first: int | None = 0
    while first is not None:
        page = api.get("/trials/1/log/search", text="odd", level="error", first=first, count=1000)
        found += [row["number"] for row in page["rows"]]
        first = page["next"]
    assert found == list(range(1, 50_000, 2))


def test_a_search_that_takes_long_pauses_and_continues(ticket, logs, store):
    logs.write(0, b"x" * 99 + b"\n" + b"y\n" * CHUNK_BYTES + b"found\n")
    copied(logs)
    times = iter(range(0, 1000, 2))

    def find(first: int) -> Any:
        source, query = StoreSource(store).rights, LogQuery(text="found")
        return of_search.search_log(
            store, source, 1, query, attempt=None, rank=0, first=first, most=10, clock=lambda: next(times)
        )

    first, rounds, rows = 0, 0, []
    while True:
        page = find(first)
        rows += page.rows
        rounds += 1
        if page.next is None:
            break
        assert page.next > first
        first = page.next
    assert rounds > 1
    assert [row.text for row in rows] == ["found"]


@SQLITE
def test_an_expression_has_a_time_limit_and_a_reason(ticket, logs, api, monkeypatch):
    monkeypatch.setattr(of_search, "EXPRESSION_S", 1.0)
    logs.write(0, b"a" * 60 + b"b\nplain 1\n")
    copied(logs)
    assert [row["number"] for row in api.get("/trials/1/log/search", text=r"n \d", regex=True)["rows"]] == [1]
    slow = api.get("/trials/1/log/search", text="^(a+)+$", regex=True)
    assert "Repetitions inside of repetitions" in slow["problem"]
    assert (slow["rows"], slow["next"]) == ([], None)
    status, _, message = api.refusal("GET", "/trials/1/log/search?text=(&regex=true")[:3]
    assert status == 422
    assert "The expression is not valid: missing )" in message


@SQLITE
def test_hostile_lines_reach_an_answer_as_visible_text(ticket, logs, api):
    logs.write(0, b"<b>\0\xff\x1b[2J evil\r<img src=x>\xe2\x80\xae\0\n\x1b]52;c;eA==\x07ok\x9b1m\n")
    logs.write(0, b"x" * 2**20 + b"\n")
    copied(logs)
    texts = [row["text"] for row in api.get("/trials/1/log/lines")["rows"]]
    assert texts[0] == r"<img src=x>\u202e\x00"
    assert texts[1] == "ok\ufffd1m"
    assert all(row["chars"] <= CHUNK_BYTES for row in api.get("/trials/1/log/lines")["rows"])


# -- rights and limits -----------------------------------------------------------------------------
@SQLITE
def test_only_users_who_may_read_the_task_logs_read_lines_and_search(ticket, logs, store):
    logs.write(0, b"one\n")
    copied(logs)
    for path in ("lines", "search", "text"):
        assert Api(store, logs=False).refusal("GET", f"/trials/1/log/{path}")[0] == 403, path
        assert Api(store, readable=()).refusal("GET", f"/trials/1/log/{path}")[0] == 404, path
        assert Api(store).refusal("GET", f"/trials/1/log/{path}?rank=9")[0] == 404, path
        assert Api(store).refusal("GET", f"/trials/1/log/{path}?attempt=7")[0] == 404, path
    for query in ("text=" + "x" * 501, "since=yesterday", "since=2026-01-01", "level=loud", "count=0", "count=1001"):
        assert Api(store).refusal("GET", f"/trials/1/log/search?{query}")[0] == 422, query
    assert Api(store).refusal("GET", "/trials/1/log/search?text=%00")[0] == 422


def test_copies_that_were_not_read_lately_make_room(search, store, clock, monkeypatch):
    tickets = [search.start(number, slots=1) for number in range(3)]
    for one in tickets:
        store.log_copies.append(one.attempt_id, 0, 0, b"x\n")
        clock.advance(1)
    monkeypatch.setattr(of_copies, "STORE_MOST_BYTES", 1)
    with pytest.raises(ConflictError, match="users have read all of them in the last 15 min"):
        store.log_copies.append(tickets[0].attempt_id, 0, 2, b"y\n")
    clock.advance(of_copies.IN_USE.total_seconds() + 1)
    store.log_copies.mark_read(tickets[1].attempt_id, 0)
    with pytest.raises(ConflictError):
        store.log_copies.append(tickets[0].attempt_id, 0, 2, b"y\n")
    assert store.log_copies.get(tickets[2].attempt_id, 0) is not None
    monkeypatch.setattr(of_copies, "STORE_MOST_BYTES", store.log_copies.get(tickets[0].attempt_id, 0).stored_bytes * 3)
    store.log_copies.append(tickets[0].attempt_id, 0, 2, b"y\n")
    assert store.log_copies.get(tickets[2].attempt_id, 0) is None
    assert store.log_copies.get(tickets[1].attempt_id, 0) is not None
    assert store.log_copies.chunks(tickets[2].attempt_id, 0, line=0, most=1) == []


# -- both programs ---------------------------------------------------------------------------------
@SQLITE
def test_the_client_searches_what_the_server_has(ticket, logs, api, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("DTRAIN_TOKEN", "given")
    monkeypatch.setattr("airflow_provider_dtrain.client.operations.FOLLOWER_S", 0.0)
    logs.write(0, b"INFO begin\nloss 0.5\nERROR \x1b]0;x\x07bad\n", 1e9)
    copied(logs)
    with HttpApi(api) as server:
        monkeypatch.setenv("DTRAIN_SERVER", server.url)
        assert main(["trials", "logs", "1", "--grep", "LOSS"]) == 0
        shown = capfd.readouterr()
        assert shown.out == "2:01:46:40Z: loss 0.5\n"
        # Neither a follower nor a DAG completes the copy here.
        assert "is searched as far as the store has it" in shown.err
        assert main(["trials", "logs", "1", "--level", "warning", "--all"]) == 0
        assert capfd.readouterr().out == "[rank 0] 3:01:46:40Z: ERROR bad\n"
        assert main(["trials", "logs", "1", "--regex", "("]) == 1
        assert "The expression is not valid" in capfd.readouterr().err
        assert main(["trials", "logs", "1", "--grep", "nothing like this"]) == 0
        assert "No line of this part of the log matches." in capfd.readouterr().err
        assert main(["trials", "logs", "1", "--grep", "x", "--tail", "3"]) == 1
        assert "cannot be combined with --tail" in capfd.readouterr().err
