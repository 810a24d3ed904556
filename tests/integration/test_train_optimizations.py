"""``optimizations`` at real gloo ranks: weights computed by hand, bytes on the wire, bits that agree."""

from __future__ import annotations

import json

import pytest

from tests.support.ranks import run_ranks, script

pytest.importorskip("torch")
pytestmark = [pytest.mark.nightly, pytest.mark.torch]

XS = [0.5, -1.0, 1.5, 2.0, -0.5, 1.0, 0.25, -1.5, 1.25, 0.75, -2.0, 0.1]
YS = [1.0, -2.5, 3.0, 4.5, -1.5, 2.0, 1.0, -3.0, 2.0, 1.0, -4.0, 0.5]
GLOBAL, EPOCHS, START, LR = 4, 3, 0.5, 0.05
BATCHES = [list(zip(XS, YS, strict=True))[i : i + GLOBAL] for i in range(0, len(XS), GLOBAL)] * EPOCHS


def by_hand(*, k=1, average=True, clip=None, partial=True):
    """Return the weight of y = w * x after each batch: mean squared error, plain gradient descent."""
    weight, total, count, weights = START, 0.0, 0, []
    for number, batch in enumerate(BATCHES, 1):
        total += sum(2 * x * (weight * x - y) for x, y in batch) / len(batch)
        count += 1
        if count == k or (partial and number == len(BATCHES)):
            gradient = total / count if average else total
            if clip is not None:
                gradient *= min(1.0, clip / (abs(gradient) + 1e-6))
            weight, total, count = weight - LR * gradient, 0.0, 0
        weights.append(weight)
    return weights


CASES = {
    "as it is": ({}, {}),
    "clipped": ({}, {"clip": 0.7}),
    "four": ({"aggregation_frequency": 4}, {"end": "announced"}),
    "four flushed": ({"aggregation_frequency": 4}, {"end": "flushed"}),
    "four flushed after the loop": ({"aggregation_frequency": 4}, {"end": "after"}),
    "four left open": ({"aggregation_frequency": 4}, {}),
    "two clipped": ({"aggregation_frequency": 2}, {"end": "announced", "clip": 0.7}),
    "sums of two": ({"aggregation_frequency": 2, "average_aggregated_gradients": False}, {"end": "announced"}),
    "sums of two clipped": (
        {"aggregation_frequency": 2, "average_aggregated_gradients": False}, {"end": "announced", "clip": 0.7}),
    "more than there are": ({"aggregation_frequency": 1000}, {"end": "announced"}),
    "more than there are, flushed": ({"aggregation_frequency": 1000}, {"end": "flushed"}),
}  # fmt: skip

LINEAR = """
    import json
    from airflow_provider_dtrain.train.gradients.clipping import Clip
    from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients

    def fresh():
        model = torch.nn.Linear(1, 1, bias=False).double()
        torch.nn.init.constant_(model.weight, 0.5)
        return model, torch.optim.SGD(model.parameters(), lr=0.05)

    def say(name, weights, model):
        print("case", name, json.dumps(weights), dtrain.parameters_sha256(model), flush=True)

    def run(ctx, optimizations, how, xs, ys):
        gradients = Gradients(ctx.distributed, lambda: ctx.device, optimizations)
        model, optimizer = fresh()
        model = gradients.wrap_model(model)
        gradients.add_optimizer(optimizer)
        rank, size = ctx.distributed.get_rank(), ctx.distributed.get_size()
        own, weights, count = 4 // size, [], len(xs) // 4 * 3
        for batch in range(count):
            begin = batch * 4 % len(xs) + rank * own
            x, y = xs[begin:begin + own], ys[begin:begin + own]
            end = how.get("end") if batch == count - 1 else None
            if end == "announced":
                gradients.announce_last()
            gradients.backward(((model(x) - y) ** 2).mean())
            gradients.step(optimizer, clip=Clip(how.get("clip")), flush=end == "flushed")
            if end == "after":
                assert gradients.step(optimizer, flush=True)[0]
                assert not gradients.step(optimizer, flush=True)[0]
            weights.append(dtrain.unwrap(model).weight.item())
        return weights, model

    with dtrain.init() as ctx:
        xs, ys = (torch.tensor(ctx.data_config[name], dtype=torch.float64).reshape(-1, 1) for name in ("xs", "ys"))
        for name, (optimizations, how) in ctx.data_config["cases"].items():
            say(f"<{name}>", *run(ctx, optimizations, how, xs, ys))
        model, optimizer = ctx.prepare(*fresh())
        weights, weight = [], dtrain.unwrap(model).weight
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        ctx.prepare(scheduler)
        for epoch in ctx.epochs(3):
            for x, y in ctx.loader(torch.utils.data.TensorDataset(xs, ys), shuffle=False):
                ctx.backward(((model(x) - y) ** 2).mean())
                norm = ctx.step(optimizer, clip_grad_norm=2.5)
                weights.append(weight.item())
                print("norm", norm is not None, flush=True)
        say("<context>", weights, model)
        print("scheduler", scheduler.last_epoch)
"""


