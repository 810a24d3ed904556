"""Downloads of checkpoints and outputs: from a folder of this machine and from a bucket, and hostile paths."""

from __future__ import annotations

import dataclasses
import io
import os
import tarfile
from collections.abc import Iterator

import pytest

from airflow_provider_dtrain.api import streams
from airflow_provider_dtrain.engine.copies.checkpoints import copy_path
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from testbed.seed.copies import copy_files
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.bucket import BUCKET, Bucket, s3_server
from tests.support.search_world import Search

pytestmark = [pytest.mark.airflow, pytest.mark.parametrize("url", ["sqlite"], indirect=True)]


class Files(Api):
    """The API of a machine with copies in a folder, and permission for some storage."""

    def __init__(self, store, folder, *, allowed=(), **rights):
        super().__init__(store, **rights)
        self.options = dataclasses.replace(settings(), checkpoint_dir=folder, download_storage=tuple(allowed))

    def _hook(self):
        hook = DtrainHook(self.options)
        hook.__dict__["store"] = self.store
        return hook


@pytest.fixture
def search(store):
    store.hosts.add(host("a", slots=8))
    return Search(store)


def saved(search, *, storage=None, path="checkpoints/step-1"):
    """Return the ticket of a trial that has saved a checkpoint at step 1."""
    document = {"name": "e", "entrypoint": "python t.py", **({"checkpoint_storage": storage} if storage else {})}
    search.config = search.store.configs.put(document, origins={}).config_id
    search.view = None
    search.plan()
    ticket = search.start(0, slots=1)
    own = f"experiment-{ticket.experiment_id}/trial-{ticket.trial_id}"
    search.commit(ticket, {"kind": "checkpoint", "step": 1, "path": path.format(own=own), "removed": []})
    return ticket


def members(content):
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {one.name: archive.extractfile(one).read() for one in archive}


@pytest.fixture
def copied(search, tmp_path):
    """A trial with copies of a checkpoint and of outputs, its API, and the folder of the copy."""
    ticket = saved(search)
    copy_files(search.store, "e", tmp_path)
    (view,) = search.store.checkpoints.of_trial(ticket.trial_id)
    api = Files(search.store, tmp_path)
    return api, f"/trials/{ticket.trial_id}", copy_path(tmp_path, ticket.experiment_id, view), view.checkpoint_id


def test_a_copy_is_sent_as_an_archive_without_links_and_devices(copied):
    api, trial, folder, checkpoint = copied
    (folder / "below").mkdir()
    (folder / "below" / "näme with space").write_bytes(b"x" * 1000)
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "folder").symlink_to("/etc")
    os.mkfifo(folder / "pipe")
    answer = api.answer("GET", f"{trial}/checkpoints/{checkpoint}/download")
    assert answer.status_code == 200
    found = members(answer.content)
    names = sorted(name.partition("/")[2] for name in found)
    assert names == ["below/näme with space", "weights.pt"]
    assert found[f"trial-{trial.rpartition('/')[2]}-step-1/weights.pt"].startswith(b"weights of trial")
    assert "sandbox" in answer.headers["content-security-policy"]


def test_an_output_is_sent_with_its_length_and_never_shown_as_a_page(copied):
    api, trial, *_ = copied
    answer = api.answer("GET", f"{trial}/outputs/download", params={"path": "work/report.html"})
    assert (answer.status_code, answer.text) == (200, "<script>window.hacked=1</script>\n")
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")


@pytest.mark.parametrize(
    "path",
    [
        "../../../../../../etc/passwd", "/etc/passwd", "work/../manifest.json", "manifest.json", "work", "", "work/",
        "work//report.html", "./work/report.html", "work/report.html\0", "work/link", "outside/passwd", "\\..\\x",
    ],
)  # fmt: skip
def test_only_files_of_the_list_of_outputs_are_sent(copied, path):
    api, trial, folder, _ = copied
    generation = folder.parent / "outputs-1-1"
    (generation / "work" / "link").symlink_to("/etc/passwd")
    (generation / "outside").symlink_to("/etc")
    assert api.refusal("GET", f"{trial}/outputs/download", params={"path": path})[:2] == (404, "not_found")


@pytest.mark.parametrize("name", ["work/link", "outside/passwd"])
def test_a_link_is_not_followed_even_if_the_list_of_outputs_names_it(copied, name):
    api, trial, folder, _ = copied
    generation = folder.parent / "outputs-1-1"
    (generation / "work" / "link").symlink_to("/etc/passwd")
    (generation / "outside").symlink_to("/etc")
    manifest = generation / "manifest.json"
    manifest.write_text(manifest.read_text().replace("work/report.html", name))
    assert name in {row["path"] for row in api.get(f"{trial}/outputs")["rows"]}
    assert api.refusal("GET", f"{trial}/outputs/download", params={"path": name})[0] == 404


def test_a_file_that_shrinks_while_it_is_sent_fails_and_is_never_filled_up(copied, monkeypatch):
    _, _, folder, _ = copied
    monkeypatch.setattr(streams, "PIECE_BYTES", 1024)
    large = folder / "large.bin"
    large.write_bytes(b"x" * 10_000)
    pieces = streams.file_pieces(folder, "large.bin")
    assert (len(next(pieces.pieces)), pieces.size_bytes) == (1024, 10_000)
    os.truncate(large, 2000)
    with pytest.raises(streams.ChangedError, match="of 10000 bytes are missing"):
        list(pieces.pieces)
    large.write_bytes(b"x" * 10_000)
    archive = streams.tar_pieces(folder, "c")
    assert len(next(archive)) == tarfile.BLOCKSIZE
    next(archive)
    os.truncate(large, 1500)
    with pytest.raises(streams.ChangedError):
        list(archive)


