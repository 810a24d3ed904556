"""Optimizers by name, and the learning rate of large batches."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest

import airflow_provider_dtrain.train as dtrain
from tests.support.warm_ranks import run_program

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
needs_package = pytest.mark.skipif(
    importlib.util.find_spec("pytorch_optimizer") is None, reason="pytorch-optimizer is not installed"
)


def context(*, slots=4, batch=256, **optimizations):
    """Return what linear_scaling reads of a script's context."""
    return SimpleNamespace(
        config={"optimizations": optimizations}, global_batch_size=batch,
        distributed=SimpleNamespace(get_size=lambda: slots, get_rank=lambda: 0),
    )  # fmt: skip


def sgd(*rates):
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in rates]
    return torch.optim.SGD([{"params": [p], "lr": lr} for p, lr in zip(parameters, rates, strict=True)], lr=1.0)


def rates(optimizer, scheduler, steps):
    """Return the rate of the first group that each step runs with."""
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


# -- linear scaling ----------------------------------------------------------------------------------------------------


def test_the_rate_rises_by_equal_amounts_to_slots_times_its_own_value():
    optimizer = sgd(0.1, 0.5)
    scheduler = dtrain.optim.linear_scaling(optimizer, context(slots=4), warmup_steps=3)
    assert rates(optimizer, scheduler, 6) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert optimizer.param_groups[1]["lr"] == 2.0


@pytest.mark.parametrize(
    ("options", "reference", "factor"),
    [
        ({}, None, 4), ({}, 64, 4), ({}, 32, 8), ({}, 512, 0.5),
        ({"aggregation_frequency": 2}, None, 8), ({"aggregation_frequency": 2}, 64, 8),
        ({"aggregation_frequency": 2, "average_aggregated_gradients": False}, 64, 4),
    ],
)  # fmt: skip
def test_the_factor_is_the_averaged_batch_over_the_reference(options, reference, factor):
    made = dtrain.optim.linear_scaling(sgd(0.1), context(**options), reference_batch_size=reference, warmup_steps=1)
    assert made.factor == factor


def test_warm_up_in_epochs_counts_optimizer_steps():
    made = dtrain.optim.linear_scaling(
        sgd(0.1), context(aggregation_frequency=4), warmup_epochs=2.5, batches_per_epoch=10
    )
    assert made.warmup_steps == 7


def test_a_trial_class_context_serves_as_well():
    ctx = SimpleNamespace(
        get_experiment_config=lambda: {"optimizations": {"aggregation_frequency": 2}},
        get_global_batch_size=lambda: 256, distributed=context(slots=4).distributed,
    )  # fmt: skip
    assert dtrain.optim.linear_scaling(sgd(0.1), ctx, reference_batch_size=64, warmup_steps=1).factor == 8


SHAPES = {
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5, eta_min=0.01),
    "exponential": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (1 + t)),
    "steps": lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], 0.1),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_scheduler_after_the_warm_up_is_multiplied_with_the_factor(shape):
    alone = sgd(0.1)
    expected = [4 * rate for rate in rates(alone, SHAPES[shape](alone), 6)]
    optimizer = sgd(0.1)
    scheduler = dtrain.optim.LinearScaling(optimizer, 4, 3, SHAPES[shape](optimizer))
    assert rates(optimizer, scheduler, 9) == pytest.approx([0.1, 0.2, 0.3, *expected], rel=1e-12)


@pytest.mark.parametrize("shape", [None, *SHAPES])
@pytest.mark.parametrize("at", [0, 2, 3, 5])
def test_a_restored_scheduler_gives_the_very_same_rates(tmp_path, shape, at):
    def make():
        optimizer = sgd(0.1, 0.3)
        after = SHAPES[shape](optimizer) if shape else None
        return optimizer, dtrain.optim.LinearScaling(optimizer, 3, 3, after)

    unbroken = rates(*make(), 9)
    optimizer, scheduler = make()
    before = rates(optimizer, scheduler, at)
    torch.save([optimizer.state_dict(), scheduler.state_dict()], tmp_path / "state.pt")
    optimizer, scheduler = make()
    for item, state in zip((optimizer, scheduler), torch.load(tmp_path / "state.pt", weights_only=True), strict=True):
        item.load_state_dict(state)
    assert before + rates(optimizer, scheduler, 9 - at) == unbroken


