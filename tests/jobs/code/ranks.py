"""Ranks without torch. The first argument selects the action."""

import json
import os
import subprocess
import sys
import time

rank = int(os.environ["RANK"])
print(f"rank {rank} of {os.environ['WORLD_SIZE']} on {os.uname().nodename}: {' '.join(sys.argv[1:])}", flush=True)

match sys.argv[1:]:
    case ["facts"]:
        print("hparams", os.environ["DTRAIN_HPARAMS"], flush=True)
    case ["table"]:
        with open(os.environ["DTRAIN_CONTEXT"]) as file:
            table = json.load(file)["hparams"]["table"]
        print("table", len(table), "DTRAIN_HPARAMS" in os.environ, flush=True)
    case ["sleep", seconds]:
        # A grandchild in a session of its own must end with its rank.
        subprocess.Popen(["sleep", seconds], start_new_session=True)
        time.sleep(float(seconds))
    case ["fail", failing]:
        if rank == int(failing):
            time.sleep(0.3)
            raise ValueError(f"rank {rank} cannot go on")
        time.sleep(60)
    case ["hold", seconds]:
        # Detects double use of a slot without the store: one file per slot, created exclusively.
        path = os.path.expanduser(f"~/{os.uname().nodename}-slot-{os.environ['DTRAIN_SLOT']}")
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        time.sleep(float(seconds))
        os.unlink(path)
    case ["count", numbers]:
        for number in range(int(numbers)):
            print("number", number, flush=True)
            time.sleep(0.1)
