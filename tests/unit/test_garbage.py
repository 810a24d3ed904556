"""Full collections of the API server examine neither its code nor what survived a long collection."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAP = """
import gc
from airflow_provider_dtrain.api import garbage

loaded_before = [[] for _ in range(1000)]
garbage.LONG_S, garbage.AGAIN_S = {long_s}, {again_s}
garbage.Garbage().start()
assert gc.get_freeze_count() > 1000
frozen = gc.get_freeze_count()
loaded_later = [[] for _ in range(1000)]
gc.collect(1)
assert gc.get_freeze_count() <= frozen, "a collection of the young froze"
gc.collect()
print("frozen" if gc.get_freeze_count() > frozen + 900 else "examined" if gc.get_freeze_count() == 0 else "kept")
"""


@pytest.mark.parametrize(
    ("long_s", "again_s", "outcome"), [(-1.0, 60.0, "frozen"), (60.0, 60.0, "kept"), (-1.0, -1.0, "examined")]
)
def test_what_survives_a_long_full_collection_is_frozen_until_the_next_hour(long_s, again_s, outcome):
    code = HEAP.format(long_s=long_s, again_s=again_s)
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == outcome
