"""Media of a trial: what a browser gets depends on the content of a file alone, and hosts may write any content."""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.cli import trials_media
from airflow_provider_dtrain.client.client import Client
from airflow_provider_dtrain.client.main import main, parser
from airflow_provider_dtrain.engine.copies import media_files
from airflow_provider_dtrain.engine.copies.checkpoints import trial_folder
from airflow_provider_dtrain.errors import ConflictError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from testbed.seed.copies import copy_files
from testbed.seed.media import STEPS, media_of
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.http_api import HttpApi
from tests.support.search_world import Search

pytestmark = [pytest.mark.airflow, pytest.mark.parametrize("url", ["sqlite"], indirect=True)]

IMAGE = f"work/media/samples%2Freconstruction/{STEPS[0]}-attempt1-image.png"
#: File of each kind of document.
MATRIX, CURVE, HISTOGRAM, TABLE, TEXT = (
    f"work/media/{name}"
    for name in (
        "validation%2Fconfusion/100-attempt1-matrix.json",
        "validation%2Fprecision-recall/100-attempt1-curve.json",
        "weights%2Flayer1/100-attempt1-histogram.json",
        "worst samples/400-attempt1-table.json",
        "notes/400-attempt1-text.txt",
    )
)


class Media(Api):
    """The API of a machine with the copies of a trial, whose files a test may replace."""

    def __init__(self, search: Search, folder: Path, **rights: Any) -> None:
        super().__init__(search.store, **rights)
        self.options = dataclasses.replace(settings(), checkpoint_dir=folder)
        search.config = search.store.configs.put({"name": "e", "entrypoint": "python t.py"}, origins={}).config_id
        search.view = None
        search.plan()
        ticket = search.start(0, slots=1)
        search.commit(ticket, {"kind": "checkpoint", "step": 1, "path": "checkpoints/step-1", "removed": []})
        self.trial_id = ticket.trial_id
        self.trial = f"/trials/{ticket.trial_id}/media"
        copy_files(search.store, "e", folder)
        self.folder = trial_folder(folder, ticket.experiment_id, ticket.trial_id) / "outputs-1-1"

    def _hook(self) -> DtrainHook:
        hook = DtrainHook(self.options)
        hook.__dict__["store"] = self.store
        return hook

    def image(self, path: str = IMAGE) -> Any:
        return self.answer("GET", f"{self.trial}/image", params={"path": path})

    def content(self, path: str) -> Any:
        answer = self.answer("GET", f"{self.trial}/content", params={"path": path})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def shown(self, kind: str, path: str) -> tuple[int, str, str]:
        """Return the refusal of a file."""
        return self.refusal("GET", f"{self.trial}/{kind}", params={"path": path})

    def write(self, path: str, content: bytes) -> None:
        (self.folder / path).write_bytes(content)

    def add(self, path: str, content: bytes = b"x", *, attempt_files: dict[str, Any] | None = None) -> None:
        """Add a file to the copy, as a host that sends other names would."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        manifest = self.folder / "manifest.json"
        whole = json.loads(manifest.read_text())
        whole["files"][path] = {"size_bytes": len(content), "modified_at": 5.0, "version": "1", **(attempt_files or {})}
        manifest.write_text(json.dumps(whole))


@pytest.fixture
def search(store: Any) -> Search:
    store.hosts.add(host("a", slots=8))
    return Search(store)


@pytest.fixture
def api(search: Search, tmp_path: Path) -> Media:
    return Media(search, tmp_path)


def items(api: Media) -> dict[str, list[tuple[int, int, str]]]:
    found = api.get(api.trial)
    return {one["key"]: [(it["step"], it["attempt"], it["kind"]) for it in one["items"]] for one in found["series"]}


def test_the_list_has_each_key_with_its_steps_in_order(api: Media) -> None:
    found = items(api)
    assert list(found) == [
        "notes",
        "samples/reconstruction",
        "validation/confusion",
        "validation/precision-recall",
        "weights/layer1",
        "worst samples",
    ]
    assert found["samples/reconstruction"] == [(step, 1, "image") for step in STEPS]
    assert api.get(api.trial)["truncated"] is False


def test_the_latest_attempt_replaces_a_step_of_an_earlier_one(api: Media) -> None:
    for attempt in (2, 10, 3):
        api.add(IMAGE.replace("attempt1", f"attempt{attempt}"))
    assert items(api)["samples/reconstruction"][:2] == [(100, 10, "image"), (200, 1, "image")]


@pytest.mark.parametrize(
    "path",
    [
        "work/media/a/1-attempt1-image.svg",
        "work/media/a%0Ab/1-attempt1-image.png",
        "work/media/%E2%80%AE/1-attempt1-text.txt",
        "work/media/a/1-attempt1-image.html",
        "work/other/a/1-attempt1-image.png",
    ],
)
def test_names_that_the_library_never_gives_are_not_in_the_list(api: Media, path: str) -> None:
    before = items(api)
    api.add(path)
    assert items(api) == before
    assert api.shown("image", path)[0] == api.shown("content", path)[0] == 404


def test_a_host_with_too_many_files_gets_those_of_the_latest_steps_into_the_list(
    api: Media, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media_files, "ITEMS_MOST", 6)
    found = api.get(api.trial)
    assert found["truncated"] is True
    assert {it["step"] for one in found["series"] for it in one["items"]} == {400}


def test_a_trial_without_a_copy_has_no_media(api: Media) -> None:
    (api.folder / "manifest.json").unlink()
    assert api.get(api.trial) == {"series": [], "truncated": False}
    assert api.shown("image", IMAGE)[0] == 404


def test_an_image_is_sent_with_the_type_of_its_content_and_rights_of_nothing(api: Media) -> None:
    answer = api.image()
    assert (answer.status_code, answer.content) == (200, media_of(api.trial_id)[IMAGE])
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    jpeg = b"\xff\xd8\xff\xc0\x00\x0b\x08\x00\x04\x00\x05\x01\x01\x11\x00\xff\xda\x00\x02"
    api.write(IMAGE, jpeg)
    assert (api.image().headers["content-type"], api.image().content) == ("image/jpeg", jpeg)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", "it is no PNG or JPEG file"),
        (b"<!doctype html><script>alert(1)</script>", "it is no PNG or JPEG file"),
        (b"GIF89a", "it is no PNG or JPEG file"),
        (b"", "it is no PNG or JPEG file"),
        (b"\x89PNG\r\n\x1a\n", "the PNG file is cut"),
    ],
)
def test_other_content_is_refused_whatever_its_name_says(api: Media, content: bytes, reason: str) -> None:
    api.write(IMAGE, content)
    status, code, message = api.shown("image", IMAGE)
    assert (status, code) == (409, "conflict")
    assert message == f"'samples/reconstruction' of step 100 cannot be shown: {reason}."


def test_a_decompression_bomb_is_refused_by_its_pixels(api: Media) -> None:
    size = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    chunks = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", size), (b"IDAT", zlib.compress(bytes(10_000_000))), (b"IEND", b""))
    )
    api.write(IMAGE, b"\x89PNG\r\n\x1a\n" + chunks)
    assert "60000 x 60000 pixels" in api.shown("image", IMAGE)[2]


def test_a_file_above_the_limit_is_not_read(api: Media, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_files, "FILE_LIMIT_BYTES", 100)
    assert "more than 100 bytes" in api.shown("image", IMAGE)[2]
    assert list(items(api)) == ["notes"]


@pytest.mark.parametrize("kind", ["image", "content"])
@pytest.mark.parametrize(
    "path",
    [
        "../../../../etc/passwd",
        "/etc/passwd",
        "work/report.html",
        "manifest.json",
        "",
        "work/media",
        "work/media/../report.html",
        "work/media/a/1-attempt1-image.png",
        "work/media/samples%2Freconstruction/100-attempt1-image.png\0",
    ],
)
def test_only_files_of_the_list_are_sent(api: Media, kind: str, path: str) -> None:
    assert api.shown(kind, path)[:2] == (404, "not_found")


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_links_are_not_followed(api: Media, tmp_path: Path, linked: str) -> None:
    target = api.folder / IMAGE if linked == "file" else (api.folder / IMAGE).parent
    target.rename(tmp_path / "elsewhere")
    target.symlink_to(tmp_path / "elsewhere")
    assert api.shown("image", IMAGE)[0] == 404


def test_each_kind_of_document_comes_with_its_form(api: Media) -> None:
    matrix = api.content(MATRIX)
    assert matrix["kind"] == "matrix"
    assert len(matrix["matrix"]["counts"]) == len(matrix["matrix"]["labels"]) == 6
    assert api.content(CURVE)["curve"]["x_label"] == "recall"
    assert len(api.content(HISTOGRAM)["histogram"]["edges"]) == 49
    table = api.content(TABLE)["table"]
    assert table["columns"] == ["sample", "label", "loss"]
    assert table["rows"][1] == [f"digit-{api.trial_id}-1.png", 1, 2.95]
    assert api.content(TEXT)["text"] == "the 8 <b>looks</b> like a 3 & the 1 like a 7\n"
    assert api.shown("content", IMAGE)[0] == api.shown("image", TEXT)[0] == 409


BAD_TABLES: list[Any] = [
    {"columns": [], "rows": [], "rows_total": 0},
    {"columns": ["a"] * 101, "rows": [], "rows_total": 0},
    {"columns": ["a"], "rows": [[{"b": 1}]], "rows_total": 1},
    {"columns": ["a"], "rows": [[1]] * 1001, "rows_total": 1},
    {"columns": ["a"], "rows": [["x" * 1001]], "rows_total": 1},
    {"columns": ["a"], "rows": [[10**400]], "rows_total": 1},
    {"columns": ["a"], "rows": "b", "rows_total": 1},
    {"columns": ["a"], "rows": [], "rows_total": -1},
    {"columns": ["a"], "rows": [], "rows_total": 0, "more": 1},
    [],
    None,
]


@pytest.mark.parametrize("document", BAD_TABLES)
def test_documents_of_another_form_are_refused(api: Media, document: Any) -> None:
    api.write(TABLE, json.dumps(document).encode())
    assert api.shown("content", TABLE)[:2] == (409, "conflict")


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (MATRIX, lambda one: one["counts"].pop()),
        (MATRIX, lambda one: one["counts"][0].append(1)),
        (MATRIX, lambda one: one["counts"][0].__setitem__(0, 1.5)),
        (CURVE, lambda one: one["x"].pop()),
        (CURVE, lambda one: one["y"].__setitem__(0, float("nan"))),
        (CURVE, lambda one: one["y"].__setitem__(0, float("inf"))),
        (HISTOGRAM, lambda one: one["edges"].reverse()),
        (HISTOGRAM, lambda one: one["counts"].pop()),
        (HISTOGRAM, lambda one: one["counts"].__setitem__(0, -1)),
    ],
)
def test_numbers_that_do_not_fit_are_refused(api: Media, path: str, change: Callable[[Any], Any]) -> None:
    document = json.loads((api.folder / path).read_bytes())
    change(document)
    api.write(path, json.dumps(document).encode())
    assert api.shown("content", path)[:2] == (409, "conflict")


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"[" * 100_000, b'{"columns": ["\\ud800"]}', b"[" + b"0," * 200_000, b"{" * 4_000_000]
)
def test_damaged_documents_are_refused(api: Media, content: bytes) -> None:
    api.write(TABLE, content)
    assert api.shown("content", TABLE)[:2] == (409, "conflict")


def test_texts_are_data_and_never_a_page(api: Media) -> None:
    api.write(TEXT, b"\xff\x00<script>alert(1)</script>\x1b[31m\xe2\x80\xae")
    answer = api.answer("GET", f"{api.trial}/content", params={"path": TEXT})
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["text"] == "\ufffd\0<script>alert(1)</script>\x1b[31m\u202e"


def test_media_of_a_dag_that_the_user_may_not_read_do_not_exist(search: Search, tmp_path: Path) -> None:
    api = Media(search, tmp_path, readable=[])
    assert api.refusal("GET", api.trial)[0] == 404
    assert api.shown("image", IMAGE)[0] == api.shown("content", TEXT)[0] == 404


# -- clients -------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(api: Media, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with HttpApi(api) as found:
        yield found.url


def test_the_command_lists_and_copies_media(
    api: Media, server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial, at = str(api.trial_id), ["--server", server]
    assert main(["trials", "media", trial, *at, "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 18
    assert {one["kind"] for one in rows} == {"image", "text", "table", "histogram", "matrix", "curve"}
    target = tmp_path / "copies"
    assert main(["trials", "media", trial, "--key", "samples/reconstruction", "--to", str(target), *at]) == 0
    assert "4 file(s) are in" in capsys.readouterr().err
    names = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert names == {f"samples%2Freconstruction/{step}-attempt1-image.png" for step in STEPS}
    assert (target / IMAGE.removeprefix("work/media/")).read_bytes() == media_of(api.trial_id)[IMAGE]
    assert main(["trials", "media", trial, "--to", str(target), *at]) == 1
    assert "exists" in capsys.readouterr().err
    assert main(["trials", "media", trial, "--key", "nothing", *at]) == 2
    assert "no media with the key 'nothing'. Its keys: 'notes', 'samples/reconstruction'" in capsys.readouterr().err


def test_the_python_client_reads_media(api: Media, server: str, tmp_path: Path) -> None:
    trial = Client(server).trials.get(api.trial_id)
    (text,) = trial.media("notes")
    assert (text.kind, text.step, text.key) == ("text", 400, "notes")
    assert text.download(tmp_path / "notes.txt").read_text().startswith("the 8 <b>looks</b>")
    with pytest.raises(ConflictError, match="exists"):
        text.download(tmp_path / "notes.txt")
    assert [one.step for one in trial.media("samples/reconstruction")] == list(STEPS)
    assert len(trial.media()) == 18


def test_the_command_of_airflow_prints_the_same(
    api: Media, server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_dtrain.hooks.dtrain.DtrainHook", api._hook)
    for more in ([], ["--key", "notes"]):
        assert main(["trials", "media", str(api.trial_id), *more, "--server", server, "-o", "json"]) == 0
        expected = capsys.readouterr().out
        trials_media.media(parser().parse_args(["trials", "media", str(api.trial_id), *more, "-o", "json"]))
        assert capsys.readouterr().out == expected
    target = tmp_path / "here"
    argv = ["trials", "media", str(api.trial_id), "--key", "notes", "--to", str(target)]
    trials_media.media(parser().parse_args(argv))
    assert [path.name for path in target.rglob("*.txt")] == ["400-attempt1-text.txt"]
