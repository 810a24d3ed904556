"""Execution of an operation: work on hosts, whose content and result go to the user through the store. Blocks."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.checkpoint_location import StorageKind, UntrustedPathError
from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.redaction import Redactor
from airflow_provider_dtrain.engine.copies.checkpoints import copy_path, fetch_copy
from airflow_provider_dtrain.engine.copies.mirror import NOT_COPIED
from airflow_provider_dtrain.engine.operations.archives import files_below, pack
from airflow_provider_dtrain.engine.operations.check_outcome import evacuated, outcome
from airflow_provider_dtrain.engine.operations.host_checks import host_checks
from airflow_provider_dtrain.engine.operations.host_rates import check_hosts
from airflow_provider_dtrain.engine.operations.log_copy import copy_log
from airflow_provider_dtrain.engine.operations.outputs import chosen_paths, copy_notes, outputs_of
from airflow_provider_dtrain.engine.operations.probes import probe_hosts
from airflow_provider_dtrain.engine.operations.rank_log import attempt_of, check_reach, rank_of, read_log
from airflow_provider_dtrain.engine.operations.ranks import NotWantedError, exec_in_rank, profile, stacks
from airflow_provider_dtrain.engine.upkeep.deletion import remove_marked
from airflow_provider_dtrain.engine.upkeep.host_actions import refuse_node
from airflow_provider_dtrain.engine.upkeep.orphaned_trials import carry_out
from airflow_provider_dtrain.errors import DtrainError, NotFoundError, NotNowError, UsageError
from airflow_provider_dtrain.store.records.operations import OperationKind, StoredOperation

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.trials import CheckpointView
    from airflow_provider_dtrain.store.store import Store

log = logging.getLogger(__name__)

#: Content is stored in pieces of this size.
PIECE_BYTES = 1 << 20
#: Most content of an operation that waits in the store for its reader.
WINDOW_BYTES = 16 << 20
#: Pause between two looks at a reader that is slower than the host.
PAUSE_S = 0.2
#: Period in which the process shows that it is alive, and learns whether the user still waits.
BEAT_S = 5.0
_REFUSALS = (DtrainError, NotNowError, UsageError)


class _Content:
    """Content of an operation on its way to the store.

    :param is_wanted: returns False once the user no longer waits
    :param redactor: mask for the secrets of the operation's trial
    """

    def __init__(self, store: Store, operation_id: int, is_wanted: Callable[[], bool], redactor: Redactor) -> None:
        self.store = store
        self.operation_id = operation_id
        self.is_wanted = is_wanted
        self.redactor = redactor
        self.size_bytes = 0

    def redacted(self, result: JsonObject) -> JsonObject:
        return dict(self.redactor.value(result))

    def put(self, data: bytes) -> None:
        """Store data, and wait while its reader has much to read.

        :raises NotWantedError: the user no longer waits
        """
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            unread = self.store.operations.write(self.operation_id, self.size_bytes, piece)
            if unread is None:
                raise NotWantedError
            self.size_bytes += len(piece)
            while unread >= WINDOW_BYTES:
                if not self.is_wanted():
                    raise NotWantedError
                time.sleep(PAUSE_S)
                unread = self.store.operations.unread_bytes(self.operation_id)


def serve(hook: DtrainHook, operation: StoredOperation, redactor: Callable[[], Redactor] | None = None) -> None:
    """Execute an operation that this process has taken, and end it.

    :param redactor: returns the mask for the trial's secrets; None = read them here
    :raises NotWantedError: the user no longer waits; work on hosts may still run on channels of this process
    """
    operations = hook.store.operations
    mask = Redactor()
    try:
        with _alive(hook.store, operation.operation_id) as is_wanted:
            mask = Redactor() if operation.trial_id is None else (redactor or (lambda: _redactor(hook, operation)))()
            content = _Content(hook.store, operation.operation_id, is_wanted, mask)
            result = _WORK[operation.kind](hook, operation, content)
    except _REFUSALS as error:
        code = "not_now" if isinstance(error, NotNowError) else ""
        operations.failed(operation.operation_id, mask.text(str(error)), code)
    except NotWantedError:
        raise
    except Exception as error:
        log.exception("Operation %d failed", operation.operation_id)
        operations.failed(operation.operation_id, mask.text(f"{type(error).__name__}: {error}")[:2000])
    else:
        operations.done(operation.operation_id, result)


def _redactor(hook: DtrainHook, operation: StoredOperation) -> Redactor:
    from airflow_provider_dtrain.hooks.secrets import redactor_now

    view = attempt_of(hook, _trial(operation), None)
    return redactor_now(hook.store.configs.get(view.config_id))


@contextlib.contextmanager
def _alive(store: Store, operation_id: int) -> Iterator[Callable[[], bool]]:
    """Show that this process is alive while the block runs. Yield a function that tells if the user still waits."""
    ended, unwanted = threading.Event(), threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_S):
            # A store that is away now may be back before the reader gives up.
            with contextlib.suppress(DtrainError):
                if not store.operations.beat(operation_id):
                    unwanted.set()
                    return

    thread = threading.Thread(target=beat, name=f"dtrain-operation-{operation_id}", daemon=True)
    thread.start()
    try:
        yield lambda: not unwanted.is_set()
    finally:
        ended.set()
        thread.join()


def _log(hook: DtrainHook, operation: StoredOperation, content: _Content) -> JsonObject:
    given = operation.arguments
    view = attempt_of(hook, _trial(operation), given["attempt"])
    if view.run is None:
        raise NotNowError(f"Attempt {view.number} waits for its slots, so it has no log.")
    rank = rank_of(hook, view, given["rank"])
    if given.get("keep"):
        check_reach(hook.store, view, rank.rank)
        return {"end": copy_log(hook, view, rank, redactor=content.redactor, is_wanted=content.is_wanted)}
    end = given["start"]
    for piece in read_log(hook, view, rank, given["start"], given["end"], redactor=content.redactor):
        content.put(piece.mark + piece.data)
        end = piece.start + len(piece.data)
    return {"end": end}


def _stacks(hook: DtrainHook, operation: StoredOperation, content: _Content) -> JsonObject:
    return content.redacted(asdict(stacks(hook, _trial(operation), operation.arguments["rank"])))


def _profile(hook: DtrainHook, operation: StoredOperation, content: _Content) -> JsonObject:
    given = operation.arguments
    found = profile(hook, _trial(operation), given["ranks"], given["batches"], with_stack=given["with_stack"])
    return content.redacted(asdict(found))


def _exec(hook: DtrainHook, operation: StoredOperation, content: _Content) -> JsonObject:
    given = operation.arguments
    found = exec_in_rank(
        hook,
        _trial(operation),
        given["rank"],
        given["argv"],
        given["timeout_s"],
        by=operation.by,
        is_wanted=content.is_wanted,
    )
    return content.redacted(asdict(found))


def _outputs(hook: DtrainHook, operation: StoredOperation, content: _Content) -> JsonObject:
    given = operation.arguments
    with outputs_of(hook, _trial(operation)) as found:
        files = found.manifest.files
        chosen = chosen_paths(found, given["paths"])
        if not given["list_only"]:
            pack(found.folder, chosen, content.put)
        rows = [{"path": one, "size_bytes": files[one].size_bytes, "at": files[one].modified_at} for one in chosen]
        return {"files": rows, "words": copy_notes(found)}


def _checkpoint(hook: DtrainHook, operation: StoredOperation, content: _Content) -> JsonObject:
    trial = hook.store.trials.get(_trial(operation))
    wanted = operation.arguments["checkpoint_id"]
    views = hook.store.checkpoints.of_trial(trial.trial_id)
    view = next((one for one in views if one.checkpoint_id == wanted), None)
    if view is None:
        raise NotFoundError(f"Trial {trial.trial_id} has no checkpoint {wanted}, or it was removed.")
    name = f"trial-{trial.trial_id}-step-{view.step}"
    own = copy_path(hook.settings.checkpoint_dir, trial.experiment_id, view)
    if view.copy_url == str(own) and own.is_dir():
        pack(own, files_below(own), content.put, folder=name)
        return {"name": name}
    with tempfile.TemporaryDirectory(prefix="dtrain-checkpoint-") as folder:
        target = Path(folder) / name
        _fetch(hook, view, target)
        pack(target, files_below(target), content.put, folder=name)
    return {"name": name}


def _fetch(hook: DtrainHook, view: CheckpointView, target: Path) -> None:
    """Copy a checkpoint from its host.

    :raises NotFoundError: it is at another place, or the copy failed
    """
    if view.place is None or view.place.kind is not StorageKind.RUN:
        where = "at none of its trial's places" if view.place is None else f"in {view.place.path}"
        raise NotFoundError(f"Checkpoint {view.checkpoint_id} is {where}, not in a run's folder on a host.")
    try:
        link = hook.link(hook.store.hosts.get(view.host))
        fetch_copy(link, view, target, limit_bytes=hook.settings.checkpoint_copy_limit_bytes)
    except (*NOT_COPIED, UntrustedPathError) as error:
        raise NotFoundError(f"Checkpoint {view.checkpoint_id} cannot be fetched: {error}") from error


def _probe(hook: DtrainHook, operation: StoredOperation, _content: _Content) -> JsonObject:
    names = list(dict.fromkeys(operation.arguments["hosts"])) or [host.name for host in hook.store.hosts.registered()]
    records = [hook.store.hosts.get(name) for name in names]
    for record in records:
        refuse_node(hook.store, record, "be probed")
    return {"rows": probe_hosts(hook, records, operation.by)}


def _doctor(hook: DtrainHook, _operation: StoredOperation, _content: _Content) -> JsonObject:
    return {"rows": host_checks(hook)}


def _check(hook: DtrainHook, operation: StoredOperation, content: _Content) -> JsonObject:
    given = operation.arguments
    records = [hook.store.hosts.get(name) for name in given["hosts"]]

    def still_wanted() -> None:
        if not content.is_wanted():
            raise NotWantedError

    found = check_hosts(
        hook, records, by=operation.by, tolerance=given["tolerance"], wait_s=given["wait_s"], on_poll=still_wanted
    )
    result = outcome(found, given["hosts"])
    return asdict(evacuated(hook.store, result) if given["evacuate"] else result)


def _control(hook: DtrainHook, operation: StoredOperation, _content: _Content) -> JsonObject:
    deleted = remove_marked(hook) if operation.arguments.get("experiments") else []
    for one in deleted:
        log.info("%s", one.sentence)
    return {"trials": carry_out(hook, operation.arguments["trials"]), "deleted": [one.sentence for one in deleted]}


def _trial(operation: StoredOperation) -> int:
    assert operation.trial_id is not None
    return operation.trial_id


_WORK: dict[OperationKind, Callable[[DtrainHook, StoredOperation, _Content], JsonObject]] = {
    OperationKind.LOG: _log,
    OperationKind.STACKS: _stacks,
    OperationKind.PROFILE: _profile,
    OperationKind.EXEC: _exec,
    OperationKind.OUTPUTS: _outputs,
    OperationKind.CHECKPOINT: _checkpoint,
    OperationKind.PROBE: _probe,
    OperationKind.DOCTOR: _doctor,
    OperationKind.CHECK: _check,
    OperationKind.CONTROL: _control,
}