def test_more_slots_than_in_the_checkpoint_change_the_rate_at_once():
    optimizer = sgd(0.1)
    scheduler = dtrain.optim.LinearScaling(optimizer, 2, 2)
    rates(optimizer, scheduler, 5)
    other = sgd(0.1)
    grown = dtrain.optim.LinearScaling(other, 4, 2)
    other.load_state_dict(optimizer.state_dict())
    grown.load_state_dict(scheduler.state_dict())
    assert rates(other, grown, 2) == pytest.approx([0.4, 0.4])


def test_prepare_steps_it_once_per_optimizer_step():
    with dtrain.init(hparams={"global_batch_size": 8}) as ctx:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = dtrain.optim.linear_scaling(optimizer, ctx, reference_batch_size=2, warmup_steps=2)
        model, optimizer, scheduler = ctx.prepare(model, optimizer, scheduler)
        seen = []
        for _ in range(4):
            seen.append(optimizer.param_groups[0]["lr"])
            ctx.backward(model(torch.ones(1, 1)).sum())
            ctx.step(optimizer)
    assert seen == pytest.approx([0.1, 0.25, 0.4, 0.4])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "either warmup_steps, or warmup_epochs"),
        ({"warmup_epochs": 5}, "batches_per_epoch=None"),
        ({"warmup_epochs": 5, "batches_per_epoch": 3, "warmup_steps": 2}, "either"),
        ({"warmup_steps": -1}, "a whole number of at least 0, got -1"),
        ({"warmup_steps": 1.5}, "warmup_steps of LinearScaling must be .*, got 1.5"),
        ({"warmup_steps": 1, "reference_batch_size": -4}, "above 0"),
    ],
)
def test_wrong_numbers_are_named(arguments, words):
    with pytest.raises(dtrain.SetupError, match=words):
        dtrain.optim.linear_scaling(sgd(0.1), context(), **arguments)


def test_a_scheduler_that_cannot_follow_is_named():
    optimizer = sgd(0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(dtrain.SetupError, match="got ReduceLROnPlateau"):
        dtrain.optim.LinearScaling(optimizer, 2, 1, plateau)
    with pytest.raises(dtrain.SetupError, match="same optimizer"):
        dtrain.optim.LinearScaling(optimizer, 2, 1, torch.optim.lr_scheduler.ExponentialLR(sgd(0.1), 0.5))


# -- optimizers by name ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [("radam", "RAdam"), ("adam", "Adam"), ("AdamW", "AdamW"), ("sgd", "SGD"), ("rmsprop", "RMSprop")],
)
def test_optimizers_of_torch_are_found_by_name(name, kind):
    made = dtrain.optim.create(name, torch.nn.Linear(2, 2), lr=0.25)
    assert type(made) is getattr(torch.optim, kind)
    assert made.param_groups[0]["lr"] == 0.25
    assert len(made.param_groups) == 1


def test_every_name_has_a_class():
    names = dtrain.optim.names()
    assert {"adam", "adamw", "lamb", "lars", "radam", "sgd"} <= set(names)
    assert [name for name in names if name not in {"lars", "lamb"} and not callable(dtrain.optim.get(name))] == []


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("adma", {}, "'adma' does not exist. The optimizers are: .*adam, .*radam"),
        ("sgd", {"learning_rate": 1}, "does not accept learning_rate. It takes: lr, momentum"),
        ("sgd", {"lr": -1.0}, r"rejected its options \(lr=-1.0\): Invalid learning rate"),
        ("sgd", {"lr": "fast"}, "rejected its options"),
    ],
)
def test_wrong_names_and_options_are_named(name, options, words):
    with pytest.raises(dtrain.OptimizerError, match=words):
        dtrain.optim.create(name, torch.nn.Linear(2, 2), **options)


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path):
    code = """
import sys
sys.modules["pytorch_optimizer"] = None
import airflow_provider_dtrain.train as dtrain
try:
    dtrain.optim.get("lamb")
except dtrain.OptimizerError as error:
    print(error)
assert "lamb" in dtrain.optim.names() and dtrain.optim.get("radam")
"""
    exit_code, output = run_program(code, tmp_path)
    assert exit_code == 0, output
    assert "pip install 'pytorch-optimizer>=4.1'" in output
    assert "airflow-provider-dtrain[large-batch]" in output


