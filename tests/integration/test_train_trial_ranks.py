"""Trial classes on real ranks: two and four processes over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from tests.support.ranks import ROOT, run_ranks
from tests.support.trial_scripts import said, training, trial_script

pytestmark = [pytest.mark.nightly, pytest.mark.torch]


TRAIN = """
    class Noisy(torch.utils.data.Dataset):
        def __init__(self, whole):
            self.whole = whole

        def __len__(self):
            return len(self.whole)

        def __getitem__(self, index):
            inputs, label = self.whole[index]
            return inputs + torch.rand(4), label

    class Trial(Small):
        samples = 45

        def build_training_data_loader(self):
            size = self.context.get_per_slot_batch_size()
            return pytorch.DataLoader(Noisy(self.data()), batch_size=size, shuffle=True, num_workers=2)

        def build_callbacks(self):
            trial = self

            class Digest(pytorch.PyTorchCallback):
                def on_trial_shutdown(self):
                    print("digest", digest(trial), len(trial.trained))

            return {"digest": Digest()}

    if __name__ == "__main__":
        with dtrain.init() as ctx:
            train(Trial, ctx)
"""


@pytest.mark.each_change
def test_two_ranks_resumed_in_the_middle_of_an_epoch_and_a_group_equal_an_unbroken_run(tmp_path):
    path = trial_script(tmp_path, TRAIN)
    aggregation = {"optimizations": {"aggregation_frequency": 3}, "min_checkpoint_period": {"batches": 5}}
    whole = run_ranks(path, tmp_path / "whole", 2, context=training({"batches": 10}, **aggregation))
    digests = [rank.said(r"digest (\w+) (\d+)") for rank in whole]
    assert digests[0] == digests[1], whole[0].output + whole[1].output
    assert digests[0][0][1] == "10"

    class_stops = TRAIN.replace('"__main__":', '"__main__":\n        Trial.train_batch = stopping(Trial.train_batch)')
    stopping = """
    def stopping(train_batch):
        def wrapped(self, batch, epoch_idx, batch_idx):
            if batch_idx == 4 and self.context.distributed.rank == 1:
                self.context.set_stop_requested(True)
            return train_batch(self, batch, epoch_idx, batch_idx)
        return wrapped
    """
    (tmp_path / "s").mkdir()
    first = trial_script(tmp_path / "s", textwrap.dedent(stopping) + textwrap.dedent(class_stops))
    part = run_ranks(first, tmp_path / "part", 2, context=training({"batches": 10}, **aggregation))
    assert [rank.said(r"digest \w+ (\d+)") for rank in part] == [["5"], ["5"]], part[0].output
    resumed = run_ranks(path, tmp_path / "part", 2, context=training({"batches": 10}, **aggregation))
    assert [rank.said(r"digest (\w+) 5") for rank in resumed] == [[digests[0][0][0]]] * 2, resumed[0].output


EVALUATE = """
    class Normed(pytorch.PyTorchTrial):
        count = 7

        def __init__(self, context):
            self.context = context
            self.model = context.wrap_model(torch.nn.Sequential(torch.nn.BatchNorm1d(1), torch.nn.Linear(1, 1)))
            self.values = context.wrap_reducer(sorted_list, "spread", for_training=False)
            self.seen = []

        def build_validation_data_loader(self):
            data = torch.utils.data.TensorDataset(torch.arange(float(self.count)).reshape(-1, 1))
            return torch.utils.data.DataLoader(data, batch_size=2)

        def evaluate_batch(self, batch):
            (values,) = batch
            self.model(values)
            self.seen += values.reshape(-1).tolist()
            self.values.update(values.reshape(-1).tolist())
            return {"avg": values.mean(), "sum": values.sum(), "max": values.max(), "min": values.min()}

        def evaluation_reducer(self):
            return {name: pytorch.Reducer[name.upper()] for name in ("avg", "sum", "max", "min")}

    def sorted_list(values):
        flat = sorted(value for part in values for value in part)
        return flat[-1] - flat[0] + 100 * len(flat)

    class One(Normed):
        count = 1

    class Whole(Normed):
        evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

        def evaluate_full_dataset(self, data_loader):
            self.seen += [self.context.distributed.rank]
            self.values.update([0.0])
            return {"total": sum(values.sum() for (values,) in data_loader)}

    if __name__ == "__main__":
        import json
        found = {}
        with dtrain.init() as ctx:
            made = []
            for kind in (Normed, One, Whole):
                class Kept(kind):
                    def __init__(self, context):
                        super().__init__(context)
                        made.append(self)
                found[kind.__name__] = [evaluate(Kept, ctx), made[-1].seen]
            found["reduce"] = ctx.reduce({"a": ctx.distributed.rank + 1.0}, weight=ctx.distributed.rank + 1)
            found["largest"] = ctx.reduce({"a": 5.0} if ctx.distributed.rank else {}, reducer="max")
        print("found", json.dumps(found))
