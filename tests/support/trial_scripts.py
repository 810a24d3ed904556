"""Scripts that run a trial class on several ranks."""

from __future__ import annotations

import json
import textwrap

from tests.support.ranks import ROOT, script

HEAD = f"""
import os
sys.path.insert(0, {str(ROOT)!r})
from airflow_provider_dtrain.train import pytorch
from airflow_provider_dtrain.train.trial.run import evaluate, train
from tests.support.small_trial import Small, digest
"""


def trial_script(tmp_path, body):
    return script(tmp_path, HEAD + textwrap.dedent(body))


def said(rank):
    """Return what a rank printed as JSON after 'found'."""
    assert rank.exit_code == 0, rank.output
    return json.loads(rank.said(r"(?m)^found (.*)$")[0])


def training(length, **config):
    searcher = {"name": "single", "max_length": length, "metric": "accuracy"}
    return {"config": {"searcher": searcher, **config}, "hparams": {"lr": 0.1, "global_batch_size": 8}}