@pytest.fixture(scope="module", params=[1, 2, pytest.param(4, marks=pytest.mark.nightly)])
def linear(request, tmp_path_factory):
    """Output of each rank for the linear model, whose configuration aggregates 4 batches."""
    folder = tmp_path_factory.mktemp("linear")
    config = {"optimizations": {"aggregation_frequency": 4}, "data": {"xs": XS, "ys": YS, "cases": CASES}}
    context = {"hparams": {"global_batch_size": GLOBAL}, "config": config}
    ranks = run_ranks(script(folder, LINEAR), folder / "run", request.param, context=context)
    assert [rank.exit_code for rank in ranks] == [0] * request.param, ranks[0].output
    return ranks


def weights_of(rank, name):
    (found,) = rank.said(rf"case <{name}> (\[.*\]) \w+")
    return json.loads(found)


@pytest.mark.each_change
@pytest.mark.parametrize("name", CASES)
def test_the_weight_after_each_batch_is_the_one_computed_by_hand(linear, name):
    optimizations, how = CASES[name]
    k, average = (optimizations.get(name) for name in ("aggregation_frequency", "average_aggregated_gradients"))
    expected = by_hand(k=k or 1, average=average is not False, clip=how.get("clip"), partial="end" in how)
    assert weights_of(linear[0], name) == pytest.approx(expected, abs=1e-12)


def test_the_configuration_reaches_the_loop_and_the_loader_ends_the_last_group(linear):
    assert weights_of(linear[0], "context") == pytest.approx(by_hand(k=4, clip=2.5), abs=1e-12)
    assert linear[0].said(r"norm (\w+)") == ["True" if batch in {4, 8, 9} else "False" for batch in range(1, 10)]
    assert linear[0].said(r"scheduler (\d+)") == ["3"]


@pytest.mark.each_change
def test_all_ranks_hold_the_same_bits(linear):
    said = [rank.said(r"case (<.*)") for rank in linear]
    assert len(said[0]) == len(CASES) + 1
    assert all(other == said[0] for other in said)


RESUME = """
    def main(save, stop):
        with dtrain.init() as ctx:
            data = torch.utils.data.TensorDataset(torch.randn(48, 4), torch.arange(48) % 2)
            model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            model, optimizer, scheduler = ctx.prepare(model, optimizer, scheduler)
            step = ctx.restore_checkpoint()
            print("restored", step)
            for _ in ctx.epochs(2):
                for inputs, labels in ctx.loader(data):
                    ctx.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
                    ctx.step(optimizer)
                    step += 1
                    print("at", step, dtrain.parameters_sha256(model))
                    if step == save:
                        ctx.save_checkpoint(step)
                    if step == stop:
                        return
    main(*map(int, open("plan").read().split()))
"""


def train(folder, size, plan, optimizations, **more):
    folder.mkdir(parents=True)
    (folder / "plan").write_text(plan)
    ranks = run_ranks(
        script(folder, RESUME), folder, size, context={"config": {"optimizations": optimizations}, **more}
    )  # fmt: skip
    assert [rank.exit_code for rank in ranks] == [0] * size, ranks[0].output
    return ranks


