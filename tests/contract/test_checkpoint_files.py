"""Checkpoints between a host and the control side: streamed, checked, removed."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_provider_dtrain.core.checkpoint_location import CheckpointPlaces, UntrustedPathError
from airflow_provider_dtrain.engine.copies.checkpoints import copy_path, fetch_copy, remove_copy, send
from airflow_provider_dtrain.engine.copies.mirror import DamagedCopyError
from airflow_provider_dtrain.errors import HostRefusedError
from airflow_provider_dtrain.hosts.channel.archive_reader import ArchiveLimitError
from airflow_provider_dtrain.hosts.channel.link import HostLink
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from airflow_provider_dtrain.store.records.trials import CheckpointView
from airflow_provider_dtrain.train.checkpoint.description import metadata_text

RUN = "t1.1.1"
LIMIT = 10**9


@pytest.fixture
def link(tmp_path: Path) -> Iterator[HostLink]:
    made = HostLink.connect(
        LocalTransport(home=tmp_path),
        remote_dir=".dtrain",
        state_dir=str(tmp_path / "state"),
        lock_dir="none",
        python=sys.executable,
    )
    yield made
    made.close()


def make(folder: Path, step: int, size: int = 1000) -> Path:
    """Create a folder that looks like a checkpoint, without torch."""
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
        place=CheckpointPlaces.of(None, experiment_id=1, trial_id=1).find(path),
    )  # fmt: skip


def digest(path: Path) -> str:
    return hashlib.sha256((path / "metadata.json").read_bytes()).hexdigest()


def test_a_checkpoint_goes_to_a_host_and_comes_back_in_pieces(link: HostLink, tmp_path: Path) -> None:
    sent = make(tmp_path, 1, size=9_000_000)
    send(link, RUN, "checkpoints", sent, sent.name)
    target = tmp_path / "copies" / "one"
    fetch_copy(link, view(f"checkpoints/{sent.name}", digest(sent)), target, limit_bytes=LIMIT)
    assert (target / "state.pt").read_bytes() == (sent / "state.pt").read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["one"]


@pytest.mark.nightly
def test_a_copy_that_differs_is_no_copy(link: HostLink, tmp_path: Path) -> None:
    sent, target = make(tmp_path, 1), tmp_path / "copies" / "one"
    send(link, RUN, "checkpoints", sent, sent.name)
    with pytest.raises(DamagedCopyError, match="differs from the one"):
        fetch_copy(link, view(f"checkpoints/{sent.name}", "0" * 64), target, limit_bytes=LIMIT)
    (sent / "state.pt").write_bytes(b"other")
    send(link, RUN, "spoilt", sent, sent.name)
    with pytest.raises(DamagedCopyError, match=r"of state\.pt"):
        fetch_copy(link, view(f"spoilt/{sent.name}", digest(sent)), target, limit_bytes=LIMIT)
    with pytest.raises(HostRefusedError, match="nothing-here"):
        fetch_copy(link, view("nothing-here", None), target, limit_bytes=LIMIT)
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
    told = link.call("remove_checkpoints", root=str(tmp_path), folder="shared", names=names).result(30)
    assert told["removed"] == [first.name, "step-00000002"]
    assert set(told["kept"]) == {full.name, "photos", "linked", "odd"}
    assert "thesis.tex" in told["kept"][full.name]
    assert sorted(path.name for path in root.iterdir()) == ["linked", "odd", "photos", full.name]


def test_a_host_follows_no_link_below_the_configured_folder(link: HostLink, tmp_path: Path) -> None:
    victim = make(tmp_path / "victim", 1)
    (tmp_path / "shared" / "experiment-1").mkdir(parents=True)
    (tmp_path / "shared" / "experiment-1" / "trial-2").symlink_to(victim.parent)
    asked = {"root": str(tmp_path / "shared"), "folder": "experiment-1/trial-2", "names": [victim.name]}
    with pytest.raises(HostRefusedError, match="is a link"):
        link.call("remove_checkpoints", **asked).result(30)
    assert (victim / "state.pt").exists()
    # The configured folder itself may be a symbolic link, as is common for mounts.
    (tmp_path / "mounted").symlink_to(tmp_path / "victim")
    (tmp_path / "victim" / "own").mkdir()
    mine = make(tmp_path / "victim" / "own", 7)
    link.call("remove_checkpoints", root=str(tmp_path / "mounted"), folder="own", names=[mine.name]).result(30)
    assert not mine.exists()


def test_what_lies_in_a_folder_that_is_gone_counts_as_removed(link: HostLink, tmp_path: Path) -> None:
    asked = {"root": str(tmp_path), "folder": "experiment-1/trial-2", "names": ["step-00000001"]}
    assert link.call("remove_checkpoints", **asked).result(30)["removed"] == ["step-00000001"]
    # A configured folder that is not there may only be unmounted.
    with pytest.raises(HostRefusedError, match="Mount it"):
        link.call("remove_checkpoints", **{**asked, "root": str(tmp_path / "unmounted")}).result(30)


@pytest.mark.parametrize(
    "asked",
    [
        {"root": "relative", "folder": "a", "names": ["step-1"]},
        {"root": "/a/../b", "folder": "a", "names": ["step-1"]},
        {"root": "/tmp", "folder": "a", "names": ["../step-1"]},
        {"root": "/tmp", "folder": "a", "names": [".hidden"]},
        {"root": "/tmp", "folder": "../a", "names": ["step-1"]},
        {"root": "/tmp", "folder": "/etc", "names": ["step-1"]},
        {"root": "/tmp", "folder": "", "names": ["step-1"]},
        {"root": "/tmp", "names": ["step-1"]},
        {"folder": "../..", "names": ["step-1"], "run": RUN},
    ],
)
def test_a_host_refuses_to_look_elsewhere(link: HostLink, asked: dict[str, object]) -> None:
    with pytest.raises(HostRefusedError):
        link.call("remove_checkpoints", **asked).result(30)


def test_the_limit_of_a_copy_holds_against_an_event_that_lies(link: HostLink, tmp_path: Path) -> None:
    sent, target = make(tmp_path, 1, size=3_000_000), tmp_path / "copies" / "one"
    send(link, RUN, "checkpoints", sent, sent.name)
    small = replace(view(f"checkpoints/{sent.name}", None), size_bytes=20)
    with pytest.raises(ArchiveLimitError, match="more than 1000000 bytes"):
        fetch_copy(link, small, target, limit_bytes=1_000_000)
    assert list(target.parent.iterdir()) == []
    size = sum(path.stat().st_size for path in sent.iterdir())
    assert fetch_copy(link, small, target, limit_bytes=size) == size


def test_a_refused_checkpoint_is_never_fetched(link: HostLink, tmp_path: Path) -> None:
    refused = replace(view("checkpoints/step-1", None), place=None, refused="elsewhere")
    with pytest.raises(UntrustedPathError, match="elsewhere"):
        fetch_copy(link, refused, tmp_path / "copies" / "one", limit_bytes=1000)
    assert not (tmp_path / "copies").exists()


def test_a_copy_is_removed_only_where_this_provider_makes_it(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    one = replace(view("checkpoints/step-1", None), copy_url=str(other))
    remove_copy(tmp_path / "checkpoints", one, 1)
    assert other.is_dir()
    own = copy_path(tmp_path / "checkpoints", 1, one)
    own.mkdir(parents=True)
    remove_copy(tmp_path / "checkpoints", replace(one, copy_url=str(own)), 1)
    assert not own.exists()
