"""``airflow dtrain doctor``: one line per check, either ok or with the fix."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._health_checks import settings_lines, store_lines
from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.engine.operations.host_checks import Line, host_checks
from airflow_provider_dtrain.engine.operations.host_checks import line as _line
from airflow_provider_dtrain.errors import DtrainError
from airflow_provider_dtrain.terminal.output import FAILURE, hint, show

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

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
        lines += [*store_lines(hook), *host_checks(hook)]
    show(args, lines)
    is_well = all(line["ok"] for line in lines)
    hint("airflow dtrain hosts list" if is_well else "fix the lines that say no, then run airflow dtrain doctor again")
    return 0 if is_well else FAILURE


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
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    is_writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    words = f"{path}{'' if path.exists() else ' (does not exist yet)'}"
    wrong = f"{words}: {place} cannot be written by this account. Change its owner, or [dtrain] {name}"
    return _line(name, is_writable, words if is_writable else wrong)


def _store(hook: DtrainHook) -> Iterator[Line]:
    try:
        shown = hook.store_url
        checks = hook.store.check()
    except DtrainError as error:
        yield _line("store", False, str(error))
        return
    yield _line("store", True, shown)
    for check in checks:
        yield _line(f"store: {check.name}", check.ok, check.message)
