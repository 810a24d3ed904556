"""A sweep removes only the partial copies of dead processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_dtrain.engine.copies import partial
from airflow_provider_dtrain.engine.copies.checkpoints import PARTIAL, sweep_partial
from airflow_provider_dtrain.engine.copies.output_generations import PARTIAL as OUTPUTS_PARTIAL
from airflow_provider_dtrain.engine.copies.output_generations import OutputCopies

COPIER = """
import sys
from pathlib import Path
from airflow_provider_dtrain.engine.copies.partial import partial_copy
with partial_copy(Path(sys.argv[1]), sys.argv[2]) as folder:
    (folder / "state.pt").write_text("half")
    print("copying", flush=True)
    sys.stdin.read()
"""


def sweep_outputs(folder: Path) -> None:
    OutputCopies(folder).sweep()


@pytest.mark.parametrize(("sweep", "prefix"), [(sweep_partial, PARTIAL), (sweep_outputs, OUTPUTS_PARTIAL)])
def test_a_copy_of_another_process_is_swept_only_after_its_death(
    tmp_path: Path, sweep: Callable[[Path], None], prefix: str
) -> None:
    argv = [sys.executable, "-c", COPIER, str(tmp_path), prefix]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as copier:
        assert copier.stdout is not None
        assert copier.stdout.readline() == "copying\n"
        sweep(tmp_path)
        assert [path.read_text() for path in tmp_path.glob(f"{prefix}*/files/state.pt")] == ["half"]
        copier.kill()
    assert list(tmp_path.iterdir()) != []
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_of_the_same_process_is_not_swept(tmp_path: Path) -> None:
    with partial.partial_copy(tmp_path, PARTIAL) as folder:
        sweep_partial(tmp_path)
        assert folder.is_dir()
        folder.rename(tmp_path / "step-1")
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = partial._open, []

    def open_after_a_sweep(folder: Path) -> int:
        found = make(folder)
        made.append(folder)
        # The second folder is opened by the sweep, the third one by the second try.
        if len(made) == 1:
            sweep_partial(tmp_path)
        return found

    monkeypatch.setattr(partial, "_open", open_after_a_sweep)
    with partial.partial_copy(tmp_path, PARTIAL) as folder:
        assert folder.is_dir()
        assert made[0] == made[1] != made[2] == folder.parent
    assert list(tmp_path.iterdir()) == []
