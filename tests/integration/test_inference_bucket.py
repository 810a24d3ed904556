"""Inputs of a batch inference in a bucket: s3fs against a real server on 127.0.0.1."""

from __future__ import annotations

import io

import pytest

from airflow_provider_dtrain.train.errors import InputError
from airflow_provider_dtrain.train.inference.inputs import open_input
from tests.support.bucket import ACCESS_KEY, BUCKET, SECRET_KEY

torch = pytest.importorskip("torch")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
fsspec = pytest.importorskip("fsspec")
pytest.importorskip("s3fs")
pytest.importorskip("moto")
pytestmark = [pytest.mark.torch, pytest.mark.nightly]


@pytest.fixture
def root(request, bucket):
    return f"s3://{BUCKET}/{request.node.name[:60].replace('[', '-').strip(']')}"


@pytest.fixture
def client(bucket):
    """Another program's file system, which fills the bucket."""
    return fsspec.filesystem(
        "s3", key=ACCESS_KEY, secret=SECRET_KEY, endpoint_url=bucket.endpoint_url, use_listings_cache=False,
        skip_instance_cache=True,
    )  # fmt: skip


def put(client, url, columns, **options):
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, **options)
    client.pipe_file(url, file.getvalue())


def opened(bucket, path, **settings):
    return open_input({"path": path, **settings}, storage=bucket.config)


def rows(found, name="x"):
    return [value for shard in found.plan().shards for one in found.batches(shard, 7) for value in one.data[name]]


def test_parquet_below_a_prefix_is_read_by_row_groups(bucket, root, client):
    put(client, f"{root}/b/2.parquet", {"x": list(range(100, 120))}, row_group_size=15)
    put(client, f"{root}/a.parquet", {"x": list(range(100))}, row_group_size=25)
    client.pipe_file(f"{root}/_SUCCESS", b"")
    client.pipe_file(f"{root}/.tmp/x.parquet", b"no table")
    client.pipe_file(f"{root}/folder/", b"")
    for path in (f"{root}/", f"{root}/**/*.parquet", [f"{root}/a.parquet", f"{root}/b"]):
        found = opened(bucket, path, shard_rows=16)
        assert [int(x) for x in rows(found)] == list(range(120)), path
        assert [shard.source for shard in found.plan().shards][::7] == [f"{root}/a.parquet", f"{root}/a.parquet"]


def test_only_the_chosen_columns_and_row_groups_are_fetched(bucket, root, client, monkeypatch):
    from s3fs.core import S3File

    noise = torch.randint(0, 2**62, (100_000,)).numpy()
    put(client, f"{root}/a.parquet", {"x": range(100_000), "noise": noise}, row_group_size=10_000)
    found = opened(bucket, f"{root}/a.parquet", columns=["x"], shard_rows=10_000)
    shards = found.plan().shards
    fetched = []
    fetch = S3File._fetch_range
    monkeypatch.setattr(S3File, "_fetch_range", lambda *args: fetched.append(args[2] - args[1]) or fetch(*args))
    assert sum(one.rows for one in found.batches(shards[5], 500)) == 10_000
    # The end of the file with its footer, and one group of one column.
    assert len(fetched) == 2
    assert sum(fetched) < client.size(f"{root}/a.parquet") / 8


@pytest.mark.parametrize("kind", ["csv", "jsonl", "files", "images"])
def test_the_other_formats_are_read_from_a_bucket(bucket, root, client, kind):
    image = io.BytesIO()
    pytest.importorskip("PIL.Image").new("RGB", (2, 2)).save(image, "PNG")
    content = {"csv": b"x\n1\n2\n", "jsonl": b'{"x": 1}\n{"x": 2}\n', "files": b"abc", "images": image.getvalue()}[kind]
    suffix = {"files": "bin", "images": "png"}.get(kind, kind)
    client.pipe({f"{root}/{name}.{suffix}": content for name in "ba"})
    found = opened(bucket, root, format=kind)
    if kind in ("csv", "jsonl"):
        assert [int(x) for x in rows(found)] == [1, 2, 1, 2]
    else:
        assert rows(found, "path") == [f"{root}/a.{suffix}", f"{root}/b.{suffix}"]
        assert len(rows(found, "bytes" if kind == "files" else "image")) == 2


@pytest.mark.each_change
def test_a_listing_that_this_process_kept_before_hides_no_new_file(bucket, root, client):
    settings = {"key": ACCESS_KEY, "secret": SECRET_KEY, "endpoint_url": bucket.endpoint_url}
    put(client, f"{root}/a.parquet", {"x": [1]})
    kept = fsspec.filesystem("s3", **settings)
    assert len(kept.ls(root)) == 1
    first = opened(bucket, root)
    assert rows(first) == [1]
    put(client, f"{root}/b.parquet", {"x": [2]})
    assert len(kept.ls(root)) == 1, "the listing of this file system is stale"
    assert rows(opened(bucket, root)) == [1, 2]
    assert rows(first) == [1, 2]


@pytest.mark.each_change
def test_an_object_that_was_replaced_after_the_plan_is_refused(bucket, root, client):
    client.pipe_file(f"{root}/a.csv", b"x\n1\n")
    found = opened(bucket, root)
    plan = found.plan()
    client.pipe_file(f"{root}/a.csv", b"x\n2\n")
    with pytest.raises(InputError, match=r"a\.csv has changed since the inference began"):
        list(found.batches(plan.shards[0], 4))
    client.rm_file(f"{root}/a.csv")
    with pytest.raises(InputError, match=r"a\.csv cannot be read: FileNotFoundError"):
        list(found.batches(plan.shards[0], 4))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("gone", "does not exist, or no file is below it"),
        ("gone/*.csv", "does not exist"),
        ("a.parquet", "cannot be read as Parquet"),
    ],
)
def test_a_path_without_objects_and_a_damaged_object_are_named(bucket, root, client, path, words):
    client.pipe_file(f"{root}/a.parquet", b"PAR1 no table")
    with pytest.raises(InputError, match=words) as caught:
        opened(bucket, f"{root}/{path}").plan()
    assert root in str(caught.value)


def test_wrong_credentials_are_named_and_not_shown(bucket, root):
    found = open_input({"path": f"s3://{BUCKET}-gone/x"}, storage={**bucket.config, "secret_key": "hidden-key"})
    with pytest.raises(InputError) as caught:
        found.plan()
    assert "hidden-key" not in str(caught.value)
