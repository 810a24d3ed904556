"""The start of an archive is found behind the output of a login script, however the bytes arrive."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_dtrain.hosts.channel import transfer
from airflow_provider_dtrain.hosts.transport.base import Channel
from tests.support.archives import archive, member


def incoming(data: bytes, piece: int) -> transfer.Incoming:
    pieces = [data[start : start + piece] for start in range(0, len(data), piece)]
    pipe: Any = SimpleNamespace(receive=lambda timeout_s: pieces.pop(0) if pieces else b"")
    return transfer.Incoming("a", cast("Channel", pipe))


@pytest.mark.parametrize("piece", [1, 7, 512, 100_000])
def test_an_archive_is_found_behind_names_of_its_format(piece: int) -> None:
    tar = archive(member("a", content=b"1")).getvalue()
    found = incoming(b"ustar motd ustar " * 50 + tar, piece)
    assert found.find_tar()
    assert found.read() == tar


def test_each_header_is_checked_once_however_many_pieces_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    checked, check = [0], transfer._is_header

    def counted(block: bytes) -> bool:
        checked[0] += 1
        return check(block)

    monkeypatch.setattr(transfer, "_is_header", counted)
    assert not incoming(b"ustar" * 1000, 10).find_tar()
    # Headers that are not complete yet are checked again with the next pieces.
    assert checked[0] < 30_000
