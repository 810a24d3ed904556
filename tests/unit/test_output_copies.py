"""Copies of outputs are whole, bounded and made of nothing but what a host may send."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.engine.copies import output_generations
from airflow_provider_dtrain.engine.copies.mirror import DamagedCopyError
from airflow_provider_dtrain.engine.copies.output_generations import Generation, Manifest, OutputCopies
from airflow_provider_dtrain.engine.copies.outputs import OutputKeeper
from airflow_provider_dtrain.hosts.channel.archive_reader import ArchiveLimitError
from tests.support.archives import archive, member

LIMIT = 10_000


def version(content: bytes) -> str:
    return f"{len(content)}-{content[:8]!r}"


class Host:
    """Host that sends the given archive members, and records the versions that the caller knows."""

    def __init__(self) -> None:
        self.members: list[tuple[tarfile.TarInfo, bytes]] = []
        self.known: dict[str, str] = {}
        self.limit_bytes = 0

    def has(
        self,
        files: dict[str, bytes],
        *,
        sent: set[str] | None = None,
        times: Mapping[str, float] = MappingProxyType({}),
        **end: Any,
    ) -> Host:
        """Let the next archive hold files, all of them or those that are named."""
        entries = {path: [len(content), times.get(path, 1.5), version(content)] for path, content in files.items()}
        chosen = files if sent is None else sent
        self.members = [member(path, content=files[path]) for path in chosen]
        self.members.append(member("end.json", content=json.dumps({"files": entries, **end}).encode()))
        return self

    @contextlib.contextmanager
    def outputs(
        self, run: str, *, known: dict[str, str], limit_bytes: int, limit_files: int, library_only: bool
    ) -> Iterator[io.BytesIO]:
        self.known = known
        self.limit_bytes = limit_bytes
        yield archive(*self.members)


def manifest(attempt: int = 1, *, at: float = 1.0, is_final: bool = False) -> Manifest:
    return Manifest(run=f"t1.{attempt}.1", attempt=attempt, host="a", at=at, is_final=is_final)


@pytest.fixture
def copies(tmp_path: Path) -> OutputCopies:
    return OutputCopies(tmp_path / "trial-1")


def take(
    copies: OutputCopies, host: Any, attempt: int = 1, *, limit: int = LIMIT, library_only: bool = False
) -> Generation:
    return copies.take(host, manifest(attempt), limit_bytes=limit, library_only=library_only)


def held(copies: OutputCopies) -> dict[str, bytes]:
    found = copies.newest()
    assert found is not None
    return {path: found.path(path).read_bytes() for path in found.manifest.files}


def test_what_is_known_is_linked_and_what_changed_is_replaced(copies: OutputCopies) -> None:
    host = Host()
    take(copies, host.has({"work/a": b"1", "work/b": b"2"}))
    take(copies, host.has({"work/a": b"1", "work/b": b"33", "checkpoints/c": b"4"}, sent={"work/b", "checkpoints/c"}))
    assert host.known == {"work/a": version(b"1"), "work/b": version(b"2")}
    assert held(copies) == {"work/a": b"1", "work/b": b"33", "checkpoints/c": b"4"}
    assert [path.name for path in copies.folder.iterdir()] == ["outputs-1-2"]


def test_a_file_that_is_gone_on_the_host_is_gone_here(copies: OutputCopies) -> None:
    take(copies, Host().has({"work/a": b"1", "work/b": b"2"}))
    take(copies, Host().has({"work/b": b"2"}, sent=set()))
    assert held(copies) == {"work/b": b"2"}


def test_a_file_that_is_being_written_stays_as_it_was_also_over_attempts(copies: OutputCopies) -> None:
    take(copies, Host().has({"work/snapshot.pt": b"whole", "work/a": b"1"}), attempt=1)
    half = Host().has({"work/a": b"1", "work/snapshot.pt": b"ha"})
    end = {"files": {"work/a": [1, 1.5, "x"]}, "unsettled": ["work/snapshot.pt"]}
    half.members[-1] = member("end.json", content=json.dumps(end).encode())
    take(copies, half, attempt=2)
    assert half.known == {}, "another run has files of its own"
    assert held(copies) == {"work/a": b"1", "work/snapshot.pt": b"whole"}
    found = copies.newest()
    assert found is not None
    assert found.manifest.unsettled == ("work/snapshot.pt",)


def test_a_late_copy_of_an_earlier_attempt_never_counts_or_removes_a_newer_one(copies: OutputCopies) -> None:
    take(copies, Host().has({"work/a": b"new"}), attempt=2)
    take(copies, Host().has({"work/a": b"old"}), attempt=1)
    assert held(copies) == {"work/a": b"new"}
    assert copies.newest(first_attempt=3) is None


@pytest.mark.parametrize(
    "bad",
    [
        Host().has({"work/a": b"1"}, sent=set()),
        Host().has({"work/../../a": b"1"}, sent=set()),
        Host().has({"/etc/a": b"1"}, sent=set()),
        Host().has({"rank0/log": b"1"}),
        Host().has({"work": b"1"}),
        Host().has({"work/a\x1b[2J": b"1"}),
        Host().has({"work/" + "a" * 2000: b"1"}, sent=set()),
        Host().has({"work/a": b"1", "work/a/b": b"2"}, sent={"work/a"}),
    ],
)
def test_a_host_that_contradicts_itself_leaves_the_copy_before(copies: OutputCopies, bad: Host) -> None:
    take(copies, Host().has({"work/z": b"1"}))
    with pytest.raises(DamagedCopyError):
        take(copies, bad)
    assert held(copies) == {"work/z": b"1"}
    assert [path.name for path in copies.folder.iterdir()] == ["outputs-1-1"]


@pytest.mark.parametrize(
    "end",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        b'{"files": 1}',
        b'{"files": {"work/a": [1]}}',
        b'{"files": {"work/a": [9, 1, "v"]}}',
        b'{"files": {"work/a": [-1, 1, "v"]}}',
        b'{"files": {"work/a": [1, NaN, "v"]}}',
        b'{"files": {"work/a": "abc"}}',
    ],
)
def test_an_end_that_cannot_be_read_is_no_copy(copies: OutputCopies, end: bytes) -> None:
    host = Host().has({"work/a": b"1"})
    host.members[-1] = member("end.json", content=end)
    with pytest.raises(DamagedCopyError):
        take(copies, host)
    assert list(copies.folder.iterdir()) == []


def test_an_end_of_more_values_than_files_have_is_no_copy(copies: OutputCopies) -> None:
    with pytest.raises(DamagedCopyError, match="at most 80,000 are accepted"):
        take(copies, Host().has({}, more=[{}] * 100_000))


def test_an_end_of_all_files_and_unsettled_paths_is_accepted(copies: OutputCopies) -> None:
    most = output_generations.FILES_LIMIT
    unsettled = [f"work/of another run {number}" for number in range(most)]
    host = Host().has({f"work/file {number}": b"" for number in range(most)}, sent=set(), unsettled=unsettled)
    with pytest.raises(DamagedCopyError, match="was not sent"):
        take(copies, host)


def test_an_end_is_never_read_beyond_its_limit(copies: OutputCopies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_generations, "END_LIMIT_BYTES", 100)
    with pytest.raises(DamagedCopyError, match="more than 100 bytes"):
        take(copies, Host().has({}, more="x" * 100))


def test_an_archive_without_its_end_is_no_copy(copies: OutputCopies) -> None:
    host = Host().has({"work/a": b"1"})
    host.members.pop()
    with pytest.raises(DamagedCopyError, match=r"end\.json is missing"):
        take(copies, host)


def test_a_link_from_a_host_is_refused(copies: OutputCopies) -> None:
    host = Host().has({"work/a": b"1"})
    host.members.insert(0, member("work/link", tarfile.SYMTYPE, "/etc/passwd"))
    with pytest.raises(DamagedCopyError):
        take(copies, host)
    assert list(copies.folder.iterdir()) == []


def test_the_limit_holds_for_what_comes_and_for_what_is_linked(copies: OutputCopies) -> None:
    with pytest.raises((DamagedCopyError, ArchiveLimitError)):
        take(copies, Host().has({"work/a": b"x" * (LIMIT + 1)}))
    take(copies, Host().has({"work/a": b"x" * LIMIT}))
    both = {"work/a": b"x" * LIMIT, "work/b": b"y"}
    with pytest.raises(DamagedCopyError, match="were allowed"):
        take(copies, Host().has(both, sent={"work/b"}))
    assert set(held(copies)) == {"work/a"}


def test_a_linked_file_has_the_size_that_the_copy_before_gives(copies: OutputCopies) -> None:
    take(copies, Host().has({"work/a": b"x" * LIMIT}))
    host = Host().has({"work/b": b"y" * LIMIT})
    entries = {"work/a": [0, 1.5, version(b"x" * LIMIT)], "work/b": [LIMIT, 1.5, "v"]}
    host.members[-1] = member("end.json", content=json.dumps({"files": entries}).encode())
    with pytest.raises(DamagedCopyError, match="in the copy before"):
        take(copies, host)
    assert set(held(copies)) == {"work/a"}


def test_the_limit_holds_for_the_bytes_on_the_disk(copies: OutputCopies) -> None:
    before = take(copies, Host().has({"work/a": b"1"}))
    before.path("work/a").write_bytes(b"x" * (LIMIT + 1))
    with pytest.raises(DamagedCopyError, match="were allowed"):
        take(copies, Host().has({"work/a": b"1"}, sent=set()))


def test_members_that_the_end_does_not_name_are_dropped(copies: OutputCopies) -> None:
    host = Host().has({"work/a": b"1"})
    host.members.insert(0, member("work/more", content=b"2"))
    host.members.insert(0, member("etc/passwd", content=b"3"))
    take(copies, host)
    found = copies.newest()
    assert found is not None
    assert {path.name for path in found.folder.rglob("*") if path.is_file()} == {"a", "manifest.json"}


def test_a_folder_without_a_manifest_is_never_a_generation(copies: OutputCopies) -> None:
    take(copies, Host().has({"work/a": b"1"}))
    (copies.folder / ".copy-abc" / "files" / "work").mkdir(parents=True)
    (copies.folder / "outputs-9-9").mkdir()
    assert held(copies) == {"work/a": b"1"}


def test_a_time_that_no_date_can_show_is_refused(copies: OutputCopies) -> None:
    """Such a file would end ``trials outputs`` with a ValueError."""
    host = Host()
    for at in (253_402_300_799.9, 253_402_300_800, 1e12):
        end = {"files": {"work/a": [1, at, "v"]}}
        host.members = [member("work/a", content=b"x"), member("end.json", content=json.dumps(end).encode())]
        if at < 253_402_300_800:
            found = take(copies, host).manifest.files["work/a"].modified_at
            assert datetime.fromtimestamp(found, UTC).year == 9999
        else:
            with pytest.raises(DamagedCopyError, match="less than 253402300800"):
                take(copies, host)


def modified(found: Generation) -> float:
    return found.manifest.files["work/a"].modified_at


def test_traces_of_earlier_attempts_stay_and_count_towards_the_limit(copies: OutputCopies) -> None:
    host = Host()
    first, second, third = (f"work/traces/rank0-attempt{number}-batch5.json.gz" for number in (1, 2, 2))
    third = third.replace("batch5", "batch9")
    take(copies, host.has({first: b"1111"}), library_only=True)
    take(copies, host.has({second: b"22"}), 2, library_only=True)
    assert host.limit_bytes == LIMIT - 4
    take(copies, host.has({second: b"22", third: b"3"}, sent={third}), 2, library_only=True)
    assert held(copies) == {first: b"1111", second: b"22", third: b"3"}
    take(copies, host.has({third: b"3"}, sent=set()), 2, library_only=True)
    assert held(copies) == {first: b"1111", third: b"3"}
    take(copies, host.has({"work/a": b"1"}), 3)
    assert held(copies) == {"work/a": b"1"}


def test_media_of_earlier_attempts_stay_within_a_quota_the_latest_first(
    copies: OutputCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_generations, "EARLIER_FILES", 2)
    monkeypatch.setattr(output_generations, "EARLIER_BYTES", 10)
    host = Host()
    trace = "work/traces/rank0-attempt1-batch5.json.gz"
    old, middle, new = (f"work/media/a/{step}-attempt1-image.png" for step in (1, 2, 3))
    times = {old: 1.0, middle: 2.0, new: 3.0, trace: 0.0}
    take(copies, host.has({trace: b"1" * 20, old: b"1", middle: b"2", new: b"3"}, times=times), library_only=True)
    again = "work/media/a/3-attempt2-image.png"
    take(copies, host.has({again: b"4"}, times={again: 4.0}), 2, library_only=True)
    assert set(held(copies)) == {trace, middle, new, again}
    assert host.limit_bytes == LIMIT - 22
    monkeypatch.setattr(output_generations, "EARLIER_BYTES", 1)
    take(copies, host.has({}), 3, library_only=True)
    assert set(held(copies)) == {trace, again}


def test_a_host_that_reports_media_without_end_starts_a_copy_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rt: Any = SimpleNamespace(settings=SimpleNamespace(checkpoint_dir=tmp_path, output_sync_period_s=3600.0))
    view: Any = SimpleNamespace(experiment_id=1, trial_id=1)
    keeper, at_end = OutputKeeper(rt, view), None
    rt.settings.output_sync_period_s = 0.0
    at_end = OutputKeeper(rt, view)
    clock, planned = [100.0], []
    loop = SimpleNamespace(call_later=lambda delay_s, wake: planned.append((clock[0] + delay_s, wake)))
    module = "airflow_provider_dtrain.engine.copies.outputs"
    monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(f"{module}.asyncio", SimpleNamespace(get_running_loop=lambda: loop))
    for _ in range(100):
        keeper.reported()
        at_end.reported()
        clock[0] += 1
    assert planned == [(at, keeper.wake) for at in (100.0, 130.0, 160.0, 190.0, 220.0)]


@pytest.mark.parametrize(
    ("kinds", "copied"),
    [((), False), (("init",), None), (("init", "trace"), True), (("trace",), False), (("init", "media"), True)],
)
async def test_of_a_program_with_the_library_only_traces_and_media_are_copied(
    kinds: tuple[str, ...], copied: bool | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def db(call: Any, *args: Any, **options: Any) -> Any:
        return call(*args, **options)

    taken: list[bool] = []

    async def take(_: OutputKeeper, manifest: Manifest, *, library_only: bool) -> Generation:
        taken.append(library_only)
        return Generation(folder=tmp_path, manifest=manifest)

    events = SimpleNamespace(of_attempt=lambda _, kinds: [kind for kind in written if kind in kinds])
    written = kinds
    rt: Any = SimpleNamespace(
        db=db,
        store=SimpleNamespace(events=events),
        settings=SimpleNamespace(checkpoint_dir=tmp_path, output_sync_period_s=0.0),
    )
    view: Any = SimpleNamespace(
        run="t1.1.1", plan={"master": {"host": "a"}}, number=1, attempt_id=1, experiment_id=1, trial_id=1
    )
    monkeypatch.setattr(OutputKeeper, "_take", take)
    await OutputKeeper(rt, view).copy(is_final=False)
    assert taken == ([] if copied is None else [copied])


async def test_a_follower_removes_the_partial_copies_of_killed_processes_and_copies_nothing_after_its_end(
    tmp_path: Path,
) -> None:
    rt: Any = SimpleNamespace(settings=SimpleNamespace(checkpoint_dir=tmp_path, output_sync_period_s=3600.0))
    keeper = OutputKeeper(rt, SimpleNamespace(experiment_id=1, trial_id=1))  # type: ignore[arg-type]
    (keeper.copies.folder / ".copy-abc" / "files" / "work").mkdir(parents=True)
    keeper.close()
    await keeper.run()
    assert list(keeper.copies.folder.iterdir()) == []


def test_other_accounts_of_the_machine_cannot_enter_the_folders_of_copies(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        copies = OutputCopies(tmp_path / "dtrain" / "experiment-1" / "trial-1")
        copies.take(Host().has({"work/a/b.txt": b"one"}), manifest(), limit_bytes=LIMIT, library_only=False)  # type: ignore[arg-type]
    finally:
        os.umask(before)
    (generation,) = (one for one in copies.folder.iterdir() if one.is_dir())
    folders = (generation, copies.folder, *list(copies.folder.parents)[:2])
    assert [one.stat().st_mode & 0o777 for one in folders] == [0o700] * 4
    assert {one.stat().st_mode & 0o777 for one in copies.folder.rglob("*.json")} == {0o600}
