"""The examples of the pages about training run as they stand, and links lead to sections."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.warm_ranks import run_program

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "training").glob("*.md"))
TEXT = "".join(page.read_text() for page in PAGES)
#: Frameworks that the examples of some blocks need.
FRAMEWORKS = ("jax", "sklearn")
ALL_BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
BLOCKS = [
    block
    for block in ALL_BLOCKS
    if not any(f"import {name}\n" in block or f"from {name}." in block for name in FRAMEWORKS)
]


def run(tmp_path, blocks):
    for index, block in enumerate(blocks):
        (tmp_path / f"example{index}.py").write_text(block)
    code = f"import runpy\nfor i in range({len(blocks)}): runpy.run_path(f'example{{i}}.py', run_name='__main__')"
    return run_program(code, tmp_path)


@pytest.mark.torch
def test_every_example_of_the_training_page_runs(tmp_path):
    assert len(BLOCKS) >= 4
    code, output = run(tmp_path, BLOCKS)
    assert code == 0, output
    assert (tmp_path / "data").is_dir()


@pytest.mark.nightly
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_example_of_a_framework_runs_and_continues_after_a_kill_in_the_middle_of_a_checkpoint(tmp_path, name):
    pytest.importorskip(name)
    (block,) = (block for block in ALL_BLOCKS if f"import {name}\n" in block or f"from {name}." in block)
    code = block.replace("dtrain.init(", f"dtrain.init(checkpoint_dir={str(tmp_path / 'kept')!r}, ")
    # The first run is killed in its second checkpoint.
    writes = next(line for line in code.splitlines(keepends=True) if "numpy.savez(" in line)
    indent = writes[: len(writes) - len(writes.lstrip())]
    killed = code.replace(
        writes,
        f"{indent}if any(folder.parent.parent.glob('step-*')):\n{indent}    (folder / 'half').write_text('x')\n"
        f"{indent}    __import__('os').kill(__import__('os').getpid(), 9)\n{writes}",
    )
    assert run(tmp_path, [killed])[0] == -9
    (first,) = (tmp_path / "kept").glob("step-*")
    exit_code, output = run(tmp_path, [code])
    assert exit_code == 0, output
    steps = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert len(steps) == 1, "what the killed run had begun is swept"
    assert steps[0] > first.name


def anchors_of(page: Path) -> set[str]:
    """Return the names of a page's sections in links."""
    lines = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL).splitlines()
    titles = [line.lstrip("#").strip().lower() for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def test_links_to_sections_of_the_training_pages_lead_to_them():
    broken = []
    for page in [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *PAGES]:
        for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", page.read_text()):
            found = (page.parent / target).resolve() if target else page
            if found in PAGES and anchor not in anchors_of(found):
                broken.append(f"{page.name}: {target}#{anchor}")
    assert broken == []


def test_the_overview_names_every_training_page():
    overview = (DOCS / "training.md").read_text()
    assert [page.name for page in PAGES if f"(training/{page.name})" not in overview] == []
