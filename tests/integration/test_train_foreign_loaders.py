"""Data loaders of other libraries on two real ranks, where the libraries are installed."""

from __future__ import annotations

import collections
from textwrap import dedent

import pytest

from tests.support.ranks import run_ranks, script
from tests.support.trial_scripts import said

pytestmark = [pytest.mark.torch, pytest.mark.nightly]

RECORDS = 48

#: Case -> module that it needs, and a function that returns a loader of the records 0, 1, ... and the record numbers of
#: a batch.
DIVIDED = {
    "pyg": ("torch_geometric", """
        def make(ctx):
            from torch_geometric.data import Data
            from torch_geometric.loader import DataLoader
            graphs = [Data(x=torch.ones(2, 1), number=torch.tensor([i])) for i in range(RECORDS)]
            return DataLoader(graphs, batch_size=4, shuffle=True), lambda batch: batch.number
    """),
    "pyg-nodes": ("torch_geometric", """
        def make(ctx):
            return node_loader(torch.arange(ctx.rank, RECORDS, ctx.world_size)), lambda batch: batch.n_id
    """),
    "monai-cache": ("monai", """
        def make(ctx):
            from monai.data import CacheDataset, DataLoader
            items = CacheDataset([{"number": i} for i in range(RECORDS)], lambda item: item, progress=False)
            return DataLoader(items, batch_size=4, shuffle=True), lambda batch: batch["number"]
    """),
    "monai-workers": ("monai", """
        def make(ctx):
            from monai.data import DataLoader, Dataset
            items = Dataset([{"number": i} for i in range(RECORDS)])
            return DataLoader(items, batch_size=4, shuffle=True, num_workers=2), lambda batch: batch["number"]
    """),
    "monai-threads": ("monai", """
        def make(ctx):
            from monai.data import Dataset, ThreadDataLoader
            items = Dataset([{"number": i} for i in range(RECORDS)])
            sampler = DistributedSampler(items, ctx.world_size, ctx.rank)
            return ThreadDataLoader(items, batch_size=4, sampler=sampler), lambda batch: batch["number"]
    """),
    "timm": ("timm", """
        def make(ctx):
            return timm_loader(num_workers=0, persistent_workers=False), lambda batch: batch[1]
    """),
    "timm-distributed": ("timm", """
        def make(ctx):
            return timm_loader(num_workers=0, persistent_workers=False, distributed=True), lambda batch: batch[1]
    """),
    "timm-epochs": ("timm", """
        def make(ctx):
            loader = timm_loader(num_workers=2, use_multi_epochs_loader=True, distributed=True)
            return loader, lambda batch: batch[1]
    """),
    "torchdata": ("torchdata", """
        def make(ctx):
            from torchdata.stateful_dataloader import StatefulDataLoader
            data = list(range(RECORDS))
            sampler = DistributedSampler(data, ctx.world_size, ctx.rank)
            return StatefulDataLoader(data, batch_size=4, sampler=sampler, num_workers=2), lambda batch: batch
    """),
    "hugging-face": ("datasets", """
        def make(ctx):
            from datasets import Dataset
            data = Dataset.from_dict({"number": list(range(RECORDS))}).with_format("torch")
            loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
            return loader, lambda batch: batch["number"]
    """),
    "hugging-face-iterable": ("datasets", """
        def make(ctx):
            return stream(ctx, num_workers=0), lambda batch: batch["number"]
    """),
    "hugging-face-iterable-workers": ("datasets", """
        def make(ctx):
            return stream(ctx, num_workers=2), lambda batch: batch["number"]
    """),
}  # fmt: skip

#: Loaders that give each rank all records: case -> module, function and message.
COPIES = {
    "pyg-nodes": ("torch_geometric", """
        def make(ctx):
            return node_loader(torch.arange(RECORDS)), lambda batch: batch.n_id
    """, "(NodeLoader of range) must give each rank a part of its own"),
    "monai-threads": ("monai", """
        def make(ctx):
            from monai.data import Dataset, ThreadDataLoader
            return ThreadDataLoader(Dataset(list(range(RECORDS))), batch_size=4, shuffle=True), lambda batch: batch
    """, "all 2 ranks got the same first batch"),
    "timm-epochs": ("timm", """
        def make(ctx):
            return timm_loader(num_workers=2, use_multi_epochs_loader=True), lambda batch: batch[1]
    """, "(MultiEpochsDataLoader of Images) must give each rank a part of its own"),
    "torchdata": ("torchdata", """
        def make(ctx):
            from torchdata.stateful_dataloader import StatefulDataLoader
            return StatefulDataLoader(list(range(RECORDS)), batch_size=4, shuffle=True), lambda batch: batch
    """, "(StatefulDataLoader of list) must give each rank a part of its own"),
    "hugging-face-iterable": ("datasets", """
        def make(ctx):
            from datasets import Dataset
            data = Dataset.from_dict({"number": list(range(RECORDS))}).to_iterable_dataset().with_format("torch")
            return torch.utils.data.DataLoader(data, batch_size=4), lambda batch: batch["number"]
    """, "all 2 ranks got the same first batch"),
}  # fmt: skip

