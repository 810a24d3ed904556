"""Commands log to standard error, whatever version of Airflow they run in."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable

import pytest
from airflow.cli import utils

from airflow_provider_dtrain.cli._output import logs_to_stderr

AIRFLOWS = getattr(utils, "redirect_stdout_log_handlers_to_stderr", None)


@pytest.mark.airflow
@pytest.mark.parametrize(
    "redirect",
    [
        logs_to_stderr,
        pytest.param(AIRFLOWS, marks=pytest.mark.skipif(AIRFLOWS is None, reason="this Airflow has no such function")),
    ],
    ids=["ours", "Airflow's"],
)
def test_handlers_of_the_output_write_to_standard_error(
    redirect: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = io.StringIO()
    handlers = [logging.StreamHandler(stream) for stream in (sys.stdout, sys.stderr, other)]
    monkeypatch.setattr(logging.getLogger(), "handlers", [*handlers, logging.NullHandler()])
    redirect()
    assert [handler.stream for handler in handlers] == [sys.stderr, sys.stderr, other]
