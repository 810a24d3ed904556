"""Outputs of a batch inference: from the result of a batch to rows, and from rows to a part's file."""

from __future__ import annotations

from airflow_provider_dtrain.train.inference.libraries import require

# Every module of this room imports pyarrow. Without it, the first import names the command that installs it.
require("pyarrow", "Writing the results of a batch inference")
