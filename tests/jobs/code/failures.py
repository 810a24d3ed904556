"""Ranks that fail. The first argument is the kind of failure, the second the failing rank."""

import os
import signal
import sys
import time

rank = int(os.environ["RANK"])
way, failing = sys.argv[1], int(sys.argv[2])


def event(kind, **fields):
    from pathlib import Path

    from airflow_provider_dtrain.train.reports.events import EventWriter

    EventWriter(Path(os.environ["DTRAIN_EVENTS"])).write(kind, fields)


def talk(line):
    print(line)
    for number in range(2000):
        print("nothing to see here", number, "x" * 80)
    sys.stdout.flush()


if rank != failing:
    if way.startswith("say "):
        talk(way[4:])
    time.sleep(30)
if way == "completes":
    event("validation", step=1, metrics={"accuracy": 0.5})
elif way == "checkpoint":
    os.makedirs("../checkpoints/step-20")
    event("checkpoint", step=20, path="checkpoints/step-20", metrics={})
    raise ValueError("cannot go on")
elif way == "reports":
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    for step in (10, 20, 30) if first else (25, 35):
        event("report", step=step, epoch=step // 20, metrics={"loss": 1 / step})
    event("validation", step=30 if first else 35, metrics={"accuracy": 0.5 if first else 0.6})
    if first:
        raise ValueError("cannot go on")
elif way == "invalid":
    event("invalid_hp", reason="lr 7 is too large for 3 layers")
    raise SystemExit(1)
elif way == "exit":
    raise SystemExit(3)
elif way == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
else:
    if way.startswith("say "):
        # The other ranks have printed their lines.
        time.sleep(0.7)
    raise ValueError("cannot go on")
