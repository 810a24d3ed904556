"""Checkpoints in a bucket: s3fs against a real server on 127.0.0.1."""

from __future__ import annotations

import json
import logging

import pytest

from airflow_provider_dtrain.train.checkpoint import disk, found_checkpoints, storage
from airflow_provider_dtrain.train.errors import CheckpointError
from tests.support.bucket import BUCKET
from tests.support.ranks import run_ranks, script

torch = pytest.importorskip("torch")
pytest.importorskip("s3fs")
pytest.importorskip("moto")
pytestmark = pytest.mark.torch


@pytest.fixture
def root(request):
    return f"s3://{BUCKET}/{request.node.name[:40].replace('[', '-').strip(']')}/trial-1"


def opened(bucket, root):
    return storage.open_storage(root, bucket.config)


def write(kept, step, **metrics):
    contents = {disk.STATE: {"w": torch.full((1000,), float(step))}, disk.RNG: [1]}
    return kept.write(kept.reserve(step), step, contents, {"metrics": metrics})


def newest(kept, scratch):
    return found_checkpoints.newest(kept.found(), scratch)


@pytest.mark.nightly
def test_a_checkpoint_comes_back_from_the_bucket_as_it_was_written(bucket, root, tmp_path):
    written = write(opened(bucket, root), 3, accuracy=0.5)
    found = newest(opened(bucket, root), tmp_path)
    assert (found.url, found.step, found.sha256) == (f"{root}/step-00000003", 3, written.sha256)
    assert torch.load(found.path / disk.STATE, weights_only=True)["w"].tolist() == [3.0] * 1000


def test_what_has_no_metadata_is_no_checkpoint_and_is_swept(bucket, root, tmp_path, caplog):
    kept = opened(bucket, root)
    write(kept, 1)
    write(kept, 2)
    kept.place.fs.rm_file(f"{root}/step-00000002/metadata.json")
    assert newest(kept, tmp_path).step == 1
    assert "step-00000002 is damaged" in caplog.text
    kept.sweep()
    below = root.partition(BUCKET + "/")[2]
    assert [key for key in bucket.objects(below) if "step-00000002" in key] == []
    assert len(bucket.objects(below)) == 3


def test_an_object_that_was_changed_falls_back_to_the_one_before(bucket, root, tmp_path, caplog):
    kept = opened(bucket, root)
    write(kept, 1)
    write(kept, 2)
    content = bytearray(kept.place.fs.cat_file(f"{root}/step-00000002/state.pt"))
    content[len(content) // 2] ^= 1
    kept.place.fs.pipe_file(f"{root}/step-00000002/state.pt", bytes(content))
    with caplog.at_level(logging.WARNING):
        assert newest(kept, tmp_path).step == 1
    assert "differs from what was written" in caplog.text


def test_pruning_deletes_in_the_bucket(bucket, root):
    kept = opened(bucket, root)
    for step, loss in ((1, 0.5), (2, 0.9), (3, 0.7)):
        write(kept, step, loss=loss)
    gone = kept.prune({"metric": "loss", "smaller_is_better": True, "save_trial_best": 1, "save_trial_latest": 1})
    assert gone == [f"{root}/step-00000002"]
    keys = bucket.objects(root.partition(BUCKET + "/")[2])
    assert sorted({key.split("/")[-2] for key in keys}) == ["step-00000001", "step-00000003"]


def test_a_large_file_goes_up_in_parts(bucket, root, tmp_path, monkeypatch):
    from airflow_provider_dtrain.train.files import bucket as bucket_place

    monkeypatch.setattr(bucket_place, "BLOCK_BYTES", 5 * 1024 * 1024)
    kept = opened(bucket, root)
    contents = {disk.STATE: {"w": torch.arange(3_500_000, dtype=torch.float32)}}
    kept.write(kept.reserve(1), 1, contents, {})
    found = newest(kept, tmp_path)
    assert found.size_bytes > 14_000_000
    assert torch.load(found.path / disk.STATE, weights_only=True)["w"][-1].item() == 3_499_999


def test_a_bucket_that_is_not_there_is_named(bucket):
    kept = opened(bucket, "s3://nowhere/trial-1")
    with pytest.raises(CheckpointError, match=r"step 1 cannot be written to s3://nowhere/trial-1/step-00000001: .+"):
        kept.write("s3://nowhere/trial-1/step-00000001", 1, {disk.STATE: {}}, {})


TRAINED = """
    def main():
        with dtrain.init() as ctx:
            model = torch.nn.Linear(4, 2)
            model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
            step = ctx.restore_checkpoint()
            print("restored", step)
            while step < {until}:
                ctx.backward(model(torch.randn(8, 4)).square().mean())
                ctx.step(optimizer)
                step += 1
                if step in (2, 4):
                    print("saved", ctx.save_checkpoint(step))
            print("parameters", dtrain.parameters_sha256(model))
    main()
"""


@pytest.mark.nightly
def test_two_ranks_resume_from_the_bucket_bit_for_bit(bucket, tmp_path):
    stored = {key: value for key, value in bucket.config.items() if key not in {"access_key", "secret_key"}}
    secrets = {f"checkpoint_storage.{key}": bucket.config[key] for key in ("access_key", "secret_key")}
    document = {"checkpoint_storage": {**stored, "access_key": "********", "secret_key": "********"}}
    url = f"s3://{BUCKET}/ranks/trial-1"
    context = {"config": document, "checkpoint_url": url}
    env = {"DTRAIN_SECRETS": json.dumps(secrets)}
    first = run_ranks(script(tmp_path, TRAINED.format(until=5)), tmp_path / "a", 2, context=context, env=env)
    assert [rank.exit_code for rank in first] == [0, 0], first[0].output
    paths = [event["path"] for event in first[0].events if event["kind"] == "checkpoint"]
    assert paths == [f"{url}/step-00000002", f"{url}/step-00000004"]
    assert first[0].events[-1]["value"]["checkpoint"] == paths[-1]
    again = run_ranks(script(tmp_path, TRAINED.format(until=7)), tmp_path / "b", 2, context=context, env=env)
    whole = run_ranks(
        script(tmp_path, TRAINED.format(until=7)), tmp_path / "c", 2,
        context={"config": document, "checkpoint_url": f"{url}-whole"}, env=env,
    )  # fmt: skip
    assert again[1].said(r"restored (\d+)") == ["4"], again[1].output
    assert again[1].said(r"parameters (\w+)") == whole[0].said(r"parameters (\w+)") != []
    assert "********" not in first[0].output
    assert secrets["checkpoint_storage.secret_key"] not in first[0].output + json.dumps(first[0].events)


@pytest.mark.nightly
def test_uploads_of_killed_processes_are_aborted_at_the_next_start(bucket, root):
    kept = opened(bucket, root)
    below = root.partition(BUCKET + "/")[2]

    def uploads():
        found = kept.place.fs.call_s3("list_multipart_uploads", Bucket=BUCKET).get("Uploads") or ()
        return [one["Key"] for one in found]

    for key in (f"{below}/step-00000001/state.pt", f"{below}0/step-00000001/state.pt"):
        kept.place.fs.call_s3("create_multipart_upload", Bucket=BUCKET, Key=key)
    assert len(uploads()) == 2
    opened(bucket, root).sweep()
    assert uploads() == [f"{below}0/step-00000001/state.pt"], "another trial's uploads stay"
