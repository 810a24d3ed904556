"""Batch inference over handwritten digits with the network of ``train.py``."""

from train import all_digits, network

import airflow_provider_dtrain.train as dtrain


class Classifier(dtrain.BatchProcessor):
    def setup(self, ctx):
        self.ctx = ctx
        self.model = ctx.prepare_model(ctx.load_weights(network(dropout=0)))

    def build_dataset(self):
        return all_digits()

    def process_batch(self, batch, batch_idx):
        images, labels = batch
        scores = self.model(images).softmax(1)
        score, digit = scores.max(1)
        self.ctx.add_metrics({"accuracy": (digit == labels).float().mean()})
        return {"digit": digit, "score": score, "label": labels}
