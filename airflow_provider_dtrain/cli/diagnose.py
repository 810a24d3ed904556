"""``airflow dtrain diagnose``: short runs of a training, and what limits it."""

from __future__ import annotations

import asyncio
import signal
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.errors import UsageError
from airflow_provider_dtrain.terminal.output import dump, is_table, note, show, user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.core.documents import JsonObject


@command
def diagnose(args: Namespace) -> int:
    """Run the program of a configuration several times for some steps, and print what limits it.

    The runs are followed by this process. If it is interrupted, it frees the slots first.
    """
    from airflow_provider_dtrain.core.diagnosis.report import html_report

    report = None if args.report is None else _writable(args.report)
    result = asyncio.run(_run(args))
    if report is not None:
        title = Path(args.config).stem if args.config != "-" else "standard input"
        page = html_report(result, title, datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
        report.write_text(page, encoding="utf-8")
        note(f"Wrote {report}.")
    if not is_table(args):
        dump(args.output, result)
        return 0
    show(args, [_row(run) for run in result["runs"]])
    for text in result["sentences"]:
        print(text)
    for one in result["suggestions"]:
        print(f"- {one['text']} ({one['effect']})")
    return 0


async def _run(args: Namespace) -> JsonObject:
    """Return the result of the diagnosis. SIGTERM and Ctrl-C free the slots first."""
    import logging

    from airflow_provider_dtrain.cli._inputs import find_template, read
    from airflow_provider_dtrain.dags import DAG_ID
    from airflow_provider_dtrain.engine.diagnosis import Diagnosis, limits_of, request_of_command
    from airflow_provider_dtrain.engine.logs.task_log import TaskLog
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    hook, source = DtrainHook(), read(args.config, what="configuration")
    name = Path(args.config).stem if args.config != "-" else "training"
    request = request_of_command(
        source.document,
        find_template(hook, args.template, Path.cwd()),
        source.folder,
        limits_of(args.steps, args.most_s),
        dag_id=DAG_ID,
        name=name,
        by=user(),
        is_confirming=args.confirm,
    )
    log = TaskLog(logging.getLogger(__name__), hook.settings.task_log_rate_bytes_per_s)
    running = asyncio.ensure_future(
        Diagnosis(hook, request, log, note, watcher=f"command on {socket.gethostname()}").run()
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    try:
        return await running
    except asyncio.CancelledError:
        note("The runs were ended, and the slots are free.")
        raise KeyboardInterrupt from None


def _writable(path: str) -> Path:
    """Return the path of a report, before the runs take minutes.

    :raises UsageError: its folder does not exist, or it is a folder
    """
    found = Path(path)
    if not found.parent.is_dir() or found.is_dir():
        raise UsageError(f"--report must be a file in a folder that exists, got {path}.")
    return found


def _row(run: dict[str, Any]) -> dict[str, Any]:
    step = "" if run["step_s"] is None else f"{1000 * run['step_s']:.2f} ms"
    return {"run": run["title"], "trial": run["trial_id"], "steps": run["steps"], "step": step}
