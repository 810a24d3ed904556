"""Outputs of a batch inference in a bucket: s3fs against a real server on 127.0.0.1."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("s3fs")
pytest.importorskip("moto")

from airflow_provider_dtrain.train.errors import OtherRunError, OutputFolderError  # noqa: E402
from airflow_provider_dtrain.train.inference.ledger import FinishedShard, Ledger  # noqa: E402
from airflow_provider_dtrain.train.inference.output_folder import open_folder  # noqa: E402
from airflow_provider_dtrain.train.inference.owner import OWNER, owner_of  # noqa: E402
from airflow_provider_dtrain.train.inference.shards import Shard  # noqa: E402
from tests.support.bucket import ACCESS_KEY, BUCKET, SECRET_KEY  # noqa: E402
from tests.support.inference import PROCESSOR, rows_of_a_loop, write_input  # noqa: E402
from tests.support.ranks import ROOT, run_ranks  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.nightly]

FACTS = {"inputs": {"rows": 20}}
SHARDS = [Shard(index, "a.parquet", index * 10, index * 10 + 10, 10, index * 10) for index in range(2)]


@pytest.fixture
def url(request, bucket):
    return f"s3://{BUCKET}/{request.node.name[:50]}"


def opened(bucket, url, run="run-1", key="task"):
    book = Ledger(open_folder(url, bucket.config, "run-1"), run=run, key=key, suffix="parquet")
    book.open(FACTS, SHARDS, overwrite=False)
    return book


def compute(book, shard, content=b"rows"):
    with book.folder.scratch() as file:
        file.write_bytes(content)
        book.folder.deliver(file, book.delivery_name(shard))
    entry = FinishedShard(shard, book.run, book.part_name(shard), 10, len(content), "0" * 64, {"a": "int64"}, {}, 10)
    book.add(entry)
    return entry


@pytest.mark.each_change
def test_a_run_sees_what_another_one_wrote_after_it_had_listed_the_folder(bucket, url):
    book = opened(bucket, url)
    other = opened(bucket, url, run="run-2")
    assert other.entries() == {}

    entry = compute(book, 0)

    assert other.entries() == {0: entry}


@pytest.mark.each_change
def test_the_bucket_holds_exactly_the_objects_of_the_manifest(bucket, url):
    late = opened(bucket, url, run="run-0")
    book = opened(bucket, url)
    compute(late, 0, b"late rows")
    late.folder.remove(f"_dtrain/done/00000.{late.run}.json")

    manifest, _ = book.publish([compute(book, 0), compute(book, 1)], [], FACTS, {})

    names = [one["name"] for one in manifest["objects"]]
    assert names == ["part-00000.run-1.parquet", "part-00001.run-1.parquet"]
    assert book.folder.names() == sorted([*names, "_manifest.json"])


def test_a_bucket_folder_with_foreign_objects_is_refused(bucket, url):
    open_folder(url, bucket.config, "run-1").write("thesis.txt", b"mine")

    with pytest.raises(OtherRunError, match=r"thesis\.txt"):
        opened(bucket, url)


def test_one_run_owns_a_bucket_folder(bucket, url):
    folder = open_folder(url, bucket.config, "run-1")
    first = owner_of(folder, run="run-1", key="task")
    first.acquire()
    second = owner_of(folder, run="run-2", key="other")
    second._pause = lambda _: first._write()

    with pytest.raises(OutputFolderError, match="in use by run run-1"):
        second.acquire()
    first.release()
    assert folder.read(OWNER) is None


def test_an_upload_that_is_cut_leaves_no_object(bucket, url, tmp_path):
    import boto3

    (tmp_path / "part").write_bytes(bytes(200 << 20))
    code = (
        "import json, sys; from pathlib import Path\n"
        "from airflow_provider_dtrain.train.inference.output_folder import open_folder\n"
        "folder = open_folder(sys.argv[1], json.loads(sys.argv[2]), 'run-1')\n"
        "folder.deliver(Path(sys.argv[3]), 'part-00000.run-1.parquet')\n"
    )
    arguments = [url, json.dumps(bucket.config), str(tmp_path / "part")]
    client = boto3.client(
        "s3", endpoint_url=bucket.endpoint_url, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
    )  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=ROOT)
    deadline = time.monotonic() + 60
    while not client.list_multipart_uploads(Bucket=BUCKET).get("Uploads"):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(10)

    assert open_folder(url, bucket.config, "run-1").names() == []


def test_a_server_that_is_away_is_named(bucket):
    config = {**bucket.config, "endpoint_url": "http://127.0.0.1:9"}

    with pytest.raises(OutputFolderError, match="output folder s3://checkpoints/x cannot be used"):
        open_folder("s3://checkpoints/x", config, "run-1").read("_dtrain/run.json")


def test_ranks_write_to_a_bucket_and_resume_there(bucket, url, tmp_path):
    write_input(tmp_path)
    section = {
        "processor": "processors:DiesOnce",
        "inputs": {"path": str(tmp_path / "in"), "shard_rows": 50},
        "outputs": {"path": url, "columns": ["id"], "row_id": "row"},
        "batch_size": 16,
    }
    context = {"config": {"inference": section, "checkpoint_storage": bucket.config}, "hparams": {}}
    codes = []
    for attempt, failures in enumerate(({}, {"9": 1}), 1):
        run_dir = tmp_path / f"run-{attempt}"
        run_dir.mkdir()
        (run_dir / "processors.py").write_text(PROCESSOR)
        script = run_dir / "script.py"
        script.write_text(
            "import sys\nfrom airflow_provider_dtrain.train.inference.__main__ import main\nsys.exit(main([]))\n"
        )
        environment = {"DTRAIN_RUN": f"store-t1.{attempt}.7", "DTRAIN_TEST_IMPORTS": "pandas pyarrow.parquet"}
        ranks = run_ranks(script, run_dir, attempt, context={**context, "shard_failures": failures}, env=environment)
        codes.append([rank.exit_code for rank in ranks])
    assert codes == [[-9], [0, 0]], [rank.output for rank in ranks]

    folder = open_folder(url, bucket.config, "run-1")
    manifest = json.loads(folder.read("_manifest.json"))
    names = [one["name"] for one in manifest["objects"]]
    assert folder.names() == sorted([*names, "_manifest.json"])
    tables = [pq.read_table(io.BytesIO(folder.read(name))) for name in names]
    assert pa.concat_tables(tables).sort_by("row").to_pylist() == rows_of_a_loop()
    assert len({name.split(".", 1)[1] for name in names}) == 2, "both attempts have parts"
    assert not list(Path(tmp_path, "run-2").glob("dtrain-part-*"))
