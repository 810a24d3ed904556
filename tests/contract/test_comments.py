"""Comments: who may read, add and remove them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_dtrain.errors import ConflictError, NotFoundError, UserError
from airflow_provider_dtrain.store import comments
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.search_world import Search

pytestmark = pytest.mark.airflow
SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
PATHS = ("/trials/1/comments", "/experiments/1/comments")
HOSTILE = "<img src=x onerror=alert(1)> \x1b[31m \u202eevil ![p](https://evil.org/p.png)"


@pytest.fixture
def search(store: Any) -> Search:
    store.hosts.add(host("a", slots=4))
    found = Search(store)
    found.plan(max_trials=2)
    found.submit(0, slots=1)
    return found


def add(store: Any, text: str = "a", *, noun: Any = "trial", number: int = 1, user: str = "ann") -> int:
    return int(store.comments.add(noun, number, text, user_id=f"id-{user}", by=user))


def test_comments_are_kept_in_order_and_apart(store: Any, search: Search) -> None:
    add(store, " first \n")
    add(store, "of the experiment", noun="experiment")
    add(store, "second", user="bob")
    assert [(one.by, one.text) for one in store.comments.of("trial", 1)] == [("ann", "first"), ("bob", "second")]
    assert [one.text for one in store.comments.of("experiment", 1)] == ["of the experiment"]
    assert store.comments.of("trial", 2) == []


def test_only_the_author_removes_a_comment(store: Any, search: Search) -> None:
    own, other = add(store), add(store, user="bob")
    for noun, number, comment_id, user in (
        ("trial", 1, other, "ann"),
        ("trial", 2, own, "ann"),
        ("experiment", 1, own, "ann"),
        ("trial", 1, 99, "ann"),
    ):
        with pytest.raises(NotFoundError, match="has no comment"):
            store.comments.remove(noun, number, comment_id, user_id=f"id-{user}", by=user)
    store.comments.remove("trial", 1, own, user_id="id-ann", by="renamed")
    assert [one.comment_id for one in store.comments.of("trial", 1)] == [other]


@pytest.mark.parametrize("text", ["", "  \n", "x" * 10_001, "a\0b"])
def test_texts_that_cannot_be_kept_are_refused(store: Any, search: Search, text: str) -> None:
    with pytest.raises(UserError, match="1 to 10000 characters"):
        add(store, text)
    assert store.comments.of("trial", 1) == []


def test_an_object_has_a_limited_number_of_comments(
    store: Any, search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comments, "COMMENTS_MOST", 2)
    for _ in range(2):
        add(store)
    with pytest.raises(ConflictError, match="has 2 comments, which is the limit"):
        add(store)
    add(store, noun="experiment")


def test_what_does_not_exist_has_no_comments(store: Any, search: Search) -> None:
    for noun in ("trial", "experiment"):
        with pytest.raises(NotFoundError, match=f"There is no {noun} 99"):
            add(store, noun=noun, number=99)


# -- the API -------------------------------------------------------------------------------------------------------


@SQLITE
@pytest.mark.parametrize("path", PATHS)
def test_a_user_adds_reads_and_removes_an_own_comment(store: Any, search: Search, path: str) -> None:
    api = Api(store, name="ann")
    found = api.answer("POST", path, json={"text": HOSTILE}).json()
    assert found == api.get(path)
    (row,) = found["rows"]
    assert (row["by"], row["text"], row["is_own"], found["may_comment"]) == ("ann", HOSTILE, True, True)
    assert api.answer("DELETE", f"{path}/{row['comment_id']}").json()["rows"] == []
    noun = path.split("/")[1].removesuffix("s")
    assert [(entry[0], entry[3]) for entry in api.logged] == [
        ("comment_add", {f"{noun}_id": 1}),
        ("comment_remove", {f"{noun}_id": 1}),
    ]


@SQLITE
@pytest.mark.parametrize("path", PATHS)
def test_another_user_reads_a_comment_and_cannot_remove_it(store: Any, search: Search, path: str) -> None:
    (row,) = Api(store, name="ann").answer("POST", path, json={"text": "mine"}).json()["rows"]
    other = Api(store, name="bob")
    assert other.get(path)["rows"] == [{**row, "is_own": False}]
    assert other.refusal("DELETE", f"{path}/{row['comment_id']}")[:2] == (404, "not_found")
    assert len(other.get(path)["rows"]) == 1


@SQLITE
@pytest.mark.parametrize("path", PATHS)
def test_a_user_who_may_only_read_gets_comments_and_adds_none(store: Any, search: Search, path: str) -> None:
    Api(store, name="ann").answer("POST", path, json={"text": "mine"})
    reader = Api(store, name="bob", editable=[])
    assert reader.get(path)["may_comment"] is False
    assert reader.refusal("POST", path, json={"text": "a"})[0] == 403
    assert reader.refusal("DELETE", f"{path}/1")[0] == 403
    closed = Api(store, readable=[])
    for method in ("GET", "POST"):
        assert closed.refusal(method, path, **({"json": {"text": "a"}} if method == "POST" else {}))[0] == 404


@SQLITE
@pytest.mark.parametrize("body", [{}, *({"text": text} for text in ("", " ", 3, "x" * 10_001, "a\0"))])
def test_bodies_without_a_text_are_refused(store: Any, search: Search, body: Any) -> None:
    assert Api(store).refusal("POST", PATHS[0], json=body)[0] in (400, 409, 422)
    assert Api(store).get(PATHS[0])["rows"] == []


@SQLITE
@pytest.mark.parametrize("comment_id", ["0", "-1", "99", str(2**63), "x"])
def test_a_comment_that_does_not_exist_cannot_be_removed(store: Any, search: Search, comment_id: str) -> None:
    assert Api(store).refusal("DELETE", f"{PATHS[0]}/{comment_id}")[0] in (404, 422)
