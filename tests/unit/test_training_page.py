"""The examples of the pages about training run as they stand, and links lead to sections."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "training").glob("*.md"))
TEXT = "".join(page.read_text() for page in PAGES)
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def run(tmp_path, blocks):
    for index, block in enumerate(blocks):
        (tmp_path / f"example{index}.py").write_text(block)
    # One interpreter for all: importing torch is most of the time.
    code = f"import runpy\nfor i in range({len(blocks)}): runpy.run_path(f'example{{i}}.py', run_name='__main__')"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.torch
def test_every_example_of_the_training_page_runs(tmp_path):
    assert len(BLOCKS) >= 4
    done = run(tmp_path, BLOCKS)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data").is_dir()


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
