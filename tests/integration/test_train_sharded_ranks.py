"""Checkpoints of models that are sharded over real ranks: FSDP2, tensor parallel, and back to one process."""

from __future__ import annotations

import json
import os
from textwrap import dedent, indent

import pytest

import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.train.sharded_tensors import refuse_old_torch
from tests.support.bucket import BUCKET
from tests.support.ranks import run_ranks, script

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

try:
    refuse_old_torch()
except dtrain.SetupError as error:
    pytest.skip(str(error), allow_module_level=True)

#: Modules that every rank needs, imported once.
IMPORTS = {"DTRAIN_TEST_IMPORTS": "torch.distributed.checkpoint torch.distributed.fsdp"}

BODY = """
    import hashlib, json, os
    from torch.distributed.tensor import DTensor

    LAYOUT = os.environ["LAYOUT"]

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(13, 8)
            self.inner = torch.nn.Linear(8, 12)
            self.outer = torch.nn.Linear(12, 8)
            self.norm = torch.nn.BatchNorm1d(8)
            self.head = torch.nn.Linear(8, 13, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, numbers):
            return self.head(self.norm(self.outer(torch.relu(self.inner(self.embed(numbers))))))

    def parallel(model):
        if LAYOUT == "fsdp":
            from torch.distributed.fsdp import fully_shard
            return fully_shard(model)
        if LAYOUT in ("tp", "2d"):
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
            size = int(os.environ["WORLD_SIZE"])
            mesh = init_device_mesh("cpu", (size,)) if LAYOUT == "tp" else init_device_mesh(
                "cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
            parallelize_module(
                model, mesh if LAYOUT == "tp" else mesh["tp"], {"inner": ColwiseParallel(), "outer": RowwiseParallel()})
            if LAYOUT == "2d":
                from torch.distributed.fsdp import fully_shard
                fully_shard(model, mesh=mesh["dp"])
        return model

    def whole(value):
        return value.full_tensor() if isinstance(value, DTensor) else value

    def digest(model, optimizer):
        # Collective: all ranks make the same calls in the same order.
        found = {}
        for name, value in dtrain.unwrap(model).state_dict().items():
            found[name] = whole(value)
        for index, state in optimizer.state_dict()["state"].items():
            found.update({f"{index}.{name}": whole(value) for name, value in state.items()})
        return {name: hashlib.sha256(repr(value.tolist()).encode()).hexdigest()[:12] for name, value in found.items()}

    def train(ctx, model, optimizer, steps):
        for step in steps:
            numbers = torch.tensor([(step * 5 + i) % 13 for i in range(16)])
            loss = torch.nn.functional.cross_entropy(model(numbers), (numbers + 1) % 13)
            ctx.backward(loss)
            ctx.step(optimizer)

    def main():
        with dtrain.init() as ctx:
            torch.manual_seed(5)
            model = parallel(Model())
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            given = model
            model, optimizer = ctx.prepare(model, optimizer)
            assert LAYOUT == "plain" or model is given
            step = ctx.restore_checkpoint()
            print("restored", json.dumps([step, digest(model, optimizer) if step else {}]))
            tied = dtrain.unwrap(model)
            assert tied.head.weight is tied.embed.weight
            train(ctx, model, optimizer, range(step, step + 3))
            ctx.save_checkpoint(step + 3)
            print("saved", json.dumps(digest(model, optimizer)))
            EXTRA

    BEFORE
    main()
"""

NOTHING = "pass"

#: Hides the folder of checkpoints from rank 1, as on a host that shares no disk with that of rank 0.
HIDDEN = """
    import ctypes
    if os.environ["RANK"] == "1":
        libc = ctypes.CDLL(None, use_errno=True)
        folder = os.environ["DTRAIN_CHECKPOINT_DIR"].encode()
        private, bind_all = 1 << 18, 1 << 14
        assert libc.unshare(0x00020000) == 0
        assert libc.mount(b"none", b"/", None, private | bind_all, None) == 0
        assert libc.mount(b"none", folder, b"tmpfs", 0, None) == 0
"""


def run(tmp_path, layout, size, name, extra=NOTHING, before=NOTHING, context=None, **options):
    (tmp_path / "checkpoints").mkdir(exist_ok=True)
    body = dedent(BODY).replace("        EXTRA", indent(dedent(extra), " " * 8)).replace("BEFORE", dedent(before))
    env = {**IMPORTS, "LAYOUT": layout, **options}
    context = {"checkpoint_dir": str(tmp_path / "checkpoints"), **(context or {})}
    ranks = run_ranks(script(tmp_path, body), tmp_path / name, size, env=env, context=context)
    for rank in ranks:
        assert rank.exit_code == 0, rank.output
    return ranks


