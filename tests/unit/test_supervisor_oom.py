"""Reports of a supervisor about a killed rank."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_dtrain.supervisor.run import ranks as ranks_module
from airflow_provider_dtrain.supervisor.run.ranks import oom_cause, oom_kills


def test_the_kernels_own_count_is_read() -> None:
    lines = Path("/proc/vmstat").read_text().splitlines()
    known = [int(line.split()[1]) for line in lines if line.split()[0] == "oom_kill"]
    assert oom_kills() == (known[0] if known else 0)


def test_a_count_that_is_not_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module, "read_text", lambda path: None)
    assert oom_kills() == 0
    monkeypatch.setattr(ranks_module, "read_text", lambda path: "pgfault 1\noom_kill 17\nnot_oom_kill 3")
    assert oom_kills() == 17


def test_a_kernel_without_memory_is_told_apart_from_somebody_else() -> None:
    assert re.fullmatch(r"the kernel was out of memory and ended 2 .* during this run", oom_cause(2))
    assert oom_cause(0).startswith("not sent by dtrain")
