"""Precision policies: what computes in 16 bits, what stays in 32, and what is refused."""

from __future__ import annotations

import json
import textwrap
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.core.config import ExperimentConfig  # noqa: E402
from airflow_provider_dtrain.errors import ConfigError  # noqa: E402
from airflow_provider_dtrain.train.distributed import Distributed  # noqa: E402
from airflow_provider_dtrain.train.environment import RankEnvironment  # noqa: E402
from airflow_provider_dtrain.train.errors import SetupError  # noqa: E402
from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients  # noqa: E402
from airflow_provider_dtrain.train.sharded_tensors import refuse_old_torch  # noqa: E402
from tests.support.ranks import run_ranks, script  # noqa: E402

pytestmark = pytest.mark.torch


class Spy(torch.nn.Linear):
    """A layer that records the dtypes of its input, weight and output."""

    def forward(self, inputs):
        output = super().forward(inputs)
        self.seen = (inputs.dtype, self.weight.dtype, output.dtype)
        return output


class Net(torch.nn.Module):
    """Two layers, a norm between them, a buffer and an index as input."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = Spy(4, 4), torch.nn.LayerNorm(4), torch.nn.Sequential(Spy(4, 1))
        self.embedding = torch.nn.Embedding(3, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, inputs, index):
        return self.head(self.norm(self.body(inputs) * self.scale + self.embedding(index)))


def gradients(**optimizations):
    return Gradients(Distributed(RankEnvironment()), lambda: torch.device("cpu"), optimizations)


def computed(**optimizations):
    """Return a model after one forward and backward pass, and its output."""
    it = gradients(**optimizations)
    model = it.wrap_model(Net())
    output = model(torch.ones(2, 4), torch.tensor([0, 2]))
    it.backward(output.sum())
    return model, output


F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


@pytest.mark.parametrize(
    ("kind", "body", "head"),
    [
        ("bf16-mixed", (F32, F32, BF16), (F32, F32, BF16)),
        ("fp16-mixed", (F32, F32, F16), (F32, F32, F16)),
        ("bf16-true", (BF16, BF16, BF16), (BF16, BF16, BF16)),
    ],
)
def test_each_policy_computes_in_its_own_precision(kind, body, head):
    model, output = computed(mixed_precision=kind)
    assert model.body.seen == body
    assert model.head[0].seen[1:] == head[1:]
    assert output.dtype is F32
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {body[1]}
    assert model.scale.dtype is body[1]


@pytest.mark.parametrize("kind", ["bf16", "fp16", "bf16-true"])
def test_modules_that_are_named_stay_in_float32(kind):
    model, output = computed(mixed_precision=kind, float32_modules=["he?d", "norm*"])
    assert model.head[0].seen == (F32, F32, F32)
    assert model.body.seen[2] is (F16 if kind == "fp16" else BF16)
    assert model.norm.weight.dtype is model.head[0].weight.grad.dtype is F32
    assert output.dtype is F32


def test_the_model_around_a_float32_module_gets_its_own_precision():
    model, _ = computed(mixed_precision="bf16-true", float32_modules=["norm", "embedding"])
    assert model.norm.weight.dtype is model.embedding.weight.dtype is F32
    assert model.head[0].seen == (BF16, BF16, BF16)


def test_float32_weights_are_never_rounded():
    torch.manual_seed(0)
    model = Net()
    before = model.head[0].weight.detach().clone()
    wrapped = gradients(mixed_precision="bf16-true", float32_modules=["head"]).wrap_model(model)
    assert torch.equal(wrapped.head[0].weight, before)


def test_an_optimizer_that_exists_before_keeps_its_parameters_and_tied_ones_stay_tied():
    model = Net()
    model.tied = model.body
    optimizer = torch.optim.Adam(model.parameters())
    it = gradients(mixed_precision="bf16-true")
    model = it.wrap_model(model)
    it.add_optimizer(optimizer)
    before = model.body.weight.detach().clone()
    it.backward(model(torch.ones(2, 4), torch.tensor([0, 1])).sum())
    it.step(optimizer)
    assert not torch.equal(model.tied.weight, before)
    assert model.tied.weight is model.body.weight


@pytest.mark.parametrize(
    ("optimizations", "words"),
    [
        ({"mixed_precision": "fp16-true"}, "got 'fp16-true'. float16 parameters lose small updates: use fp16."),
        ({"mixed_precision": "fp8"}, "must be one of none, fp16, bf16, bf16-true, got 'fp8'"),
        ({"mixed_precision": ["bf16"]}, r"got \['bf16'\]"),
        ({"mixed_precision": 16}, "got 16"),
        ({"float32_modules": ["head"]}, "float32_modules needs optimizations.mixed_precision, which is none"),
        ({"mixed_precision": "bf16", "float32_modules": "head"}, "must be a list of names of modules, got 'head'"),
        ({"mixed_precision": "bf16", "float32_modules": [1]}, r"must be a list of names of modules, got \[1\]"),
        (
            {"mixed_precision": "bf16-true", "gradient_compression": "fp16"},
            "cannot be used with mixed_precision: bf16-true",
        ),
    ],
)
def test_policies_that_cannot_work_are_refused_at_the_start(optimizations, words):
    with pytest.raises(SetupError, match=words):
        gradients(**optimizations)


def test_a_device_that_cannot_compute_in_a_precision_is_named(monkeypatch):
    class Off:
        _enabled = False

    monkeypatch.setattr(torch, "autocast", lambda *_, **__: Off())
    with pytest.raises(SetupError, match="mixed_precision: fp16 is not available on a device of type cpu .* Use bf16"):
        gradients(mixed_precision="fp16")


def test_a_name_that_fits_no_module_is_named_at_the_first_step():
    it = gradients(mixed_precision="bf16", float32_modules=["tail", "head"])
    model = it.wrap_model(Net())
    it.backward(model(torch.ones(2, 4), torch.tensor([0, 1])).sum())
    with pytest.raises(SetupError, match="float32_modules: tail fits no module .* Modules: body, norm, head, head.0"):
        it.step(torch.optim.SGD(model.parameters(), lr=0.1))


def test_two_policies_for_one_model_are_refused():
    with pytest.raises(SetupError, match="ddp option mixed_precision and optimizations.mixed_precision: bf16 cannot"):
        gradients(mixed_precision="bf16").wrap_model(Net(), {"mixed_precision": object()})


def test_the_configuration_knows_the_policies():
    def parsed(**optimizations):
        document = {"name": "x", "entrypoint": "python a.py", "optimizations": optimizations}
        return ExperimentConfig.model_validate(document).optimizations

    assert parsed(mixed_precision="16-mixed").mixed_precision == "fp16"
    assert parsed(mixed_precision="bf16-true", float32_modules=["a.*"]).float32_modules == ["a.*"]
    with pytest.raises((ConfigError, ValueError), match="mixed_precision"):
        parsed(mixed_precision="fp16-true")


def trained(folder, kind, stop=None):
    """Train, ended after a batch in the middle of a group and an epoch if asked to. Return the state."""
    optimizations = {"mixed_precision": kind, "aggregation_frequency": 2, "float32_modules": ["3"]}
    config = {"optimizations": optimizations if kind != "none" else {"aggregation_frequency": 2}}
    with dtrain.init(hparams={"global_batch_size": 4}, seed=5, config=config, checkpoint_dir=folder) as ctx:
        data = torch.utils.data.TensorDataset(torch.arange(96).view(24, 4) / 96)
        layers = [torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(8, 1)]
        model, optimizer = torch.nn.Sequential(*layers), None
        model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters(), lr=0.1))
        step = ctx.restore_checkpoint()
        for _ in ctx.epochs(2):
            for (batch,) in ctx.loader(data):
                ctx.backward(model(batch).square().mean())
                ctx.step(optimizer, clip_grad_norm=1.0)
                step += 1
                if step == stop:
                    ctx.save_checkpoint(step)
                    return None
        scaler = ctx._gradients.state_dict()["scaler"]
        return model.state_dict(), optimizer.state_dict()["state"], scaler


@pytest.mark.parametrize("kind", ["none", "bf16", "fp16", "bf16-true"])
def test_a_resumed_training_gives_the_same_bits_with_each_policy(tmp_path, kind):
    torch.use_deterministic_algorithms(False)
    whole = trained(tmp_path / "whole", kind)
    trained(tmp_path / "parts", kind, stop=5)
    again = trained(tmp_path / "parts", kind)
    assert whole[2] == again[2]
    assert (whole[2] is not None) == (kind == "fp16")
    assert whole[0]["0.weight"].dtype is (BF16 if kind == "bf16-true" else F32)
    for name in whole[0]:
        assert torch.equal(whole[0][name], again[0][name]), name
    for index, state in whole[1].items():
        assert all(torch.equal(value, again[1][index][name]) for name, value in state.items())


@pytest.mark.parametrize(("own", "forward"), [(BF16, "method"), (None, "AutocastForward"), (F16, None)])
def test_a_model_with_its_own_policy_keeps_it(own, forward):
    model = Net()
    model._get_fsdp_state = lambda: SimpleNamespace(_mp_policy=SimpleNamespace(param_dtype=own))
    it = gradients(mixed_precision="bf16")
    if forward is None:
        with pytest.raises(SetupError, match="is bf16, and the MixedPrecisionPolicy of Net computes in float16"):
            it.wrap_model(model)
    else:
        assert type(it.wrap_model(model).forward).__name__ == forward


@pytest.mark.nightly
def test_a_policy_of_fully_shard_is_kept_and_never_contradicted(tmp_path):
    try:
        refuse_old_torch()
    except SetupError as error:
        pytest.skip(str(error))
    body = """
    import json
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    def model(dtype):
        torch.manual_seed(0)
        made = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
        fully_shard(made, mp_policy=MixedPrecisionPolicy(param_dtype=dtype, output_dtype=torch.float32))
        return made
    with dtrain.init() as ctx:
        found = []
        for dtype in (torch.bfloat16, torch.float16, None):
            made = model(dtype)
            plain = type(made.forward).__name__
            try:
                ctx.prepare(made)
                found.append(type(made.forward).__name__ if type(made.forward).__name__ != plain else "kept")
            except dtrain.TrainError as error:
                found.append(str(error))
        made = model(torch.bfloat16)
        made, optimizer = ctx.prepare(made, torch.optim.SGD(made.parameters(), 0.1))
        loss = made(torch.ones(2, 4)).sum()
        ctx.backward(loss)
        ctx.step(optimizer)
        print("found", json.dumps([found, str(loss.dtype)]))
    """
    (rank, _) = run_ranks(
        script(tmp_path, textwrap.dedent(body)),
        tmp_path / "run",
        2,
        context={"config": {"optimizations": {"mixed_precision": "bf16"}, "checkpoint_policy": "none"}},
    )
    assert rank.exit_code == 0, rank.output
    (kept, error, wrapped), dtype = json.loads(rank.said(r"(?m)^found (.*)$")[0])
    assert (kept, wrapped, dtype) == ("kept", "AutocastForward", "torch.float32")
    assert "mixed_precision is bf16, and the MixedPrecisionPolicy of FSDPSequential computes in float16" in error
