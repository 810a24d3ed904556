"""Counts up, resumes from its checkpoint, and writes the events of the training library. No torch.

Arguments: way, last number, seconds per number. Ways: ``library`` checks for stop requests; ``deaf`` joins the library
and never checks; ``plain`` does not join, and ends on SIGTERM with a checkpoint; ``mixed`` is ``library`` in rank 0,
which stops some seconds after the other ranks, ``plain`` in the other ranks, and counts without pauses once resumed;
``stubborn`` ignores SIGTERM; ``to_the_end`` ignores stop requests and finishes; ``breaks`` fails at a stop request;
``fails_once`` fails half way in the first attempt.
"""

import os
import signal
import sys
import time
from pathlib import Path

from airflow_provider_dtrain.train.reports.events import EventWriter

way, last, pause_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
rank, run_dir = int(os.environ["RANK"]), Path(os.environ["DTRAIN_RUN_DIR"])
writer = EventWriter(Path(os.environ["DTRAIN_EVENTS"]))
is_mixed, left = way == "mixed", run_dir / "left"
if way == "mixed":
    way = "library" if rank == 0 else "plain"
joins = way not in ("plain", "stubborn")
asked = []


def save(number):
    if rank == 0:
        folder = run_dir / "checkpoints" / f"step-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "number").write_text(str(number))
        writer.write("checkpoint", {"step": number, "path": f"checkpoints/step-{number}", "metrics": {}})


def main():
    latest = os.environ.get("DTRAIN_LATEST_CHECKPOINT")
    number = int((Path(latest) / "number").read_text()) if latest else 0
    print("from", number, flush=True)
    if joins:
        writer.write("init", {})
        writer.write("first_step", {})
    signal.signal(signal.SIGTERM, signal.SIG_IGN if way == "stubborn" else lambda *_: asked.append(True))
    if number == 0:
        save(0)
    while number < last:
        time.sleep(0 if is_mixed and latest else pause_s)
        number += 1
        stop = bool(asked) if not joins else (run_dir / "stop_requested").exists()
        if stop and way in ("library", "plain"):
            if is_mixed and joins:
                while not left.exists():
                    time.sleep(0.05)
                time.sleep(4.0)
            save(number)
            left.touch()
            if joins and rank == 0:
                writer.write("stopped", {"step": number}, sync=True)
            print("stopped at", number, flush=True)
            raise SystemExit(0 if joins else 143)
        if way == "fails_once" and number * 2 >= last and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("cannot go on")
        if stop and way == "breaks":
            raise ValueError("cannot stop")
    print("done at", number, flush=True)
    if rank == 0:
        writer.write("result", {"value": {"number": number}})


main()
