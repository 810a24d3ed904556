"""Provenance of trials in a terminal, and commands that show differences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dtrain.errors import UsageError
from airflow_provider_dtrain.terminal.output import dump, is_table, note, show

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.core.fact_differences import Difference
    from airflow_provider_dtrain.resources.provenance import (
        Differences,
        GitState,
        HostProvenance,
        RankRuntime,
        TrialProvenance,
    )
    from airflow_provider_dtrain.terminal.source import Source

#: Trials or experiments that one command compares, as the API accepts them.
_LEAST, _MOST = 2, 8
#: A SHA-256, of which 12 characters distinguish it in a line.
_DIGEST: Final = re.compile("([0-9a-f]{12})[0-9a-f]{52}")
_SHOWN_CHARS: Final = 60


def provenance_lines(found: TrialProvenance) -> dict[str, Any]:
    """Return the provenance of a trial as lines of a terminal. Lists of packages and files are their numbers."""
    files = None if found.files is None else f", {len(found.files)} file(s)"
    return {
        "code": None if found.code is None else f"{_short(found.code)}{files or ''}",
        "git": git_text(found.git),
        "dag_bundle": None if found.bundle is None else f"{found.bundle.name}, {_version(found.bundle.version)}",
        "lock_file": None if found.lock is None else f"{found.lock.path}, {_short(found.lock.digest)}",
        "made_of": {host.host: _host_text(host, found) for host in found.hosts},
        "ranks": {_ranks(one): _runtime_text(one) for one in found.runtimes},
        "data": None if found.data is None else f"{found.data.rows} row(s), manifest {_short(found.data.sha256)}",
    }


def git_text(git: GitState) -> str:
    """Return the state of the code in git in words."""
    if git.commit is None:
        return f"unknown: {git.problem}"
    if git.is_clean is None:
        return f"{git.commit}, unknown whether clean: {git.problem}"
    return f"{git.commit}, {'clean' if git.is_clean else 'dirty: the code has changes that are not committed'}"


def _version(version: str | None) -> str:
    return "without a version" if version is None else f"version {version}"


def _short(digest: str) -> str:
    """Return a digest, or the name of an image with one, with as many characters as distinguish it."""
    return _DIGEST.sub(r"\1", digest)


def _host_text(host: HostProvenance, found: TrialProvenance) -> str:
    packages = found.packages.get(host.packages or "")
    devices = sorted({name for name in host.devices.values() if name is not None})
    listed = "packages unknown" if packages is None else f"{len(packages)} package(s), {_short(host.packages or '')}"
    if host.other_interpreter is not None:
        listed = f"but ranks run {host.other_interpreter}, whose packages are unknown"
    parts = [
        f"Python {host.python or 'unknown'}, {host.executable or 'unknown'}",
        listed,
        None if host.cuda is None else f"CUDA {host.cuda}",
        None if host.driver is None else f"driver {host.driver}",
        *devices,
        None if host.image is None else f"image {_short(host.image)}",
    ]
    return "; ".join(part for part in parts if part is not None)


def _ranks(one: RankRuntime) -> str:
    return ",".join(map(str, one.ranks))


def _runtime_text(one: RankRuntime) -> str:
    names = {"PyTorch": one.torch, "CUDA": one.cuda, "cuDNN": one.cudnn, "NCCL": one.nccl, "backend": one.backend}
    return ", ".join(f"{name} {value}" for name, value in names.items() if value is not None)


def diff_trials(args: Namespace, source: Source) -> None:
    """Show in what trials differ."""
    _show(args, source.trial_differences(_ids(args)), "trial", _ids(args))


def diff_experiments(args: Namespace, source: Source) -> None:
    """Show in what experiments differ."""
    _show(args, source.experiment_differences(_ids(args)), "experiment", _ids(args))


def _ids(args: Namespace) -> list[int]:
    found = list(dict.fromkeys(args.ids))
    if not _LEAST <= len(found) <= _MOST:
        raise UsageError(f"a comparison takes {_LEAST} to {_MOST} different ids, got {len(found)}.")
    return found


def _show(args: Namespace, found: Differences, noun: str, ids: Sequence[int]) -> None:
    if not is_table(args):
        dump(args.output, asdict(found))
        return
    if noun == "experiment":
        pairs = ", ".join(f"{of} by trial {trial}" for of, trial in zip(ids, found.trials, strict=True))
        note(f"Experiments are compared by their best trials, else by their latest ones: {pairs}.")
    rows = [_row(one, [f"{noun} {number}" for number in ids]) for one in found.rows]
    show(args, rows, empty="They differ in nothing that was recorded.")
    if found.same:
        note(f"The same: {', '.join(found.same)}.")


def _row(one: Difference, columns: Sequence[str]) -> dict[str, Any]:
    values = {column: _cell(value, one) for column, value in zip(columns, one.values, strict=True)}
    return {"what": f"{one.subject} {one.name}".rstrip(), **values}


def change_text(one: Difference) -> str:
    """Return a difference between two things in a line: ``packages torch: 2.12.0 -> 2.13.0``."""
    before, after = (_cell(value, one) for value in one.values)
    return f"{f'{one.subject} {one.name}'.rstrip()}: {before} -> {after}"


def _cell(value: str | None, one: Difference) -> str:
    if value is None:
        return "unknown" if one.is_unknown else "-"
    value = _short(value)
    return value if len(value) <= _SHOWN_CHARS else f"{value[: _SHOWN_CHARS - 3]}..."
