"""One place with files: a folder of this host or of shared storage, or a prefix of a bucket."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from airflow_provider_dtrain.train.errors import TrainError

#: Returns the error to raise for an error of the storage, from the place's location.
Explain = Callable[[str, OSError], Exception]

_T = TypeVar("_T")


class Place(Protocol):
    """Files and folders below one place. Names are relative, with ``/``.

    A file exists completely or not at all. A folder counts once its mark exists, the file that is written last.

    :raises OSError: by every method: the storage rejects the call; or what the place's ``explain`` makes of it
    """

    #: Path or URL, as users know it.
    location: str
    #: True: files can be renamed. False: an object keeps the name under which it was uploaded.
    renames: bool

    # -- files -----------------------------------------------------------------------------------------------------

    def entries(self, folder: str = "") -> Mapping[str, str]:
        """Return name -> ``file``, ``directory`` or ``other`` of all that is directly in a folder, read anew."""

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names of the files directly in a folder, read anew. Empty if there is none."""

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""

    def read(self, name: str, limit_bytes: int | None = None) -> bytes | None:
        """Return the content of a file, or None if it does not exist.

        :param limit_bytes: return these first bytes only
        """

    def read_all(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the contents of files by name. A file that does not exist is left out."""

    def write(self, name: str, content: bytes, *, is_durable: bool = True) -> None:
        """Write a small file.

        :param is_durable: return once it is on disk
        """

    def create(self, name: str, content: bytes) -> bool | None:
        """Write a small file unless it exists. Return whether it was written.

        None: this place cannot tell, and nothing was written.
        """

    def scratch(self) -> contextlib.AbstractContextManager[Path]:
        """Yield the path of a file to write to, which :meth:`deliver` takes. It is removed afterwards."""

    def deliver(self, file: Path, name: str) -> None:
        """Make a complete local file one of the place, durably: by a rename, or by one upload."""

    def rename(self, name: str, new: str) -> None:
        """Rename a file, durably. Only where :attr:`renames` is true."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    # -- folders with a mark ---------------------------------------------------------------------------------------

    def locate(self, name: str) -> Path | str:
        """Return the path or URL of a folder."""

    def begin(self, name: str) -> Path | str:
        """Return the path or URL below which the files of a new folder are written until it is complete."""

    def stage(self, name: str) -> Path:
        """Return a new folder of this host. :meth:`complete` takes a folder in it, and the caller removes the rest."""

    def save(self, begun: Any, name: str, write: Callable[[IO[bytes]], _T]) -> _T:
        """Write one file of a folder that was begun, durably. Return what ``write`` returns."""

    def complete(self, begun: Any, name: str, mark: str, content: bytes) -> None:
        """Write the mark of a folder, whose files are written. It then counts, durably.

        :param begun: return value of :meth:`begin`, or a folder in that of :meth:`stage`
        """

    def discard(self, begun: Any, name: str, mark: str) -> None:
        """Remove a folder that was begun, as far as the storage allows it."""

    def remove_folder(self, name: str, mark: str) -> None:
        """Remove a folder, so that at no moment a part of it counts."""

    def sweep_folders(self, prefix: str, mark: str) -> None:
        """Remove what killed processes have left of folders whose names begin so. Only one process writes them."""


@contextlib.contextmanager
def explained(location: str, explain: Explain | None, errors: type[Exception] = OSError) -> Iterator[None]:
    """Turn an error of a storage into OSError, or into what ``explain`` makes of it. A missing file stays one.

    :param errors: errors of the storage; clients of object stores have exceptions of their own
    """
    try:
        yield
    except (FileNotFoundError, TrainError):
        raise
    except errors as error:
        known = error if isinstance(error, OSError) else OSError(reason(error))
        if explain is None and known is error:
            raise
        raise (known if explain is None else explain(location, known)) from error


def reason(error: BaseException) -> str:
    """Return the type and the message of an error."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
