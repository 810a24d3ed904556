"""Counts up, validates each number and follows the searcher, with the training library's own parts. No torch.

Arguments: last number, seconds per number. The metric is the hyperparameter ``quality``. A quality below ``REFUSES`` is
rejected in step ``REFUSES_AT`` (default 0), a trial of quality ``IGNORES`` ignores decisions, and a trial of quality
``HOLDS`` waits in step 3 for a late decision. ``FAULT`` names the point of rung 0 at which the first attempt of the
trial of quality 0.5 kills itself.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from airflow_provider_dtrain.train.reports.events import EventWriter
from airflow_provider_dtrain.train.search.rungs import RungQuestions

last, pause_s = int(sys.argv[1]), float(sys.argv[2])
run_dir, context = Path(os.environ["DTRAIN_RUN_DIR"]), json.loads(Path(os.environ["DTRAIN_CONTEXT"]).read_text())
quality, refuses = context["hparams"]["quality"], float(os.environ.get("REFUSES", "-inf"))
refuses_at = int(os.environ.get("REFUSES_AT", "0"))
holds = os.environ.get("HOLDS") == str(quality)
is_deaf = os.environ.get("IGNORES") == str(quality)
fault = os.environ.get("FAULT") if quality == 0.5 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else None


def at(point, rung):
    if fault == point and rung == 0:
        os.kill(os.getpid(), signal.SIGKILL)


class Writer(EventWriter):
    """Writes events, with fault points before and after a rung event is on the disk."""

    rung = None

    def write(self, kind, fields, *, sync=False):
        if kind == "rung":
            self.rung = fields["rung"]
            at("before the question", self.rung)
        super().write(kind, fields, sync=sync)
        if kind == "rung":
            at("after the question", self.rung)


def save(number):
    folder = run_dir / "checkpoints" / f"step-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "number").write_text(str(number))
    metrics = {"quality": quality}
    writer.write("checkpoint", {"step": number, "path": f"checkpoints/step-{number}", "metrics": metrics}, sync=True)


def check(number):
    if quality < refuses and number >= refuses_at:
        writer.write("invalid_hp", {"reason": f"{quality} is too low"}, sync=True)
        raise SystemExit(65)


def main():
    latest = os.environ.get("DTRAIN_LATEST_CHECKPOINT")
    number = int((Path(latest) / "number").read_text()) if latest else 0
    print("from", number, "with", quality, flush=True)
    writer.write("init", {})
    writer.write("first_step", {})
    if number == 0:
        save(0)
    check(number)
    rungs = RungQuestions(
        context["rungs"], writer, run_dir, timeout_s=float(context["config"].get("decision_timeout") or 30)
    )  # fmt: skip
    while number < last:
        time.sleep(pause_s)
        while number == 2 and holds and not (run_dir / "decisions.json").exists():
            time.sleep(0.05)
        number += 1
        writer.write("validation", {"step": number, "metrics": {"quality": quality}})
        writer.rung = None
        rungs.reach(number, quality, number)
        if number == last:
            rungs.settle()
        check(number)
        ended = rungs.poll() and not is_deaf
        at("before the broadcast", writer.rung)
        stop = ended or (run_dir / "stop_requested").exists()
        at("before the checkpoint", writer.rung)
        save(number)
        at("after the checkpoint", writer.rung)
        if stop:
            writer.write("stopped", {"step": number}, sync=True)
            print("ended at" if ended else "stopped at", number, flush=True)
            return
    print("done at", number, flush=True)


writer = Writer(Path(os.environ["DTRAIN_EVENTS"]))
main()
