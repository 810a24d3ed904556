"""``airflow dtrain trials logs`` with the ranges that marks of a task log name: a real rank, the real parser."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import take_over
from airflow_provider_dtrain.engine.submission.submit import render, revive, submit
from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.hosts import host_record_from_facts
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.hosts.channel.link_pool import HostAddress
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from airflow_provider_dtrain.store.records.trials import TrialKey
from testbed import task_logs
from tests.support.lock_dirs import new_lock_dir

pytestmark = [pytest.mark.slow, pytest.mark.airflow]

CODE = Path(__file__).parents[1] / "faults"
LOG_LIMIT = 1 << 20
MARK = re.compile(r"bytes (\d+) to (\d+) \(\d+\) left out: ([^.]*)\. Read: airflow (dtrain .*) ---")
FREED = re.compile(rb"\n\[bytes (\d+) to (\d+) \([^)]*\) were left out by log_limit\]\n")

Cli = Callable[[str], bytes]


class Trials:
    """Trials that run on this machine, and their task logs."""

    def __init__(self, folder: Path, hook: DtrainHook) -> None:
        self.folder, self.hook, self.records = folder, hook, list[str]()
        lock_dir = new_lock_dir(folder)
        address = HostAddress(
            name="local", remote_dir=".dtrain", state_dir=str(folder / "state"), lock_dir=lock_dir,
            python=sys.executable, make_transport=lambda: LocalTransport("local"),
        )  # fmt: skip
        link = hook.links.get(address)
        record = host_record_from_facts(
            "local", pool="local", conn_id=None, facts=link.call("probe").result(30), hello=link.hello, slots="cpu:1",
            remote_dir=".dtrain", state_dir=str(folder / "state"), lock_dir=lock_dir, python=sys.executable,
        )  # fmt: skip
        hook.store.hosts.add(record)
        self.logger = logging.Logger("task", logging.INFO)
        handler = logging.Handler()
        handler.emit = lambda record: self.records.append(record.getMessage())  # type: ignore[method-assign]
        self.logger.addHandler(handler)

    def run(self, lines: int, *, task_log_rate: int) -> int:
        """Return the id of a trial that wrote so many numbered lines as fast as it can, and has ended."""
        document = {
            "name": "numbers", "entrypoint": f"python numbers.py {lines} 1e9 200", "model_dir": "code",
            "resources": {"slots_per_trial": 1, "pool": "local"}, "max_restarts": 0,
        }  # fmt: skip
        key = TrialKey(dag_id="dag", run_id="run", task_id="train")
        ticket = submit(self.hook, render(self.hook, document, None, CODE), key=key, folder=CODE)
        revive(self.hook.store, ticket)
        asyncio.run(self._carry(ticket.trial_id, TaskLog(self.logger, task_log_rate)))
        return ticket.trial_id

    async def _carry(self, trial_id: int, log: TaskLog) -> None:
        runtime = await take_over(self.hook, trial_id, log, watcher="test")
        await asyncio.wait_for(AttemptRunner(runtime).run(BackgroundRecovery(runtime.hook)), 180)

    @property
    def marks(self) -> list[tuple[int, int, str, str]]:
        """Begin, end, reason and command of each mark in the task log."""
        found = MARK.findall("\n".join(self.records))
        return [(int(start), int(end), reason, command) for start, end, reason, command in found]

    def host_log(self) -> bytes:
        (log,) = task_logs.host_logs(self.folder / "state").values()
        return log


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Trials]]:
    """Return trials on this machine whose logs have a limit."""
    hooks: list[DtrainHook] = []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN", f"sqlite:///{tmp_path}/dtrain.db")

    def make(log_limit: int) -> Trials:
        options = dataclasses.replace(
            settings(), checkpoint_dir=tmp_path / "checkpoints", kill_grace_s=2.0, log_limit_bytes=log_limit
        )
        hooks.append(DtrainHook(options))
        return Trials(tmp_path, hooks[0])

    yield make
    for hook in hooks:
        hook.links.close_all()


@pytest.fixture
def cli(capsysbinary: pytest.CaptureFixture[bytes]) -> Cli:
    """Return what a command prints."""
    from airflow.cli.cli_parser import get_parser

    def run(command: str) -> bytes:
        capsysbinary.readouterr()
        arguments = get_parser().parse_args(shlex.split(command))
        arguments.func(arguments)
        return capsysbinary.readouterr().out

    return run


def test_an_empty_log_is_named(make: Callable[[int], Trials], capsys: pytest.CaptureFixture[str]) -> None:
    from airflow.cli.cli_parser import get_parser

    trial_id = make(1 << 30).run(0, task_log_rate=1000)
    arguments = get_parser().parse_args(["dtrain", "trials", "logs", str(trial_id)])
    capsys.readouterr()
    arguments.func(arguments)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "No output in this part of the log" in shown.err
    assert f"airflow dtrain trials metrics {trial_id}" in shown.err


@pytest.mark.nightly
def test_the_command_in_a_mark_prints_exactly_the_bytes_that_are_missing(
    make: Callable[[int], Trials], cli: Cli
) -> None:
    trials = make(1 << 30)
    trial_id = trials.run(15_000, task_log_rate=20_000)
    log, shown = trials.host_log(), task_logs.read(trials.records, trial_id)
    assert trials.marks, "so much in one second is more than the task log takes"
    for start, end, _, command in trials.marks:
        assert cli(command) == log[start:end]
    there = {number for counts in shown.lines.values() for number in counts}
    missing = {int(line[2]) for _, _, _, command in trials.marks for line in task_logs.NUMBERED.finditer(cli(command))}
    assert there | missing >= set(range(15_000)) - cut_lines(log, trials.marks)


def cut_lines(log: bytes, marks: list[tuple[int, int, str, str]]) -> set[int]:
    """Return the lines that the border of a mark cuts: one part is in the task log, the other one is printed."""
    borders = [border for start, end, _, _ in marks for border in (start, end)]
    return {
        int(line[2]) for line in task_logs.NUMBERED.finditer(log)
        if any(line.start() < border < line.end() for border in borders)
    }  # fmt: skip


@pytest.mark.nightly
def test_what_log_limit_has_freed_within_the_range_of_a_mark_is_a_line_and_no_zeros(
    make: Callable[[int], Trials], cli: Cli
) -> None:
    trials = make(LOG_LIMIT)
    trial_id = trials.run(40_000, task_log_rate=20_000)
    log = trials.host_log()
    whole = cli(f"dtrain trials logs {trial_id}")
    ((start, end),) = [(int(one), int(other)) for one, other in FREED.findall(whole)]
    assert FREED.sub(b"", whole) == log[:start] + log[end:]
    assert b"\0" not in whole
    assert set(log[start:end]) == {0}
    for begin, until, _, command in trials.marks:
        printed = cli(command)
        assert FREED.sub(b"", printed) == log[begin : max(begin, min(start, until))] + log[max(end, begin) : until]
        covers = begin < end and start < until
        assert [(int(one), int(other)) for one, other in FREED.findall(printed)] == [
            (max(begin, start), min(end, until))
        ] * covers

    middle = (start + end) // 2
    printed = cli(f"dtrain trials logs {trial_id} --from {middle - 10} --to {middle}")
    assert [(int(one), int(other)) for one, other in FREED.findall(printed)] == [(middle - 10, middle)]
    assert FREED.sub(b"", printed) == b""
