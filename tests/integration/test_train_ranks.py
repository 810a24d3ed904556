"""Real ranks: one and two processes over gloo on 127.0.0.1, started with torchrun's environment contract."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.ranks import DEADLINE_S, ROOT, free_port, run_ranks, script

pytest.importorskip("torch")
pytestmark = [pytest.mark.nightly, pytest.mark.torch]

DIGITS = ROOT / "dags" / "digits" / "train.py"


DIGITS_CONTEXT = {
    "hparams": {"global_batch_size": 64, "lr": 0.006, "dropout": 0.1, "epochs": 6},
    "config": {"searcher": {"metric": "accuracy", "smaller_is_better": False}},
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Two ranks that trained the digits."""
    return run_ranks(DIGITS, tmp_path_factory.mktemp("digits") / "run", 2, context=DIGITS_CONTEXT)


def test_digits_learns_at_two_ranks(digits):
    assert [rank.exit_code for rank in digits] == [0, 0], digits[0].output + digits[1].output
    validations = [event["metrics"]["accuracy"] for event in digits[0].events if event["kind"] == "validation"]
    assert len(validations) == 6
    assert max(validations) > 0.95


def test_all_ranks_end_with_identical_parameters(digits):
    digests = [rank.said(r"rank \d parameters sha256 ([0-9a-f]{64})") for rank in digits]
    assert len(digests[0]) == 1
    assert digests[0] == digests[1]


def test_rank_zero_tells_the_story_and_the_others_their_start(digits):
    kinds = [[event["kind"] for event in rank.events] for rank in digits]
    assert kinds[0][:2] == ["init", "first_step"]
    assert kinds[0].count("report") == 6 * 23
    assert kinds[0].count("checkpoint") == 6
    assert kinds[0][-1] == "result"
    assert kinds[1] == ["init", "first_step", "timings"]


def test_the_result_names_a_checkpoint_that_is_there(digits):
    value = digits[0].events[-1]["value"]
    assert value["step"] == 6 * 23
    assert (digits[0].folder.parent / value["checkpoint"] / "metadata.json").is_file()


SMALL = """
    def main():
        with dtrain.init() as ctx:
            data = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.arange(24) % 2)
            model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout({dropout}), torch.nn.Linear(16, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            model, optimizer = ctx.prepare(model, optimizer)
            step = ctx.restore_checkpoint()
            print("restored", step)
            for _ in ctx.epochs(2):
                for inputs, labels in ctx.loader(data):
                    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                    ctx.backward(loss)
                    ctx.step(optimizer)
                    step += 1
                    ctx.report(step, {{"loss": loss}})
                    if step == 4:
                        ctx.save_checkpoint(step)
                    if step == {stop}:
                        return
            print("losses", loss.item())
            print("parameters", dtrain.parameters_sha256(model))
            weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
            print("weights", weights.double().tolist())
    main()
"""


def test_two_resumed_ranks_get_the_weights_of_an_unbroken_run(tmp_path):
    whole = script(tmp_path, SMALL.format(dropout=0.5, stop=-1))
    unbroken = run_ranks(whole, tmp_path / "unbroken", 2)
    broken = script(tmp_path, SMALL.format(dropout=0.5, stop=5))
    first = run_ranks(broken, tmp_path / "broken", 2)
    assert [rank.exit_code for rank in first] == [0, 0], first[0].output
    saved = tmp_path / "broken" / "checkpoints" / "step-00000004"
    whole = script(tmp_path, SMALL.format(dropout=0.5, stop=-1))
    second = run_ranks(whole, tmp_path / "second", 2, context={"latest_checkpoint": str(saved)})
    assert second[1].said(r"restored (\d+)") == ["4"]
    assert second[1].said(r"parameters (\w+)") == unbroken[0].said(r"parameters (\w+)") != []


@pytest.mark.each_change
def test_one_and_two_ranks_train_on_the_same_global_batches(tmp_path):
    path = script(tmp_path, SMALL.format(dropout=0.0, stop=-1))
    one, two = run_ranks(path, tmp_path / "one", 1), run_ranks(path, tmp_path / "two", 2)
    weights = [json.loads(ranks[0].said(r"weights (.*)")[0]) for ranks in (one, two)]
    assert weights[1] == pytest.approx(weights[0], abs=1e-5)