def said(ranks, word):
    return [json.loads(rank.said(rf"{word} (.*)")[0]) for rank in ranks]


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([("plain", 1), ("tp", 2)], id="one-and-tensor-parallel"),
        pytest.param([("fsdp", 2), ("2d", 4), ("fsdp", 3)], id="two-dimensions", marks=pytest.mark.nightly),
    ],
)
def test_a_checkpoint_of_fsdp2_is_resumed_with_other_numbers_of_ranks_and_other_layouts(tmp_path, layouts):
    (saved, again) = said(run(tmp_path, "fsdp", 2, "first"), "saved")
    assert saved == again
    (folder,) = (tmp_path / "checkpoints").glob("step-*")
    assert {path.name for path in folder.glob("rank-*")} == {"rank-00000.safetensors", "rank-00001.safetensors"}
    for number, (layout, size) in enumerate(layouts):
        ranks = run(tmp_path, layout, size, f"{layout}{size}")
        assert said(ranks, "restored")[0] == [3 * (number + 1), saved]
        saved = said(ranks, "saved")[0]
    # A part that several ranks hold is in one file, also after tensor parallelism.
    newest = max((tmp_path / "checkpoints").glob("step-*"))
    assert dtrain.export_weights(newest, tmp_path / "model.safetensors").stat().st_size > 0