@pytest.mark.each_change("fp16-2")
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("precision", ["none", "fp16"])
def test_a_run_resumed_inside_a_group_has_the_bits_of_an_unbroken_one(tmp_path, size, precision):
    optimizations = {"aggregation_frequency": 3, "mixed_precision": precision}
    unbroken = train(tmp_path / "unbroken", size, "-1 -1", optimizations)
    train(tmp_path / "first", size, "4 5", optimizations)
    saved = tmp_path / "first" / "checkpoints" / "step-00000004"
    resumed = train(tmp_path / "second", size, "-1 -1", optimizations, latest_checkpoint=str(saved))
    weights = [ranks[0].said(r"at (\d+ \w+)") for ranks in (unbroken, resumed)]
    assert resumed[0].said(r"restored (\d+)") == ["4"]
    assert weights[1] == weights[0][4:]
    # Batches 4 to 12 see the weights of 4 groups; a first loss scale that is too large costs one step.
    assert len({text.split()[1] for text in weights[1]}) >= (3 if precision == "fp16" else 4)
    assert all(rank.said(r"at (\d+ \w+)") == weights[1] for rank in resumed)


def test_two_models_that_take_turns_stay_the_same_on_all_ranks(tmp_path):
    path = script(tmp_path, """
        from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients

        def run(ctx, optimizations):
            torch.manual_seed(1)
            gradients = Gradients(ctx.distributed, lambda: ctx.device, optimizations)
            maker = torch.nn.Linear(8, 600)
            judge = torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.Linear(600, 1))
            maker, judge = gradients.wrap_model(maker), gradients.wrap_model(judge, {"find_unused_parameters": True})
            makes, judges = (torch.optim.SGD(model.parameters(), lr=0.01) for model in (maker, judge))
            torch.manual_seed(100 + ctx.distributed.get_rank())
            for _ in range(40):
                made = maker(torch.randn(4, 8))
                gradients.backward(judge(torch.randn(4, 600)).mean() - judge(made.detach()).mean())
                gradients.step(judges)
                judge.requires_grad_(False)
                gradients.backward(judge.module(made).mean())
                judge.requires_grad_(True)
                gradients.step(makes)
            gradients.step(judges, flush=True), gradients.step(makes, flush=True)
            print("both", dtrain.parameters_sha256(maker, judge))

        with dtrain.init() as ctx:
            run(ctx, {})
            run(ctx, {"auto_tune_tensor_fusion": True})
            run(ctx, {"aggregation_frequency": 3})
    """)  # fmt: skip
    ranks = run_ranks(path, tmp_path / "run", 2)
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output
    said = [rank.said(r"both (\w{64})") for rank in ranks]
    assert said[0] == said[1]
    assert said[0][0] == said[0][1] != said[0][2]


def test_averaging_of_training_metrics_can_be_turned_off(tmp_path):
    path = script(tmp_path, """
        with dtrain.init() as ctx:
            model = torch.nn.Linear(1, 1)
            model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            for step in (1, 2):
                ctx.backward(model(torch.ones(1, 1)).sum())
                ctx.step(optimizer)
                ctx.report(step, {"loss": ctx.distributed.get_rank() * 10.0 + step})
    """)  # fmt: skip
    found = {}
    for average in (True, False):
        config = {"optimizations": {"average_training_metrics": average}}
        ranks = run_ranks(path, tmp_path / str(average), 2, context={"config": config})
        assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output
        found[average] = [event["metrics"]["loss"] for event in ranks[0].events if event["kind"] == "report"]
    assert found == {True: [6.0, 7.0], False: [1.0, 2.0]}


POWERSGD = """
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
    from airflow_provider_dtrain.train.gradients import compression

    # Both would need more than a thousand steps otherwise.
    compression.POWERSGD_START = 2
    def network():
        torch.manual_seed(0)
        return torch.nn.Sequential(*[torch.nn.Linear(48, 48) for _ in range(4)])

    def train(model, optimizer, backward, step):
        draws = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(8):
            backward(model(torch.randn(8, 48, generator=draws)).square().mean())
            step(optimizer)
        print("end", dtrain.parameters_sha256(model))

    def step_plainly(optimizer):
        optimizer.step()
        optimizer.zero_grad()

    with dtrain.init(timeout_s=60) as ctx:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        train(*ctx.prepare(model, optimizer), ctx.backward, ctx.step)
        model = torch.nn.parallel.DistributedDataParallel(network())
        if HOOK:
            state = powersgd.PowerSGDState(process_group=None, start_powerSGD_iter=2)
            model.register_comm_hook(state, powersgd.powerSGD_hook)
        train(model, torch.optim.SGD(model.parameters(), 0.1), torch.Tensor.backward, step_plainly)
"""


