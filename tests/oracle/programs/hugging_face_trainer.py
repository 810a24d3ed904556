"""Hugging Face's Trainer: its arguments find the ranks in the environment."""

import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments


class Line(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(8, 1)
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, points, labels=None):
        value = self.layer(points).squeeze(1)
        return {"loss": (value - labels).square().mean(), "logits": value}


random = torch.Generator().manual_seed(0)
rows = [{"points": one, "labels": one.sum()} for one in torch.randn(128, 8, generator=random)]
torch.manual_seed(2)
arguments = TrainingArguments(
    output_dir="out",
    use_cpu=True,
    num_train_epochs=2,
    per_device_train_batch_size=8,
    learning_rate=0.05,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    seed=7,
    disable_tqdm=True,
)
trainer = Trainer(model=Line(PretrainedConfig()), args=arguments, train_dataset=rows)
trainer.train()
losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
weights = [value.hex() for value in trainer.model.layer.weight.flatten().tolist()]
ranks = [arguments.process_index, arguments.local_process_index, arguments.world_size]
report(losses=losses, weights=weights, ranks=ranks)