def test_a_file_that_grows_is_sent_as_it_was_when_it_was_opened(copied):
    _, _, folder, _ = copied
    large = folder / "large.bin"
    large.write_bytes(b"x" * 100)
    file = streams.file_pieces(folder, "large.bin")
    with large.open("ab") as more:
        more.write(b"y" * 100)
    assert b"".join(file.pieces) == b"x" * 100


def test_a_huge_sparse_file_is_sent_in_pieces_of_bounded_size(copied):
    api, trial, folder, checkpoint = copied
    with (folder / "huge.bin").open("wb") as huge:
        huge.truncate(3 * 2**40)
    pieces = streams.tar_pieces(folder, "c")
    first = [next(pieces) for _ in range(8)]
    assert max(map(len, first)) <= streams.PIECE_BYTES


def test_a_folder_with_too_many_files_is_refused_and_never_sent_in_part(copied, monkeypatch):
    api, trial, folder, checkpoint = copied
    monkeypatch.setattr(streams, "FILES_MOST", 3)
    for number in range(4):
        (folder / f"file{number}").touch()
    status, code, message = api.refusal("GET", f"{trial}/checkpoints/{checkpoint}/download")
    assert (status, code, "more than 3 files" in message) == (409, "conflict", True)


def test_a_copy_in_another_place_than_that_of_this_machine_is_not_opened(copied, tmp_path):
    api, trial, folder, checkpoint = copied
    folder.rename(folder.with_name("moved"))
    row = api.get(f"{trial}/checkpoints")["rows"][0]
    assert (row["download"]["possible"], "on another machine" in row["download"]["reason"]) == (False, True)
    assert api.refusal("GET", f"{trial}/checkpoints/{checkpoint}/download")[:2] == (409, "conflict")
    folder.with_name("moved").rename(folder)
    assert api.answer("GET", f"{trial}/checkpoints/{checkpoint}/download").status_code == 200
    for elsewhere in ("/etc", f"{folder}/", f"{folder}/../{folder.name}", str(folder.parent)):
        api.store.checkpoints.add_copy(checkpoint, elsewhere)
        assert api.get(f"{trial}/checkpoints")["rows"][0]["download"]["possible"] is False
        assert api.refusal("GET", f"{trial}/checkpoints/{checkpoint}/download")[:2] == (409, "conflict"), elsewhere


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    pytest.importorskip("s3fs")
    with s3_server() as found:
        yield found


def in_bucket(search, bucket, objects):
    """Return the trial of a checkpoint in a bucket, after writing its objects."""
    import boto3

    ticket = saved(search, storage=bucket.config, path=f"s3://{BUCKET}/runs/{{own}}/step-1")
    own = f"runs/experiment-{ticket.experiment_id}/trial-{ticket.trial_id}"
    keys = {"aws_access_key_id": bucket.config["access_key"], "aws_secret_access_key": bucket.config["secret_key"]}
    client = boto3.client("s3", endpoint_url=bucket.endpoint_url, region_name="us-east-1", **keys)
    for key in bucket.objects():
        client.delete_object(Bucket=BUCKET, Key=key)
    for name, content in objects.items():
        client.put_object(Bucket=BUCKET, Key=f"{own}/{name}", Body=content)
    (view,) = search.store.checkpoints.of_trial(ticket.trial_id)
    return f"/trials/{ticket.trial_id}", view.checkpoint_id


def test_a_checkpoint_in_a_bucket_is_sent_once_an_administrator_allows_its_server(search, bucket, tmp_path):
    objects = {"step-1/weights.pt": b"w" * 3000, "step-1/below/state.json": b"{}", "step-10/other": b"not this one"}
    trial, checkpoint = in_bucket(search, bucket, objects)
    path = f"{trial}/checkpoints/{checkpoint}/download"
    closed = Files(search.store, tmp_path)
    status, code, message = closed.refusal("GET", path)
    assert (status, code) == (409, "conflict")
    assert f"[dtrain] download_storage: {bucket.endpoint_url}/{BUCKET}" in message
    assert closed.get(f"{trial}/checkpoints")["rows"][0]["download"]["possible"] is False
    answer = Files(search.store, tmp_path, allowed=[bucket.endpoint_url]).answer("GET", path)
    assert answer.status_code == 200, answer.text
    found = {name.partition("/")[2]: content for name, content in members(answer.content).items()}
    assert found == {"weights.pt": b"w" * 3000, "below/state.json": b"{}"}


@pytest.mark.nightly
def test_an_object_whose_name_leads_out_of_the_archive_is_refused(search, bucket, tmp_path):
    trial, checkpoint = in_bucket(search, bucket, {"step-1/a": b"1", "step-1/../../../home/x": b"2"})
    api = Files(search.store, tmp_path, allowed=[bucket.endpoint_url])
    status, code, message = api.refusal("GET", f"{trial}/checkpoints/{checkpoint}/download")
    assert (status, code) == (409, "conflict"), message


@pytest.mark.nightly
def test_a_server_that_refuses_connections_is_an_answer(search, bucket, tmp_path):
    gone = Bucket("http://127.0.0.1:9")
    ticket = saved(search, storage=gone.config, path=f"s3://{BUCKET}/runs/{{own}}/step-1")
    (view,) = search.store.checkpoints.of_trial(ticket.trial_id)
    api = Files(search.store, tmp_path, allowed=[gone.endpoint_url])
    path = f"/trials/{ticket.trial_id}/checkpoints/{view.checkpoint_id}/download"
    assert api.refusal("GET", path)[:2] == (503, "gone")
