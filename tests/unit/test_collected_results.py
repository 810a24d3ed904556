"""Results that are fetched from hosts: only what a rank reported, within the limits, reaches the output folder."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.config.inference import Inference
from airflow_provider_dtrain.engine.copies.collected_results import CollectedResults, Limits
from airflow_provider_dtrain.engine.copies.mirror import DamagedCopyError
from airflow_provider_dtrain.errors import CollectError
from airflow_provider_dtrain.train.errors import OtherRunError, SetupError
from airflow_provider_dtrain.train.inference.collected import ENTRY, FOLDER, CollectedLedger, collected_folder
from airflow_provider_dtrain.train.inference.ledger import PLAN, RUN, FinishedShard, encode
from airflow_provider_dtrain.train.inference.shards import Shard

FACTS = {"inputs": {"files": [], "rows": 20}, "settings": {"processor": "m:P"}}
SHARDS = [Shard(index, "a.parquet", index * 10, index * 10 + 10, 10, index * 10) for index in range(2)]
PART = b"rows of a part"
DIGEST = hashlib.sha256(PART).hexdigest()


class Host:
    """Folder of a run on a host, and the transfers that the supervisor offers."""

    def __init__(self, place: Path) -> None:
        self.place = place

    @contextlib.contextmanager
    def fetching(self, run: str, relpath: str) -> Iterator[io.BytesIO]:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w|") as archive:
            archive.add(self.place / relpath, arcname=os.path.basename(relpath))
        packed.seek(0)
        yield packed

    @contextlib.contextmanager
    def putting(self, run: str, relpath: str) -> Iterator[io.BytesIO]:
        packed = io.BytesIO()
        yield packed
        packed.seek(0)
        with tarfile.open(fileobj=packed) as archive:
            archive.extractall(self.place / relpath)

    def ledger(self, run: str = "s-t1.1.1") -> CollectedLedger:
        folder = collected_folder(self.place, "/results", run)
        return CollectedLedger(folder, run=run, key=run.partition(".")[0], suffix="parquet")


class World:
    def __init__(self, place: Path, run: str = "s-t1.1.1", **options: Any) -> None:
        self.out = place / "out"
        self.host = Host(place / f"host-{run}")
        limits = Limits(part_bytes=options.pop("part_bytes", 1000), folder_bytes=options.pop("folder_bytes", 10_000))
        section = Inference.model_validate({"outputs": {"path": str(self.out), **options}, "collect": True})
        self.run = run
        self.results = CollectedResults(section, run, limits)

    def start(self, facts: Any = FACTS, shards: Any = SHARDS) -> set[int]:
        """Begin a run as the control side and rank 0 do, and return the shards that are done."""
        self.results.claim()
        self.results.send_known(self.host)  # type: ignore[arg-type]
        book = self.host.ledger(self.run)
        book.open(facts, shards, overwrite=False)
        book.set_batch_size(64)
        return self.results.begin(self.host)  # type: ignore[arg-type]

    def compute(self, number: int, **changed: Any) -> FinishedShard:
        """Finish a shard as a rank does."""
        book = self.host.ledger(self.run)
        with book.folder.scratch() as file:
            file.write_bytes(PART)
            book.folder.deliver(file, book.delivery_name(number))
        part = book.part_name(number)
        metrics = {"positive": ["AVG", 5.0 * (number + 1), 10.0]}
        entry = FinishedShard(number, self.run, part, 10, len(PART), DIGEST, {"label": "int64"}, metrics, 10)
        entry = dataclasses.replace(entry, **changed)
        book.add(entry)
        return entry

    def take(self, shard: int, size: int = len(PART), sha256: str = DIGEST) -> None:
        self.results.take(self.host, shard, size=size, sha256=sha256)  # type: ignore[arg-type]

    @property
    def parts(self) -> list[str]:
        folder = self.out / "_dtrain" / "parts"
        return sorted(os.listdir(folder)) if folder.exists() else []

    @property
    def entries(self) -> list[str]:
        folder = self.out / "_dtrain" / "done"
        return sorted(os.listdir(folder)) if folder.exists() else []


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.results.release()


def test_fetched_parts_are_published_with_the_combined_metrics(world: World) -> None:
    assert world.start() == set()
    for shard in (1, 0):
        world.compute(shard)
        world.take(shard)

    event = world.results.publish()

    content = (world.out / "_manifest.json").read_bytes()
    manifest = json.loads(content)
    assert event["sha256"] == hashlib.sha256(content).hexdigest()
    assert (event["rows"], event["shards"], event["skipped"]) == (20, 2, [])
    assert manifest["metrics"] == {"positive": 0.75}
    assert manifest["facts"] == FACTS
    assert sorted(os.listdir(world.out)) == ["_dtrain", "_manifest.json", "part-00000.parquet", "part-00001.parquet"]
    assert (world.out / "part-00000.parquet").read_bytes() == PART
    assert world.results.publish() == event


def test_the_next_run_learns_which_shards_are_done_and_the_batch_size(world: World, tmp_path: Path) -> None:
    world.start()
    world.compute(0)
    world.take(0)
    world.results.set_aside(1, "poison")
    world.results.suspend()

    other = World(tmp_path, run="s-t1.2.2")
    try:
        assert other.start() == {0, 1}
        book = other.host.ledger("s-t1.2.2")
        assert sorted(book.entries()) == [0]
        assert book.skipped()[1].error == "poison"
        assert book.open(FACTS, SHARDS, overwrite=False)["batch_size"] == 64
        assert other.results.publish()["skipped"] == [1]
    finally:
        other.results.release()


def test_rank_0_refuses_other_facts_and_names_the_folder_of_the_airflow_machine(world: World, tmp_path: Path) -> None:
    world.start()
    world.results.release()
    other = World(tmp_path, run="s-t2.1.2")
    other.results.claim()
    other.results.send_known(other.host)  # type: ignore[arg-type]

    with pytest.raises(OtherRunError, match=r"output folder /results holds results .* other settings") as caught:
        other.host.ledger("s-t2.1.2").open({**FACTS, "settings": {"processor": "m:Q"}}, SHARDS, overwrite=False)

    assert 'was "m:P", is "m:Q"' in str(caught.value)
    other.results.release()


def test_overwrite_keeps_the_old_results_until_rank_0_has_planned(world: World, tmp_path: Path) -> None:
    world.start()
    for shard in (0, 1):
        world.compute(shard)
        world.take(shard)
    world.results.publish()
    world.results.release()
    other = World(tmp_path, run="s-t2.1.2", overwrite=True)
    other.results.claim()
    other.results.send_known(other.host)  # type: ignore[arg-type]
    assert (world.out / "_manifest.json").exists()

    assert other.start(facts={"inputs": {}}) == set()

    assert os.listdir(world.out) == ["_dtrain"]
    other.results.release()


def test_a_rank_without_a_ledger_from_the_control_side_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"remove inference\.collect"):
        Host(tmp_path).ledger().open(FACTS, SHARDS, overwrite=False)


@pytest.mark.parametrize(
    "changed",
    [
        {"shard": 1}, {"run": "s-t9.9.9"}, {"part": "../00000/part-00000.s-t1.1.1.parquet"}, {"size": 3},
        {"sha256": "0" * 64}, {"rows": -1}, {"rows": True},
        {"rows_read": 2**80}, {"schema": {"label": 5}}, {"schema": ["label"]},
        {"metrics": {"m": ["PICKLE", 1, 1]}}, {"metrics": {"m": ["AVG", "1", 1]}}, {"metrics": {"m": ["AVG", 1]}},
        {"schema": {"x" * 300: "int64"}},
    ],
    ids=str,
)  # fmt: skip
def test_an_entry_that_is_not_of_the_reported_shard_is_refused(world: World, changed: dict[str, Any]) -> None:
    world.start()
    entry = world.compute(0, **changed)
    if "shard" in changed:
        os.rename(world.host.place / FOLDER / "_dtrain/shards/00001", world.host.place / "moved")
        os.replace(world.host.place / "moved" / ENTRY, world.host.place / FOLDER / "_dtrain/shards/00000" / ENTRY)

    with pytest.raises(DamagedCopyError):
        world.take(0)

    assert entry != world.compute(0)
    assert (world.parts, world.entries) == ([], [])


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"crc32": 0, "document": {}}', b"\xff", b'{"crc32": NaN}', b"", b"x" * (2 << 20)],
    ids=["deep", "checksum", "bytes", "nan", "empty", "large"],
)  # fmt: skip
def test_an_entry_that_cannot_be_read_is_refused(world: World, content: bytes) -> None:
    world.start()
    world.compute(0)
    (world.host.place / FOLDER / "_dtrain/shards/00000" / ENTRY).write_bytes(content)

    with pytest.raises(DamagedCopyError):
        world.take(0)

    assert (world.parts, world.entries) == ([], [])


def test_a_host_that_sends_more_or_other_bytes_than_it_reported_is_refused(world: World) -> None:
    world.start()
    world.compute(0)
    part = world.host.place / FOLDER / "_dtrain/shards/00000" / world.host.ledger().part_name(0)
    part.write_bytes(PART[::-1])
    with pytest.raises(DamagedCopyError, match="size or checksum"):
        world.take(0)
    part.write_bytes(b"x" * (2 << 20))
    with pytest.raises(DamagedCopyError, match="reported with 14 bytes"):
        world.take(0)
    part.unlink()
    with pytest.raises(DamagedCopyError, match="size or checksum"):
        world.take(0)
    part.symlink_to("/etc/passwd")
    with pytest.raises(DamagedCopyError, match="neither a file nor a folder"):
        world.take(0)

    assert (world.parts, world.entries) == ([], [])


def test_a_shard_that_was_not_planned_is_refused(world: World) -> None:
    world.start()
    with pytest.raises(DamagedCopyError, match="shard 2 is not one of 2"):
        world.take(2)
    with pytest.raises(DamagedCopyError, match="shard 2 is not one of 2"):
        world.results.set_aside(2, "poison")


def test_limits_of_a_part_and_of_the_folder_name_their_options(tmp_path: Path) -> None:
    small = World(tmp_path, part_bytes=10)
    small.start()
    with pytest.raises(CollectError, match=r"14 bytes, and at most 10 .* collect_part_limit"):
        small.take(0)
    small.results.release()
    full = World(tmp_path, run="s-t1.2.2", folder_bytes=100)
    full.start()
    with pytest.raises(CollectError, match=r"at most 100 are fetched.* collect_limit"):
        full.take(0)
    full.results.release()


def test_the_parts_of_a_run_count_together(tmp_path: Path) -> None:
    world = World(tmp_path, folder_bytes=1600)
    world.start()
    world.compute(0)
    for _ in range(10):
        with contextlib.suppress(CollectError):
            world.take(0)
    with pytest.raises(CollectError, match="collect_limit"):
        world.take(0)
    world.results.release()


def test_a_folder_that_cannot_be_written_is_a_named_error(world: World) -> None:
    world.start()
    world.compute(0)
    (world.out / "_dtrain" / "parts").write_text("no folder")

    with pytest.raises(CollectError, match=rf"output folder {world.out} cannot be used"):
        world.take(0)

    assert world.entries == []


def test_nothing_is_published_while_a_shard_is_missing(world: World) -> None:
    world.start()
    world.compute(0)
    world.take(0)

    with pytest.raises(CollectError, match="1 of 2 shards have not arrived"):
        world.results.publish()

    assert not (world.out / "_manifest.json").exists()
    assert not list(world.out.glob("part-*"))


def test_a_used_folder_without_a_ledger_is_refused_before_the_ranks_start(world: World) -> None:
    world.out.mkdir()
    (world.out / "thesis.tex").touch()
    with pytest.raises(CollectError, match=r"It holds thesis\.tex, which no run wrote"):
        world.results.claim()


@pytest.mark.parametrize(
    ("name", "document"),
    [
        (RUN, []), (RUN, {"format": 1, "facts": [], "batch_size": 4}), (RUN, {"format": 1, "facts": {}}),
        (RUN, {"format": 2, "facts": {}, "batch_size": 4}), (PLAN, []), (PLAN, [1]), (PLAN, [{"index": 0}]),
        (PLAN, [SHARDS[1].to_dict()]), (PLAN, {"0": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_a_record_that_is_no_run_is_refused(world: World, name: str, document: Any) -> None:
    world.start()
    (world.host.place / FOLDER / name).write_bytes(encode(document))
    with pytest.raises(DamagedCopyError):
        world.results.begin(world.host)  # type: ignore[arg-type]


def test_a_host_cannot_replace_the_record_of_the_folder(world: World) -> None:
    world.start()
    world.host.ledger().begin({"format": 1, "facts": {"inputs": "others"}, "batch_size": 1}, [])
    (world.host.place / FOLDER / PLAN).write_bytes(encode([shard.to_dict() for shard in SHARDS]))
    before = (world.out / RUN).read_bytes()

    with pytest.raises(DamagedCopyError, match="reports another run"):
        world.results.begin(world.host)  # type: ignore[arg-type]

    assert (world.out / RUN).read_bytes() == before


def test_a_follower_without_the_host_of_rank_0_continues_by_the_record_of_its_predecessor(
    world: World, tmp_path: Path
) -> None:
    assert world.results.missing() == "The shards have"
    assert world.results.resume() is None
    world.start()
    world.compute(0)
    world.take(0)
    world.results.suspend()

    heir = World(tmp_path)
    heir.results.claim()
    try:
        assert heir.results.missing() == "1 of 2 shards has"
        assert heir.results.resume() == {0}
        heir.compute(1)
        heir.take(1)
        assert heir.results.missing() == ""
        assert heir.results.publish()["rows"] == 20
    finally:
        heir.results.release()


def test_the_record_that_a_run_replaces_is_not_its_own(world: World, tmp_path: Path) -> None:
    world.start()
    world.results.suspend()

    other = World(tmp_path, run="s-t2.1.9", overwrite=True)

    assert other.results.resume() is None
