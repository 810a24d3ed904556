"""Output of commands in a process of Airflow: its log messages go to stderr, and most of them nowhere."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.terminal.output import run as run_command
from airflow_provider_dtrain.terminal.safe_streams import prepare_streams

if TYPE_CHECKING:
    from argparse import Namespace


def command(function: Callable[[Namespace], int | None]) -> Callable[[Namespace], None]:
    """Return a function as a command: errors become one message on stderr and an exit code."""

    @functools.wraps(function)
    def run(args: Namespace) -> None:
        from airflow_provider_dtrain.hooks.dtrain import as_server_process

        _prepare_streams(verbose=getattr(args, "verbose", False))
        as_server_process()
        code = run_command(function, args)
        if code:
            raise SystemExit(code)

    return run


def _prepare_streams(*, verbose: bool) -> None:
    logs_to_stderr()
    prepare_streams()
    if not verbose:
        logging.disable(logging.WARNING)
    _quieten_airflow(verbose=verbose)


def logs_to_stderr() -> None:
    """Let log handlers write to stderr instead of stdout, as Airflow does for its own commands from 3.3.1 on."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            handler.setStream(sys.stderr)


def _quieten_airflow(*, verbose: bool) -> None:
    """Send messages that Airflow logs with structlog to stderr. Without verbose, only errors."""
    import structlog

    def errors_only(_logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if method not in ("error", "critical", "exception"):
            raise structlog.DropEvent
        return event

    known = structlog.get_config()["processors"]
    structlog.configure(
        processors=known if verbose else [errors_only, *known],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
