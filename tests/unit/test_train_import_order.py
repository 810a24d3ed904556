"""A script gets the same, bit for bit, whether torch is imported before or after ``dtrain.init()``, and by whom.

Everything runs in new interpreters. With torch 2.4, in an environment that has it and pytest:
``python -m pytest --noconftest -c /dev/null --rootdir . tests/unit/test_train_import_order.py``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.event_lines import lines_of
from tests.support.plain_programs import outputs, start

pytestmark = pytest.mark.torch

DETERMINISTIC = {"reproducibility": {"deterministic": True}}
FORK = """
import os, torch
if child := os.fork():
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
THREAD = """
import threading
importing = [threading.Thread(target=__import__, args=(name,)) for name in ("torch", "torch")]
for thread in importing: thread.start()
for thread in importing: thread.join()
"""
BYPASS = """
import importlib.machinery
class Past:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.PathFinder.find_spec(name, path) if name == "torch" else None
sys.meta_path.insert(0, Past())
import torch
ctx.device
import numpy
"""
#: Name -> code before and code after the call of init.
ORDERS = {
    "before": ("import torch, numpy", ""),
    "after": ("", "import torch, numpy"),
    "by a library": ("", "import library"),
    "in threads": ("", THREAD),
    "numpy before, torch after": ("import numpy.random", "import torch"),
    "before the fork of a warm parent": (FORK, ""),
}
EACH_CHANGE = {("after", 1), ("after", 2), ("by a library", 1)}
TRAIN = """
import hashlib, json, os, random, sys
sys.path.insert(0, ".")
{before}
import airflow_provider_dtrain.train as dtrain

with dtrain.init() as ctx:
    draws = [random.random()]
{after}
    import numpy, torch
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    draws += [random.random(), float(numpy.random.rand()), float(torch.rand(1)), torch.initial_seed()]
    data = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
    model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    losses = []
    for epoch in ctx.epochs(2):
        for x, y in ctx.loader(data, batch_size=4):
            loss = torch.nn.functional.mse_loss(model(x), y)
            ctx.backward(loss)
            ctx.step(optimizer)
            losses.append(float(loss).hex())
        draws += [random.random(), float(numpy.random.rand()), float(torch.rand(1))]
    weights = b"".join(value.detach().numpy().tobytes() for value in dtrain.unwrap(model).state_dict().values())
    print(json.dumps({
        "draws": draws,
        "losses": losses,
        "weights": hashlib.sha256(weights).hexdigest(),
        "device": [str(ctx.device), torch.get_default_dtype().__str__()],
        "deterministic": [torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark],
        "threads": torch.get_num_threads(),
        "cublas": os.environ["CUBLAS_WORKSPACE_CONFIG"],
        "group": torch.distributed.is_initialized(),
    }))
"""


def trained(folder: Path, ranks: int, before: str, after: str) -> list[Any]:
    """Return what each rank has printed last, and check the events of rank 0."""
    folder.mkdir()
    (folder / "library.py").write_text("import torch\nimport numpy\n")
    indented = "".join(f"    {line}\n" for line in after.splitlines())
    body = TRAIN.replace("{before}", before).replace("{after}", indented)
    found = outputs(start(folder, body, ranks, packages=True, config=DETERMINISTIC))
    init = [line for line in lines_of(folder / "events0") if line["kind"] == "init"][-1]
    assert init["torch"]
    assert (init["device"], init["backend"]) == ("cpu", "gloo")
    return [json.loads(output.splitlines()[-1]) for output in found]


@pytest.fixture(scope="module")
def imported_before(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[Any]]:
    """Return a function that returns the results of ranks that import torch before init()."""
    folder = tmp_path_factory.mktemp("before")
    return functools.cache(lambda ranks: trained(folder / str(ranks), ranks, *ORDERS["before"]))


#: Each process imports torch, so most cases run at night.
CASES = [
    pytest.param(order, ranks, marks=[] if (order, ranks) in EACH_CHANGE else pytest.mark.nightly)
    for order in list(ORDERS)[1:]
    for ranks in (1, 2)
]


