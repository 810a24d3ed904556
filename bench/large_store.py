"""The seeded store with 10,000 trials and 1,000 hosts, which several benchmarks copy.

Seeding it takes two minutes of CPU, so it is kept for some hours below the folder of the benchmarks' peers.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

from airflow_provider_dtrain.store.database.schema import HEAD
from bench.framework.measuring import Run
from bench.framework.peers import cache_folder

SEED = Path(__file__).resolve().parents[1] / "testbed" / "seed"
#: Pages show the last hours and days, so an old store would show less.
KEPT_S = 6 * 3600.0


def seeded(run: Run) -> str:
    """Return the URL of a copy of the store, a small one with ``--quick``."""
    target = run.folder / "seeded.db"
    if run.is_quick:
        _seed(target, "small")
        return f"sqlite:///{target}"
    code = sha256(b"".join(path.read_bytes() for path in sorted(SEED.glob("*.py")))).hexdigest()
    kept = cache_folder() / f"large-{HEAD}-{code[:12]}.db"
    if not kept.exists() or time.time() - kept.stat().st_mtime > KEPT_S:
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = run.folder / "part.db"
        _seed(part, "large")
        # The process that seeds has closed the store, so that all of it is in this file.
        shutil.move(part, kept)
    shutil.copyfile(kept, target)
    return f"sqlite:///{target}"


def _seed(path: Path, scene: str) -> None:
    subprocess.run([sys.executable, "-m", "testbed.seed", "--store", f"sqlite:///{path}", "--scene", scene], check=True)
