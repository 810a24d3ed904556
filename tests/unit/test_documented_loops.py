"""No loop of the pages and examples dies in a restart: each one, killed at every batch, ends as an unbroken one."""

from __future__ import annotations

import ast
import importlib.machinery
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train.context import Context  # noqa: E402
from tests.support.small_trial import Kept  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
EPOCHS, BATCHES = 2, 2
LOOP = re.compile(r"for .* in ctx\.loader\(")
#: Libraries that a script with a loop of its own may need.
FRAMEWORKS = ("transformers", "lightning", "accelerate")


def scripts():
    """Return the source of each script with a loop over ctx.loader, by its place."""
    found = {}
    for page in PAGES:
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        found.update({f"{page.name}-{number}": block for number, block in enumerate(blocks) if LOOP.search(block)})
    for path in sorted((ROOT / "dags").rglob("*.py")):
        text = path.read_text()
        if LOOP.search(text) and not any(f"import {name}" in text for name in FRAMEWORKS):
            found[str(path.relative_to(ROOT))] = text
    return found


SCRIPTS = scripts()


class Killed(BaseException):
    """Stands for the end of the process."""


class SaveEachBatch(ast.NodeTransformer):
    """Adds to the body of each loop over ctx.loader: save a checkpoint, and then the process may be killed."""

    def visit_For(self, node):
        self.generic_visit(node)
        loop = ast.unparse(node.iter)
        if "ctx.loader(" in loop:
            over = "ctx.save_checkpoint(step); _batch_is_over(ctx, step)" if self.saves else "_batch_is_over(ctx)"
            node.body += ast.parse(over).body
        return node

    def __init__(self, *, saves):
        self.saves = saves


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Limit loops to some batches, and keep checkpoints in a folder. Return a function that runs a script."""
    epochs, loader, init = Context.epochs, Context.loader, dtrain.init
    monkeypatch.setattr(Context, "epochs", lambda self, count=None: epochs(self, EPOCHS))
    monkeypatch.setattr(Context, "loader", lambda self, data, **kind: loader(self, data, **kind, max_batches=BATCHES))
    monkeypatch.chdir(tmp_path)
    # The examples take their images from scikit-learn, which takes seconds to import.
    images = types.ModuleType("sklearn.datasets")
    generator = np.random.default_rng(1)
    images.load_digits = lambda **_: (generator.random((512, 64)), generator.integers(0, 10, 512))
    for module in (types.ModuleType("sklearn"), images):
        # torch looks for the libraries that it can compile.
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    digests = {}

    def run(source, folder, kill):
        """Run a script. ``kill`` is called after each batch, with the context and the step."""
        nonlocal generator
        generator = np.random.default_rng(1)

        def begin(**options):
            place = options.pop("checkpoint_dir", "")
            ctx = init(**options, checkpoint_dir=tmp_path / folder / Path(place).name)
            close = ctx.close
            ctx.close = lambda: (digests.update({folder: dtrain.parameters_sha256(*ctx._prepared.models)}), close())
            return ctx

        monkeypatch.setattr(dtrain, "init", begin)
        tree = SaveEachBatch(saves="restore_checkpoint" in source and "step += 1" in source).visit(ast.parse(source))
        code = compile(ast.fix_missing_locations(tree), folder, "exec")
        exec(code, {"__name__": "__main__", "_batch_is_over": kill})
        return digests[folder]

    return run


# The loops of the nightly ones are those of the others.
@pytest.mark.nightly("dags/large_batch/train.py", "dags/experiment_loggers/train.py", "dags/digits/train.py")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_is_killed_at_every_batch_ends_as_an_unbroken_one(small, name):
    source = SCRIPTS[name]
    batches = 0

    def count(*_):
        nonlocal batches
        batches += 1

    whole = small(source, "whole", count)
    assert 0 < batches <= EPOCHS * BATCHES * 2, "some scripts train twice"
    killed = set()

    def kill(ctx, step=0):
        # A script that saves nothing begins anew, so its batches of this process are counted.
        place = step or -ctx._progress.handed
        if place not in killed:
            killed.add(place)
            # The saved checkpoint is on the disk.
            ctx._saver.finish()
            raise Killed

    for _ in range(3 * batches):
        try:
            assert small(source, "killed", kill) == whole
            break
        except Killed:
            pass
    else:
        raise AssertionError("the script never comes to its end")
    assert "restore_checkpoint" not in source or len(killed) == batches


def test_the_trial_class_of_the_page_that_is_killed_at_every_batch_ends_as_an_unbroken_one(tmp_path):
    page = (ROOT / "docs/training/trial-class.md").read_text()
    (block,) = (
        one for one in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "run_trial(" in one
    )
    found = {"__name__": "example"}
    exec(block, found)
    killed = set()
    config = {"min_checkpoint_period": {"batches": 1}, "scheduling_unit": 1}

    def train(folder, *, kills):
        class Trial(found["SumTrial"]):
            def train_batch(self, batch, epoch_idx, batch_idx):
                metrics = super().train_batch(batch, epoch_idx, batch_idx)
                if kills and batch_idx not in killed:
                    killed.add(batch_idx)
                    raise Killed
                return metrics

        kept = Kept(Trial)
        kept.run({"epochs": 2}, config=config, hparams={"lr": 0.01, "global_batch_size": 128}, checkpoint_dir=folder)
        return dtrain.parameters_sha256(kept.trial.model)

    whole = train(tmp_path / "whole", kills=False)
    for _ in range(4):
        with pytest.raises(Killed):
            train(tmp_path / "killed", kills=True)
    assert train(tmp_path / "killed", kills=True) == whole
    assert killed == {0, 1, 2, 3}
