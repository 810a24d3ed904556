"""Code of trials and experiments over the API: files, texts, changes, rights and hostile archives."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.core.code_contents import packed_files
from airflow_provider_dtrain.core.code_files import FILES_MOST
from airflow_provider_dtrain.hosts.payload import pack
from airflow_provider_dtrain.store.database.tables import payloads, trials
from airflow_provider_dtrain.store.records.submissions import Submission
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.search_world import Search

pytestmark = pytest.mark.airflow
SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
GIT = {"commit": "a" * 40, "is_clean": False, "problem": ""}


@pytest.fixture
def search(store) -> Search:
    store.hosts.add(host("a", slots=8))
    found = Search(store)
    found.plan(max_trials=8)
    return found


def sent(search: Search, content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    search.store.payloads.put(digest, content)
    return digest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "code"
    found.mkdir()
    return found


def archive(*members: tuple[str, bytes | str]) -> bytes:
    """Return a tar.gz of files, and of links whose target is a text."""
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w:gz") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return found.getvalue()


def trial_of(search: Search, number: int, content: bytes | None, **fields: Any) -> int:
    digest = None if content is None else sent(search, content)
    source = {"git": GIT, "bundle": None}
    return search.submit(number, slots=1, payload=digest, source=source, **fields).trial_id


def files_of(answer: dict[str, Any]) -> dict[str, tuple[str | None, int | None]]:
    return {one["path"]: (one["kind"], one["size_bytes"]) for one in answer["files"]}


def test_code_that_was_packed_is_listed_and_read_as_it_was(api, search, folder: Path) -> None:
    (folder / "lib").mkdir()
    (folder / "train.py").write_text("print('<b>é</b>')\n")
    (folder / "train.py").chmod(0o755)
    (folder / "lib" / "a.bin").write_bytes(b"\0\1")
    (folder / "link").symlink_to("train.py")
    code = pack(folder)
    trial_id = trial_of(search, 0, code.content)
    found = api.get(f"/trials/{trial_id}/code")
    assert files_of(found) == {"lib/a.bin": ("binary", 2), "link": ("link", None), "train.py": ("text", 19)}
    assert [one["path"] for one in found["files"] if one["is_program"]] == ["train.py"]
    assert (found["digest"], found["packed_bytes"], found["git"], found["reason"]) == (
        code.digest,
        len(code.content),
        GIT,
        "",
    )
    text = api.get(f"/trials/{trial_id}/code/text", file="train.py")
    assert (text["text"], text["is_whole"]) == ("print('<b>é</b>')\n", True)
    assert api.get(f"/experiments/{found['experiment_id']}/code")["trial_id"] == trial_id
    for path, status in {"lib/a.bin": 422, "link": 404, "../train.py": 404, "/etc/passwd": 404, "lib": 404}.items():
        assert api.answer("GET", f"/trials/{trial_id}/code/text", params={"file": path}).status_code == status, path


@SQLITE
def test_the_code_of_an_experiment_is_that_of_its_best_trial(api, search) -> None:
    first = search.start(0, slots=1, payload=sent(search, archive(("t.py", b"1"))))
    search.validate(first, loss=0.5)
    trial_of(search, 1, archive(("t.py", b"2")))
    path = f"/experiments/{search.view.experiment_id}/code"
    assert api.get(path)["trial_id"] == first.trial_id


@SQLITE
def test_changes_are_unified_diffs_and_name_what_is_not_compared(api, search) -> None:
    before = archive(
        ("same.py", b"x = 1\n"),
        ("gone.py", b"a\n"),
        ("train.py", b"a\nb\nc\n"),
        ("w.bin", b"\0a"),
        ("big.txt", b"x\n" * 200_000),
    )
    after = archive(
        ("same.py", b"x = 1\n"),
        ("new.py", b"b\n"),
        ("train.py", b"a\nB\nc\n"),
        ("w.bin", b"\0b"),
        ("big.txt", b"y\n" * 200_000),
    )
    ids = [trial_of(search, 0, before), trial_of(search, 1, after)]
    found = api.get("/differences/code", trial=ids)
    rows = {one["path"]: one for one in found["files"]}
    assert (found["same"], found["more"], found["reason"]) == (1, 0, "")
    assert rows["train.py"]["lines"] == ["@@ -1,3 +1,3 @@", " a", "-b", "+B", " c"]
    assert (rows["train.py"]["added"], rows["train.py"]["removed"]) == (1, 1)
    assert (rows["new.py"]["change"], rows["new.py"]["lines"]) == ("added", ["@@ -0,0 +1 @@", "+b"])
    assert (rows["gone.py"]["change"], rows["gone.py"]["lines"]) == ("removed", ["@@ -1 +0,0 @@", "-a"])
    assert (rows["w.bin"]["lines"], rows["w.bin"]["note"]) == ([], "no text, 2 B")
    assert (rows["big.txt"]["lines"], rows["big.txt"]["added"]) == ([], None)
    assert "at most" in rows["big.txt"]["note"]
    again = api.get("/differences/code", trial=[ids[0], ids[0]])
    assert (again["files"], again["same"]) == ([], 5)


@SQLITE
def test_a_mode_and_a_link_that_change_are_named(api, search, folder: Path) -> None:
    (folder / "run.sh").write_text("true\n")
    (folder / "link").symlink_to("run.sh")
    before = pack(folder).content
    (folder / "run.sh").chmod(0o755)
    (folder / "other.sh").write_text("true\n")
    (folder / "link").unlink()
    (folder / "link").symlink_to("other.sh")
    ids = [trial_of(search, 0, before), trial_of(search, 1, pack(folder).content)]
    notes = {one["path"]: one["note"] for one in api.get("/differences/code", trial=ids)["files"]}
    assert notes == {
        "run.sh": "it can now be executed",
        "link": "a link to run.sh -> a link to other.sh",
        "other.sh": "",
    }


@SQLITE
def test_code_that_was_not_sent_or_was_removed_is_named_as_such(api, search) -> None:
    without = trial_of(search, 0, None)
    removed = trial_of(search, 1, archive(("train.py", b"1\n"), ("link", "train.py")))
    kept = trial_of(search, 2, archive(("train.py", b"2\n")))
    with search.store.db.engine.begin() as conn:
        code = conn.scalar(sa.select(trials.c.payload).where(trials.c.id == removed))
        conn.execute(trials.update().where(trials.c.id == removed).values(payload=None))
        conn.execute(payloads.delete().where(payloads.c.digest == code))
    assert api.get(f"/trials/{without}/code")["reason"].startswith("No code was sent")
    found = api.get(f"/trials/{removed}/code")
    assert (files_of(found), found["is_readable"]) == ({"train.py": (None, None), "link": (None, None)}, False)
    assert "airflow dtrain gc" in found["reason"]
    for other, reason in ((without, "no code was sent"), (removed, "no longer has the code")):
        assert reason in api.get("/differences/code", trial=[other, kept])["reason"]
        assert api.answer("GET", f"/trials/{other}/code/text", params={"file": "train.py"}).status_code == 404


@SQLITE
def test_names_texts_and_changes_of_code_need_the_right_to_read_the_code_of_each_dag(api, search, store) -> None:
    first, second = trial_of(search, 0, archive(("secret.py", b"1\n"))), trial_of(search, 1, archive(("s.py", b"2\n")))
    reader = Api(store, code=False)
    listing = reader.answer("GET", f"/trials/{first}/code")
    assert listing.status_code == 200
    assert "secret.py" not in listing.text
    assert listing.json()["reason"] == "You may not read the code of its DAG."
    for path in (f"/trials/{first}/code/text?file=secret.py", f"/differences/code?trial={first}&trial={second}"):
        assert reader.refusal("GET", path)[:2] == (403, "forbidden")
    stranger = Api(store, readable=())
    for path in (
        f"/trials/{first}/code",
        f"/trials/{first}/code/text?file=secret.py",
        f"/experiments/{search.view.experiment_id}/code",
        f"/differences/code?trial={first}&trial={second}",
    ):
        assert stranger.answer("GET", path).status_code == 404, path


@SQLITE
def test_the_parent_of_a_fork_and_of_a_repeated_trial_is_shown_to_those_who_may_read_it(api, search, store) -> None:
    original = trial_of(search, 0, archive(("t.py", b"1")))
    forked, repeated = Search(store, dag="other", run="fork"), Search(store, dag="other", run="again")
    granted = {"config_id": search.config, "payload": None, "user_id": "u"}
    store.submissions.add(Submission(dag_id="other", run_id="fork", fork_of=search.view.experiment_id, **granted))
    store.submissions.add(Submission(dag_id="other", run_id="again", reproduces=original, **granted))
    for one in (forked, repeated):
        one.plan(max_trials=1)
    seen = [api.get(f"/trials/{trial_of(one, 0, None)}/code")["parent"] for one in (forked, repeated)]
    own = search.view
    assert seen == [
        {"experiment_id": own.experiment_id, "name": search.name, "trial_id": None},
        {"experiment_id": own.experiment_id, "name": search.name, "trial_id": original},
    ]
    reader = Api(store, readable={"other"})
    fork_id = forked.view.experiment_id
    assert reader.get(f"/experiments/{fork_id}/code")["parent"] is None
    assert api.get(f"/trials/{original}/code")["parent"] is None


@SQLITE
@pytest.mark.parametrize(
    "content", [b"", b"no archive", archive(("a", b"x" * 100))[:-20]], ids=["empty", "other", "cut"]
)
def test_an_archive_that_cannot_be_read_is_an_error_of_the_user_and_no_crash(api, search, content: bytes) -> None:
    trial_id = trial_of(search, 0, content)
    assert api.answer("GET", f"/trials/{trial_id}/code").status_code in (409, 422)


@SQLITE
def test_hostile_names_and_texts_are_data(api, search) -> None:
    raw = b"caf\xe9.py".decode("utf-8", "surrogateescape")
    names = ["<img src=x>.py", "a\u202eb.py", "\x1b[31m.py", "../../etc/passwd", "n" * 300 + ".py", raw]
    content = archive(
        *((name, b"\x1b[31m\xe2\x80\xae<script>\r\n") for name in names), ("dup.py", b"1"), ("dup.py", b"22")
    )
    trial_id = trial_of(search, 0, content)
    listed = files_of(api.get(f"/trials/{trial_id}/code"))
    assert set(listed) == {*names[:-1], "caf\\xe9.py", "dup.py"}
    assert listed["dup.py"] == ("text", 2), "hosts keep the last entry of a path"
    for name in listed:
        text = api.get(f"/trials/{trial_id}/code/text", file=name)["text"]
        assert text in ("\x1b[31m\u202e<script>\r\n", "22")
    other = trial_of(search, 1, archive(("dup.py", b"3")))
    assert len(api.get("/differences/code", trial=[trial_id, other])["files"]) == len(listed)


@SQLITE
def test_more_files_than_the_limit_are_counted(api, search) -> None:
    content = archive(*((f"{number:05}.py", b"") for number in range(FILES_MOST + 3)))
    trial_id = trial_of(search, 0, content)
    found = api.get(f"/trials/{trial_id}/code")
    assert (len(found["files"]), found["more"]) == (FILES_MOST, 3)
    other = trial_of(search, 1, archive(("a", b"")))
    assert "too many files" in api.get("/differences/code", trial=[trial_id, other])["reason"]


def test_a_character_that_is_cut_at_the_head_of_a_file_leaves_it_text() -> None:
    files, _ = packed_files(archive(("a.txt", b"a" + "é".encode() * 8000), ("latin1.txt", b"\xe9\n" * 9000)))
    assert (files["a.txt"].is_text, files["latin1.txt"].is_text) == (True, False)


@SQLITE
@pytest.mark.parametrize(
    "query", ["", "trial=1", "trial=1&trial=2&trial=3", "trial=x&trial=1", f"trial={2**70}&trial=1"]
)
def test_a_comparison_of_code_takes_two_trials(api, search, query: str) -> None:
    assert api.answer("GET", f"/differences/code?{query}").status_code == 422
