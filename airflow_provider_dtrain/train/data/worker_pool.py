"""Loader workers: those that serve one epoch after another, and the error of one that ended."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from airflow_provider_dtrain.train.errors import LoaderWorkerError

#: torch's words for a worker that is gone, with its process ids and the signal.
_ENDED = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (?:is killed by signal: (.*?)\.|exited unexpectedly)"
)


def named_errors(batches: Iterator[Any], what: str) -> Iterator[Any]:
    """Yield all batches. A loader worker that is gone becomes an error of this library.

    :param what: ``training`` or ``validation``
    :raises LoaderWorkerError: a worker was killed or ended by itself
    """
    try:
        yield from batches
    except (RuntimeError, ConnectionError, EOFError) as error:
        named = error_of(error, what)
        if named is None and _is_broken(error):
            named = _named(what, f"was killed or ended by itself ({type(error).__name__})")
        if named is None:
            raise
        _forget(batches)
        raise named from error


def _forget(batches: Any) -> None:
    """End the other workers, and let torch forget the lost one, which it would report again at any end of a process."""
    shut = getattr(batches, "_shutdown_workers", None)
    with without_worker_errors(), contextlib.suppress(Exception):
        if shut is not None:
            shut()


@contextlib.contextmanager
def without_worker_errors() -> Iterator[None]:
    """Let torch raise no error of a lost worker in the block, because the program ends already."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before if before is not None else signal.SIG_DFL)


def error_of(error: BaseException, what: str = "") -> LoaderWorkerError | None:
    """Return the error of this library for torch's error of a lost worker, None if the error is another one.

    Torch raises it in a signal handler, so at any line of the program.
    """
    found = _ENDED.search(str(error)) if isinstance(error, RuntimeError) else None
    if found is None or isinstance(error, LoaderWorkerError):
        return None
    how = f"was killed by the signal '{found[2]}'" if found[2] else "ended by itself"
    return _named(what, f"(pid {found[1]}) {how}")


def _named(what: str, how: str) -> LoaderWorkerError:
    return LoaderWorkerError(
        f"A loader worker{f' of the {what} data' if what else ''} {how}. If the host or its /dev/shm has run out of "
        "memory, lower num_workers, prefetch_factor or the batch size, or raise resources.shm_size in a container."
    )


def _is_broken(error: Exception) -> bool:
    """Return whether a worker ended before this process had read a batch that it sent.

    Errors of the data set, which workers pass on, begin with other words.
    """
    return isinstance(error, (ConnectionError, EOFError)) and not str(error).startswith("Caught ")


class _Batches:
    """Indices of the epoch that a loader serves at present."""

    def __init__(self) -> None:
        self.current: Sequence[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.current)

    def __len__(self) -> int:
        return len(self.current)


class WorkerPool:
    """Workers of one loader, for ``persistent_workers=True``. They keep what the data set has opened or cached.

    They serve one epoch at a time. An epoch that begins while another one is open gets workers of its own.
    """

    def __init__(self) -> None:
        self._loader: Any = None
        self._batches = _Batches()
        #: id of the epoch that is open. A reference would keep an abandoned epoch open.
        self._user: int | None = None

    def open(self, epoch: PoolEpoch, make: Callable[[Any], Any]) -> Iterator[Any] | None:
        """Return the batches of an epoch, or None if another epoch is open.

        :param make: returns a DataLoader that takes its batches from the argument
        """
        if self._user is not None:
            return None
        self._user = id(epoch)
        self._batches.current = epoch.batches
        if self._loader is None:
            self._loader = make(self._batches)
        batches: Iterator[Any] = iter(self._loader)
        return batches

    def close(self, epoch: PoolEpoch, *, failed: bool = False) -> None:
        """End an epoch.

        :param failed: end the workers as well
        """
        if self._user == id(epoch):
            self._user = None
            self._batches.current = ()
            if failed:
                self._loader = None

    def end(self) -> None:
        """End the workers now. Repeatable.

        Left to a garbage collection, each worker would hold up the program for 5 s: the collection closes the worker's
        queue before torch can send it the end.
        """
        loader = self._loader
        self._loader = None
        _forget(getattr(loader, "_iterator", None))


class PoolEpoch:
    """Batches of one epoch from a pool of workers. Its workers start with its first batch.

    :param make: returns a DataLoader for the batches of its first argument. The second one: it keeps its workers
    """

    def __init__(self, pool: WorkerPool, batches: Sequence[Any], make: Callable[[Any, bool], Any]) -> None:
        self.batches = batches
        self._pool = pool
        self._make = make
        self._iterator: Iterator[Any] | None = None

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> PoolEpoch:
        return self

    def __next__(self) -> Any:
        try:
            if self._iterator is None:
                make = self._make
                own = self._pool.open(self, lambda batches: make(batches, True))
                self._iterator = iter(self._make(self.batches, False)) if own is None else own
            return next(self._iterator)
        except BaseException as error:
            failed = not isinstance(error, StopIteration)
            if failed:
                _forget(self._iterator)
            self._end(failed=failed)
            raise

    def __del__(self) -> None:
        self._end()

    def _end(self, *, failed: bool = False) -> None:
        self._iterator = iter(())
        self._pool.close(self, failed=failed)
