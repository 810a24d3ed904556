"""``airflow dtrain doctor``: one line per check, either ok or with the fix."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._health_checks import Line, host_lines, settings_lines, store_lines
from airflow_provider_dtrain.cli._health_checks import line as _line
from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.errors import DtrainError
from airflow_provider_dtrain.terminal.output import FAILURE, hint, show

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.trials import HostRecord

PARALLEL_HOSTS = 8
#: Packages that the provider needs, with the oldest release that works.
NEEDED = (
    ("apache-airflow", (3, 3)),
    ("apache-airflow-providers-ssh", (7, 0)),
    ("paramiko", (3, 4)),
    ("SQLAlchemy", (2,)),
)


@command
def doctor(args: Namespace) -> int:
    """Run all checks. Exit 1 if one fails."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    lines = list(_versions())
    hook = DtrainHook()
    lines += [*_configuration(hook), *settings_lines(hook), *_store(hook)]
    if all(line["ok"] for line in lines if line["check"].startswith("store")):
        lines += [*store_lines(hook), *_hosts(hook)]
    show(args, lines)
    is_well = all(line["ok"] for line in lines)
    hint("airflow dtrain hosts list" if is_well else "fix the lines that say no, then run airflow dtrain doctor again")
    return 0 if is_well else FAILURE


def _guarded(check: str, look: Callable[[], str]) -> Line:
    """Return a line of the report. An error of this provider is a failed check with its message."""
    try:
        return _line(check, True, look())
    except DtrainError as error:
        return _line(check, False, str(error))


def _versions() -> Iterator[Line]:
    is_new = sys.version_info >= (3, 11)
    yield _line("python", is_new, f"{sys.version.split()[0]}{'' if is_new else '; 3.11 or newer is needed'}")
    for package, oldest in NEEDED:
        wanted = ".".join(map(str, oldest))
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            yield _line(package, False, f"not installed: pip install '{package}>={wanted}'")
            continue
        parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        is_new = parts >= oldest
        yield _line(package, is_new, version if is_new else f"{version}, needs {wanted}: pip install -U {package}")


def _configuration(hook: DtrainHook) -> Iterator[Line]:
    from airflow.sdk.configuration import conf

    if conf.get("core", "fernet_key", fallback=""):
        yield _line("fernet key", True, "set; literal secrets of configurations are encrypted")
    else:
        message = "not set: configurations with literal secrets are refused. Set [core] fernet_key"
        yield _line("fernet key", True, message)
    yield _folder("checkpoint_dir", hook.settings.checkpoint_dir)


def _folder(name: str, path: Path) -> Line:
    """Return the check that a folder can be written or created."""
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    is_writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    words = f"{path}{'' if path.exists() else ' (does not exist yet)'}"
    wrong = f"{words}: {place} cannot be written by this account. Change its owner, or [dtrain] {name}"
    return _line(name, is_writable, words if is_writable else wrong)


def _store(hook: DtrainHook) -> Iterator[Line]:
    from airflow_provider_dtrain.store.database.connections import parse_url

    try:
        shown = parse_url(hook.settings.sql_alchemy_conn).render_as_string(hide_password=True)
        checks = hook.store.check()
    except DtrainError as error:
        yield _line("store", False, str(error))
        return
    yield _line("store", True, shown)
    for check in checks:
        yield _line(f"store: {check.name}", check.ok, check.message)


def _hosts(hook: DtrainHook) -> list[Line]:
    records = hook.store.hosts.list()
    if not records:
        return [_line("hosts", True, "none registered; the host 'local' is added with the first trial")]
    with ThreadPoolExecutor(PARALLEL_HOSTS) as threads:
        return [line for lines in threads.map(lambda record: _host(hook, record), records) for line in lines]


def _host(hook: DtrainHook, record: HostRecord) -> list[Line]:
    from airflow_provider_dtrain.cli._probe_report import CLOCK_LIMIT_S, key_warnings, look, warnings
    from airflow_provider_dtrain.store.database.schema import NETWORK_FILE_SYSTEMS

    name = f"host {record.name}"
    if record.state == "disabled":
        return [_line(name, True, f"disabled ({record.state_reason or 'no reason given'}); not probed")]
    facts: dict[str, Any] = {}

    def connect() -> str:
        facts.update(look(hook, record)[1])
        return f"answers; Python {facts.get('python')}, PyTorch {facts.get('torch') or 'missing'}"

    lines = [_guarded(name, connect)]
    with suppress(DtrainError):
        lines += [_line(f"{name}: host key", False, warning) for warning in key_warnings(record)]
    if facts:
        offset_s = facts["clock_offset_s"]
        lines.append(_line(f"{name}: clock", abs(offset_s) <= CLOCK_LIMIT_S, f"{offset_s:+.3f} s from here"))
        lines += host_lines(name, facts, NETWORK_FILE_SYSTEMS.__contains__)
        for warning in warnings(record.name, facts):
            if "clock" not in warning:
                lines.append(_line(f"{name}: warning", False, warning))
    if record.state in ("unreachable", "lost"):
        words = (
            f"{record.state} since its last probe. Once it is reachable, run: airflow dtrain hosts probe {record.name}"
        )
        lines.append(_line(f"{name}: state", False, words))
    return lines