def test_reports_are_the_mean_over_the_ranks(tmp_path):
    path = script(tmp_path, """
        with dtrain.init() as ctx:
            rank = ctx.distributed.get_rank()
            model = torch.nn.Linear(1, 1)
            model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            for step in (1, 2, 3):
                ctx.backward(model(torch.ones(1, 1)).sum())
                ctx.step(optimizer)
                ctx.report(step, {"loss": torch.tensor(float(rank * 10 + step))})
            ctx.report_validation(3, {"accuracy": float(rank)}, weight=3 - 2 * rank)
            ctx.report_validation(4, {"accuracy": float(rank)}, average=False)
    """)  # fmt: skip
    ranks = run_ranks(path, tmp_path / "run", 2)
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output
    reports = [event["metrics"] for event in ranks[0].events if event["kind"] == "report"]
    validations = [event["metrics"] for event in ranks[0].events if event["kind"] == "validation"]
    assert reports == [{"loss": 6.0}, {"loss": 7.0}, {"loss": 8.0}]
    assert validations == [{"accuracy": 0.25}, {"accuracy": 0.0}]


def test_ranks_talk_and_the_leader_goes_first(tmp_path):
    path = script(tmp_path, """
        import pathlib
        with dtrain.init() as ctx:
            d = ctx.distributed
            assert d.allgather(d.get_rank() * 2) == [0, 2]
            assert d.gather(d.get_rank()) == ([0, 1] if d.get_rank() == 0 else None)
            assert d.broadcast({"from": d.get_rank()}) == {"from": 0}
            assert d.broadcast_bytes(b"abc" if d.get_rank() == 0 else None) == b"abc"
            assert d.any(d.get_rank() == 1) is True and d.any(False) is False
            file = pathlib.Path("downloaded")
            with d.local_leader_first():
                assert file.exists() == (d.get_local_rank() == 1)
                file.touch()
            try:
                with d.local_leader_first():
                    raise ValueError("no network")
            except (ValueError, dtrain.LeaderFailedError) as error:
                print("caught", type(error).__name__)
    """)  # fmt: skip
    ranks = run_ranks(path, tmp_path / "run", 2)
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
    assert [rank.said(r"caught (\w+)") for rank in ranks] == [["ValueError"], ["LeaderFailedError"]]


def test_all_ranks_agree_on_a_stop_that_one_host_saw(tmp_path):
    path = script(tmp_path, """
        import os, pathlib
        own = pathlib.Path(f"host{os.environ['RANK']}")
        own.mkdir()
        os.environ["DTRAIN_RUN_DIR"] = str(own)
        if os.environ["RANK"] == "1":
            (own / "stop_requested").touch()
        with dtrain.init() as ctx:
            model = torch.nn.Linear(1, 1)
            model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            steps = 0
            while not ctx.should_stop:
                ctx.backward(model(torch.ones(1, 1)).sum())
                ctx.step(optimizer)
                steps += 1
            print("stopped after", steps)
    """)  # fmt: skip
    ranks = run_ranks(path, tmp_path / "run", 2, context={"config": {"scheduling_unit": 5}})
    assert [rank.said(r"stopped after (\d+)") for rank in ranks] == [["5"], ["5"]], ranks[0].output


def test_one_rank_alone_may_read_whether_it_should_stop(tmp_path):
    path = script(tmp_path, """
        import os, pathlib
        with dtrain.init() as ctx:
            model = torch.nn.Linear(1, 1)
            model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            seen = []
            for step in range(1, 7):
                ctx.backward(model(torch.ones(1, 1)).sum())
                ctx.step(optimizer)
                if step == 3 and ctx.is_chief:
                    (pathlib.Path(os.environ["DTRAIN_RUN_DIR"]) / "stop_requested").touch()
                if ctx.rank == 0:
                    seen.append(int(ctx.should_stop))
            ctx.sync(step)
            print("seen", *seen, "of", ctx.world_size, "then", ctx.should_stop)
    """)  # fmt: skip
    ranks = run_ranks(path, tmp_path / "run", 2, context={"config": {"scheduling_unit": 2}})
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
    said = [rank.said(r"seen (.*)") for rank in ranks]
    assert said == [["0 0 0 1 1 1 of 2 then True"], ["of 2 then True"]]


@pytest.mark.each_change
def test_the_failing_rank_is_the_one_with_the_cause_in_its_error_file(tmp_path):
    path = script(tmp_path, """
        with dtrain.init(timeout_s=20) as ctx:
            if ctx.distributed.get_rank() == 1:
                raise ValueError("label 12 of 10")
            ctx.distributed.barrier()
    """)  # fmt: skip
    ranks = run_ranks(path, tmp_path / "run", 2)
    assert [rank.exit_code for rank in ranks] == [1, 1]
    assert ranks[1].error["message"] == "ValueError: label 12 of 10"
    assert 'raise ValueError("label 12 of 10")' in ranks[1].error["traceback"]
    assert (ranks[1].error["rank"], "ValueError" in ranks[0].error["message"]) == (1, False)


