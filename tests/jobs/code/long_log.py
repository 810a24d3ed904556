"""Writes a long log, waits for a file, and writes its end. Rank 0 fails in the first attempt.

Arguments: lines before the file appears, and a folder that all ranks see. It has the file ``go`` once they may end.
"""

import os
import sys
import time
from pathlib import Path

lines, folder = int(sys.argv[1]), Path(sys.argv[2])
rank = os.environ["RANK"]
failed = folder / "failed"
if rank == "0" and not failed.exists():
    failed.touch()
    raise ValueError("the first attempt fails")
for number in range(lines):
    if number % 10_000 == 9_999:
        sys.stdout.write(f"ERROR storage: rank {rank} cannot upload shard {number}\n")
    elif number % 1_000 == 999:
        sys.stdout.write(f"WARNING data: rank {rank} waited for shard {number}\n")
    else:
        sys.stdout.write(f"INFO trainer: rank {rank}, step {number}: loss {2.5 / (1 + number / 500):.4f}\n")
sys.stdout.flush()
(folder / f"written-{rank}").touch()
deadline = time.monotonic() + 900
while not (folder / "go").exists():
    if time.monotonic() > deadline:
        raise TimeoutError("the test has not created the file")
    time.sleep(0.1)
for number in range(100):
    print(f"INFO trainer: rank {rank} saves part {number} of the model", flush=True)