def test_biases_and_normalization_are_apart_from_weights():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.LayerNorm([2, 4, 4]), torch.nn.Linear(4, 3)
    )
    model[3].bias.requires_grad_(False)
    weights, rest = dtrain.optim.split_parameters(model)
    assert [tuple(p.shape) for p in weights["params"]] == [(2, 1, 3, 3), (3, 4)]
    assert [tuple(p.shape) for p in rest["params"]] == [(2,), (2,), (2,), (2, 4, 4), (2, 4, 4)]
    assert (rest["weight_decay"], rest["adapt"]) == (0.0, False)
    assert len(dtrain.optim.split_parameters(torch.nn.Linear(2, 2, bias=False))) == 1


# -- LARS and LAMB against their papers --------------------------------------------------------------------------------

W, B = [[3.0, 0.0], [0.0, 4.0]], [1.0, 2.0]  # |w| = 5
GRADIENTS = [([[0.0, 6.0], [8.0, 0.0]], [0.5, -1.0]), ([[2.0, 1.0], [-3.0, 4.0]], [1.0, 0.25])]


def after_steps(name, foreach, **options):
    """Return weight and bias after two steps with the gradients above."""
    model = torch.nn.Linear(2, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(W))
        model.bias.copy_(torch.tensor(B))
    optimizer = dtrain.optim.create(name, model, foreach=foreach, **options)
    for weight, bias in GRADIENTS:
        model.weight.grad = torch.tensor(weight, dtype=torch.float64)
        model.bias.grad = torch.tensor(bias, dtype=torch.float64)
        optimizer.step()
    return model.weight.detach().flatten().tolist(), model.bias.detach().tolist()


def norm(values):
    return sum(value * value for value in values) ** 0.5


@needs_package
@pytest.mark.parametrize("foreach", [False, True])
def test_lars_takes_the_steps_of_its_paper(foreach):
    lr, decay, momentum, trust = 0.5, 0.1, 0.9, 0.02
    w, v = [3.0, 0.0, 0.0, 4.0], [0.0] * 4
    b, u = list(B), [0.0] * 2
    for weight, bias in GRADIENTS:
        g = [*weight[0], *weight[1]]
        local = trust * norm(w) / (norm(g) + decay * norm(w))
        v = [momentum * old + lr * local * (x + decay * y) for old, x, y in zip(v, g, w, strict=True)]
        w = [y - x for x, y in zip(v, w, strict=True)]
        u = [momentum * old + lr * x for old, x in zip(u, bias, strict=True)]
        b = [y - x for x, y in zip(u, b, strict=True)]
    got = after_steps("lars", foreach, lr=lr, weight_decay=decay, momentum=momentum, trust_coefficient=trust)
    assert got[0] == pytest.approx(w, rel=1e-9)
    assert got[1] == pytest.approx(b, rel=1e-9)


@needs_package
def test_the_first_step_of_lars_by_hand():
    # |w| 5, |g| 10, decay 0.2: local rate 0.02 * 5 / (10 + 1) = 1/110; step 0.5 / 110 * (g + 0.2 w)
    model = torch.nn.Linear(2, 2, bias=False).double()
    model.weight.data = torch.tensor(W, dtype=torch.float64)
    model.weight.grad = torch.tensor(GRADIENTS[0][0], dtype=torch.float64)
    dtrain.optim.create("lars", model, lr=0.5, weight_decay=0.2, trust_coefficient=0.02).step()
    expected = [3 - 0.6 / 220, -6 / 220, -8 / 220, 4 - 0.8 / 220]
    assert model.weight.detach().flatten().tolist() == pytest.approx(expected, rel=1e-9)


def adam_update(m, v, g, t, eps):
    """Return both moments and the corrected update."""
    m = [0.9 * old + 0.1 * x for old, x in zip(m, g, strict=True)]
    v = [0.999 * old + 0.001 * x * x for old, x in zip(v, g, strict=True)]
    c1, c2 = 1 - 0.9**t, 1 - 0.999**t
    return m, v, [a / c1 / ((b / c2) ** 0.5 + eps) for a, b in zip(m, v, strict=True)]


