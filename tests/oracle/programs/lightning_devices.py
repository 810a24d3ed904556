"""Lightning with several devices: it finds its ranks in the environment instead of starting them."""

import os

import lightning
import torch


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.losses = []

    def training_step(self, batch, _):
        loss = (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.losses.append(loss.item().hex())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


lightning.seed_everything(3)
model = Line()
data = torch.utils.data.DataLoader(torch.randn(128, 8), batch_size=8, shuffle=True)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    strategy="ddp",
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(model, data)
report(losses=model.losses, ranks=[trainer.global_rank, trainer.local_rank, trainer.node_rank, trainer.world_size])
