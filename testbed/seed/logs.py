"""Complete logs of simulated runs, as operations have copied them."""

from __future__ import annotations

from airflow_provider_dtrain.core.logs.clock import Sample
from testbed.seed.run import Run
from testbed.seed.simulation import Life

#: Simulated seconds between two parts of a log.
PART_S = 300.0
#: Parts of a log: more than two days.
PARTS = 600
#: Bytes that no page may obey.
HOSTILE = b"<img src=x onerror=window.hacked=1> \x1b]0;title\x07\x1b[2J\0 \xff \xe2\x80\xae evil\r<b>shown</b>\n"


def write_log(run: Run, rank: int, content: bytes, since_s: float, *, is_complete: bool = False) -> None:
    """Append to the copy of a rank's log, whose lines were written evenly from a time until now."""
    copies = run.store.log_copies
    attempt = run.ticket.attempt_id
    known = copies.get(attempt, rank)
    start = 0 if known is None else known.end
    lines = content.splitlines(keepends=True)
    step_s = (run.site.clock.unix - since_s) / max(1, len(lines))
    samples: list[Sample] = []
    end = start
    for number, line in enumerate(lines, 1):
        end += len(line)
        samples.append((end, since_s + number * step_s))
    copies.append(attempt, rank, start, content, samples=samples)
    if is_complete:
        copies.complete(attempt, rank, end)


def steps(rank: int, first: int, count: int) -> bytes:
    """Return lines as a training prints them."""
    lines = []
    for step in range(first, first + count):
        lines.append(f"INFO trainer: rank {rank}, step {step}: loss {2.5 / (1 + step / 50):.4f}, lr 3.00e-04")
        if step % 40 == 39:
            lines.append(f"\x1b[33mWARNING data: shard {step % 64} took {1 + step % 7} s to load\x1b[0m")
        if step % 150 == 149:
            lines += [
                f"ERROR storage: the upload of step {step} is tried again",
                "Traceback (most recent call last):",
                '  File "/home/trainer/storage.py", line 88, in upload',
                "    self.client.put(path)",
                "ConnectionResetError: [Errno 104] Connection reset by peer",
            ]
    return ("\n".join(lines) + "\n").encode()


def logged(run: Run, ranks: int) -> Life:
    """The logs of the first ranks of a run, from the first attempt on."""
    for part in range(PARTS):
        begin_s = run.site.clock.unix
        yield PART_S
        for rank in range(ranks):
            write_log(run, rank, steps(rank, 40 * part, 40), begin_s)
