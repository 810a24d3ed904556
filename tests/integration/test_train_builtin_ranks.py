"""Built-in metrics of two ranks: what all have counted, recorded by rank 0, without a change of the training."""

from __future__ import annotations

import pytest

from tests.support.ranks import run_ranks, script

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BODY = """
    import hashlib
    from airflow_provider_dtrain.train.reports import builtin_metrics
    builtin_metrics.EARLY_S = builtin_metrics.LEAST_S = 0.0
    with dtrain.init() as ctx:
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
        net, optimizer = ctx.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        data = torch.utils.data.TensorDataset(torch.randn(96, 8, generator=torch.Generator().manual_seed(1)))
        step = 0
        for (inputs,) in ctx.loader(data):
            loss = net(ctx.to_device(inputs)).square().mean()
            ctx.backward(loss)
            ctx.step(optimizer)
            ctx.count(tokens=10 + ctx.rank)
            step += 1
            ctx.report(step, {"loss": loss})
        weights = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
        print("weights", hashlib.sha256(weights).hexdigest())
"""


def run(folder, **profiling):
    config = {"scheduling_unit": 3, "profiling": profiling}
    ranks = run_ranks(script(folder.parent, BODY), folder, 2, context={"config": config})
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
    losses = [event["metrics"] for event in ranks[0].events if event["kind"] == "report"]
    recorded = [[event["metrics"] for event in rank.events if event["kind"] == "builtin"] for rank in ranks]
    return losses, [rank.said(r"weights (\w+)") for rank in ranks], recorded


def test_two_ranks_count_together_and_train_the_same_bits(tmp_path):
    losses, weights, recorded = run(tmp_path / "off", builtin_metrics=False)
    assert recorded == [[], []]
    everything = {"gradient_norm_every": 1, "count_flops": True, "device_peak_flops": 1e9}
    found = run(tmp_path / "on", **everything)
    assert found[:2] == (losses, weights)
    assert weights[0] == weights[1]
    of_first, of_second = found[2]
    assert of_second == []
    # No batch is left for the record at the end.
    of_first = [metrics for metrics in of_first if "samples_per_second" in metrics]
    assert len(of_first) >= 3
    for metrics in of_first:
        # Both have 4 samples per batch, and 10 and 11 tokens.
        assert metrics["tokens_per_second"] / metrics["samples_per_second"] == pytest.approx(21 / 8)
        assert metrics["gradient_norm"] > 0
    last = of_first[-1]
    operations = 2 * 8 * (8 * 16 + 16 * 4) * 3 - 2 * 8 * 8 * 16
    assert last["flops_per_second"] / last["samples_per_second"] == pytest.approx(operations / 8)
    assert last["model_flops_utilization"] == pytest.approx(last["flops_per_second"] / 2e9)