@pytest.mark.nightly
@pytest.mark.parametrize(("order", "ranks"), CASES)
def test_training_is_the_same_whenever_torch_is_imported(
    tmp_path: Path, imported_before: Callable[[int], list[Any]], order: str, ranks: int
) -> None:
    found = trained(tmp_path / "run", ranks, *ORDERS[order])
    assert found == imported_before(ranks)
    assert found[0]["deterministic"] == [True, False]
    assert found[0]["threads"] == 1
    assert found[0]["group"] == (ranks > 1)


@pytest.mark.nightly
def test_a_device_is_asked_for_where_a_foreign_finder_has_passed_the_hook_by(
    tmp_path: Path, imported_before: Callable[[int], list[Any]]
) -> None:
    assert trained(tmp_path / "run", 1, "", BYPASS) == imported_before(1)


LATE = """
import random, sys
{before}
import airflow_provider_dtrain.train as dtrain
with dtrain.init() as ctx:
    for epoch in ctx.epochs(1):
        random.random()
        import numpy, torch
        print(random.random(), numpy.random.rand(), torch.rand(1).item(), torch.randperm(100).sum().item())
"""


@pytest.mark.nightly
def test_a_late_import_continues_the_stream_that_the_rank_has_by_then(tmp_path: Path) -> None:
    early, late = (
        outputs(start(tmp_path / str(bool(before)), LATE.replace("{before}", before), 1, packages=True))
        for before in ("import numpy, torch", "")
    )
    assert early == late


EXIT = """
import atexit, sys
import airflow_provider_dtrain.train as dtrain
leave = dtrain.Context.leave
dtrain.Context.leave = lambda self: (print("the context leaves"), leave(self))
atexit.register(print, "before all")
{before}
ctx = dtrain.init()
atexit.register(print, "between")
{after}
import multiprocessing.util, weakref
class Thing: pass
thing = Thing()
weakref.finalize(thing, print, "finalizers")
multiprocessing.util.Finalize(None, print, args=("multiprocessing",), exitpriority=1)
atexit.register(print, "after all")
"""


@pytest.mark.nightly
def test_exit_handlers_run_in_one_order(tmp_path: Path) -> None:
    programs = (
        EXIT.replace("{before}", before).replace("{after}", after)
        for before, after in (("import torch", ""), ("", "import torch"))
    )
    early, late = (outputs(start(tmp_path / str(n), body, 1, packages=True)) for n, body in enumerate(programs))
    assert early == late
    lines = early[0].splitlines()
    assert lines[:3] == ["after all", "between", "the context leaves"]
    assert set(lines[3:]) == {"multiprocessing", "finalizers", "before all"}


PLAIN = """
import os, random, sys
import airflow_provider_dtrain.train as dtrain
with dtrain.init() as ctx:
    for step in range(1, 4):
        ctx.report(step, {"loss": random.random()})
        if ctx.should_stop(step):
            break
    with ctx.checkpoint(step) as folder:
        (folder / "state").write_text(str(step))
    ctx.report_validation(step, {"accuracy": 1.0})
{after}
heavy = "torch", "numpy", "asyncio", "multiprocessing", "urllib.request", "ssl", "fsspec"
print([name for name in heavy if name in sys.modules])
"""


def test_a_trial_that_does_not_use_torch_imports_neither_it_nor_numpy(tmp_path: Path) -> None:
    output = outputs(start(tmp_path / "run", PLAIN.replace("{after}", ""), 1, packages=True))[0]
    assert output.splitlines()[-1] == "[]"
    (init,) = (line for line in lines_of(tmp_path / "run" / "events0") if line["kind"] == "init")
    assert (init["device"], init["backend"], init.get("torch")) == ("cpu", "sockets", None)
    assert init["python"]


@pytest.mark.nightly
def test_a_forked_process_that_imports_torch_is_seeded_and_reports_nothing(tmp_path: Path) -> None:
    body = """
        import os, sys
        import airflow_provider_dtrain.train as dtrain
        with dtrain.init() as ctx:
            if (child := os.fork()) == 0:
                import torch
                print(torch.initial_seed(), flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            assert "torch" not in sys.modules
    """
    assert outputs(start(tmp_path / "run", body, 1, packages=True))[0].splitlines()[-1] == "3"
    assert [line["kind"] for line in lines_of(tmp_path / "run" / "events0")].count("init") == 1
