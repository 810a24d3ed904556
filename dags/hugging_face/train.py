"""A classifier of generated sentences, trained by the Hugging Face ``Trainer``. Downloads nothing."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.train.integrations.transformers import DtrainCallback

WORDS, LENGTH = 50, 12


def sentences(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Return sentences of word numbers. The label tells whether low words are in the majority."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(1, WORDS, (count, LENGTH), generator=generator)
    labels = (words < WORDS // 2).float().mean(1).gt(0.5).long()
    return [{"input_ids": row, "labels": label} for row, label in zip(words, labels, strict=True)]


def main() -> None:
    """Train to the end, or to the step at which the trial must stop."""
    with dtrain.init(hparams={"lr": 0.01, "epochs": 4}) as ctx:
        config = BertConfig(
            vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
        )
        arguments = TrainingArguments(
            "checkpoints-of-trainer",
            learning_rate=ctx.hparams["lr"],
            num_train_epochs=ctx.hparams["epochs"],
            per_device_train_batch_size=16,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
            logging_steps=5,
            report_to=[],
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            seed=ctx.seed,
        )
        callback = DtrainCallback(ctx)
        trainer = Trainer(
            BertForSequenceClassification(config),
            arguments,
            train_dataset=sentences(512, seed=1),
            eval_dataset=sentences(64, seed=2),
            callbacks=[callback],
        )
        trainer.train(resume_from_checkpoint=callback.latest())


if __name__ == "__main__":
    main()
