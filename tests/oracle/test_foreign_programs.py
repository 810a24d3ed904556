"""Programs for torchrun, unedited, as a gang and under the real torchrun: the same losses, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.torchrun import as_gang, under_torchrun

pytestmark = pytest.mark.torch

PROGRAMS = Path(__file__).with_name("programs")
#: torchrun gives each rank one thread; a gang divides the cores of its host, and sums depend on it.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
#: Program -> its arguments. ``FILES`` is a path that all hosts see.
FILES = "<files>"
OF_PYTORCH = {
    "ddp_tutorial": (FILES,),
    "nanogpt": ("--batch_size=2", "--learning_rate=0.02"),
    "local_rank_argument": ("--lr", "0.05"),
    "fsdp2": (FILES,),
}
#: Program -> the package that it needs beside PyTorch.
OF_FRAMEWORKS = {
    "lightning_devices": "lightning",
    "accelerate_loop": "accelerate",
    "hugging_face_trainer": "transformers",
}
#: Hosts and ranks of each.
SHAPES = [(1, 2), (1, 1), (1, 4), (2, 2)]


def compare(folder: Path, name: str, hosts: int, per_host: int, arguments: tuple[str, ...] = ()) -> None:
    program = (PROGRAMS / f"{name}.py").read_text()
    theirs, ours = (
        run(
            folder / run.__name__,
            program,
            hosts,
            per_host,
            arguments=[str(folder / f"files-{run.__name__}") if one == FILES else one for one in arguments],
            env=ONE_THREAD,
        )
        for run in (under_torchrun, as_gang)
    )
    assert list(ours) == list(range(hosts * per_host))
    assert all(one["losses"] for one in ours.values())
    assert ours == theirs


@pytest.mark.nightly
@pytest.mark.parametrize("name", OF_PYTORCH)
@pytest.mark.parametrize(("hosts", "per_host"), SHAPES)
def test_a_program_for_torchrun_trains_as_under_torchrun(tmp_path: Path, name: str, hosts: int, per_host: int) -> None:
    compare(tmp_path, name, hosts, per_host, OF_PYTORCH[name])


@pytest.mark.nightly
@pytest.mark.parametrize("name", OF_FRAMEWORKS)
@pytest.mark.parametrize(("hosts", "per_host"), SHAPES)
def test_a_program_of_a_framework_trains_as_under_torchrun(
    tmp_path: Path, name: str, hosts: int, per_host: int
) -> None:
    pytest.importorskip(OF_FRAMEWORKS[name])
    compare(tmp_path, name, hosts, per_host)
