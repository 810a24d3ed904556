"""Checkpoints between a host and the control side: streamed, checked, removed."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_provider_dtrain.engine.checkpoints import DamagedCopyError, fetch_copy, send
from airflow_provider_dtrain.errors import HostRefusedError
from airflow_provider_dtrain.hosts.local import LocalTransport
from airflow_provider_dtrain.hosts.remote import HostLink
from airflow_provider_dtrain.store.records import CheckpointView
from airflow_provider_dtrain.train.checkpoint import metadata_text

RUN = "t1.1.1"


@pytest.fixture
def link(tmp_path: Path) -> Iterator[HostLink]:
    made = HostLink.connect(
        LocalTransport(home=tmp_path), remote_dir=".dtrain", state_dir=str(tmp_path / "state"), python=sys.executable
    )
    yield made
    made.close()


def make(folder: Path, step: int, size: int = 1000) -> Path:
    """Make a folder that looks like a checkpoint; needs no torch."""
    path = folder / f"step-{step:08d}"
    path.mkdir(parents=True)
    content = bytes(range(256)) * (size // 256 + 1)
    (path / "state.pt").write_bytes(content)
    files = {"state.pt": {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}}
    (path / "metadata.json").write_bytes(metadata_text(step, {}, files))
    return path


def view(path: str, sha256: str | None) -> CheckpointView:
    return CheckpointView(
        checkpoint_id=1, trial_id=1, attempt=1, run=RUN, host="local", step=1, path=path, size_bytes=1, sha256=sha256,
        metrics={}, at=datetime.now(UTC), copy_url=None,
    )  # fmt: skip


def digest(path: Path) -> str:
    return hashlib.sha256((path / "metadata.json").read_bytes()).hexdigest()


def test_a_checkpoint_goes_to_a_host_and_comes_back_in_pieces(link: HostLink, tmp_path: Path) -> None:
    sent = make(tmp_path, 1, size=9_000_000)
    send(link, RUN, "checkpoints", sent, sent.name)
    target = tmp_path / "copies" / "one"
    fetch_copy(link, view(f"checkpoints/{sent.name}", digest(sent)), target)
    assert (target / "state.pt").read_bytes() == (sent / "state.pt").read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["one"]


def test_a_copy_that_differs_is_no_copy(link: HostLink, tmp_path: Path) -> None:
    sent, target = make(tmp_path, 1), tmp_path / "copies" / "one"
    send(link, RUN, "checkpoints", sent, sent.name)
    with pytest.raises(DamagedCopyError, match="not the one"):
        fetch_copy(link, view(f"checkpoints/{sent.name}", "0" * 64), target)
    (sent / "state.pt").write_bytes(b"other")
    send(link, RUN, "spoilt", sent, sent.name)
    with pytest.raises(DamagedCopyError, match=r"of state\.pt"):
        fetch_copy(link, view(f"spoilt/{sent.name}", digest(sent)), target)
    with pytest.raises(HostRefusedError, match="nothing-here"):
        fetch_copy(link, view("nothing-here", None), target)
    assert list(target.parent.iterdir()) == []


def test_a_host_removes_checkpoints_and_nothing_else(link: HostLink, tmp_path: Path) -> None:
    root = tmp_path / "shared"
    first, full = make(root, 1), make(root, 3)
    (full / "thesis.tex").write_text("mine")
    (root / "photos").mkdir()
    (root / "linked").symlink_to(first)
    (root / "odd").mkdir()
    (root / "odd" / "metadata.json").write_text(json.dumps({"step": 1}))
    names = [first.name, "step-00000002", full.name, "photos", "linked", "odd"]
    told = link.call("remove_checkpoints", root=str(root), names=names).result(30)
    assert told["removed"] == [first.name, "step-00000002"]
    assert set(told["kept"]) == {full.name, "photos", "linked", "odd"}
    assert "thesis.tex" in told["kept"][full.name]
    assert sorted(path.name for path in root.iterdir()) == ["linked", "odd", "photos", full.name]


@pytest.mark.parametrize(
    "asked",
    [
        {"root": "relative", "names": ["step-1"]},
        {"root": "/a/../b", "names": ["step-1"]},
        {"root": "/tmp", "names": ["../step-1"]},
        {"root": "/tmp", "names": [".hidden"]},
        {"root": "../..", "names": ["step-1"], "run": RUN},
    ],
)
def test_a_host_refuses_to_look_elsewhere(link: HostLink, asked: dict[str, object]) -> None:
    with pytest.raises(HostRefusedError):
        link.call("remove_checkpoints", **asked).result(30)
