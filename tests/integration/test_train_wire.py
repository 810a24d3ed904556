"""Data exchanged between ranks: bytes on the wire, once per group, in buckets, compressed."""

from __future__ import annotations

import json

import pytest

from tests.support.ranks import run_ranks, script

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


WIRE = """
    import json, os, socket, struct
    from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients

    def received():
        # Bytes that arrived on this process's TCP connections, as the kernel counts them (tcpi_bytes_received).
        total = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    continue
                with socket.socket(fileno=os.dup(int(name))) as it:
                    total += struct.unpack_from("Q", it.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), 128)[0]
            except (OSError, struct.error):
                pass
        return total

    def run(ctx, optimizations, steps):
        torch.manual_seed(1)
        gradients = Gradients(ctx.distributed, lambda: ctx.device, optimizations)
        model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
        model = gradients.wrap_model(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        digests, layouts, sizes = [], [], []
        torch.manual_seed(100 + ctx.distributed.get_rank())
        for step in range(steps):
            before = received()
            gradients.backward(model(torch.randn(4, 512)).square().mean())
            gradients.step(optimizer)
            ctx.distributed.barrier()
            sizes.append(received() - before)
            digests.append(dtrain.parameters_sha256(model)[:12])
            layouts.append(model._get_ddp_logging_data().get("rebuilt_bucket_sizes"))
        return {"digests": digests, "layouts": layouts, "bytes": sizes}

    with dtrain.init() as ctx:
        for name, (optimizations, steps) in ctx.data_config["cases"].items():
            print("wire", name, json.dumps(run(ctx, optimizations, steps)), flush=True)
"""
WIRE_CASES = {
    "plain": ({}, 8),
    "fp16": ({"gradient_compression": "fp16"}, 8),
    "bf16": ({"gradient_compression": "bf16"}, 8),
    "four": ({"aggregation_frequency": 4}, 8),
    "four_fp16": ({"aggregation_frequency": 4, "gradient_compression": True}, 8),
    "fusion": ({"tensor_fusion_threshold": 1}, 8),
    "large": ({"tensor_fusion_threshold": 50}, 48),
    "tuned": ({"tensor_fusion_threshold": 50, "auto_tune_tensor_fusion": True}, 48),
    "tuned_fp16": ({"auto_tune_tensor_fusion": True, "gradient_compression": "fp16"}, 48),
    "mixed_bf16": ({"mixed_precision": "bf16"}, 4),
    "mixed_fp16": ({"mixed_precision": "fp16"}, 4),
}
#: Gradients of 4 x (512 * 512 + 512) float32.
WHOLE = 4 * (512 * 512 + 512) * 4


@pytest.fixture(scope="module")
def wire(tmp_path_factory):
    """Two ranks that trained with one field after the other: what each measured, and rank 0's output."""
    folder = tmp_path_factory.mktemp("wire")
    ranks = run_ranks(
        script(folder, WIRE), folder / "run", 2, context={"config": {"data": {"cases": WIRE_CASES}}}
    )  # fmt: skip
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output
    found = [{name: json.loads(text) for name, text in _pairs(rank)} for rank in ranks]
    return found, ranks[0].output


def _pairs(rank):
    return [line.split(" ", 2)[1:] for line in rank.output.splitlines() if line.startswith("wire ")]


@pytest.mark.parametrize("name", WIRE_CASES)
def test_both_ranks_hold_the_same_bits_after_each_step(wire, name):
    (first, second), _ = wire
    assert first[name]["digests"] == second[name]["digests"]
    assert len(set(first[name]["digests"])) > 1


def test_each_step_of_a_plain_run_exchanges_all_gradients_once(wire):
    (found, _), _ = wire
    assert all(WHOLE <= size < 1.1 * WHOLE for size in found["plain"]["bytes"])


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_compression_halves_the_bytes_on_the_wire(wire, name):
    (found, _), _ = wire
    assert all(0.5 * WHOLE <= size < 0.55 * WHOLE for size in found[name]["bytes"])
    assert found[name]["digests"][-1] != found["plain"]["digests"][-1]


@pytest.mark.parametrize(("name", "share"), [("four", 1.0), ("four_fp16", 0.5)])
def test_gradients_are_exchanged_once_per_group(wire, name, share):
    (found, _), _ = wire
    exchanged = [size > 0.1 * WHOLE for size in found[name]["bytes"]]
    assert exchanged == [False, False, False, True] * 2
    assert sum(found[name]["bytes"]) < 2.2 * share * WHOLE


def test_the_fusion_threshold_is_the_bucket_size(wire):
    (found, _), _ = wire
    sizes = [int(size) for size in found["fusion"]["layouts"][-1].split(", ")]
    assert len(sizes) == 4
    assert sum(sizes) == WHOLE
    assert found["large"]["layouts"][-1] == str(WHOLE)


def test_tuning_tries_several_bucket_sizes_and_changes_no_bit(wire):
    (first, second), output = wire
    assert len({len((layout or "").split(",")) for layout in first["tuned"]["layouts"][2:]}) > 1
    assert first["tuned"]["digests"] == first["large"]["digests"]
    assert first["tuned"]["layouts"][-1] == second["tuned"]["layouts"][-1]
    assert output.count("auto_tune_tensor_fusion chose") == 2
    assert "50 MiB" in output


def test_compression_goes_on_while_buckets_are_tuned(wire):
    (found, _), _ = wire
    # A rebuild of the buckets also sends their layout.
    assert all(size < 0.6 * WHOLE for size in found["tuned_fp16"]["bytes"])
    assert len(set(found["tuned_fp16"]["layouts"])) > 1
