"""Built-in metrics: rates, norms of gradients, operations of a batch. None of them changes a training."""

from __future__ import annotations

import json
import logging
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.core.config.experiment import ExperimentConfig  # noqa: E402
from airflow_provider_dtrain.core.event_log import BUILTIN_METRICS, EventSource, read_lines  # noqa: E402
from airflow_provider_dtrain.errors import ConfigError  # noqa: E402
from airflow_provider_dtrain.train.gradients import flop_count  # noqa: E402
from airflow_provider_dtrain.train.reports import builtin_metrics  # noqa: E402
from airflow_provider_dtrain.train.reports.builtin_metrics import BuiltinMetrics, Counts  # noqa: E402
from airflow_provider_dtrain.train.reports.device_peaks import PEAKS, peak_flops  # noqa: E402
from tests.support.event_lines import lines_of  # noqa: E402
from tests.support.small_trial import Kept, Small, digest  # noqa: E402


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Each record is due at once, as if a batch took seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DTRAIN_EVENTS", str(tmp_path / "events"))
    for name in ("EARLY_S", "LATER_S", "LEAST_S"):
        monkeypatch.setattr(builtin_metrics, name, 0.0)
    if "torch._dynamo.utils" in sys.modules:
        sys.modules["torch._dynamo.utils"].counters.clear()
    return tmp_path


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test turns."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(builtin_metrics, "perf_counter", lambda: clock.now)
    return clock


def recorded(folder):
    return [event for event in lines_of(folder / "events") if event["kind"] == "builtin"]


def names(events):
    return {name for event in events for name in event["metrics"]}


def train(profiling=None, *, steps=12, model=None, make_loss=None, config=None, **step_options):
    """Train some steps, and return the bits of losses and weights."""
    whole = {"scheduling_unit": 2, **(config or {}), "profiling": profiling or {}}
    losses = []
    with dtrain.init(hparams={"global_batch_size": 4}, config=whole, seed=7) as ctx:
        net = model() if model is not None else network()
        net, optimizer = ctx.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        data = torch.utils.data.TensorDataset(torch.randn(4 * steps, 8, generator=torch.Generator().manual_seed(1)))
        for step, (inputs,) in enumerate(ctx.loader(data), 1):
            loss = net(inputs).square().mean() if make_loss is None else make_loss(ctx, net, inputs)
            ctx.backward(loss)
            ctx.step(optimizer, **step_options)
            losses.append(loss.detach())
            ctx.report(step, {"loss": loss})
    return torch.stack(losses).numpy().tobytes() + b"".join(p.detach().numpy().tobytes() for p in net.parameters())


def network():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 4))


#: Products of the two layers forward, and backward for the weights; the inputs of the first one need no gradient.
OPERATIONS = 2 * 4 * (8 * 16 + 16 * 4) * 3 - 2 * 4 * 8 * 16
EVERYTHING = {
    "gradient_norm_every": 1, "count_flops": True, "tokens_per_sample": 3, "device_peak_flops": 1e9,
    "memory_snapshot": True,
}  # fmt: skip


def test_everything_measured_leaves_losses_and_weights_as_they_are_bit_for_bit(folder):
    none = train({"enabled": False})
    assert recorded(folder) == []
    assert train(EVERYTHING) == none
    assert names(recorded(folder)) == {
        "samples_per_second", "tokens_per_second", "flops_per_second", "model_flops_utilization", "gradient_norm",
    }  # fmt: skip


@pytest.mark.parametrize("clip", [{"clip_grad_norm": 0.01}, {"clip_grad_value": 0.01}])
@pytest.mark.parametrize("every", [1, 2])
def test_a_clipped_training_stays_as_it_is_and_the_norm_is_that_before_clipping(folder, clip, every):
    none = train({"builtin_metrics": False, "gradient_norm_every": every}, **clip)
    assert recorded(folder) == []
    assert train({"gradient_norm_every": every}, **clip) == none
    found = [event["metrics"]["gradient_norm"] for event in recorded(folder) if "gradient_norm" in event["metrics"]]
    assert len(found) >= 4
    assert min(found) > 0.2, "clipped gradients have a norm of at most 0.14"


def test_without_options_only_what_is_free_is_recorded(folder):
    train()
    assert names(recorded(folder)) == {"samples_per_second"}
    train(clip_grad_norm=1.0)
    assert names(recorded(folder)) == {"samples_per_second", "gradient_norm"}


def test_the_control_side_accepts_what_is_recorded_and_knows_each_name(folder):
    train(EVERYTHING)
    lines = list(read_lines((folder / "events").read_bytes(), EventSource(0, frozenset({0}))))
    assert [line.reason for line in lines if line.event is None] == []
    assert names(recorded(folder)) <= BUILTIN_METRICS


