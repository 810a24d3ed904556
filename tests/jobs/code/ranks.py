"""Ranks without torch: what they do is the first argument."""

import os
import subprocess
import sys
import time

rank = int(os.environ["RANK"])
print(f"rank {rank} of {os.environ['WORLD_SIZE']} on {os.uname().nodename}: {' '.join(sys.argv[1:])}", flush=True)

match sys.argv[1:]:
    case ["facts"]:
        print("hparams", os.environ["DTRAIN_HPARAMS"], flush=True)
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
        # Slots in use, seen from outside the store: one file per slot, exclusively created.
        path = os.path.expanduser(f"~/{os.uname().nodename}-slot-{os.environ['DTRAIN_SLOT']}")
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        time.sleep(float(seconds))
        os.unlink(path)
    case ["count", numbers]:
        for number in range(int(numbers)):
            print("number", number, flush=True)
            time.sleep(0.1)