@pytest.mark.parametrize(("ending", "code"), [
    ("raise SystemExit(3)", 3), ("sys.exit(4)", 4), ("raise KeyError('late')", 1), ("pass", 0),
])  # fmt: skip
def test_code_after_the_block_runs_and_its_exit_status_is_kept(tmp_path, ending, code):
    path = script(tmp_path, f"""
        import atexit
        atexit.register(print, "exit handler ran")
        with dtrain.init() as ctx:
            ctx.set_result("done")
        print("after the block")
        {ending}
    """)  # fmt: skip
    (rank,) = run_ranks(path, tmp_path / "run", 1)
    assert rank.exit_code == code, rank.output
    assert "after the block" in rank.output
    assert "exit handler ran" in rank.output
    assert [event["kind"] for event in rank.events] == ["init", "result"]
    assert (rank.error is None) == ("KeyError" not in ending)


def test_torchrun_runs_the_same_script(tmp_path):
    path = script(tmp_path, """
        with dtrain.init(hparams={"global_batch_size": 7}) as ctx:
            rank = ctx.distributed.get_rank()
            open(f"{rank}.txt", "w").write(f"of {ctx.distributed.get_size()}: {ctx.per_slot_batch_size}")
    """)  # fmt: skip
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DTRAIN_", "RANK", "WORLD", "MASTER"))}
    options = ["--nproc-per-node=2", f"--master-port={free_port()}"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, str(path)],
        env={**env, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, cwd=tmp_path, capture_output=True, text=True,
        timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # Both ranks share torchrun's output, where lines can mix, so each rank writes its own file.
    assert {path.name: path.read_text() for path in tmp_path.glob("*.txt")} == {"0.txt": "of 2: 3", "1.txt": "of 2: 3"}
    assert "effective global batch size is 6" in done.stderr


def test_averages_and_registered_objects_are_not_put_into_ddp_and_resume_by_name(tmp_path):
    script_path = script(
        tmp_path,
        """
        class Count:
            def __init__(self): self.n = 0
            def state_dict(self): return {"n": self.n}
            def load_state_dict(self, state): self.n = state["n"]

        with dtrain.init() as ctx:
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            average = torch.optim.swa_utils.AveragedModel(model)
            model, optimizer, average = ctx.prepare(model, optimizer, average)
            teacher = ctx.prepare(torch.nn.Linear(4, 1), wrap=False)
            frozen = ctx.prepare(torch.nn.Linear(4, 1).requires_grad_(False))
            one, two, other = Count(), Count(), torch.optim.swa_utils.AveragedModel(dtrain.unwrap(model))
            ctx.register(one=one, two=two, other=other)
            print(type(model).__name__, type(average).__name__, type(teacher).__name__, type(frozen).__name__)
            step = ctx.restore_checkpoint()
            print("counts", one.n, two.n, int(other.n_averaged))
            ctx.backward(model(torch.ones(2, 4)).sum()); ctx.step(optimizer)
            average.update_parameters(dtrain.unwrap(model)); other.update_parameters(dtrain.unwrap(model))
            one.n, two.n = 1, 2
            ctx.save_checkpoint(step + 1)
        """,
    )
    for rank in run_ranks(script_path, tmp_path / "run", 2):
        assert rank.exit_code == 0, rank.output
        assert "DistributedDataParallel AveragedModel Linear Linear\ncounts 0 0 0" in rank.output
    text = script_path.read_text()
    script_path.write_text(text.replace("one=one, two=two, other=other", "other=other, two=two, one=one"))
    for rank in run_ranks(script_path, tmp_path / "run", 2):
        assert "counts 1 2 1" in rank.output, rank.output
    script_path.write_text(text.replace("two=two", "three=two"))
    for rank in run_ranks(script_path, tmp_path / "run", 2):
        assert "differ in three, two" in rank.output


OWN_GROUP = """
    import torch.distributed as dist
    dist.init_process_group("gloo")
    with dtrain.init() as ctx:
        ctx.prepare(torch.nn.Linear(2, 1))
        print("group", ctx.distributed.allgather(ctx.rank), ctx.distributed.first_value("key", "v"), flush=True)
        ctx.report_validation(1, {"rank": ctx.rank})
    print("still there", dist.is_initialized(), flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.each_change
def test_a_process_group_that_the_script_has_created_is_used_and_left_to_it(tmp_path):
    ranks = run_ranks(script(tmp_path, OWN_GROUP), tmp_path / "run", 2)
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
    assert all("group [0, 1] v" in rank.output and "still there True" in rank.output for rank in ranks)
    assert [event["metrics"] for event in ranks[0].events if event["kind"] == "validation"] == [{"rank": 0.5}]