def test_a_program_may_report_metrics_of_the_same_names(folder):
    with dtrain.init(hparams={"global_batch_size": 4}) as ctx:
        ctx.report(1, {"gradient_norm": 5.0, "samples_per_second": 1.0})
        ctx.report_validation(1, {"gradient_norm": 6.0})
    kinds = {event["kind"]: event["metrics"] for event in lines_of(folder / "events") if "metrics" in event}
    assert kinds["report"] == {"gradient_norm": 5.0, "samples_per_second": 1.0}
    assert kinds["validation"] == {"gradient_norm": 6.0}


def test_a_trial_class_records_the_same(folder):
    class Counting(Small):
        def train_batch(self, batch, epoch_idx, batch_idx):
            inputs, labels = batch
            loss = torch.nn.functional.cross_entropy(self.model(inputs), labels)
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            self.context.count(tokens=5)
            return {"loss": loss}

    def run(profiling):
        kept = Kept(Counting)
        kept.run({"batches": 12}, config={"scheduling_unit": 2, "profiling": profiling})
        return digest(kept.trial)

    plain = run({"builtin_metrics": False})
    assert run({"gradient_norm_every": 1, "count_flops": True}) == plain
    found = recorded(folder)
    assert names(found) == {"samples_per_second", "tokens_per_second", "flops_per_second", "gradient_norm"}
    assert found[-1]["step"] == 12


def meter(options=None, *, flops=None, **more):
    counter = flops or SimpleNamespace(of_batch=None, kind=lambda: ("cpu", "float32"))
    return BuiltinMetrics(options or {}, records=True, flops=counter, **more)


def test_rates_are_of_training_time_alone(clock):
    it = meter(ranks=2)
    it.batch_samples = 8
    assert not it.is_due(1), "the first batch has not ended"
    it.begin(1)
    clock.now += 2
    it.pause(11)
    clock.now += 100  # a validation
    it.resume(11)
    clock.now += 2
    it.pause(21)
    clock.now += 100  # a checkpoint in a validation
    it.pause(21)
    it.resume(21)
    assert it.is_due(21)
    assert it.take() == {"samples_per_second": 8 * 20 / 4}


def test_counted_samples_and_tokens_replace_those_of_the_configuration(clock):
    it = meter({"tokens_per_sample": 100, "flops_per_sample": 10, "device_peak_flops": 50}, ranks=2)
    it.batch_samples = 8
    it.begin(0)
    it.add_counts(Counts(samples=6, tokens=12).joined(Counts(samples=4)))
    clock.now += 2
    assert it.is_due(1)
    assert it.take() == {
        "samples_per_second": 5, "tokens_per_second": 6, "flops_per_second": 50, "model_flops_utilization": 0.5,
    }  # fmt: skip
    clock.now += 2
    assert it.is_due(2)
    assert it.take()["tokens_per_second"] == 8 * 100 / 2, "the program has counted none"


def test_an_unknown_device_has_a_rate_and_no_utilization(clock):
    def rates(kind, options=None, **more):
        it = meter(options, flops=SimpleNamespace(of_batch=1e12, kind=lambda: kind), **more)
        it.begin(0)
        clock.now += 1
        assert it.is_due(1)
        return it.take()

    assert rates(("NVIDIA H100 80GB HBM3", "bfloat16")) == {
        "flops_per_second": 1e12, "model_flops_utilization": pytest.approx(1 / 989),
    }  # fmt: skip
    for kind in [
        ("cpu", "float32"), ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bfloat16"), ("Tesla T4", "bfloat16"),
        ("NVIDIA L4", "float64"),
    ]:  # fmt: skip
        assert rates(kind) == {"flops_per_second": 1e12}
    assert rates(("NVIDIA L4", "float32"), has_devices=False) == {"flops_per_second": 1e12}, "ranks share the device"
    assert rates(("cpu", "float32"), {"device_peak_flops": 2e12})["model_flops_utilization"] == 0.5


def test_each_device_has_rates_in_order():
    for name, peaks in PEAKS.items():
        assert peaks.float16 >= peaks.tf32 >= 0 < peaks.float32 < peaks.float16, name
        assert peak_flops(name, "float32") == peaks.float32 * 1e12


def test_a_norm_that_is_not_finite_and_a_time_without_batches_have_no_metric(clock):
    it = meter(norms={1: torch.tensor(float("inf")), 2: torch.tensor(2.0)})
    it.begin(5)
    clock.now += 1
    assert it.is_due(5)
    assert it.take() == {"gradient_norm_2": 2.0}


