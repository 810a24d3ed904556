"""Data loaders that are not the library's own, on two real ranks over gloo."""

from __future__ import annotations

import pytest

from tests.support.ranks import run_ranks
from tests.support.trial_scripts import said, training, trial_script

pytestmark = pytest.mark.torch

SHARES = """
    import itertools, json, random
    from torch.utils import data as td
    from airflow_provider_dtrain.train.data.shares import Shares

    class Numbers(td.Dataset):
        def __len__(self): return 33
        def __getitem__(self, index): return index

    class Drawn(td.Sampler):
        def __init__(self, draw, length): self.draw, self.length = draw, length
        def __iter__(self): return iter(self.draw())
        def __len__(self): return self.length

    def collate(samples): return torch.tensor(samples) + 1000

    def loaders(rank, size):
        own = list(range(rank, 33, size))
        system = random.SystemRandom()
        def fails():
            if rank == 0: raise ValueError("no file")
            return own
        def make(sampler, **options): return td.DataLoader(Numbers(), batch_size=4, sampler=sampler, **options)
        yield "fails", make(Drawn(fails, 16))
        yield "own", make(Drawn(lambda: own, len(own)))
        yield "workers", make(Drawn(lambda: own, len(own)), num_workers=1, persistent_workers=True, collate_fn=collate)
        yield "shuffled", make(Drawn(lambda: random.sample(range(33), 33), 33))
        yield "overlapping", make(Drawn(lambda: system.sample(range(33), 24), 24))
        yield "endless", make(Drawn(lambda: itertools.cycle(own), len(own)))

    if __name__ == "__main__":
        found = {}
        with dtrain.init() as ctx:
            for name, loader in loaders(ctx.distributed.rank, ctx.distributed.size):
                try:
                    shares = Shares(loader, ctx.distributed, 3, "training")
                    length = shares.length()
                    batches = [[b.tolist() for b in shares.training(epoch, 0, length)] for epoch in (0, 1)]
                    found[name] = [shares.sharing.value, length, batches]
                except Exception as error:
                    found[name] = f"{type(error).__name__}: {error}"
        print("found", json.dumps(found))
"""


def test_the_ranks_agree_on_how_they_share_a_loader(tmp_path):
    ranks = [said(rank) for rank in run_ranks(trial_script(tmp_path, SHARES), tmp_path / "run", 2)]
    one, two = ranks
    assert one["fails"] == "ValueError: no file"
    assert two["fails"].startswith("SetupError: The sampler of the training data loader failed on rank 0: ")
    for found in ranks:
        assert found["overlapping"].startswith(
            "SetupError: The training data loader (Drawn) must draw the same indices"
        )
    for name, sharing, length, shift in (
        ("own", "own", 5, 0), ("workers", "own", 5, 1000), ("shuffled", "cut", 5, 0), ("endless", "stream", 4, 0),
    ):  # fmt: skip
        assert [found[name][:2] for found in ranks] == [[sharing, length]] * 2, name
        for epoch in (0, 1):
            values = [value - shift for found in ranks for batch in found[name][2][epoch] for value in batch]
            # A stream is as long as on the rank that has the least of it.
            assert set(values) == set(range(32 if name == "endless" else 33)), name
            assert [len(found[name][2][epoch]) for found in ranks] == [length] * 2, name
    assert one["shuffled"][2][0] != one["shuffled"][2][1]


TRAIN = """
    import numpy

    class Shuffled(torch.utils.data.Sampler):
        "Shuffles by numpy and takes every n-th sample, as many samplers of applications do."

        def __init__(self, length, rank, size):
            self.whole, self.rank, self.size = length, rank, size

        def __iter__(self):
            return iter(numpy.random.permutation(self.whole)[self.rank :: self.size])

        def __len__(self):
            return len(range(self.rank, self.whole, self.size))

    class Noisy(torch.utils.data.Dataset):
        def __init__(self, whole):
            self.whole = whole

        def __len__(self):
            return len(self.whole)

        def __getitem__(self, index):
            inputs, label = self.whole[index]
            return inputs + torch.rand(4), label, int(index)

    class Trial(Small):
        samples = 45  # rank 0 has one more: 6 batches of 4, rank 1 has 22

        def __init__(self, context):
            super().__init__(context)
            self.seen = []

        def build_training_data_loader(self):
            d, size = self.context.distributed, self.context.get_per_slot_batch_size()
            sampler = Shuffled(self.samples, d.rank, d.size)
            return torch.utils.data.DataLoader(Noisy(self.data()), batch_size=size, sampler=sampler)

        def train_batch(self, batch, epoch_idx, batch_idx):
            if batch_idx == int(os.environ.get("STOP_AT", -1)) and self.context.distributed.rank == 1:
                self.context.set_stop_requested(True)
            self.seen.append([epoch_idx, batch[2].tolist()])
            return super().train_batch(batch[:2], epoch_idx, batch_idx)

        def build_callbacks(self):
            trial = self

            class Digest(pytorch.PyTorchCallback):
                def on_trial_shutdown(self):
                    import json
                    print("found", json.dumps([digest(trial), trial.seen]))

            return {"digest": Digest()}

    if __name__ == "__main__":
        with dtrain.init() as ctx:
            train(Trial, ctx)
"""


def test_a_sharded_loader_with_uneven_ends_trains_everything_and_resumes_bit_equal(tmp_path):
    path = trial_script(tmp_path, TRAIN)
    context = training({"batches": 10}, scheduling_unit=2)
    whole = [said(rank) for rank in run_ranks(path, tmp_path / "whole", 2, context=context)]
    first_epoch = {index for _, seen in whole for epoch, batch in seen if epoch == 0 for index in batch}
    assert first_epoch == set(range(45))
    assert [[epoch for epoch, _ in seen] for _, seen in whole] == [[0] * 6 + [1] * 4] * 2
    assert whole[0][0] == whole[1][0]
    part = [said(r) for r in run_ranks(path, tmp_path / "part", 2, context=context, env={"STOP_AT": "3"})]
    rest = [said(r) for r in run_ranks(path, tmp_path / "part", 2, context=context)]
    for unbroken, begun, resumed in zip(whole, part, rest, strict=True):
        assert begun[1] + resumed[1] == unbroken[1]
        assert len(begun[1]) == 4
        assert resumed[0] == unbroken[0], "the weights are equal bit for bit"
