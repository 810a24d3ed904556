"""The table of faults names existing tests, and every test of a file that it mentions."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_the_table_of_faults_names_every_test() -> None:
    named = set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", (HERE / "README.md").read_text()))
    there = {
        (path.name, name)
        for path in {HERE / file for file, _ in named}
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert named == there