"""


def test_each_sample_is_evaluated_once_and_metrics_are_right_to_the_last(tmp_path):
    ranks = [said(rank) for rank in run_ranks(trial_script(tmp_path, EVALUATE), tmp_path / "run", 2)]
    expected = {"avg": 3.0, "sum": 21.0, "max": 6.0, "min": 0.0, "spread": 706.0}
    assert [found["Normed"][0] for found in ranks] == [expected, expected]
    assert sorted(ranks[0]["Normed"][1] + ranks[1]["Normed"][1]) == [0, 1, 2, 3, 4, 5, 6]
    one = {"avg": 0.0, "sum": 0.0, "max": 0.0, "min": 0.0, "spread": 100.0}
    assert [found["One"] for found in ranks] == [[one, [0.0]], [one, []]]
    total = {"total": 21.0, "spread": 100.0}
    assert [found["Whole"] for found in ranks] == [[total, [0]], [total, []]]
    assert [found["reduce"]["a"] for found in ranks] == [pytest.approx(5 / 3)] * 2
    assert [found["largest"] for found in ranks] == [{"a": 5.0}] * 2


HOSTS = """
    if __name__ == "__main__":
        import json
        rank = int(os.environ["RANK"])
        os.environ.update(LOCAL_RANK=str(rank % 2), GROUP_RANK=str(rank // 2), LOCAL_WORLD_SIZE="2",
                          GROUP_WORLD_SIZE="2")
        with dtrain.init() as ctx:
            d = ctx.distributed
            folder = f"host{d.get_host_rank()}"
            with d.local_leader_first():
                if not os.path.exists(folder + "/data"):
                    os.mkdir(folder)
                    with open(folder + "/data", "x") as file:
                        file.write(str(rank))
            with open(f"own-rank{d.get_rank()}", "x") as file:
                file.write("mine")
            found = [
                d.rank, d.local_rank, d.size, d.num_agents, d.get_num_agents(), d.local_size, d.gather(rank),
                d.gather_local(rank), d.allgather(rank), d.allgather_local(rank), d.broadcast(rank),
                d.broadcast_local(rank), open(folder + "/data").read(), d.on_chief(lambda: rank + 7),
            ]
        print("found", json.dumps(found))
"""


def test_ranks_of_two_hosts_talk_and_download_without_collisions(tmp_path):
    found = [said(rank) for rank in run_ranks(trial_script(tmp_path, HOSTS), tmp_path / "run", 4)]
    every = [0, 1, 2, 3]
    assert found == [
        [0, 0, 4, 2, 2, 2, every, [0, 1], every, [0, 1], 0, 0, "0", 7],
        [1, 1, 4, 2, 2, 2, None, None, every, [0, 1], 0, 0, "0", 7],
        [2, 0, 4, 2, 2, 2, None, [2, 3], every, [2, 3], 0, 2, "2", 7],
        [3, 1, 4, 2, 2, 2, None, None, every, [2, 3], 0, 2, "2", 7],
    ]


FAILING = """
    class Failing(Small):
        def train_batch(self, batch, epoch_idx, batch_idx):
            metrics = super().train_batch(batch, epoch_idx, batch_idx)
            if batch_idx == 4 and self.context.distributed.rank == 1:
                metrics["loss"] = torch.tensor(float("nan"))
            return metrics

    if __name__ == "__main__":
        with dtrain.init() as ctx:
            train(Failing, ctx)
"""


def test_a_nan_loss_names_its_step_and_rank_and_nothing_is_saved(tmp_path):
    path = trial_script(tmp_path, FAILING)
    ranks = run_ranks(path, tmp_path / "run", 2, context=training({"batches": 6}))
    assert ranks[1].exit_code == 1
    assert "loss is NaN at step 5 on rank 1" in ranks[1].error["message"]
    assert not list((tmp_path / "run" / "checkpoints").glob("step-*"))


MODEL = """
    import torch
    from airflow_provider_dtrain.train import pytorch
    import airflow_provider_dtrain.train as dtrain

    class Trial(pytorch.PyTorchTrial):
        def __init__(self, context):
            self.context = context
            if context.get_hparam("lr") > 1:
                raise dtrain.InvalidHP("lr above 1 diverges")
            self.model = context.wrap_model(torch.nn.Linear(1, 1, bias=False))
            self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

        def build_training_data_loader(self):
            data = torch.utils.data.TensorDataset(torch.ones(8, 1))
            return torch.utils.data.DataLoader(data, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

        build_validation_data_loader = build_training_data_loader

        def train_batch(self, batch, epoch_idx, batch_idx):
            loss = self.model(batch[0]).mean()
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return loss

        def evaluate_batch(self, batch):
            return {"weight": self.model.weight.item(), "rank": self.context.distributed.rank}
"""


def harness(folder, *arguments, launcher=(), env=None):
    (folder / "model_def.py").write_text(textwrap.dedent(MODEL))
    command = [sys.executable, *launcher, "-m", "airflow_provider_dtrain.train.harness", "model_def:Trial", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **(env or {})}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120)


def test_torchrun_runs_a_trial_class(tmp_path):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    arguments = ("--hparam", "lr=0.1", "--hparam", "global_batch_size=4", "--max-length", "epochs=2")
    done = harness(tmp_path, *arguments, launcher=launcher)
    assert done.returncode == 0, done.stderr
    assert "Trained to step 4" in done.stderr
    assert "rank 0.5" in done.stderr  # the mean over both ranks' halves


def test_invalid_hyperparameters_end_the_trial_with_an_event_and_a_status_of_their_own(tmp_path):
    config = {"hyperparameters": {"lr": 7, "global_batch_size": 4}, "searcher": {"max_length": {"batches": 2}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    events = tmp_path / "events"
    done = harness(tmp_path, "--config", "config.json", env={"DTRAIN_EVENTS": str(events)})
    assert done.returncode == 65, done.stderr
    assert "InvalidHP: lr above 1 diverges" in done.stderr
    kinds = [json.loads(line.partition(" ")[2]) for line in events.read_text().splitlines()]
    assert [(event["kind"], event.get("reason")) for event in kinds][-1] == ("invalid_hp", "lr above 1 diverges")
    again = harness(tmp_path, "--config", "config.json", "--hparam", "lr=0.5")
    assert again.returncode == 0, again.stderr
