"""Batch inference on real ranks."""

from __future__ import annotations

from tests.support.inference import PROCESSOR
from tests.support.ranks import run_ranks

#: pyarrow imports pandas with the first list that becomes a column.
IMPORTS = "pandas pyarrow.parquet"
PROGRAM = """
import sys
from airflow_provider_dtrain.train.inference.__main__ import main
sys.exit(main([]))
"""


def infer(
    place, size=1, *, run="t1.1.7", folder="out", inputs=None, failures=None, code=PROCESSOR, config=None, **section
):
    """Run the program on some ranks, in a folder with the processor, and return what they left."""
    run_dir = place / f"run-{len(list(place.iterdir()))}"
    run_dir.mkdir()
    (run_dir / "processors.py").write_text(code)
    (run_dir / "script.py").write_text(PROGRAM)
    outputs = {"path": str(place / folder), "columns": ["id"], "row_id": "row", **section.pop("outputs", {})}
    settings = {
        "processor": "processors:Model",
        "inputs": {"path": str(place / "in"), "shard_rows": 50} if inputs is None else inputs,
        "outputs": outputs,
        "batch_size": 16,
        **section,
    }
    context = {"config": {"inference": settings, **(config or {})}, "hparams": {}, "shard_failures": failures or {}}
    env = {"DTRAIN_RUN": f"store-{run}", "DTRAIN_TEST_IMPORTS": IMPORTS}
    return run_ranks(run_dir / "script.py", run_dir, size, context=context, env=env)


def well(ranks):
    for rank in ranks:
        assert rank.exit_code == 0, rank.output
    return ranks


def events(ranks, kind):
    return [event for rank in ranks for event in rank.events if event["kind"] == kind]
