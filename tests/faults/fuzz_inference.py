"""Seeded fuzz runs of batch inferences: several gangs write to one folder, and faults end them.

    python -m tests.faults.fuzz_inference --runs 200 --seed 1

Each run has its own input and output folder, up to four gangs with faults, damage of the folder between them, and at
last a gang without faults. After each gang that published, and at the end, the folder must hold exactly the objects of
the manifest, each row once, with its expected value. The ranks are forked from programs that have imported PyTorch. A
line per run has seed, faults, CPU seconds and violations. ``--runs 1 --seed N`` repeats a run: the faults at an
operation on the folder and at a row are at the same place again, the others at nearly the same time.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from testbed.standalone import wait_until
from tests.faults.inference_gangs import IMPORTS, Gang, Place
from tests.faults.inference_verdict import after_gang, at_the_end
from tests.support.warm_ranks import WarmRanks

#: Beginning and end of the interval in which a fault without a place occurs, seconds after the start of the gang.
EARLY_S, LATE_S = 0.1, 4.0


@dataclass
class Fuzz:
    """One fuzz run."""

    seed: int
    place: Place
    dice: random.Random
    ranks: tuple[WarmRanks, WarmRanks]
    task: int = 1
    faults: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def gang(self, **options: object) -> Gang:
        """Start a gang of the current task, with the shards that earlier crashes are blamed on."""
        options = {"task": self.task, "size": self.size(), "blamed": self.blamed(), **options}
        return Gang(self.place, self.ranks[0], **options)  # type: ignore[arg-type]

    def size(self) -> int:
        return self.dice.choice([1, 1, 2, 2, 3, 5])

    def blamed(self) -> dict[str, int]:
        """Return one failure for a shard in which the last gang died, as the engine does."""
        if not self.place.gangs or self.dice.random() < 0.5:
            return {}
        last = self.place.gangs[-1]
        died = sorted(last.shards("shard_started") - last.shards("shard_done") - last.shards("shard_skipped"))
        return {str(died[0]): 1} if died and last.task == self.task and any(last.codes()) else {}

    def next_task(self) -> None:
        """Let the next gang be one of another trial, now and then."""
        if self.dice.random() < 0.4:
            self.task += 1

    def row(self) -> int:
        return self.dice.randrange(self.place.rows)

    def wait(self) -> None:
        threading.Event().wait(self.dice.uniform(EARLY_S, LATE_S))

    def check(self, gang: Gang) -> None:
        gang.codes()
        self.violations += after_gang(self.place, gang)


# -- gangs with a fault ------------------------------------------------------------------------------------------------


def no_fault(fuzz: Fuzz) -> None:
    fuzz.check(fuzz.gang())


def kill_rank(fuzz: Fuzz) -> None:
    gang = fuzz.gang()
    fuzz.wait()
    gang.signal(fuzz.dice.randrange(gang.size), signal.SIGKILL)
    fuzz.check(gang)


def crash_hosts(fuzz: Fuzz) -> None:
    gang = fuzz.gang()
    fuzz.wait()
    gang.kill()
    fuzz.check(gang)


def kill_at_write(fuzz: Fuzz) -> None:
    """Kill a rank at one of its operations on the folder: in a delivery, at the start, or while it publishes."""
    size = fuzz.size()
    fault = f"kill {fuzz.dice.choice(['before', 'after'])} {fuzz.dice.randint(1, 60)}"
    fuzz.check(fuzz.gang(size=size, faults={fuzz.dice.randrange(size): fault}))


def fill_disk(fuzz: Fuzz) -> None:
    size = fuzz.size()
    gang = fuzz.gang(size=size, faults={fuzz.dice.randrange(size): f"full {fuzz.dice.randint(1, 30)}"})
    if any(gang.codes()) and "No space left on device" not in gang.output():
        fuzz.violations.append(f"a full disk is not named\n{gang.output()}")


def die_in_row(fuzz: Fuzz) -> None:
    _at_row(fuzz, "die")


def fail_in_row(fuzz: Fuzz) -> None:
    _at_row(fuzz, "raise")


def _at_row(fuzz: Fuzz, kind: str) -> None:
    size, mark = fuzz.size(), fuzz.place.folder / f"mark-{len(fuzz.place.gangs)}"
    fault = f"{kind} {fuzz.row()} {mark}"
    fuzz.check(fuzz.gang(size=size, faults=dict.fromkeys(range(size), fault)))


def stop_gang(fuzz: Fuzz) -> None:
    gang = fuzz.gang()
    fuzz.wait()
    gang.stop()
    fuzz.check(gang)


def two_at_once(fuzz: Fuzz) -> None:
    """Start a run of another trial while one computes: it must be refused."""
    size, mark = fuzz.size(), fuzz.place.folder / f"mark-{len(fuzz.place.gangs)}"
    first = fuzz.gang(size=size, faults=dict.fromkeys(range(size), f"hold {fuzz.row()} {mark}"))
    owner = fuzz.place.out / "_dtrain" / "owner.json"
    wait_until(lambda: first.ended() or _is_owned_by(owner, fuzz.task), timeout_s=60, what="the owner", poll_s=0.05)
    before = first.ended()
    second = Gang(fuzz.place, fuzz.ranks[1], task=fuzz.task + 100, size=fuzz.size())
    second.codes()
    is_late = before or first.ended()
    mark.touch()
    if second.is_well and not is_late:
        fuzz.violations.append(f"a second run was not refused\n{second.output()}")
    if not second.is_well and "FolderInUseError" not in second.output() and not (is_late and second.has_refused):
        fuzz.violations.append(f"a second run was not refused by name\n{second.output()}")
    fuzz.check(first)


def _is_owned_by(owner: Path, task: int) -> bool:
    try:
        return f'"store-t{task}"' in owner.read_text()
    except FileNotFoundError:
        return False


def stale_owner(fuzz: Fuzz) -> None:
    """Stop a rank at an operation until a run of another trial has taken over the folder and ended."""
    size = fuzz.size()
    rank = fuzz.dice.choice([0, 0, fuzz.dice.randrange(size)])
    fault = f"stop {fuzz.dice.choice(['before', 'after'])} {fuzz.dice.randint(4, 60)}"
    first = fuzz.gang(size=size, faults={rank: fault})
    wait_until(lambda: first.ended() or first.is_stopped(), timeout_s=60, what="the stop", poll_s=0.05)
    if first.ended():
        return fuzz.check(first)
    if rank:
        # The owner is not the one that is stopped: all hosts of the gang hang.
        for other in range(size):
            first.signal(other, signal.SIGSTOP)
    fuzz.task += 1
    second = Gang(fuzz.place, fuzz.ranks[1], task=fuzz.task, size=fuzz.size())
    fuzz.check(second)
    for other in range(size):
        first.signal(other, signal.SIGCONT)
    if not any(first.codes()) and first.events("manifest"):
        fuzz.violations.append("a run published although another one had taken over its folder")
    if second.is_well:
        fuzz.violations += [f"after the stale run: {one}" for one in after_gang(fuzz.place, second)]
    return None


def overwrite(fuzz: Fuzz) -> None:
    """Begin anew with other settings. A rank may be killed while it clears the folder."""
    fuzz.place.factor += 1
    fuzz.task += 1
    size = fuzz.size()
    faults = {0: f"kill before {fuzz.dice.randint(3, 60)}"} if fuzz.dice.random() < 0.7 else {}
    fuzz.check(fuzz.gang(size=size, faults=faults, overwrite=True))
    if not fuzz.place.gangs[-1].is_well:
        fuzz.check(fuzz.gang(overwrite=True))


GANGS: Mapping[str, Callable[[Fuzz], None]] = {
    "no fault": no_fault, "rank killed": kill_rank, "hosts crashed": crash_hosts, "killed at a write": kill_at_write,
    "disk full": fill_disk, "rank dies in a row": die_in_row, "row fails once": fail_in_row, "stopped": stop_gang,
    "two at once": two_at_once, "stale owner": stale_owner, "overwritten": overwrite,
}  # fmt: skip


# -- damage between two gangs ------------------------------------------------------------------------------------------


def _some(fuzz: Fuzz, pattern: str) -> Path | None:
    found = sorted(path for path in fuzz.place.out.glob(pattern) if path.is_file())
    return fuzz.dice.choice(found) if found else None


def remove(fuzz: Fuzz, pattern: str) -> None:
    if path := _some(fuzz, pattern):
        path.unlink()


def cut(fuzz: Fuzz, pattern: str) -> None:
    if path := _some(fuzz, pattern):
        content = path.read_bytes()
        path.write_bytes(content[: fuzz.dice.randrange(max(1, len(content)))])


def dead_owner(fuzz: Fuzz) -> None:
    """Leave the owner of a run of another trial that is dead."""
    path = fuzz.place.out / "_dtrain" / "owner.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"run": "store-t999.1.1", "key": "store-t999", "host": "gone", "beat": 3}))


PART = "**/part-*"
DAMAGES: Mapping[str, Callable[[Fuzz], None]] = {
    "part deleted": lambda fuzz: remove(fuzz, PART), "part cut": lambda fuzz: cut(fuzz, PART),
    "entry deleted": lambda fuzz: remove(fuzz, "_dtrain/done/*"), "entry cut": lambda fuzz: cut(fuzz, "_dtrain/done/*"),
    "manifest deleted": lambda fuzz: remove(fuzz, "_manifest.json"),
    "manifest cut": lambda fuzz: cut(fuzz, "_manifest.json"),
    "owner cut": lambda fuzz: cut(fuzz, "_dtrain/owner.json"), "dead owner": dead_owner,
}  # fmt: skip


# -- runs --------------------------------------------------------------------------------------------------------------


def new_place(dice: random.Random, folder: Path) -> Place:
    """Return a random input and output."""
    rows = dice.choice([1, 7, 60, 120, 200, 400])
    shard_rows = max(1, rows // dice.choice([1, 2, 5, 12, 25]))
    poison = dice.randrange(rows) if dice.random() < 0.15 else None
    return Place(folder, rows, shard_rows, dice.choice([3, 16, 64]), dice.choice(["parquet", "jsonl"]), poison)


def one_run(seed: int, folder: Path, ranks: tuple[WarmRanks, WarmRanks], names: list[str]) -> Fuzz:
    """Run some gangs with faults and one without, and return the run with its violations."""
    dice = random.Random(seed)
    fuzz = Fuzz(seed, new_place(dice, folder), dice, ranks)
    try:
        for _ in range(dice.randint(1, 4)):
            _disturb(fuzz, names)
        fuzz.violations += at_the_end(fuzz.place, fuzz.gang())
    except Exception as error:
        fuzz.violations.append(f"the run ended with {error!r}")
    for gang in fuzz.place.gangs:
        gang.kill()
        gang.ended(60)
    return fuzz


def _disturb(fuzz: Fuzz, names: list[str]) -> None:
    name = fuzz.dice.choice(names)
    fuzz.faults.append(name)
    GANGS[name](fuzz)
    if fuzz.dice.random() < 0.4:
        damage = fuzz.dice.choice(list(DAMAGES))
        fuzz.faults.append(damage)
        DAMAGES[damage](fuzz)
    fuzz.next_task()


def describe(fuzz: Fuzz) -> str:
    """Return what is needed to understand a violation."""
    place = fuzz.place
    lines = [f"seed {fuzz.seed}: {place.rows} rows, shards of {place.shard_rows}, {place.kind}, poison {place.poison}"]
    for gang in place.gangs:
        lines.append(f"gang {gang.number}: task {gang.task}, {gang.size} ranks, {gang.codes()}, faults {gang._faults}")
        lines.append(gang.output())
    return "\n".join([*lines, *fuzz.violations])


@contextlib.contextmanager
def warm() -> Iterator[tuple[WarmRanks, WarmRanks]]:
    """Yield two programs that fork ranks, for two gangs at once."""
    both = (WarmRanks("1", "", IMPORTS, ""), WarmRanks("1", "", IMPORTS, ""))
    try:
        yield both
    finally:
        for one in both:
            one.close()


def main() -> int:
    """Run the seeds, print a line for each and the number of faults, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fuzz_inference", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=24 * 60.0, help="start no run after this time")
    parser.add_argument("--faults", help="comma-separated names of the only faults")
    options = parser.parse_args()
    names = options.faults.split(",") if options.faults else list(GANGS)
    counts: collections.Counter[str] = collections.Counter()
    stop_at, runs, gangs, bad = time.monotonic() + options.minutes * 60, 0, 0, 0
    out = Path(tempfile.mkdtemp(prefix="dtrain-fuzz-inference-"))
    with warm() as ranks:
        for seed in range(options.seed, options.seed + options.runs):
            if time.monotonic() > stop_at:
                break
            begun, before = time.monotonic(), sum(one.cpu_s() for one in ranks)
            fuzz = one_run(seed, out / str(seed), ranks, names)
            cpu_s = sum(one.cpu_s() for one in ranks) - before
            runs, gangs, bad = runs + 1, gangs + len(fuzz.place.gangs), bad + bool(fuzz.violations)
            counts.update(fuzz.faults)
            verdict = "; ".join(one.partition("\n")[0] for one in fuzz.violations) or "ok"
            print(
                f"seed {seed}: {len(fuzz.place.gangs)} gangs, {', '.join(fuzz.faults)}; "
                f"{time.monotonic() - begun:.1f} s, {cpu_s:.1f} CPU s: {verdict}",
                flush=True,
            )
            if fuzz.violations:
                (out / f"seed-{seed}.txt").write_text(describe(fuzz))
            else:
                shutil.rmtree(out / str(seed))
    for name, count in sorted(counts.items()):
        print(f"{name:<20}{count:>6}")
    print(f"{runs} runs, {gangs} gangs, {counts.total()} faults, {bad} runs with violations. Results: {out}")
    return int(bad > 0 or not runs)


if __name__ == "__main__":
    raise SystemExit(main())
