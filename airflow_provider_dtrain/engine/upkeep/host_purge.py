"""Removal of everything that this provider has put on a host."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.core.lifecycle.states import HostState
from airflow_provider_dtrain.core.lifecycle.timing import COLLECT_TIMEOUT_S, FENCE_WAIT_S
from airflow_provider_dtrain.engine.upkeep.host_actions import runs_on
from airflow_provider_dtrain.engine.upkeep.recovery import recover
from airflow_provider_dtrain.errors import HostError, HostRefusedError, NotNowError

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.trials import AttemptView, HostRecord

#: Seconds after which the host answers how far it is.
PIECE_S = 20.0
#: Most reasons in one message.
_SHOWN = 5


@dataclass(kw_only=True)
class HostFiles:
    """Files of this provider on a host, or those that were removed."""

    host: str
    remote_dir: str
    state_dir: str
    #: Part -> count and bytes.
    parts: Mapping[str, tuple[int, int]]
    #: Names of runs with a folder.
    runs: Sequence[str] = ()
    #: Why they cannot be removed now.
    busy: Sequence[str] = ()
    #: Path and reason of what stays.
    left: Sequence[tuple[str, str]] = ()
    #: Why ``remote_dir`` stays, None if it is removed.
    shared: str | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(size for _, size in self.parts.values())


def files_on(hook: DtrainHook, record: HostRecord) -> HostFiles:
    """Return the files of this provider on a host. Blocks, for minutes if there are millions.

    :raises HostError: the host cannot be reached; the message says that it stays registered
    """
    try:
        found = _call(hook, record, dry_run=True, with_remote_dir=True)
        if (shared := _why_shared(hook, record, found)) is not None:
            found = _call(hook, record, dry_run=True, with_remote_dir=False)
    except HostError as error:
        raise HostError(
            record.name,
            f"Nothing was removed from host '{record.name}', and it stays registered: {error} To remove it without its "
            f"files: airflow dtrain hosts remove {record.name}",
        ) from error
    return _files(record.name, found, shared)


def foreign_runs(hook: DtrainHook, files: HostFiles) -> list[str]:
    """Return the runs on a host that are not of this store."""
    return [run for run in files.runs if not run.startswith(f"{hook.store.store_id[:8]}-t")]


def purge_host(
    hook: DtrainHook, record: HostRecord, *, force: bool, by: str, progress: Callable[[str], None]
) -> HostFiles:
    """Remove everything of this provider from a host, and then the host from the store. Blocks.

    The host is drained first. Until nothing is left it stays registered, so that the call can be repeated.

    :param force: kill the trials there first
    :param by: the user
    :param progress: receives a sentence after each part
    :raises NotNowError: work is on the host; nothing was removed
    :raises HostError: the host does not answer, or a part cannot be removed
    """
    if record.state == HostState.READY:
        hook.store.hosts.set_state(record.name, HostState.DRAINING, "its files are being removed", by=by)
    _end_runs(hook, record, force=force, by=by)
    try:
        removed = _remove_all(hook, record, progress)
    except HostRefusedError as error:
        if error.code == "in_use":
            raise NotNowError(f"Host '{record.name}' stays as it is. {error.reason}") from error
        raise
    if removed.left:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in removed.left[:_SHOWN])
        raise HostError(
            record.name,
            f"Parts are left on host '{record.name}', and it stays registered: {reasons}. Remove them there, and "
            "repeat the command.",
        )
    hook.links.drop(record.name)
    hook.store.hosts.remove(record.name, by=by)
    return removed


def _end_runs(hook: DtrainHook, record: HostRecord, *, force: bool, by: str) -> None:
    """Kill the trials on a host, if that is requested, and wait until their slots are released.

    :raises NotNowError: some are left
    """
    running: list[AttemptView] = runs_on(hook.store, record.name)
    if running and force:
        for view in running:
            hook.store.control.kill(view.trial_id, by)
        until = time.monotonic() + 4 * FENCE_WAIT_S
        while running and time.monotonic() < until:
            asyncio.run(recover(hook, host=record.name))
            time.sleep(0.5)
            running = runs_on(hook.store, record.name)
    if running:
        trials = ", ".join(f"trial {view.trial_id} of '{view.experiment}'" for view in running)
        raise NotNowError(
            f"Host '{record.name}' is held by {trials}. Nothing was removed. Wait for their end, and repeat the "
            "command."
        )


def _remove_all(hook: DtrainHook, record: HostRecord, progress: Callable[[str], None]) -> HostFiles:
    parts: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    with_remote_dir = _why_shared(hook, record, _call(hook, record, dry_run=True, with_remote_dir=False)) is None
    while True:
        try:
            answer = _call(hook, record, dry_run=False, with_remote_dir=with_remote_dir)
        except HostRefusedError:
            raise
        except HostError as error:
            done = byte_size(sum(size for _, size in parts.values()))
            raise HostError(
                record.name,
                f"Host '{record.name}' stays registered. {done} were removed, more may be: {error} Repeat the command "
                "once it answers.",
            ) from error
        for part, row in answer["parts"].items():
            parts[escaped(part)] = (parts[part][0] + row["count"], parts[part][1] + row["bytes"])
        if answer["is_complete"]:
            return replace(_files(record.name, answer, None), parts=dict(parts))
        progress(f"{byte_size(sum(size for _, size in parts.values()))} removed")


def _call(hook: DtrainHook, record: HostRecord, *, dry_run: bool, with_remote_dir: bool) -> Mapping[str, Any]:
    call = hook.link(record).call(
        "purge", timeout_s=COLLECT_TIMEOUT_S, dry_run=dry_run, with_remote_dir=with_remote_dir, limit_s=PIECE_S
    )
    return call.result(COLLECT_TIMEOUT_S + 5)


def _files(host: str, answer: Mapping[str, Any], shared: str | None) -> HostFiles:
    return HostFiles(
        host=host,
        remote_dir=escaped(answer["remote_dir"]),
        state_dir=escaped(answer["state_dir"]),
        parts={escaped(part): (row["count"], row["bytes"]) for part, row in answer["parts"].items()},
        runs=[escaped(run) for run in answer["runs"]],
        busy=[escaped(reason) for reason in answer["busy"]],
        left=[(escaped(one["path"]), escaped(one["reason"])) for one in answer["left"]],
        shared=shared,
    )


def _why_shared(hook: DtrainHook, record: HostRecord, answer: Mapping[str, Any]) -> str | None:
    """Return why ``remote_dir`` stays: other hosts may run from it over the network. None if it is removed."""
    if answer["network"] is None:
        return None
    same = [
        one.name
        for one in hook.store.hosts.registered()
        if one.name != record.name and one.remote_dir == record.remote_dir
    ]
    if not same:
        return None
    more = f" and {len(same) - _SHOWN} more" if len(same) > _SHOWN else ""
    return (
        f"{escaped(answer['remote_dir'])} is on {escaped(answer['network'])} and stays: "
        f"{', '.join(same[:_SHOWN])}{more} may use it. It goes with the last of them."
    )
