"""The loop of Accelerate's documentation: its ranks come from the environment."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
set_seed(5)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.utils.data.DataLoader(torch.randn(128, 8), batch_size=8, shuffle=True)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
losses = []
for _ in range(2):
    for batch in data:
        with accelerator.accumulate(model):
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item().hex())
total = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
report(losses=losses, total=total, kind=str(accelerator.distributed_type))
accelerator.end_training()
