"""The commands of docs/own-hosts.md and docs/ten-machines.md that need no training, on two real hosts."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.netns import NamespaceHosts
from tests.support.cli_world import World

pytest_plugins = ["testbed.netns.plugin", "tests.support.cli_world"]
pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.netns, pytest.mark.nightly]
ROOT = Path(__file__).parents[2]


def commands(page: str, *sections: int) -> Iterator[list[str]]:
    """Return the words after ``airflow dtrain`` of the commands in sections of a page."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for number in sections:
        section = text.partition(f"\n## {number}. ")[2].partition("\n## ")[0]
        for line in "".join(re.findall(r"^```bash\n(.*?)^```", section, re.M | re.S)).splitlines():
            if line.startswith("airflow dtrain "):
                yield shlex.split(line, comments=True)[2:]


@pytest.fixture(scope="module")
def hosts(namespace_hosts: Callable[..., NamespaceHosts], world: World) -> World:
    """The connections ``gpu_01`` and ``gpu_02`` of the quickstart, whose hosts have CPU slots."""
    made = namespace_hosts(count=2)
    for place, conn_id in enumerate(("gpu_01", "gpu_02")):
        world.connect(made.host(place), conn_id, host_key=True)
    return world


def run(world: World, words: list[str]) -> str:
    """Run a command, with the interpreter and the slots that these hosts have."""
    if "--python" in words:
        place = words.index("--python") + 1
        words = [*words[:place], sys.executable, *words[place + 1 :], "--slots", "cpu:2"]
    words = [str(ROOT / "tests/data/philly_excerpt.csv") if word == "jobs.csv" else word for word in words]
    words = [str(world.folder / word) if word == "defaults.yaml" else word for word in words]
    done = world(*words, *(["-y"] if words[:2] == ["hosts", "remove"] else []))
    # doctor also reports what this home lacks, such as a running Airflow. On a busy machine one host is really slower.
    is_finding = words == ["doctor"] or (words[:2] == ["hosts", "check"] and "is slow" in done.err)
    assert done.code == 0 or is_finding, (words, done.out, done.err)
    return done.out


def test_the_commands_of_the_tutorials_work_in_their_order(hosts: World) -> None:
    printed = {shlex.join(words): run(hosts, words) for words in commands("own-hosts", 1, 2)}
    assert "gpu-02" in printed["hosts list"]
    assert "gpu-01" in printed["doctor"]
    assert {row["state"] for row in hosts.rows("hosts", "list")} == {"ready"}
    (defaults,) = (
        text
        for text in re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/ten-machines.md").read_text(), re.M | re.S)
        if "checkpoint_storage" in text
    )
    hosts.file("defaults.yaml", defaults)
    bucket = hosts.airflow("connections", "add", "training_bucket", "--conn-type", "aws")
    assert bucket.code == 0, bucket.err
    for words in commands("ten-machines", 2, 3, 4, 6):
        run(hosts, words)
    assert hosts.rows("pools", "describe", "gpus")["preemption"] == "slices"
    run(hosts, ["maintenance", "end"])
    for words in commands("own-hosts", 5):
        run(hosts, words)
    assert [row["name"] for row in hosts.rows("hosts", "list")] == ["gpu-01"]