@needs_package
@pytest.mark.parametrize("foreach", [False, True])
def test_lamb_takes_the_steps_of_its_paper(foreach):
    lr, decay, eps = 0.1, 0.25, 1e-6
    w, b = [3.0, 0.0, 0.0, 4.0], list(B)
    mw, vw, mb, vb = [0.0] * 4, [0.0] * 4, [0.0] * 2, [0.0] * 2
    for t, (weight, bias) in enumerate(GRADIENTS, start=1):
        mw, vw, r = adam_update(mw, vw, [*weight[0], *weight[1]], t, eps)
        update = [x + decay * y for x, y in zip(r, w, strict=True)]
        w = [y - lr * norm(w) / norm(update) * x for x, y in zip(update, w, strict=True)]
        mb, vb, r = adam_update(mb, vb, bias, t, eps)
        b = [y - lr * x for x, y in zip(r, b, strict=True)]  # no decay, no scaling by layers
    got = after_steps("lamb", foreach, lr=lr, weight_decay=decay, eps=eps)
    assert got[0] == pytest.approx(w, rel=1e-6)
    assert got[1] == pytest.approx(b, rel=1e-6)


@needs_package
def test_the_first_step_of_lamb_by_hand():
    # r = (0, 1, 1, 0); with decay 0.25: (0.75, 1, 1, 1), norm sqrt(3.5625); step 0.1 * 5 / that
    model = torch.nn.Linear(2, 2, bias=False).double()
    model.weight.data = torch.tensor(W, dtype=torch.float64)
    model.weight.grad = torch.tensor(GRADIENTS[0][0], dtype=torch.float64)
    optimizer = dtrain.optim.create("lamb", model, lr=0.1, weight_decay=0.25)
    optimizer.step()
    step = 0.5 / 3.5625**0.5
    assert model.weight.detach().flatten().tolist() == pytest.approx(
        [3 - 0.75 * step, -step, -step, 4 - step], rel=1e-5
    )
    group = optimizer.param_groups[0]
    assert (group["lr"], group["eps"], group["weight_decay"]) == (0.1, 1e-6, 0.25)


@pytest.mark.parametrize(
    "name", ["radam", pytest.param("lars", marks=needs_package), pytest.param("lamb", marks=needs_package)]
)
def test_a_checkpoint_resumes_bit_for_bit(tmp_path, name):
    def train(folder, steps):
        with dtrain.init(hparams={"global_batch_size": 4}, checkpoint_dir=tmp_path / folder) as ctx:
            model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))
            optimizer = dtrain.optim.create(name, model, lr=0.05, weight_decay=0.01)
            scheduler = dtrain.optim.linear_scaling(optimizer, ctx, reference_batch_size=2, warmup_steps=4)
            model, optimizer, scheduler = ctx.prepare(model, optimizer, scheduler)
            for step in range(ctx.restore_checkpoint(), steps):
                ctx.backward(model(torch.randn(4, 3)).square().sum())
                ctx.step(optimizer)
                if step + 1 == 3:
                    ctx.save_checkpoint(3)
            return dtrain.parameters_sha256(model)

    unbroken = train("unbroken", 8)
    assert train("broken", 3) != unbroken
    assert train("broken", 8) == unbroken


def test_a_trial_class_warms_up_in_optimizer_steps(tmp_path):
    from airflow_provider_dtrain.train import pytorch

    seen = []

    class Trial(pytorch.PyTorchTrial):
        def __init__(self, context):
            self.context = context
            self.model = context.wrap_model(torch.nn.Linear(1, 1))
            self.optimizer = context.wrap_optimizer(dtrain.optim.create("sgd", self.model, lr=0.1))
            scheduler = dtrain.optim.linear_scaling(self.optimizer, context, reference_batch_size=4, warmup_steps=2)
            context.wrap_lr_scheduler(scheduler, pytorch.LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP)

        def train_batch(self, batch, epoch_idx, batch_idx):
            seen.append(self.optimizer.param_groups[0]["lr"])
            loss = self.model(batch).square().mean()
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return {"loss": loss}

        def evaluate_batch(self, batch):
            return {"error": 0.0}

        def build_training_data_loader(self):
            return pytorch.DataLoader(torch.ones(48, 1), batch_size=8)

        build_validation_data_loader = build_training_data_loader

    dtrain.run_trial(
        Trial, hparams={"global_batch_size": 8}, max_length={"epochs": 1},
        config={"optimizations": {"aggregation_frequency": 2}}, checkpoint_dir=tmp_path,
    )  # fmt: skip
    # factor 2 * 8 / 4
    assert seen == pytest.approx([0.1, 0.1, 0.25, 0.25, 0.4, 0.4])
