"""``airflow dtrain environments``: environments from lock files on the hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.engine.operations import host_environments as operations
from airflow_provider_dtrain.errors import ConfigError, NotFoundError, UsageError
from airflow_provider_dtrain.terminal.output import (
    FAILURE,
    NOT_NOW,
    confirm,
    hint,
    is_table,
    note,
    short_time,
    show,
    show_one,
)

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.engine.attempt.environment_build import RequestedEnvironment
    from airflow_provider_dtrain.engine.attempt.job import Archive
    from airflow_provider_dtrain.engine.operations.host_environments import HostEnvironment, HostProblem
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

#: Digits of a digest that a table shows.
SHOWN_DIGITS = 12


@command
def list_environments(args: Namespace) -> None:
    """List the environments on hosts."""
    rows = [_row(one) for one in _environments(_hook(), args.host, args.pool)]
    if is_table(args):
        rows = [_short(row) for row in rows]
    empty = "No environments. A trial with environment.requirements builds one, or: airflow dtrain environments build"
    show(args, rows, empty=empty)


@command
def show_environment(args: Namespace) -> None:
    """Show an environment with its packages, on each host that has it."""
    hook = _hook()
    found = _matching(_environments(hook, args.host), args.digest)
    described = _environments(hook, [one.host for one in found], digest=found[0].digest)
    if not described:
        raise NotFoundError(f"Environment {args.digest} was removed meanwhile.")
    first = described[0]
    show_one(
        args,
        {
            "digest": first.digest,
            "lock": first.lock,
            "python": first.python,
            "interpreter": first.interpreter,
            "size": byte_size(first.size_bytes) if is_table(args) else first.size_bytes,
            "hosts": {
                one.host: {"built_at": one.built_at, "last_used": one.used_at, "in_use_by": one.used_by}
                for one in described
            },
            "packages": "\n".join(first.packages or []) if is_table(args) else first.packages,
        },
    )


@command
def build(args: Namespace) -> int:
    """Build the environment of a configuration on hosts. Exit 1 if a host has a problem."""
    from airflow_provider_dtrain.cli._inputs import assemble, read

    hook = _hook()
    hook.ensure_local()
    source = read(args.config, what="configuration")
    found = assemble(hook, source, args.template)
    config = found.effective.config
    folder = source.folder / (config.model_dir or ".")
    wanted, code = _requested(config, folder, source.name)
    pool = args.pool or found.pool
    built, problems = operations.build_environments(hook, args.host or (), pool, wanted, code, _Notes())
    rows = [{"host": one.host, "digest": one.digest, "python": one.python, "problem": None} for one in built]
    rows += [{"host": one.host, "digest": None, "python": None, "problem": one.problem} for one in problems]
    empty = f"Pool '{pool}' has no hosts."
    show(args, [{**row, "digest": _digits(row["digest"])} for row in rows] if is_table(args) else rows, empty=empty)
    if not problems:
        hint(f"airflow dtrain experiments create {args.config}")
    return FAILURE if problems else 0


@command
def remove(args: Namespace) -> int:
    """Remove environments that no run uses. Exit 3 if one is in use."""
    hook = _hook()
    listed = _environments(hook, args.host)
    found = [one for digest in dict.fromkeys(args.digest) for one in _matching(listed, digest)]
    size = byte_size(sum(one.size_bytes for one in found))
    if not args.dry_run and not confirm(f"Remove {len(found)} environment(s) with {size}?", yes=args.yes):
        note("Nothing was changed.")
        return 0
    removals, problems = operations.remove_environments(hook, found, dry_run=args.dry_run)
    _name(problems)
    rows = [
        {"host": one.host, "digest": one.digest, "bytes": one.size_bytes, "in_use_by": one.used_by} for one in removals
    ]
    show(args, [_short_removal(row) for row in rows] if is_table(args) else rows)
    if args.dry_run:
        note("Nothing was removed: --dry-run.")
    used = [one for one in removals if one.used_by is not None]
    if not args.dry_run and len(used) < len(removals):
        note(f"Removed {len(removals) - len(used)} environment(s).")
    for one in used:
        note(f"Environment {_digits(one.digest)} stays on host '{one.host}': {one.used_by} uses it.")
    if problems:
        return FAILURE
    return NOT_NOW if used else 0


class _Notes:
    """Receiver of the progress of builds, which prints each line."""

    def info(self, message: str, *args: object) -> None:
        note(message % args)

    def warning(self, message: str, *args: object) -> None:
        note(f"Warning: {message % args}")


def _requested(config: ExperimentConfig, folder: Any, name: str) -> tuple[RequestedEnvironment, Archive | None]:
    """Return the environment of a configuration, and its code if hosts need it for the build."""
    from airflow_provider_dtrain.engine.attempt.environment_build import RequestedEnvironment
    from airflow_provider_dtrain.engine.attempt.job import Archive
    from airflow_provider_dtrain.engine.submission.entry import environment_in
    from airflow_provider_dtrain.hooks.secrets import package_index
    from airflow_provider_dtrain.hosts.payload import pack

    section = config.environment
    source, problems = environment_in(config, folder)
    if problems:
        raise ConfigError(problems, source=name)
    if source is None:
        raise UsageError(f"{name} has no environment.requirements, so its hosts build nothing.")
    is_sent = section.wheels is not None and not section.wheels.startswith("/")
    packed = pack(folder) if is_sent or section.setup is not None else None
    wanted = RequestedEnvironment(
        section=section,
        source=source,
        setup={"payload": packed.digest, "path": section.setup} if packed is not None and section.setup else None,
        payload=None if packed is None else packed.digest,
        index=asyncio.run(package_index(config)),
    )
    return wanted, None if packed is None else Archive(digest=packed.digest, content=lambda: packed.content)


def _environments(
    hook: DtrainHook, hosts: Sequence[str] | None, pool: str | None = None, **only: str
) -> list[HostEnvironment]:
    found, problems = operations.environments(hook, hosts or (), pool, **only)
    _name(problems)
    return found


def _name(problems: Sequence[HostProblem]) -> None:
    for one in problems:
        note(f"Host '{one.host}' was skipped: {one.problem}")


def _matching(found: Sequence[HostEnvironment], start: str) -> list[HostEnvironment]:
    """Return the environments whose digest begins with some digits.

    :raises NotFoundError: there is none
    :raises UsageError: they are different ones
    """
    matching = [one for one in found if one.digest.startswith(start)]
    digests = {one.digest for one in matching}
    if not matching:
        raise NotFoundError(f"No host has an environment {start}. List them with: airflow dtrain environments list")
    if len(digests) > 1:
        raise UsageError(f"{start} is the start of {len(digests)} environments. Give more digits.")
    return matching


def _row(one: HostEnvironment) -> dict[str, Any]:
    return {
        "host": one.host,
        "digest": one.digest,
        "python": one.python,
        "packages": one.package_count,
        "bytes": one.size_bytes,
        "built_at": one.built_at,
        "built_s": one.built_s,
        "last_used": one.used_at,
        "in_use_by": one.used_by,
        "is_complete": one.is_complete,
    }


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "host": row["host"],
        "digest": _digits(row["digest"]),
        "python": row["python"],
        "packages": row["packages"] if row["is_complete"] else "incomplete",
        "size": byte_size(row["bytes"]),
        "built": short_time(row["built_at"]),
        "last_used": short_time(row["last_used"]),
        "in_use_by": row["in_use_by"],
    }


def _short_removal(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "host": row["host"],
        "digest": _digits(row["digest"]),
        "size": byte_size(row["bytes"]),
        "in_use_by": row["in_use_by"],
    }


def _digits(digest: str | None) -> str | None:
    return None if digest is None else digest[:SHOWN_DIGITS]


def _hook() -> DtrainHook:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    return DtrainHook()
