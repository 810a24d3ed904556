"""The framework of the benchmarks: order of rounds, quartiles, goals, refusal under load, tables, containment."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench import __main__ as program
from bench.framework import machine, report, rows
from bench.framework.measuring import Run
from bench.framework.peers import PeerError
from bench.framework.report import Result
from bench.framework.rows import LIMIT, OURS, PEER, Bench, Goal, Row

ROOT = Path(__file__).resolve().parents[2]
ROW = Row(
    name="start",
    what="Until the first step",
    unit="s",
    sides={"ours": OURS, "theirs": PEER, "bare": LIMIT},
    base="theirs",
    goals=(Goal(side="ours", at_most=0.5, of="theirs"), Goal(side="ours", at_most=0.1)),
)
VALUES = {"start": {"ours": [1.0, 3.0, 2.0], "theirs": [4.0, 8.0, 6.0]}}
#: A benchmark that leaves a process in a session of its own, which ignores all polite signals.
LEAVES = """
import os, subprocess, sys, time
from bench.framework.rows import OURS, Bench, Row
STUBBORN = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; print(flush=True); "
STUBBORN += "time.sleep(600)"

def measure(run):
    left = subprocess.Popen([sys.executable, "-c", STUBBORN], start_new_session=True, stdout=subprocess.PIPE)
    left.stdout.readline()
    run.add("row", "ours", 1.5)
    open(os.environ["BENCH_TEST_PID"], "w").write(str(left.pid))
    if os.environ["BENCH_TEST_WAITS"] == "yes":
        time.sleep(600)