def test_each_rank_records_the_digests_of_its_parts_of_sharded_weights(tmp_path):
    def records(name):
        ranks = run(tmp_path / name, "fsdp", 2, "run", context={"config": {"reproducibility": {"record_steps": True}}})
        kinds = ("weights", "step_weights")
        return [[event for event in rank.events if event["kind"] in kinds] for rank in ranks]

    def facts(event):
        return event["kind"], event["step"], event["digest"], event["tensors"]

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = records("a"), records("b")
    assert [[facts(one) for one in rank] for rank in first] == [[facts(one) for one in rank] for rank in second]
    for events in first:
        assert [(one["kind"], one["step"]) for one in events] == [
            ("step_weights", 1), ("step_weights", 2), ("step_weights", 3), ("weights", 3),
        ]  # fmt: skip
    names = [rank[-1]["names"] for rank in first]
    assert "inner.weight[0:6,0:8]" in names[0]
    assert "inner.weight[6:12,0:8]" in names[1]
    # Plain tensors are rank 0's, and so is the counter without dimensions.
    assert "norm.num_batches_tracked" in names[0]
    assert "norm.num_batches_tracked" not in names[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to hide a folder from a rank")
def test_ranks_on_hosts_that_share_no_disk_save_and_resume_through_rank_0(tmp_path):
    saved = said(run(tmp_path, "fsdp", 2, "first", before=HIDDEN), "saved")[0]
    (folder,) = (tmp_path / "checkpoints").glob("step-*")
    assert len(list(folder.glob("rank-*"))) == 2
    step, restored = said(run(tmp_path, "tp", 2, "second", before=HIDDEN), "restored")[1]
    assert (step, restored) == (3, saved)


def test_a_rank_that_cannot_write_its_part_is_named_and_the_next_save_succeeds(tmp_path):
    fills = """
            import resource, signal
            ctx._saver.finish()
            if ctx.rank == 1:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (100, -1))
            ctx.save_checkpoint(9)
            try:
                ctx._saver.finish()
            except dtrain.CheckpointError as error:
                resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
                print("refused", json.dumps(str(error)))
            ctx.save_checkpoint(10)
            ctx._saver.finish()
    """
    ranks = run(tmp_path, "fsdp", 2, "full", extra=fills)
    words = said(ranks, "refused")
    assert "Rank 1 cannot write its part of the checkpoint: OSError: [Errno 27] File too large" in words[0]
    assert "Rank 1 cannot write its part of a checkpoint to" in words[1]
    assert [path.name for path in (tmp_path / "checkpoints").glob("*step*")] == ["step-00000010"]


@pytest.mark.nightly
def test_each_rank_uploads_its_part_to_a_bucket(tmp_path, bucket):
    pytest.importorskip("s3fs")
    place = {"config": {"checkpoint_storage": bucket.config}, "checkpoint_url": f"s3://{BUCKET}/sharded/trial-1"}
    saved = said(run(tmp_path, "fsdp", 2, "first", context=place), "saved")[0]
    uploaded = {key.rpartition("/")[2] for key in bucket.objects("sharded/trial-1/step-00000003")}
    assert uploaded >= {"rank-00000.safetensors", "rank-00001.safetensors", "metadata.json"}
    step, restored = said(run(tmp_path, "plain", 1, "second", context=place), "restored")[0]
    assert (step, restored) == (3, saved)


PENDING = """
    import json, os
    from torch.distributed.tensor import DTensor

    LAYOUT = os.environ["LAYOUT"]
    SIZE = int(os.environ.get("WORLD_SIZE", "1"))

    def parallel(model):
        if LAYOUT == "fsdp":
            from torch.distributed.fsdp import fully_shard
            return fully_shard(model)
        if LAYOUT == "tp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
            plan = {"1": ColwiseParallel(), "3": RowwiseParallel()}
            return parallelize_module(model, init_device_mesh("cpu", (SIZE,)), plan)
        return model

    def share(batch):
        # Tensor parallel ranks compute the same batch together.
        rows = torch.randn(12, 4, generator=torch.Generator().manual_seed(batch))
        return rows if LAYOUT == "tp" else rows[int(os.environ.get("RANK", "0"))::SIZE]

    with dtrain.init() as ctx:
        torch.manual_seed(5)
        model = torch.nn.Sequential(
            torch.nn.LayerNorm(4), torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3), torch.nn.LayerNorm(3),
        )
        model = parallel(model)
        model, optimizer = ctx.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
        step = ctx.restore_checkpoint()
        for step in range(step + 1, int(os.environ["UPTO"]) + 1):
            ctx.backward(model(share(step)).pow(3).mean() * 10)
            norm = ctx.step(optimizer, clip_grad_norm=1.0)
            assert norm is None or type(norm) is torch.Tensor
        ctx.save_checkpoint(step)
        found = [getattr(value, "full_tensor", lambda value=value: value)() for value in model.parameters()]
        print("ended", json.dumps([value.flatten().tolist() for value in found]))
"""


def pending(tmp_path, layout, size, upto, folder):
    env = {**IMPORTS, "LAYOUT": layout, "UPTO": str(upto)}
    config = {"optimizations": {"aggregation_frequency": 4}}
    context = {"config": config, "checkpoint_dir": str(tmp_path / folder)}
    place = tmp_path / f"{folder}-{upto}"
    ranks = run_ranks(script(tmp_path, PENDING), place, size, env=env, context=context)
    for rank in ranks:
        assert rank.exit_code == 0, rank.output
    return said(ranks, "ended")[0]


@pytest.mark.parametrize(
    "chain",
    [
        pytest.param([("plain", 1), ("fsdp", 2), ("tp", 2)], id="whole-sharded-tensor-parallel"),
        pytest.param([("plain", 2), ("fsdp", 2), ("plain", 1)], id="same-ranks", marks=pytest.mark.nightly),
        pytest.param([("tp", 2), ("fsdp", 3), ("tp", 2)], id="tensor-parallel", marks=pytest.mark.nightly),
        pytest.param([("fsdp", 2), ("tp", 3), ("plain", 2)], id="other-ranks", marks=pytest.mark.nightly),
    ],
)
def test_a_group_of_batches_continues_with_other_ranks_and_other_kinds_of_tensors(tmp_path, chain):
    unbroken = pending(tmp_path, "plain", 1, 12, "unbroken")
    for number, (layout, size) in enumerate(chain):
        # Batches 5 and 9 begin groups: each change is inside a group of four.
        ended = pending(tmp_path, layout, size, (6, 11, 12)[number], "chain")
    for one, other in zip(ended, unbroken, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


OVERFLOW = """
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    from airflow_provider_dtrain.train.gradients.kinds import unscale
    from airflow_provider_dtrain.train.gradients.precision import LossScale

    with dtrain.init() as ctx:
        mesh = init_device_mesh("cpu", (2,))
        parameters = [torch.nn.Parameter(torch.ones(4))]
        parameters += [torch.nn.Parameter(distribute_tensor(torch.ones(4), mesh, [p])) for p in (Replicate(), Shard(0))]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        if ctx.rank == 1:
            parameters[2].grad.to_local()[0] = float("inf")
        scale = LossScale(torch.amp.GradScaler("cpu"))
        scale.scaler.scale(torch.ones(1))
        optimizer = torch.optim.SGD(parameters, lr=1.0)
        unscale(scale.scaler, optimizer)
        print("stepped", scale.step(optimizer))
"""


@pytest.mark.nightly
def test_an_overflow_in_the_part_of_one_rank_is_seen_by_all(tmp_path):
    ranks = run_ranks(script(tmp_path, OVERFLOW), tmp_path / "run", 2, env=IMPORTS)
    assert [rank.said(r"stepped (\w+)") for rank in ranks] == [["False"], ["False"]], ranks[0].output


AVERAGE = """
    import hashlib, os
    from torch.distributed.fsdp import fully_shard
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    def digest(model):
        values = [getattr(value, "full_tensor", lambda value=value: value)() for value in model.state_dict().values()]
        return hashlib.sha256(repr([value.tolist() for value in values]).encode()).hexdigest()[:12]

    with dtrain.init() as ctx:
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        if os.environ["LAYOUT"] == "fsdp":
            fully_shard(model), fully_shard(average.module)
        model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters(), lr=0.1))
        ctx.register(average=average)
        step = ctx.restore_checkpoint()
        print("restored", step, int(average.n_averaged), digest(average))
        for step in range(step + 1, step + 4):
            torch.manual_seed(step * 10 + ctx.rank)
            ctx.backward(model(torch.randn(8, 4)).pow(2).mean())
            ctx.step(optimizer)
            average.update_parameters(dtrain.unwrap(model))
            if step == 2:
                ctx.save_checkpoint(step)
                print("saved", digest(average))
        print("ended", digest(average), digest(dtrain.unwrap(model)))
"""


@pytest.mark.nightly
def test_the_average_of_a_sharded_model_resumes_also_on_one_process(tmp_path):
    env = {**IMPORTS, "LAYOUT": "fsdp"}
    place = {"checkpoint_dir": str(tmp_path / "checkpoints")}
    whole = run_ranks(script(tmp_path, AVERAGE), tmp_path / "whole", 2, env=env, context=place)
    assert [rank.exit_code for rank in whole] == [0, 0], whole[0].output
    saved = whole[0].said(r"saved (\w+)")[0]
    shorter = script(tmp_path, AVERAGE.replace("step + 4", "4"))
    resumed = run_ranks(shorter, tmp_path / "resumed", 2, env=env, context=place)
    for rank in resumed:
        assert rank.said(r"restored (\d+) (\d+) (\w+)") == [("2", "2", saved)], rank.output
        assert rank.said(r"ended (\w+) (\w+)") == whole[0].said(r"ended (\w+) (\w+)")
    env["LAYOUT"] = "plain"
    (alone,) = run_ranks(script(tmp_path, AVERAGE), tmp_path / "alone", 1, env=env, context=place)
    assert alone.said(r"restored (\d+) (\d+) (\w+)") == [("2", "2", saved)], alone.output


MEMORY = """
    import os, pathlib

    def resident(field):
        "Return a field of this process in MiB."
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))

    with dtrain.init() as ctx:
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(24)))
        if os.environ["LAYOUT"] == "fsdp":
            from torch.distributed.fsdp import fully_shard
            for layer in model:
                fully_shard(layer)
            fully_shard(model)
        model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters()))
        # The optimizer makes its state in the first step.
        ctx.backward(model(torch.ones(2, 1024)).sum())
        ctx.step(optimizer)
        before = resident("VmRSS")
        open("/proc/self/clear_refs", "w").write("5")  # VmHWM begins anew
        if ctx.restore_checkpoint():
            print("peak", resident("VmHWM") - before)
        else:
            ctx.save_checkpoint(1)
    if "EXPORT" in os.environ and ctx.rank == 0:
        (saved,) = pathlib.Path(os.environ["DTRAIN_CHECKPOINT_DIR"]).glob("step-*")
        before = resident("VmRSS")
        open("/proc/self/clear_refs", "w").write("5")
        dtrain.export_weights(saved, os.environ["EXPORT"])
        print("peak", resident("VmHWM") - before)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("layout", ["plain", "fsdp"])
def test_a_restore_holds_little_more_than_the_largest_tensor_beside_model_and_optimizer(tmp_path, layout):
    options = {"env": {**IMPORTS, "LAYOUT": layout}, "context": {"checkpoint_dir": str(tmp_path / "checkpoints")}}
    saved = run_ranks(script(tmp_path, MEMORY), tmp_path / "saved", 2, **options)
    assert [rank.exit_code for rank in saved] == [0, 0], saved[0].output
    largest = 4
    share = 3 * 24 * largest / (2 if layout == "fsdp" else 1)
    for rank in run_ranks(script(tmp_path, MEMORY), tmp_path / "restored", 2, **options):
        assert rank.exit_code == 0, rank.output
        assert float(rank.said(r"peak (\S+)")[0]) < 0.2 * share + largest, rank.output


@pytest.mark.nightly
def test_an_export_holds_a_few_megabytes_beside_the_shard_of_its_rank(tmp_path):
    file = tmp_path / "model.safetensors"
    env = {**IMPORTS, "LAYOUT": "fsdp", "EXPORT": str(file)}
    first, second = run_ranks(script(tmp_path, MEMORY), tmp_path / "run", 2, env=env)
    assert (first.exit_code, second.exit_code) == (0, 0), first.output
    # Blocks of the reader, and the buffers of the threads that check the files. The weights have 96 MiB.
    assert float(first.said(r"peak (\S+)")[0]) < 40, first.output
    assert file.stat().st_size > 96 << 20
