"""The development container: its image builds, and the command that an editor runs after its creation works in it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.images import Builder
from testbed.own_podman import Podman, why_no_own_podman

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_own_podman()), reason=str(why_no_own_podman())),
]
ROOT = Path(__file__).parents[2]
IMAGE = "localhost/dtrain-devcontainer"
#: The environment of the tests is half a GB of downloads on a machine with two busy cores.
CREATE_S = 2400.0


@pytest.fixture
def podman(tmp_path: Path) -> Iterator[Podman]:
    (tmp_path / "podman").mkdir()
    podman = Podman(tmp_path / "podman")
    yield podman
    podman.close()


def test_the_command_after_creation_installs_and_passes_in_the_container(podman: Podman, tmp_path: Path) -> None:
    text = (ROOT / ".devcontainer/devcontainer.json").read_text()
    document = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    builder = Builder(podman)
    builder.debian()
    dockerfile = ROOT / ".devcontainer" / document["build"]["dockerfile"]
    build = ["podman", "build", *builder.options, f"--file={dockerfile}", f"--tag={IMAGE}", str(dockerfile.parent)]
    podman.run(*build, online=True, timeout_s=CREATE_S)
    node = podman.run("podman", "run", "--rm", "--network=none", IMAGE, "node", "--version").stdout
    assert tuple(map(int, node.strip().removeprefix("v").split(".")[:2])) >= (20, 19), "the checks of the pages need it"
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True, timeout=120)
    place = "/workspaces/airflow-provider-dtrain"
    created = podman.run(
        "podman",
        "run",
        "--rm",
        "--network=host",
        *(["--privileged"] if document["privileged"] else []),
        f"--user={document['remoteUser']}",
        f"--volume={clone}:{place}",
        f"--workdir={place}",
        "--env=PIP_CONFIG_FILE=/builder/pip.conf",
        *builder.volumes,
        IMAGE,
        "sh",
        "-c",
        document["postCreateCommand"],
        online=True,
        timeout_s=CREATE_S,
    )
    assert re.search(r"\d+ passed", created.stdout), created.stdout[-4000:]
    assert "Missing: " not in created.stdout, "the image lacks programs of the tests"