def test_operations_of_a_batch_are_those_of_its_products(folder, caplog):
    caplog.set_level(logging.INFO, "airflow_provider_dtrain.train")
    for level in ("aggregated", "plain"):
        (folder / "events").unlink(missing_ok=True)
        config = {"optimizations": {"aggregation_frequency": 2}} if level == "aggregated" else {}
        train({"count_flops": True, "device_peak_flops": 1e6}, config=config)
        rate = recorded(folder)[-1]["metrics"]
        assert rate["flops_per_second"] / rate["samples_per_second"] == pytest.approx(OPERATIONS / 4)
        assert rate["model_flops_utilization"] == pytest.approx(rate["flops_per_second"] / 1e6)
    assert caplog.text.count("takes") == 2


def without_gradients(ctx, net, inputs):
    with torch.no_grad():
        net(inputs)
    return net(inputs).square().mean()


def test_a_pass_without_gradients_does_not_count(folder):
    train({"count_flops": True}, make_loss=without_gradients)
    rate = recorded(folder)[-1]["metrics"]
    assert rate["flops_per_second"] / rate["samples_per_second"] == pytest.approx(OPERATIONS / 4)


class Shy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))

    def forward(self, inputs):
        return inputs * self.weight


def compiled():
    return torch.compile(network(), backend="eager")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (compiled, "is compiled"),
        (lambda: torch.jit.script(network()), "TorchScript"),
        (Shy, "no matrix product"),
    ],
)
def test_a_program_of_which_the_counter_would_be_wrong_has_no_count(folder, caplog, make, reason):
    caplog.set_level(logging.INFO, "airflow_provider_dtrain.train")
    train({"count_flops": True}, model=make)
    assert "flops_per_second" not in names(recorded(folder))
    assert caplog.text.count(reason) == 1


def test_a_loop_with_its_own_backward_pass_has_no_count(folder, caplog):
    caplog.set_level(logging.INFO, "airflow_provider_dtrain.train")
    with dtrain.init(hparams={"global_batch_size": 4}, config={"profiling": {"count_flops": True}}) as ctx:
        net, optimizer = ctx.prepare(net := network(), torch.optim.SGD(net.parameters(), lr=0.1))
        for _ in range(6):
            net(torch.ones(4, 8)).sum().backward()
            ctx.step(optimizer)
    assert "does not call ctx.backward" in caplog.text
    assert "forward" not in vars(net)


@pytest.mark.parametrize("failing", ["count", "mode", "slow"])
def test_a_counter_that_fails_ends_no_training(folder, monkeypatch, caplog, failing):
    caplog.set_level(logging.INFO, "airflow_provider_dtrain.train")
    plain = train({"enabled": False})
    if failing == "count":
        monkeypatch.setattr(flop_count.FlopCount, "note", lambda *_: 1 / 0)
    elif failing == "slow":
        monkeypatch.setattr(flop_count, "MOST_S", -1.0)
    else:
        monkeypatch.setattr(flop_count, "_mode", lambda _: 1 / 0)
    assert train({"count_flops": True}) == plain
    assert "flops_per_second" not in names(recorded(folder))
    assert caplog.text.count("are not counted") == 1


@pytest.mark.parametrize(
    ("profiling", "problem"),
    [
        ({"gradient_norm_every": -1}, "gradient_norm_every"),
        ({"flops_per_sample": 0}, "flops_per_sample"),
        ({"device_peak_flops": float("inf")}, "device_peak_flops"),
        ({"tokens_per_sample": 1.5}, "tokens_per_sample"),
        ({"count_flops": True, "flops_per_sample": 1.0}, "remove one of them"),
    ],
)
def test_a_configuration_that_means_nothing_is_refused(profiling, problem):
    with pytest.raises(ConfigError, match=problem):
        ExperimentConfig.model_validate({"name": "a", "entrypoint": "python a.py", "profiling": profiling})


def test_a_rank_that_does_not_record_still_counts(folder, monkeypatch):
    it = BuiltinMetrics({}, records=False, flops=SimpleNamespace(of_batch=None))
    it.count(tokens=100)
    it.begin(1)  # the tokens of the first batch do not count, since its time does not
    it.count(tokens=4)
    it.count(samples=1, tokens=2)
    assert not it.is_due(5)
    assert (it.take_counts(), it.take_counts()) == (Counts(1, 6), Counts())
    assert Counts(1, 6).times(4) == Counts(4, 24)
    assert json.dumps(Counts()) == "[null, null]"
