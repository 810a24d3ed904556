"""Models that are not called as a whole, have unused parameters, or optimizers with closures, on two ranks."""

from __future__ import annotations

import pytest

from tests.support.ranks import run_ranks, script
from tests.support.trial_scripts import said

pytestmark = pytest.mark.torch


def test_models_of_any_kind_train_alike_on_all_ranks_or_are_named(tmp_path):
    path = script(
        tmp_path,
        """
        import json

        class Net(torch.nn.Module):
            scale = 2.0

            def __init__(self):
                super().__init__()
                self.body, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)

            def forward(self, x, whole=True): return self.head(self.body(x)) if whole else self.body(x)
            def loss(self, x): return self(x).pow(2).mean()
            def size(self): return sum(p.numel() for p in self.parameters())

        def train(ctx, loss, make=torch.optim.SGD, steps=3, freeze=None, **options):
            torch.manual_seed(1)
            model = Net()
            if freeze:
                getattr(model, freeze).requires_grad_(False)
            model, optimizer = ctx.prepare(model, make(model.parameters(), lr=0.1), **options)
            torch.manual_seed(9 + ctx.rank)
            for step in range(steps):
                x = torch.randn(8, 4)
                if make is torch.optim.LBFGS:
                    def closure():
                        value = loss(model, x)
                        ctx.backward(value)
                        return value
                    ctx.step(optimizer, closure)
                else:
                    ctx.backward(loss(model, x))
                    ctx.step(optimizer)
            assert (model.scale, model.size()) == (2.0, 25)
            return dtrain.parameters_sha256(model)

        CASES = {
            "whole": (lambda m, x: m(x).pow(2).mean(), {}),
            "method": (lambda m, x: m.loss(x), {}),
            "layer": (lambda m, x: m.body(x).mean(), {}),
            "inner": (lambda m, x: dtrain.unwrap(m)(x).mean(), {}),
            "frozen layer": (lambda m, x: m(x).pow(2).mean(), {"freeze": "head"}),
            "unfrozen": (lambda m, x: (m.head.requires_grad_(True), m(x).pow(2).mean())[1], {"freeze": "head"}),
            "unused": (lambda m, x: m(x, whole=False).mean(), {}),
            "unused and said": (lambda m, x: m(x, whole=False).mean(), {"ddp": {"find_unused_parameters": True}}),
            "static": (lambda m, x: m(x).pow(2).mean(), {"ddp": {"static_graph": True, "broadcast_buffers": False}}),
            "closure": (lambda m, x: (m(x) - 1).pow(2).mean(), {"make": torch.optim.LBFGS}),
        }
        def outside(ctx, *, distributes):
            "Train a model that is not prepared."
            torch.manual_seed(1)
            model = Net()
            optimizer = ctx.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
            called = torch.nn.parallel.DistributedDataParallel(model) if distributes else model
            torch.manual_seed(9 + ctx.rank)
            for step in range(3):
                ctx.backward(called(torch.randn(8, 4)).pow(2).mean())
                ctx.step(optimizer)
            return dtrain.parameters_sha256(model)

        def in_trial(ctx, **options):
            "Train as a trial class does."
            from airflow_provider_dtrain.train.trial.context import PyTorchTrialContext
            context = PyTorchTrialContext(ctx)
            torch.manual_seed(1)
            model = context.wrap_model(Net(), **options)
            optimizer = context.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
            torch.manual_seed(9 + ctx.rank)
            for _ in range(3):
                context.backward(model(torch.randn(8, 4), whole=False).mean())
                context.step_optimizer(optimizer)
            return dtrain.parameters_sha256(model)

        found = {}
        with dtrain.init() as ctx:
            for name, options in (("trial", {"ddp": {"find_unused_parameters": True}}), ("trial unused", {})):
                try:
                    found[name] = in_trial(ctx, **options)
                except Exception as error:
                    found[name] = f"{type(error).__name__}: {error}"
            for name, distributes in (("own ddp", True), ("not prepared", False)):
                try:
                    found[name] = outside(ctx, distributes=distributes)
                except Exception as error:
                    found[name] = f"{type(error).__name__}: {error}"
            for name, (loss, options) in CASES.items():
                try:
                    found[name] = train(ctx, loss, **options)
                except Exception as error:
                    found[name] = f"{type(error).__name__}: {error}"
        print("found", json.dumps(found))
    """,
    )
    ranks = [said(rank) for rank in run_ranks(path, tmp_path / "run", 2)]
    for case in ("whole", "frozen layer", "unused and said", "static", "closure", "own ddp", "trial"):
        assert len(ranks[0][case]) == 64, ranks[0][case]
        assert ranks[0][case] == ranks[1][case]
    for case in ("method", "layer", "inner"):
        assert ranks[0][case].startswith("SetupError: Net must be called as model(...)"), ranks[0][case]
    assert "but head.weight, head.bias of Net were frozen, replaced or added since then" in ranks[0]["unfrozen"]
    assert "Some parameters of Net (head.weight, head.bias) had no gradient" in ranks[0]["unused"], ranks[0]["unused"]
    assert "SGD trains, but those of one of shape (4, 4)" in ranks[0]["not prepared"]
    for case in ("unused", "trial unused"):
        assert 'ddp={"find_unused_parameters": True} to ctx.prepare or context.wrap_model' in ranks[0][case]