BENCH = Bench(what="A test", rows=(Row(name="row", what="One", unit="s", sides={"ours": OURS}),), measure=measure)
"""
STARTS = """
import sys
from pathlib import Path
from bench import __main__ as program
from bench.framework import rows
import bench
bench.__path__.append(sys.argv[1])
program.FIRST = "leaves"
rows.names = lambda: ["leaves"]
sys.exit(program.main(["run", "leaves", "--anyway", "--json", sys.argv[2]]))
"""


def lines_of(output: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.getvalue().splitlines()]


def test_rounds_alternate_their_order_and_warm_ups_do_not_count(tmp_path: Path) -> None:
    output, calls = io.StringIO(), []

    def side(name: str) -> Callable[[], float]:
        return lambda: float(len(calls) if calls.append(name) else len(calls))

    run = Run(rounds=2, is_quick=True, folder=tmp_path, output=output)
    run.turns({"a": side("a"), "b": side("b")}, "row", warm_up=1)
    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert [(line["side"], line["values"]) for line in lines_of(output)] == [
        ("b", [3.0]),
        ("a", [4.0]),
        ("a", [5.0]),
        ("b", [6.0]),
    ]


def test_one_call_may_give_values_for_several_rows(tmp_path: Path) -> None:
    output = io.StringIO()
    Run(rounds=1, is_quick=False, folder=tmp_path, output=output).turns({"ours": lambda: {"wall": 2.0, "CPU": 1.0}})
    assert [(line["row"], line["values"]) for line in lines_of(output)] == [("wall", [2.0]), ("CPU", [1.0])]


def test_a_peer_that_fails_is_noted_and_left_out_of_later_rounds(tmp_path: Path) -> None:
    output, calls = io.StringIO(), []

    def fails() -> float:
        calls.append("theirs")
        raise PeerError("no module")

    run = Run(rounds=3, is_quick=False, folder=tmp_path, output=output)
    run.turns({"theirs": fails, "ours": lambda: 1.0}, "row")
    assert calls == ["theirs"]
    first, *others = lines_of(output)
    assert first == {"note": "theirs: no module"}
    assert [line["side"] for line in others] == ["ours"] * 3


def test_quartiles_are_those_of_the_values_and_ratios_those_of_the_rounds() -> None:
    assert rows.quartiles([5.0, 1.0, 2.0, 4.0, 3.0]) == (2.0, 3.0, 4.0)
    assert rows.quartiles([7.0]) == (7.0, 7.0, 7.0)
    assert rows.quantile(range(101), 0.99) == 99
    assert rows.ratio([1.0, 30.0, 2.0], [2.0, 60.0, 4.0]) == 0.5
    assert rows.ratio([1.0, 3.0], [4.0]) == 0.5


@pytest.mark.parametrize(
    ("goal", "is_met"),
    [
        (Goal(side="ours", at_most=0.5, of="theirs"), True),
        (Goal(side="ours", at_most=0.2, of="theirs"), False),
        (Goal(side="ours", at_least=2.0), True),
        (Goal(side="ours", at_most=2.5, quantile=1), False),
        (Goal(side="ours", at_most=0.5, of="missing"), None),
    ],
)
def test_a_goal_is_met_missed_or_not_judged(goal: Goal, is_met: bool | None) -> None:
    assert goal.is_met(VALUES["start"]) is is_met


def test_the_table_has_medians_quartiles_ratios_and_verdicts() -> None:
    first, second = report.lines_of(ROW, Result("a", "measured", values=VALUES))
    assert first[:6] == ("start, s", "ours", "2", "1.5 .. 2.5", "3", "0.33")
    assert first[6] == "ours: median <= 0.5 of theirs: met; ours: median <= 0.1 s: missed"
    assert second == ("", "theirs (peer)", "6", "5 .. 7", "3", "", "")


@pytest.mark.parametrize(
    "result", [Result("a", "measured", is_comparable=False), Result("a", "measured", is_quick=True)]
)
def test_no_goal_is_judged_under_load_or_after_a_quick_run(result: Result) -> None:
    result.values = VALUES
    line = report.lines_of(ROW, result)[0]
    assert "met" not in line[6]
    assert "missed" not in line[6]
    assert bool(line[5]) is result.is_comparable


def test_files_have_machine_load_versions_and_values() -> None:
    result = Result("a", "measured", values=VALUES, versions={"ray": "2"}, others=(0.01, 0.02), notes=["A note."])
    bench = Bench(what="A test", rows=(ROW,), measure=lambda _: None)
    page = report.markdown({"processor": "one"}, {"a": bench}, [result])
    for part in ("- processor: one", "## a", "| theirs (peer)", "1 % of the cores before, 2 %", "ray 2.", "- A note."):
        assert part in page
    written = json.loads(report.as_json({"processor": "one"}, {"quick": True}, [result]))
    (record,) = written["benchmarks"]
    assert record["values"] == VALUES
    assert record["quartiles"]["start"]["ours"] == [1.5, 2.0, 2.5]
    assert (written["machine"], written["options"]) == ({"processor": "one"}, {"quick": True})


def test_an_incomplete_last_line_is_left_out(tmp_path: Path) -> None:
    file, result = tmp_path / "values", Result("a", "measured")
    file.write_text('{"row": "start", "side": "ours", "values": [1.0]}\n{"row": "sta')
    report.read_values(file, result)
    assert result.values == {"start": {"ours": [1.0]}}


def test_it_measures_under_the_load_of_others_only_with_anyway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "load_of_others", lambda: 0.3)
    started: list[str] = []
    monkeypatch.setattr(program.containment, "run_contained", lambda *_, **__: started.append("a"))
    bench = Bench(what="A test", rows=(ROW,), measure=lambda _: None)
    for words, state in (
        (["--limit-load", "0.2"], "refused"),
        (["--limit-load", "0.4"], "measured"),
        (["--anyway"], "measured"),
    ):
        options = program.parsed(["run", "merge", *words])
        result = program.measure("a", bench, options, tmp_path, program.Interrupts())
        assert result.state == state
    assert len(started) == 2
    assert result.is_comparable


def test_load_that_begins_during_a_run_ends_its_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "load_of_others", lambda: 0.0)
    cores = os.cpu_count() or 1
    usages = iter([machine.Usage(0.0, 0.0, 0.0), machine.Usage(10.0, 9.0 * cores, 4.0 * cores)])
    monkeypatch.setattr(machine, "usage", lambda: next(usages))
    monkeypatch.setattr(program.containment, "run_contained", lambda *_, **__: None)
    bench = Bench(what="A test", rows=(ROW,), measure=lambda _: None)
    result = program.measure("a", bench, program.parsed(["run", "merge"]), tmp_path, program.Interrupts())
    assert (result.state, result.is_comparable) == ("measured", False)
    assert result.others[1] == pytest.approx(0.5)


def test_own_processes_are_no_load_of_others() -> None:
    before = machine.usage()
    subprocess.run(
        [sys.executable, "-c", "import time; e = time.process_time() + 0.5\nwhile time.process_time() < e: pass"]
    )
    after = machine.usage()
    assert after.own_s - before.own_s >= 0.45


@pytest.mark.parametrize("waits", ["no", "yes"])
def test_nothing_outlives_a_run_that_ends_or_is_interrupted(tmp_path: Path, waits: str) -> None:
    (tmp_path / "bench_leaves.py").write_text(LEAVES)
    pid_file, written = tmp_path / "pid", tmp_path / "figures.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BENCH_TEST_PID": str(pid_file), "BENCH_TEST_WAITS": waits}
    # The benchmark's own process finds its module there as well.
    (tmp_path / "sitecustomize.py").write_text(f"import bench; bench.__path__.append({str(tmp_path)!r})")
    environment["PYTHONPATH"] += f":{tmp_path}"
    command = [sys.executable, "-c", STARTS, str(tmp_path), str(written)]
    runner = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    if waits == "yes":
        deadline = time.monotonic() + 60
        while not pid_file.exists() or not pid_file.read_text():
            assert time.monotonic() < deadline
            assert runner.poll() is None
            time.sleep(0.02)
        runner.send_signal(signal.SIGTERM)
    output, _ = runner.communicate(timeout=120)
    (record,) = json.loads(written.read_text())["benchmarks"]
    assert record["values"] == {"row": {"ours": [1.5]}}
    assert record["state"] == ("interrupted" if waits == "yes" else "measured")
    assert runner.returncode == (1 if waits == "yes" else 0)
    assert "1.5" in output
    assert not psutil.pid_exists(int(pid_file.read_text()))


def test_every_benchmark_is_declared_and_explained() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    names = rows.names()
    assert len(names) == len(list((ROOT / "bench").glob("bench_*.py")))
    for name in names:
        bench = rows.load(name)
        assert f"\n### {name}\n" in page
        assert len({row.name for row in bench.rows}) == len(bench.rows)
        for row in bench.rows:
            assert row.base is None or row.base in row.sides
            for goal in row.goals:
                assert {goal.side, goal.of or goal.side} <= set(row.sides)
                assert (goal.at_most is None) != (goal.at_least is None)
