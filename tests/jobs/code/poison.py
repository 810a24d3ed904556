"""Ranks that write invalid data into their events file. The argument selects the data. No torch."""

import json
import os
import sys
import time
import zlib

path = os.environ["DTRAIN_EVENTS"]


def line(body):
    return b"%08x %s\n" % (zlib.crc32(body), body)


def event(seq, kind, **fields):
    return line(json.dumps({"seq": seq, "at": time.time(), "kind": kind, **fields}).encode())


def corrupt():
    """Return an events file of lines that a parser may fail on, with valid reports in between."""
    poison = [
        line(b"[" * 100_000),
        b"\xff\xfe\x00 no line of ours\n",
        b"00000000 {}\n",
        line(b'{"seq":1,"at":1,"kind":"report","step":1,"metrics":{"loss":1e999999}}'),
        line(b'{"seq":1,"at":1,"kind":"report","step":' + b"9" * 100_000 + b',"metrics":{}}'),
        line(b'{"seq":1,"at":1,"kind":"report","step":1,"metrics":{"loss":NaN}}'),
        line(b'{"seq":-1,"at":1,"kind":"report"}'),
        line(b'{"seq":1,"kind":"report","step":1,"metrics":{}}'),
        event(1, "report", step="1", metrics={}),
        event(1, "report", step=1, metrics=["loss"]),
        event(1, "validation", step=1, metrics="loss"),
        event(1, "validation", step=1, metrics={f"m{number}": 1.0 for number in range(100_000)}),
        event(1, "exit", rank="0", exit_code=0),
        event(1, "exit", rank=0, exit_code=1, error={"message": "forged"}),
        event(1, "ended", reason="failed"),
        event(1, "checkpoint", step=1, path=7),
        event(1, "x" * (3 << 20)),
        b"x" * (2 << 20) + b"\n",
    ]
    good = [event(10 + number, "report", step=number, metrics={"loss": 1.0}) for number in range(len(poison))]
    return b"".join(part for pair in zip(poison, good, strict=True) for part in pair) + event(
        99, "custom", text="\ud800\x00"
    )


with open(path, "ab") as file:
    if sys.argv[1] == "corrupt":
        file.write(corrupt())
    elif sys.argv[1] == "unfinished":
        file.write(event(1, "report", step=1, metrics={"loss": 1.0}) + b"x" * (3 << 20))
    elif sys.argv[1] == "many":
        for start in range(0, 100_000, 1000):
            steps = range(start, start + 1000)
            file.write(b"".join(event(step, "report", step=step, metrics={"loss": 1.0}) for step in steps))
        file.write(event(100_000, "validation", step=100_000, metrics={"loss": 0.5}))
time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
