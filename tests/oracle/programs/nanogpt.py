"""The pattern of nanoGPT: settings as globals, ranks from the environment, accumulated gradients, a memory map."""

import os
import sys

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir = "out"
batch_size = 4
block_size = 16
gradient_accumulation_steps = 8
learning_rate = 1e-2
max_iters = 6
for arg in sys.argv[1:]:
    name, _, value = arg.removeprefix("--").partition("=")
    globals()[name] = type(globals()[name])(value)

ddp = int(os.environ.get("RANK", -1)) != -1
device = "cpu"
if ddp:
    init_process_group(backend="gloo")
    ddp_rank = int(os.environ["RANK"])
    ddp_local_rank = int(os.environ["LOCAL_RANK"])
    ddp_world_size = int(os.environ["WORLD_SIZE"])
    if torch.cuda.is_available():
        device = f"cuda:{ddp_local_rank}"
        torch.cuda.set_device(device)
    master_process = ddp_rank == 0
    seed_offset = ddp_rank
    assert gradient_accumulation_steps % ddp_world_size == 0
    gradient_accumulation_steps //= ddp_world_size
else:
    master_process, seed_offset, ddp_world_size = True, 0, 1

if master_process:
    os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337 + seed_offset)
tokens = torch.arange(4096) * 7 % 61


def get_batch():
    ix = torch.randint(len(tokens) - block_size - 1, (batch_size,))
    x = torch.stack([tokens[i : i + block_size] for i in ix])
    y = torch.stack([tokens[i + 1 : i + 1 + block_size] for i in ix])
    return x.to(device), y.to(device)


class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = torch.nn.Embedding(64, 32)
        self.wpe = torch.nn.Embedding(block_size, 32)
        self.block = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.lm_head = torch.nn.Linear(32, 64, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        mask = torch.nn.Transformer.generate_square_subsequent_mask(idx.size(1), device=idx.device)
        logits = self.lm_head(self.block(x, src_mask=mask, is_causal=True))
        return torch.nn.functional.cross_entropy(logits.view(-1, 64), targets.reshape(-1))


model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
if ddp:
    model = DDP(model)
losses = []
X, Y = get_batch()
for _ in range(max_iters):
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        loss = model(X, Y) / gradient_accumulation_steps
        X, Y = get_batch()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append((loss.item() * gradient_accumulation_steps).hex())
raw_model = model.module if ddp else model
if master_process:
    torch.save({"model": raw_model.state_dict()}, os.path.join(out_dir, "ckpt.pt"))
report(losses=losses, accumulation=gradient_accumulation_steps)
if ddp:
    destroy_process_group()
