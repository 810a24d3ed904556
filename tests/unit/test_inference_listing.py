"""Files of a batch inference's input: order, formats, hidden names, links and patterns."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from airflow_provider_dtrain.train.errors import InputError, InputUnavailableError, SetupError
from airflow_provider_dtrain.train.inference.inputs.listing import identity_of, list_input
from airflow_provider_dtrain.train.inference.inputs.settings import InputSettings
from airflow_provider_dtrain.train.inference.inputs.sources import Sources, unreadable
from airflow_provider_dtrain.train.inference.libraries import require


def listed(path, root=None, **settings):
    kind, files = list_input(InputSettings.parse({"path": path, **settings}, ()), Sources({}))
    return kind, [os.path.relpath(file.path, root) if root else file.path for file in files]


def tree(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def test_a_folder_is_read_with_its_subfolders_in_the_order_of_names(tmp_path):
    tree(tmp_path, "b/2.csv", "a.csv", "b/10.csv", "b/1.csv", "B.csv")
    assert listed(str(tmp_path), tmp_path) == ("csv", ["B.csv", "a.csv", "b/1.csv", "b/10.csv", "b/2.csv"])


def test_names_with_an_underscore_or_a_dot_in_front_are_no_input(tmp_path):
    tree(tmp_path, "a.csv", "_SUCCESS", ".a.csv.crc", "_dtrain/part-0.csv", ".cache/x.csv")
    assert listed(str(tmp_path), tmp_path) == ("csv", ["a.csv"])
    assert listed(f"{tmp_path}/**/*.csv", tmp_path) == ("csv", ["a.csv"])
    assert listed(f"{tmp_path}/_dtrain/*.csv", tmp_path) == ("csv", ["_dtrain/part-0.csv"])
    assert listed(f"{tmp_path}/_dtrain", tmp_path) == ("csv", ["_dtrain/part-0.csv"])


def test_entries_keep_their_order_and_a_file_in_two_of_them_is_refused(tmp_path):
    tree(tmp_path, "b.csv", "a.csv", "c.csv")
    assert listed([f"{tmp_path}/c.csv", f"{tmp_path}/[ab].csv"], tmp_path)[1] == ["c.csv", "a.csv", "b.csv"]
    with pytest.raises(InputError, match=r"b\.csv is found twice"):
        listed([f"{tmp_path}/b.csv", str(tmp_path)])


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["a.parquet", "b.pq"], "parquet"), (["a.csv", "b.tsv", "c.csv.gz"], "csv"),
        (["a.jsonl", "b.ndjson.zst"], "jsonl"), (["a.JPG", "b.png", "c.jpeg"], "images"),
    ],
)  # fmt: skip
def test_suffixes_tell_the_format(tmp_path, names, kind):
    tree(tmp_path, *names)
    assert listed(str(tmp_path))[0] == kind


def test_a_folder_with_mixed_suffixes_needs_a_format(tmp_path):
    tree(tmp_path, "a.csv", "b.parquet")
    with pytest.raises(InputError, match=r"several formats: .*a\.csv \(csv\) and .*b\.parquet \(parquet\)"):
        listed(str(tmp_path))
    assert listed(str(tmp_path), tmp_path, format="parquet") == ("parquet", ["b.parquet"])
    assert listed(str(tmp_path), tmp_path, format="files") == ("files", ["a.csv", "b.parquet"])


def test_a_suffix_without_a_format_is_refused_unless_the_format_is_set(tmp_path):
    tree(tmp_path, "a.csv", "README")
    with pytest.raises(InputError, match=r"README tells no format. Set inputs.format"):
        listed(str(tmp_path))
    with pytest.raises(InputError, match=r"No file below .* has a suffix of the format jsonl. Suffixes found: "):
        listed(str(tmp_path), format="jsonl")
    assert listed(f"{tmp_path}/READ*", tmp_path, format="jsonl") == ("jsonl", ["README"])


def test_loops_of_links_end_and_each_folder_is_read_once(tmp_path, caplog):
    tree(tmp_path, "a/x.csv", "b/y.csv")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "b" / "other").symlink_to(tmp_path / "a")
    (tmp_path / "z.csv").symlink_to(tmp_path / "a" / "x.csv")
    assert listed(str(tmp_path), tmp_path)[1] == ["a/x.csv", "b/y.csv", "z.csv"]
    assert "already read under another name" in caplog.text


def test_a_link_without_a_target_is_named(tmp_path):
    tree(tmp_path, "a.csv")
    (tmp_path / "b.csv").symlink_to(tmp_path / "gone.csv")
    with pytest.raises(InputError, match=r"b\.csv cannot be read"):
        listed(str(tmp_path))


@pytest.mark.parametrize("name", ["gone", "gone/*.csv"])
def test_a_path_without_files_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="does not exist on this host"):
        listed(f"{tmp_path}/{name}")


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="No file was found"):
        listed(str(tmp_path))


def test_a_pipe_is_never_opened(tmp_path):
    tree(tmp_path, "a.csv")
    os.mkfifo(tmp_path / "b.csv")
    assert listed(str(tmp_path), tmp_path)[1] == ["a.csv"]
    with pytest.raises(InputError, match="is no regular file"):
        listed(f"{tmp_path}/b.csv")


def test_a_name_with_characters_of_a_pattern_is_that_file(tmp_path):
    tree(tmp_path, "a[1].csv", "a1.csv")
    assert listed(f"{tmp_path}/a[1].csv", tmp_path)[1] == ["a[1].csv"]


def test_a_pattern_may_match_folders(tmp_path):
    tree(tmp_path, "date=1/a.csv", "date=2/b.csv", "other/c.csv")
    assert listed(f"{tmp_path}/date=*", tmp_path)[1] == ["date=1/a.csv", "date=2/b.csv"]


def test_the_identity_of_many_files_is_short(tmp_path):
    from airflow_provider_dtrain.train.inference.inputs.sources import SourceFile

    settings = InputSettings.parse({"path": "x"}, ())
    files = [SourceFile(f"/data/{i}", i, "1") for i in range(2000)]
    identity = identity_of("files", settings, files, 2000)
    assert len(str(identity)) < 500
    assert identity != identity_of("files", settings, [*files[:-1], SourceFile("/data/1999", 1999, "2")], 2000)


@pytest.mark.parametrize(
    "settings",
    [
        {"path": []},
        {"path": ""},
        {"path": "x", "format": "xml"},
        {"path": "x", "shard_rows": 0},
        {"path": "x", "columns": []},
    ],
)
def test_settings_that_are_not_valid_are_refused(settings):
    with pytest.raises(InputError, match=r"inputs\.\w+ must be"):
        InputSettings.parse(settings, ())


def test_a_name_that_is_no_utf_8_is_refused(tmp_path):
    with open(os.fsencode(tmp_path) + b"/a\xff.csv", "w"):
        pass
    with pytest.raises(InputError, match="is not valid UTF-8. Rename it") as caught:
        listed(str(tmp_path))
    assert str(caught.value).isascii()


@pytest.mark.parametrize("pattern", ["", "/a.csv", "/*.csv", "/[ab].csv"])
def test_urls_of_any_file_system_are_listed_and_read(pattern):
    from airflow_provider_dtrain.train.inference.inputs import open_input

    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe_file("/listing/a.csv", b"x\n1\n")
    try:
        found = open_input({"path": f"memory://listing{pattern}"}, storage={})
        (shard,) = found.plan().shards
        assert [batch.rows for batch in found.batches(shard, 8)] == [1]
    finally:
        memory.rm("/listing", recursive=True)


@pytest.mark.parametrize(
    ("path", "error", "may_pass"),
    [
        ("/data/a.parquet", FileNotFoundError(errno.ENOENT, "gone"), False),
        ("/data/a.parquet", PermissionError(errno.EACCES, "denied"), False),
        ("/data/a.parquet", OSError(errno.ESTALE, "stale file handle"), True),
        ("/data/a.parquet", OSError("Couldn't deserialize thrift"), False),
        ("/data/a.parquet", ValueError("no magic bytes"), False),
        ("s3://b/a.parquet", FileNotFoundError("gone"), False),
        ("s3://b/a.parquet", PermissionError("Access Denied"), False),
        ("s3://b/a.parquet", OSError(errno.EBUSY, "slow down"), True),
        ("s3://b/a.parquet", RuntimeError("the endpoint does not answer"), True),
        ("s3://b/a.parquet", ValueError("no magic bytes"), False),
    ],
)
def test_a_storage_that_does_not_answer_is_told_from_an_input_that_no_attempt_can_read(path, error, may_pass):
    found = unreadable(path, f"{path} cannot be read", error)
    assert (type(found) is InputUnavailableError) == may_pass
    assert str(found).startswith(f"{path} cannot be read: {type(error).__name__}: ")


def test_a_missing_library_is_a_setup_error_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(SetupError, match="Input files at gs://b/x need the module gcsfs.*pip install gcsfs"):
        listed("gs://b/x")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(SetupError, match="Reading images needs pillow.*pip install pillow"):
        require("PIL.Image", "Reading images")
