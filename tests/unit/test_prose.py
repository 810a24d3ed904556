"""The language check of scripts/tools/prose.py."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "tools"))


def rules(text: str, name: str = "some/module.py") -> list[tuple[int, str]]:
    """Return line and rule of each breach in the text of a file."""
    import prose

    return [(breach.line, breach.rule) for breach in prose.breaches(Path(name), text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# Nobody holds the slot.\n", [(1, "banned word: Nobody")]),
        ("message = 'killed by somebody'\n", [(1, "banned word: somebody")]),
        ("x = 1\n# Tell anybody.\n", [(2, "banned word: anybody")]),
        ("# The slot is free for whoever waits.\n", [(1, "banned word: whoever")]),
        ("# The run is not renewed any more.\n", [(1, "banned word: any more")]),
        ("# The follower polls no more.\n", [(1, "banned word: no more")]),
        ("# A pass needs no more slots than a host has.\n", [(1, "banned word: no more")]),
        ("'''The run is not renewed any\nmore.'''\n", [(1, "banned word: any more")]),
        ("# No more of them, and nobody waits.\n", [(1, "banned word: No more"), (1, "banned word: nobody")]),
    ],
)
def test_a_banned_word_is_found_with_its_line(text: str, expected: list[tuple[int, str]]) -> None:
    assert rules(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "# There are no more than 3 slots.\n",
        "# No more\tthan one pass runs.\n",
        "# It does not take any more than that.\n",
        "def test_that_nobody_waits(): ...\n",
        "noMore = anymore = 1\n",
    ],
)
def test_a_comparison_and_a_part_of_a_name_are_no_banned_words(text: str) -> None:
    assert rules(text) == []


@pytest.mark.parametrize("opening", ["What", "Who", "Whoever", "Whose", "Whether", "That", "How", "Where", "Which"])
def test_a_docstring_opens_with_no_question_word(opening: str) -> None:
    found = rules(f"def f():\n    '''{opening} it is.'''\n")
    assert (2, f"docstring opens with: {opening}") in found


@pytest.mark.parametrize(
    "first", ["Whatever a caller sends.", "Whole hosts.", "Thatch.", "Whereabouts of a run.", "Return what is held."]
)
def test_a_word_that_only_begins_like_a_question_word_is_fine(first: str) -> None:
    assert rules(f"'''{first}'''\n") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'''Stop; wait.'''\n", [1]),
        ("class A:\n    '''Stop; wait.'''\n", [2]),
        ("async def f():\n    '''Stop; wait.\n\n    More.\n    '''\n", [2]),
        ("class A:\n    def f(self):\n        '''Stop; wait.'''\n", [3]),
        ("'''Stop.\n\nOne line; another one.\n'''\n", []),
        ("'''Stop\nand wait; then start.\n'''\n", []),
        ("# One; two.\ntext = 'one; two'\n", []),
        ("def f(): ...\n", []),
    ],
)
def test_the_first_line_of_a_docstring_has_no_semicolon(text: str, expected: list[int]) -> None:
    assert rules(text) == [(line, "semicolon in the first line of a docstring") for line in expected]


def test_a_page_is_checked_for_banned_words_only() -> None:
    assert rules("# What it is; how it works\n\nNobody waits.\n", "docs/page.md") == [(3, "banned word: Nobody")]


OF_PACKAGE = "airflow_provider_dtrain/some/module.py"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def tell_epoch(): ...\n", [(1, "public name tell_epoch has: tell")]),
        ("class Words: ...\n", [(1, "public name Words has: words")]),
        ("class A:\n    def look(self): ...\n", [(2, "public name look has: look")]),
        ("async def f(*, others): ...\n", [(1, "public name others has: others")]),
        ("class A:\n    def __init__(self, who): ...\n", [(2, "public name who has: who")]),
        ("class RankLook: ...\n", [(1, "public name RankLook has: look")]),
        ("def _tell(words): ...\n", []),
        ("class _A:\n    def look(self): ...\n", []),
        ("def f():\n    def look(): ...\n    words = 1\n", []),
        ("def lookup(password, storyteller): ...\n", []),
    ],
)
def test_a_public_name_of_the_package_has_the_words_of_the_field(text: str, expected: list[tuple[int, str]]) -> None:
    assert rules(text, OF_PACKAGE) == expected
    assert rules(text) == [], "names of tests and tools are not checked"


def test_the_name_of_a_module_is_public() -> None:
    assert rules("", "airflow_provider_dtrain/trial_words.py") == [(1, "public name trial_words has: words")]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("'''Return one. See ``no_such_name``.'''\n", "no_such_name"),
        ("'''Return one. See ``scheduling.no_such_name``.'''\n", "scheduling.no_such_name"),
        ("def f():\n    '''Return a :class:`.NoSuchClass`.'''\n", "NoSuchClass"),
        ("def f():\n    '''Read ``core/no_such_file.py``.'''\n", "core/no_such_file.py"),
    ],
)
def test_a_docstring_of_the_package_mentions_only_what_exists(text: str, name: str) -> None:
    ((_, rule),) = rules(text, OF_PACKAGE)
    assert rule == f"docstring names what does not exist: {name}"
    assert rules(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "'''See ``pool_state.PoolState``, ``core/scheduling/queue.py`` and ``while``.'''\n",
        "def f():\n    '''Run ``train_everything`` and read ``my_file.py``.'''\n",
        "def f():\n    '''See :class:`.PoolState` and :func:`~core.scheduling.decision.run_pass`.'''\n",
    ],
)
def test_names_that_exist_and_those_of_users_are_fine(text: str) -> None:
    assert rules(text, OF_PACKAGE) == []


@pytest.mark.parametrize(
    "name",
    ["scripts/tools/identifiers.py", "scripts/tools/prose.py", "tests/unit/test_prose.py", "CONTRIBUTING.md"],
)
def test_files_that_list_the_words_are_not_checked(name: str) -> None:
    assert rules("'''Nobody; somebody.'''\n", name) == []


def test_a_breach_is_printed_with_its_place_and_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import prose

    (tmp_path / "good.py").write_text("'''Return a slot.'''\n")
    (tmp_path / "bad.py").write_text("\n# Nobody waits.\n")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr(prose, "tracked", lambda: [Path("bad.py"), Path("good.py")])
    monkeypatch.setattr("sys.argv", ["prose.py"])
    assert prose.main() == 1
    assert capsys.readouterr().out.startswith("bad.py:2: banned word: Nobody\n1 breaches")
    monkeypatch.setattr(prose, "tracked", lambda: [Path("good.py")])
    assert prose.main() == 0
    assert capsys.readouterr().out == ""