TRAIN = """
    import json, os, sys
    from torch.utils.data.distributed import DistributedSampler

    RECORDS, LIMIT, STOP_AT = 48, int(os.environ["LIMIT"]) or None, int(os.environ["STOP_AT"])

    class Images(torch.utils.data.Dataset):
        transform = None
        def __len__(self): return RECORDS
        def __getitem__(self, index):
            from PIL import Image
            return self.transform(Image.new("RGB", (8, 8))), index

    def timm_loader(**options):
        from timm.data import create_loader
        return create_loader(Images(), (3, 8, 8), 4, is_training=True, no_aug=True, use_prefetcher=False, **options)

    def node_loader(nodes):
        "Return the loader under NeighborLoader. Its sampler takes no neighbors, and needs no compiled extension."
        from torch_geometric.data import Data
        from torch_geometric.loader import NodeLoader
        from torch_geometric.sampler import BaseSampler, SamplerOutput

        class Alone(BaseSampler):
            def sample_from_nodes(self, index, **_):
                none = torch.empty(0, dtype=torch.long)
                return SamplerOutput(index.node, none, none, none, metadata=(index.input_id, index.time))
            def sample_from_edges(self, index, **_): raise NotImplementedError

        graph = Data(x=torch.ones(RECORDS, 1), edge_index=torch.empty(2, 0, dtype=torch.long))
        return NodeLoader(graph, Alone(), input_nodes=nodes, batch_size=4, shuffle=True)

    def stream(ctx, **options):
        from datasets import Dataset
        from datasets.distributed import split_dataset_by_node
        data = Dataset.from_dict({"number": list(range(RECORDS))}).to_iterable_dataset(num_shards=4)
        data = data.shuffle(seed=1, buffer_size=10).with_format("torch")
        data = split_dataset_by_node(data, rank=ctx.rank, world_size=ctx.world_size)
        return torch.utils.data.DataLoader(data, batch_size=4, **options)

    MAKE

    if __name__ == "__main__":
        seen = []
        with dtrain.init() as ctx:
            loader, numbers = make(ctx)
            model = torch.nn.Linear(1, 1)
            model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
            step = ctx.restore_checkpoint()
            for epoch in ctx.epochs(2):
                for batch in ctx.loader(loader, max_batches=LIMIT):
                    found = numbers(batch)
                    seen.append([epoch, found.tolist()])
                    ctx.backward(model(found.float().reshape(-1, 1) / 100).sum())
                    ctx.step(optimizer)
                    step += 1
                    if step == STOP_AT:
                        ctx.save_checkpoint(step)
                        print("found", json.dumps([seen, ""]))
                        sys.exit()
            print("found", json.dumps([seen, dtrain.parameters_sha256(model)]))
"""


def run(tmp_path, make, run_dir, stop_at=0, limit=0):
    path = script(tmp_path, dedent(TRAIN).replace("MAKE", dedent(make)))
    env = {"STOP_AT": str(stop_at), "LIMIT": str(limit), "HF_HUB_OFFLINE": "1"}
    return run_ranks(path, run_dir, 2, env=env)


def trained(*attempts):
    """Return how often each record was trained in each epoch."""
    counts = [collections.Counter(), collections.Counter()]
    for ranks in attempts:
        for seen, _ in ranks:
            for epoch, numbers in seen:
                counts[epoch].update(numbers)
    return counts


@pytest.mark.parametrize("case", DIVIDED)
def test_each_record_is_trained_once_per_epoch_also_after_a_resume_inside_it(tmp_path, case):
    module, make = DIVIDED[case]
    pytest.importorskip(module)
    limit = RECORDS // 8 if "iterable" in case else 0  # a data set of Hugging Face without a length
    whole = [said(rank) for rank in run(tmp_path, make, tmp_path / "whole", limit=limit)]
    once = [dict.fromkeys(range(RECORDS), 1)] * 2
    assert trained(whole) == once
    stopped = [said(rank) for rank in run(tmp_path, make, tmp_path / "run", stop_at=4, limit=limit)]
    resumed = [said(rank) for rank in run(tmp_path, make, tmp_path / "run", limit=limit)]
    assert trained(stopped, resumed) == once
    assert resumed[0][1] == whole[0][1] == whole[1][1]


@pytest.mark.parametrize("case", COPIES)
def test_a_loader_that_gives_each_rank_all_records_is_named(tmp_path, case):
    module, make, message = COPIES[case]
    pytest.importorskip(module)
    for rank in run(tmp_path, make, tmp_path / "run", limit=RECORDS // 4):
        assert rank.exit_code == 1
        assert message in rank.output


def test_an_iterable_data_set_without_a_length_is_named(tmp_path):
    pytest.importorskip("datasets")
    for rank in run(tmp_path, DIVIDED["hugging-face-iterable"][1], tmp_path / "run"):
        assert "The training data has no length, so the ranks cannot agree on where an epoch ends" in rank.output
