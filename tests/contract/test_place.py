"""Places keep complete files and folders only, on disk and in a bucket alike."""

from __future__ import annotations

import os
import shutil

import pytest

from airflow_provider_dtrain.train.files.local import LocalPlace

pytest_plugins = ["tests.support.places"]
MARK = "metadata.json"


def complete(place, name="step-1", **files):
    begun = place.begin(name)
    for file, content in files.items():
        place.save(begun, file, lambda opened, content=content: opened.write(content))
    place.complete(begun, name, MARK, b"{}")


def test_a_place_that_does_not_exist_is_empty(place):
    assert (place.entries(), place.names("a"), place.size("a"), place.read("a")) == ({}, [], None, None)
    assert place.read_all(["a"]) == {}
    place.remove("a")


def test_a_file_is_read_as_it_was_written(place):
    place.write("a", b"one")
    place.write("sub/b", b"two")
    place.write("a", b"three", is_durable=False)

    assert place.entries() == {"a": "file", "sub": "directory"}
    assert (place.names(), place.names("sub")) == (["a"], ["b"])
    assert (place.size("a"), place.read("a"), place.read("a", 2)) == (5, b"three", b"th")
    assert place.read_all(["a", "sub/b", "c"]) == {"a": b"three", "sub/b": b"two"}
    place.remove("a")
    assert place.names() == []


def test_a_file_is_created_once_or_the_place_says_that_it_cannot(place):
    first = place.create("a", b"one")
    second = place.create("a", b"two")

    assert (first, second) in [(True, False), (None, None)]
    assert place.read("a") == (b"one" if first else None)


def test_a_file_that_is_not_delivered_is_no_file_of_the_place(place):
    with place.scratch() as file:
        file.write_bytes(b"rows")
    assert [name for name in place.names() if not name.startswith(".")] == []
    with place.scratch() as file:
        file.write_bytes(b"rows")
        place.deliver(file, "parts/a")
    assert place.read("parts/a") == b"rows"
    assert not file.exists()


def test_a_folder_is_complete_with_its_mark(place):
    complete(place, a=b"one")

    assert place.entries() == {"step-1": "directory"}
    assert place.names("step-1") == ["a", MARK]


def test_a_folder_of_this_host_becomes_one_of_the_place(place):
    stage = place.stage("step-1")
    (stage / "files" / "inner").mkdir(parents=True)
    (stage / "files" / "inner" / "a").write_bytes(b"one")
    place.complete(stage / "files", "step-1", MARK, b"{}")
    shutil.rmtree(stage)

    assert (place.read("step-1/inner/a"), place.read(f"step-1/{MARK}")) == (b"one", b"{}")
    assert place.entries() == {"step-1": "directory"}


def test_a_file_whose_writing_failed_does_not_exist_and_the_folder_can_be_discarded(place):
    def failing(opened):
        opened.write(b"part")
        raise OSError("No space left on device")

    begun = place.begin("step-1")
    with pytest.raises(OSError, match="No space"):
        place.save(begun, "a", failing)
    place.discard(begun, "step-1", MARK)
    assert place.entries() == {}


def test_a_removed_folder_is_gone_and_others_stay(place):
    complete(place, "step-1", a=b"one")
    complete(place, "step-10", a=b"ten")
    place.remove_folder("step-1", MARK)

    assert place.entries() == {"step-10": "directory"}


def test_a_folder_that_was_removed_in_part_does_not_count(place):
    complete(place, a=b"one")
    # The process is killed after the first step of the removal.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        if not place.renames:
            patch.setattr(place.fs, "rm", lambda *_, **__: None)
        place.remove_folder("step-1", MARK)

    assert place.size(f"step-1/{MARK}") is None


def test_what_killed_processes_left_is_swept_and_complete_folders_stay(place):
    complete(place, "step-1", a=b"one")
    place.save(place.begin("step-2"), "a", lambda opened: opened.write(b"two"))
    place.write("other", b"x")
    place.sweep_folders("step-", MARK)

    assert place.entries() == {"step-1": "directory", "other": "file"}


def test_what_is_neither_a_file_nor_a_folder_is_an_entry_only(tmp_path):
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")

    assert LocalPlace(tmp_path).entries() == {"dangling": "other", "pipe": "other"}
    assert LocalPlace(tmp_path).names() == []


def test_a_link_is_replaced_and_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").symlink_to(victim)
    place = LocalPlace(tmp_path / "out")

    assert place.create("a", b"x") is False
    place.write("a", b"x")

    assert victim.read_text() == "mine"
    assert not (tmp_path / "out" / "a").is_symlink()
