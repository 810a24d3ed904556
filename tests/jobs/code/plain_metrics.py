"""A program that imports nothing of dtrain. It validates once per epoch by a JSON line, and trains until it is ended.

Argument: number of epochs.
"""

import json
import os
import sys
import time

quality = json.loads(os.environ["DTRAIN_HPARAMS"])["quality"]
for epoch in range(1, int(sys.argv[1]) + 1):
    line = {"step": epoch, "validation": {"quality": quality}}
    with open(os.environ["DTRAIN_METRICS"], "a") as file:
        file.write("no json\n" if epoch == 1 else "")
        file.write(json.dumps(line) + "\n")
    time.sleep(1.5 if epoch in (2, 4) else 0)
