"""Masks for the secrets of a trial, in text and in the bytes of logs."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dtrain.core.redaction import Redactor, secret_texts
from airflow_provider_dtrain.engine.logs.rank_log import TAIL_BYTES, RankLog
from airflow_provider_dtrain.engine.logs.trial_logs import TrialLogs
from airflow_provider_dtrain.engine.operations.rank_log import log_bytes
from tests.support.log_reader import LogReader
from tests.support.log_world import NO_SECRETS, World, until

KEY = 'abc"\\/+é 7xyz'
PEM = "-----BEGIN KEY-----\nMIIEvgIBADANBgkqh\nhkiG9w0BAQEFAASC\n-----END KEY-----\n"


@pytest.mark.parametrize(
    "shown",
    [
        KEY,
        json.dumps({"key": KEY}),
        json.dumps({"key": KEY}, ensure_ascii=False),
        repr({"key": KEY}),
        f"https://host/?key={quote(KEY, safe='')}",
    ],
)
def test_a_secret_is_masked_however_a_program_writes_it(shown: str) -> None:
    mask = Redactor([KEY])
    assert "xyz" not in mask.text(f"key: {shown}.")
    masked = mask.log(f"key: {shown}.\n".encode())
    assert len(masked) == len(f"key: {shown}.\n".encode())
    assert b"xyz" not in masked


def test_each_line_of_a_key_and_the_password_of_a_url_are_secrets_by_themselves() -> None:
    mask = Redactor([PEM, "AccountName=ours;AccountKey=c2VjcmV0a2V5;EndpointSuffix=x"], ["postgres://u:p%40sswd@h/d"])
    for text in (PEM, json.dumps(PEM), "hkiG9w0BAQEFAASC", "key c2VjcmV0a2V5", "p%40sswd", "login with p@sswd"):
        assert not any(part in mask.text(text) for part in ("hkiG9", "c2Vj", "sswd"))
    assert mask.text("ours") == "ours"
    keys = {"type": "service_account", "project_id": "project", "private_key": PEM, "token_uri": "https://x"}
    assert list(secret_texts(keys)) == [PEM]


def test_variables_that_are_no_secrets_and_names_of_metrics_stay() -> None:
    mask = Redactor(["credential"], ["true", "29500", "1e-3", "None", "val_loss", "four"])
    assert mask.text("true 29500 1e-3 None four") == "true 29500 1e-3 None four"
    event = {"kind": "report", "step": 1, "metrics": {"val_loss": 1.0, "credential": 2.0}, "note": "val_loss"}
    assert mask.event(event) == {
        "kind": "report", "step": 1, "metrics": {"val_loss": 1.0, "********": 2.0}, "note": "********",
    }  # fmt: skip


def test_names_of_files_stay_and_texts_of_a_rank_do_not() -> None:
    mask = Redactor(["token-1"], ["/data"])
    event = {"kind": "checkpoint", "path": "/data/step-1", "metadata": {"by": ["token-1", 3, "/data"]}}
    assert mask.event(event) == {**event, "metadata": {"by": ["*******", 3, "*****"]}}
    ended = {"kind": "ended", "reason": "completed"}
    assert Redactor([], ["completed"]).event(ended) == ended
    failed = {"kind": "exit", "error": {"traceback": "KeyError: 'token-1'"}, "log_tail": "token-1", "exit_code": 1}
    assert "token-1" not in str(mask.event(failed))


def test_a_returned_value_stays_json() -> None:
    mask = Redactor(["12345678", 'to"ken'], ["123456789"])
    for value in ({"a": 12345678, "b": "12345678", "c": 'a to"ken'}, ["123456789", 123456789]):
        masked = json.loads(mask.event({"kind": "returned", "json": json.dumps(value)})["json"])
        assert "ken" not in str(masked)
        assert masked == (
            {"a": 12345678, "b": "********", "c": "a ******"} if isinstance(value, dict) else ["********", 123456789]
        )
    part = {"kind": "returned", "json": '"x", 12345678, "to\\"ken', "part": 0, "parts": 2}
    assert mask.event(part)["json"] == '"x", 12345678, "*******'
    deep = "[" * 100_000 + "12345678"
    assert mask.event({"kind": "returned", "json": deep})["json"] == "[" * 100_000 + "********"
    same = '{"a":   1.50}'
    assert mask.event({"kind": "returned", "json": same})["json"] == same


def test_without_the_secrets_no_text_of_a_rank_is_shown_and_own_text_is() -> None:
    mask = Redactor(["known"], withheld="withheld: no connection 'x'")
    assert mask.text("Connection 'x' is missing, known") == "Connection 'x' is missing, *****"
    assert mask.rank_text("anything") == "(withheld: no connection 'x')"
    assert mask.log(b"any\nthing\r\n") == mask.sure_log(b"any\nthing\r\n") == b"***\n*****\r\n"
    exit_event = {"kind": "exit", "rank": 0, "exit_code": 1, "error": {"message": "anything"}, "log_tail": "anything"}
    assert "anything" not in str(mask.event(exit_event))
    returned = [mask.event({"kind": "returned", "json": "[1", "part": part, "parts": 2})["json"] for part in (0, 1)]
    assert json.loads("".join(returned)) == "(withheld: no connection 'x')"


@pytest.mark.parametrize(
    ("secrets", "text"),
    [
        ([f"{'a' * n}b" for n in range(5, 205)], "a" * 2**19),
        (["a" * n for n in range(5, 205)], "a" * 2**19),
        ([f"{n:05d}-secret" for n in range(200)], "00001-secre" * 50_000),
        (["a" * 2**19], "a" * 2**19),
    ],
    ids=["late", "dense", "many", "long"],
)
def test_the_cost_of_a_mask_is_bounded(secrets: list[str], text: str) -> None:
    mask = Redactor(secrets)
    begin = time.thread_time()
    masked = mask.log(text.encode(), is_cut=True)
    mask.text(text)
    assert time.thread_time() - begin < 3.0
    assert len(masked) == len(text)


# -- logs in pieces --------------------------------------------------------------------------------
SECRETS = ["secret", "secrecy-of-letters", "étoile", "aaaaa", "crecy", "x=1;y"]
_LOGS = st.lists(st.sampled_from([*SECRETS, *"secrtyaé=;1\n\r", "\n", "se", "cret"]), max_size=40).map("".join)


@given(_LOGS, st.lists(st.integers(0, 200), max_size=8))
def test_a_log_that_arrives_in_pieces_is_masked_as_if_it_arrived_at_once(text: str, cuts: list[int]) -> None:
    data = text.encode()
    mask = Redactor(SECRETS)
    shown: list[bytes] = []
    log: Any = SimpleNamespace(
        _held=b"", _held_at=0, _again=0, _is_after_gap=False, _tail=bytearray(), received=0, _redactor=NO_SECRETS,
        buffer=SimpleNamespace(add=lambda offset, piece: shown.append(piece)), _sender=SimpleNamespace(wake=bool),
    )  # fmt: skip
    log._pass_on = lambda piece: RankLog._pass_on(log, piece)
    for start, end in zip((0, *sorted(cuts)), (*sorted(cuts), len(data)), strict=True):
        RankLog.take(log, start, data[start:end], mask)
        assert len(log._held) < mask.longest
        assert mask.log(b"".join(shown)) == b"".join(shown)
    RankLog._release(log)
    whole = b"".join(shown)
    assert len(whole) == len(data)
    expected = mask.log(data)
    assert [a for a, b in zip(whole, expected, strict=True) if a != b and a != ord("*")] == []
    assert whole[: len(data) - mask.longest] == expected[: len(data) - mask.longest]


@given(_LOGS, st.integers(-60, 60), st.integers(0, 60), st.integers(1, 30))
def test_no_range_of_a_log_shows_a_part_of_a_secret(text: str, start: int, length: int, chunk: int) -> None:
    data = text.encode()
    mask = Redactor(SECRETS)

    def call(cmd: str, *, run: str, stream: str, offset: int, length: int) -> Any:
        first = max(0, len(data) + offset) if offset < 0 else offset
        answer = {"offset": first, "data": data[first : first + length], "size": len(data)}
        return SimpleNamespace(result=lambda _: answer)

    hook: Any = SimpleNamespace(
        link=lambda _: SimpleNamespace(call=call), store=SimpleNamespace(hosts=SimpleNamespace(get=str))
    )
    rank: Any = SimpleNamespace(host="a", rank=0)
    first = max(0, len(data) + start) if start < 0 else start
    pieces = list(log_bytes(hook, "r", rank, start, first + length, redactor=mask, chunk_bytes=chunk))
    shown = b"".join(piece.data for piece in pieces)
    expected = mask.log(data)[first : first + length]
    assert len(shown) == len(expected)
    assert [a for a, b in zip(shown, expected, strict=True) if a != b and a != ord("*")] == []


async def test_the_tail_of_a_log_has_no_secret_that_it_cuts_and_ends_where_it_says() -> None:
    reader = LogReader()
    world = World(reader)
    log = world.rank_log(begin=0)
    log.take(0, b"x sec", Redactor(["secret-of-a-rank"]))
    assert (log.received, bytes(log._tail)) == (5, b"")
    log.take(5, b"ret-of-a-rank\nsecret-o", Redactor(["secret-of-a-rank"]))
    assert bytes(log._tail) == b"x ****************\n"
    log.skip(27, 40, "gone")
    assert b"secret" not in log._tail
    log.take(40, b"of-a-rank and\nmore\n", Redactor(["secret-of-a-rank"]))
    assert bytes(log._tail) == b"********* and\nmore\n"
    log.abandon()


async def test_the_end_of_a_log_that_another_process_followed_is_masked_where_it_is_cut() -> None:
    world = World(LogReader())
    world.mask = Redactor(["secret-of-a-rank"])
    kept: list[bytes] = []
    world.store.events.commit_log = lambda *place: kept.append(place[-1])
    view: Any = SimpleNamespace(attempt_id=1, run="run-1")
    for size in range(TAIL_BYTES - 3, TAIL_BYTES + 20):
        world.logs_of["run-1"] = b"secret-of-a-rank" + b"x" * (size - 10) + b" secret-of"
        await TrialLogs(world).keep_tail(view, ["a"])
        assert b"ret-of" not in kept[-1]
        assert len(kept[-1]) == TAIL_BYTES


async def test_each_line_of_the_task_log_is_masked() -> None:
    world = World(LogReader())
    world.reader.go_on()
    world.log.redactor = Redactor(["secret-of-a-rank"])
    for write in (world.log.debug, world.log.info, world.log.warning, world.log.error, world.log.event):
        write("Rank %d raised %s", 0, "KeyError: secret-of-a-rank")
    world.log.flush()
    await until(lambda: len(world.reader.records) >= 4)
    assert "secret-of" not in "".join(world.reader.records)