def test_powersgd_over_gloo_gives_what_the_hook_of_torch_gives(tmp_path):
    """All gradients in one bucket, with which the hook works over gloo."""
    config = {"optimizations": {"gradient_compression": "powersgd"}}
    path = script(tmp_path, POWERSGD.replace("HOOK", "True"))
    ranks = run_ranks(path, tmp_path / "run", 2, context={"config": config})
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output
    assert len({end for rank in ranks for end in rank.said(r"end (\w+)")}) == 1


def test_powersgd_over_gloo_returns_with_several_buckets(tmp_path):
    """The hook of torch never returns then. The end without compression shows that gradients were compressed."""
    config = {"optimizations": {"gradient_compression": "powersgd", "tensor_fusion_threshold": 0.01}}
    path = script(tmp_path, POWERSGD.replace("HOOK", "False"))
    ranks = run_ranks(path, tmp_path / "run", 2, context={"config": config})
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output
    ends = [rank.said(r"end (\w+)") for rank in ranks]
    assert ends[0] == ends[1]
    assert ends[0][0] != ends[0][1]


def test_powersgd_without_numpy_is_refused_by_name(tmp_path):
    path = script(tmp_path, """
        sys.modules["numpy"] = None
        with dtrain.init() as ctx:
            ctx.prepare(torch.nn.Linear(1, 1))
    """)  # fmt: skip
    config = {"optimizations": {"gradient_compression": "powersgd"}}
    ranks = run_ranks(path, tmp_path / "run", 2, context={"config": config})
    assert [rank.exit_code for rank in ranks] == [1, 1]
    for rank in ranks:
        assert rank.error["message"].startswith("SetupError: optimizations.gradient_compression is powersgd")
        assert "-m pip install numpy" in rank.error["message"]


@pytest.mark.parametrize(("body", "missing"), [
    ("pass", "never called ctx.backward and ctx.step"),
    ("ctx.backward(model(x).sum()); optimizer.step()", "never called ctx.step"),
    ("model(x).sum().backward(); ctx.step(optimizer)", "before any ctx.backward"),
])  # fmt: skip
def test_a_script_that_passes_the_optimizations_by_fails_by_name(tmp_path, body, missing):
    path = script(tmp_path, f"""
        with dtrain.init() as ctx:
            model, x = torch.nn.Linear(1, 1), torch.ones(1, 1)
            model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            {body}
    """)  # fmt: skip
    config = {"optimizations": {"aggregation_frequency": 4, "tensor_fusion_threshold": 25}}
    (rank,) = run_ranks(path, tmp_path / "run", 1, context={"config": config})
    assert rank.exit_code == 1, rank.output
    assert "optimizations.aggregation_frequency" in rank.error["message"]
    assert "tensor_fusion_threshold" not in rank.error["message"]
    assert missing in rank.error["message"]
    assert "result" not in [event["kind"] for event in rank.events]


def test_without_the_fields_nothing_is_said(tmp_path):
    path = script(tmp_path, """
        with dtrain.init() as ctx:
            pass
    """)  # fmt: skip
    config = {"optimizations": {"aggregation_frequency": 1, "mixed_precision": "none", "gradient_compression": False}}
    (rank,) = run_ranks(path, tmp_path / "run", 1, context={"config": config})
    assert (rank.exit_code, rank.output) == (0, "")


def test_one_rank_says_that_compression_has_no_effect(tmp_path):
    path = script(tmp_path, """
        with dtrain.init() as ctx:
            model = torch.nn.Linear(1, 1)
            model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            ctx.backward(model(torch.ones(1, 1)).sum())
            ctx.step(optimizer)
    """)  # fmt: skip
    config = {"optimizations": {"gradient_compression": "powersgd"}}
    (rank,) = run_ranks(path, tmp_path / "run", 1, context={"config": config})
    assert rank.exit_code == 0, rank.output
    assert rank.output.count("gradient_compression powersgd has no effect: one rank") == 1
