"""The same seed gives the same numbers, everywhere a training draws some. Real ranks."""

from __future__ import annotations

import pytest

from tests.support.ranks import run_ranks, script

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BODY = """
    import hashlib, os, random, numpy
    class Noisy(torch.utils.data.Dataset):
        def __len__(self): return 48
        def __getitem__(self, index):
            drawn = (random.random(), float(numpy.random.rand()), float(torch.rand(())))
            return index, torch.tensor(drawn)
    def show(name, value): print(f"{name}={value};", flush=True)
    with dtrain.init() as ctx:
        rank, stop_after = ctx.distributed.rank, int(os.environ.get("STOP_AFTER", "0"))
        show("together", (random.random(), float(numpy.random.rand()), float(torch.rand(()))))
        model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        model, optimizer = ctx.prepare(model, optimizer)
        show("together", (random.random(), float(numpy.random.rand()), float(torch.rand(()))))
        show("deterministic", (torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()))
        step = ctx.restore_checkpoint()
        for epoch in ctx.epochs(2):
            for indices, inputs in ctx.loader(Noisy(), num_workers=int(os.environ.get("WORKERS", "0"))):
                loss = model(inputs).square().mean()
                ctx.backward(loss)
                ctx.step(optimizer)
                step += 1
                if step == 1:
                    show("apart", (random.random(), float(numpy.random.rand()), float(torch.rand(()))))
                show("batch", (step, indices.tolist(), [f"{value:.9g}" for value in inputs.flatten().tolist()]))
                if step == stop_after:
                    ctx.save_checkpoint(step)
                    break
            if step == stop_after:
                break
        weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        show("weights", hashlib.sha256(weights).hexdigest())
"""


def said(ranks, name):
    """Return what each rank printed under a name, in its order."""
    assert [rank.exit_code for rank in ranks] == [0] * len(ranks), "".join(rank.output for rank in ranks)
    return [rank.said(rf"{name}=(.*?);\n") for rank in ranks]


@pytest.fixture
def run(tmp_path):
    path, count = script(tmp_path, BODY), iter(range(100))

    def run(size, folder=None, *, seed=3, config=None, **env):
        context = {"seed": seed, "config": config or {}}
        return run_ranks(path, tmp_path / (folder or f"run{next(count)}"), size, context=context, env=env)

    return run


@pytest.mark.nightly("1")
@pytest.mark.parametrize("size", [1, 2])
def test_the_same_seed_gives_the_same_weights_bit_for_bit(run, size):
    first, again = run(size, OMP_NUM_THREADS="2"), run(size, OMP_NUM_THREADS="2")
    for name in ("weights", "together", "apart", "batch"):
        assert said(first, name) == said(again, name)
    assert len(set(map(str, said(first, "weights")))) == 1, "all ranks have the same"
    assert len(set(map(str, said(first, "together")))) == 1
    assert said(first, "deterministic") == [["(False, 2)"]] * size
    if size == 2:
        (one,), (two,) = said(first, "apart")
        drawn = [part.strip("()").split(", ") for part in (one, two)]
        assert all(a != b for a, b in zip(*drawn, strict=True)), "python, numpy and torch each differ between the ranks"
        return
    other = run(size, seed=4)
    assert not any(said(first, name) == said(other, name) for name in ("weights", "together", "apart", "batch"))


def test_deterministic_is_honoured(run):
    config = {"reproducibility": {"deterministic": True}}
    assert said(run(1, config=config, OMP_NUM_THREADS="2"), "deterministic") == [["(True, 1)"]]


@pytest.mark.nightly
def test_loader_workers_draw_the_same_numbers_after_a_resume(run):
    unbroken = run(2, WORKERS="2")
    batches = said(unbroken, "batch")
    drawn = [value for rank in batches for batch in rank for value in batch.partition("[")[2].split("'")[1::2]]
    assert len(set(drawn)) == len(drawn), "each sample, worker, epoch and rank draws anew, from all three sources"
    begun = run(2, "resumed", WORKERS="2", STOP_AFTER="8")
    resumed = run(2, "resumed", WORKERS="2")
    for rank, parts in enumerate(zip(said(begun, "batch"), said(resumed, "batch"), strict=True)):
        assert parts[0] + parts[1] == batches[rank]
        assert len(parts[0]) == 8
    assert said(resumed, "weights") == said(unbroken, "weights")
