"""Archives for hosts, named by their content hash: the user's code, the training library and the supervisor."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata, resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.credential_files import HEAD_BYTES, is_credential, is_credential_folder
from airflow_provider_dtrain.core.regular_files import read_regular
from airflow_provider_dtrain.errors import PayloadError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

LIMIT_BYTES = 96 * 1024 * 1024
IGNORE_FILE = ".dtrainignore"
#: Files that exclude others, in this order. The first one is that of Determined.
IGNORE_FILES = (".detignore", IGNORE_FILE)
#: Folders that are never packed: neither belongs to the user's code, and caches would change the digest.
SKIPPED = frozenset({"__pycache__", ".git"})
#: Folder in which the training library keeps checkpoints outside a trial, and name of that of one run in it.
_CHECKPOINTS, _RUN = "checkpoints", re.compile(r"\d{8}T\d{6}Z-\d+")
_PACKAGE = "airflow_provider_dtrain"
_LARGEST = 5
_SHOWN = 10
_HOOK = "dtrain_rendezvous"
#: Metadata of a distribution for importlib.metadata. PyTorch calls the entry point at the end of its import.
_HOOK_METADATA = {
    "METADATA": f"Metadata-Version: 2.1\nName: {_HOOK}\nVersion: 1\n",
    "entry_points.txt": f"[torch.backends]\n{_HOOK} = {_HOOK}:install\n",
}
#: Start of the supervisor when its folder is run. From Python 3.9 on, the path of a folder that is run is absolute.
_MAIN = """import sys

started_with = {*sys.modules}

from airflow_provider_dtrain.supervisor.__main__ import main

ended = main(started_with=started_with)
if isinstance(ended, int):
    sys.exit(ended)
ended.run()
"""


@dataclass(frozen=True, kw_only=True)
class Payload:
    """Archive (tar.gz) with its content hash."""

    #: SHA-256 of ``content``, lower-case hex.
    digest: str
    content: bytes
    #: Files and folders that were left out because they hold credentials.
    credentials: tuple[str, ...] = ()

    @property
    def size_text(self) -> str:
        """Size of the archive in words."""
        return byte_size(len(self.content))

    @property
    def notice(self) -> str:
        """Sentence about the credentials that were left out. Empty: there were none."""
        if not self.credentials:
            return ""
        shown = ", ".join(self.credentials[:_SHOWN])
        more = f" and {len(self.credentials) - _SHOWN} more" if len(self.credentials) > _SHOWN else ""
        return (
            f"Not sent to hosts, because they hold credentials: {shown}{more}. To send one of them, add a line with "
            f"its name to {IGNORE_FILE}: !{self.credentials[0]}"
        )


def pack(model_dir: Path, *, limit_bytes: int = LIMIT_BYTES) -> Payload:
    """Return a folder as a reproducible archive.

    The same files give the same bytes on every machine and at any time. ``.dtrainignore`` in the folder excludes files,
    in the syntax of ``.gitignore``, and so does Determined's ``.detignore``. Files with credentials are left out unless
    a line with ``!`` names them. Links within the folder stay links, with relative targets. The mode is 0755 for
    executable files, else 0644.

    :param limit_bytes: maximum total size of the files; default: the 96 MiB of the configuration reference
    :raises PayloadError: ``model_dir`` is not a folder or is too large, or it has a link that leaves the folder or an
        entry that is neither a file, a folder nor a link
    """
    if not model_dir.is_dir():
        raise PayloadError(f"model_dir '{model_dir}' is not a folder. Correct model_dir in the configuration.")
    root = model_dir.resolve()
    selection = _Selection(root)
    entries = list(_walk(root, selection.leaves_out))
    _check_size(root, entries, limit_bytes)
    found = packed((path.relative_to(root).as_posix(), path) for path in entries)
    return replace(found, credentials=tuple(sorted(selection.credentials)))


@functools.cache
def library() -> Payload:
    """Return the archive that ranks import: this package's root module, ``train``, and the hook that PyTorch calls.

    The hook is a copy of ``train/process/rendezvous.py`` at the top level, so that programs that do not use the library
    do not import it. A distribution folder registers it as an entry point.
    """
    root = Path(str(resources.files(_PACKAGE)))
    files = [root / "__init__.py", root / "train", *_walk(root / "train", lambda _: False)]
    entries: list[tuple[str, Path | bytes]] = [
        (f"{_PACKAGE}/{path.relative_to(root).as_posix()}", path) for path in files
    ]
    entries.append((f"{_HOOK}.py", root / "train" / "process" / "rendezvous.py"))
    entries += [(f"{_HOOK}-1.dist-info/{name}", text.encode()) for name, text in _HOOK_METADATA.items()]
    return packed(iter(entries))


@functools.cache
def supervisor() -> Payload:
    """Return the archive that hosts unpack and run as a folder: ``supervisor``, and NVIDIA's module ``pynvml``."""
    root = Path(str(resources.files(_PACKAGE)))
    # Slurm starts the program in serve, which is never installed.
    files = [root / "__init__.py", *_walk(root / "supervisor", lambda name: name == "serve/")]
    entries: list[tuple[str, Path | bytes]] = [
        (f"{_PACKAGE}/{path.relative_to(root).as_posix()}", path) for path in files
    ]
    pynvml = Path(str(metadata.distribution("nvidia-ml-py").locate_file("pynvml.py")))
    return packed(iter([*entries, ("pynvml.py", pynvml), ("__main__.py", _MAIN.encode())]))


class _Selection:
    """The files of a folder that are sent."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._patterns = _patterns(root)
        self.credentials: list[str] = []

    def leaves_out(self, name: str) -> bool:
        """Return whether a path below the folder is left out. The path of a folder ends with a slash."""
        is_excluded = None if self._patterns is None else self._patterns.check_file(name).include
        if is_excluded is None and self._is_credential(name):
            self.credentials.append(name)
            return True
        return bool(is_excluded) or (is_excluded is None and self._has_local_checkpoints(name))

    def _has_local_checkpoints(self, name: str) -> bool:
        """Return whether a folder holds checkpoints of runs outside a trial, and nothing else."""
        path = self._root / name
        if not name.endswith("/") or path.name != _CHECKPOINTS:
            return False
        names = os.listdir(path)
        return bool(names) and all(_RUN.fullmatch(one) for one in names)

    def _is_credential(self, name: str) -> bool:
        path = self._root / name
        if name.endswith("/"):
            return is_credential_folder(path.name)
        try:
            return is_credential(path.name, read_regular(path, limit_bytes=HEAD_BYTES))
        except OSError:
            # Links that lead nowhere, pipes and files without a right to read are judged elsewhere.
            return is_credential(path.name, b"")


def _patterns(root: Path) -> GitIgnoreSpec | None:
    """Return the patterns of excluded files, None without a file of them."""
    lines: list[str] = []
    present = [root / name for name in IGNORE_FILES if (root / name).exists()]
    for path in present:
        try:
            lines += read_regular(path).decode("utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise PayloadError(f"{path} cannot be read: {error}") from error
    if not present:
        return None
    names = " and ".join(map(str, present))
    try:
        # Optional on machines that have only dtrain.
        from pathspec import GitIgnoreSpec
    except ImportError:
        raise PayloadError(f"{names} needs a library: pip install pathspec") from None
    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise PayloadError(f"{names} has an invalid .gitignore pattern: {error}") from error


def _walk(root: Path, ignored: Callable[[str], bool]) -> Iterator[Path]:
    """Yield folders, files and links in the same order on every machine."""

    def fail(error: OSError) -> None:
        raise PayloadError(
            f"{error.filename} cannot be read: {error.strerror}. Fix its mode, or name it in .dtrainignore."
        )

    for folder, names, files in os.walk(root, onerror=fail):
        here = Path(folder)
        # A link to a folder is listed with the folders but not entered.
        links = [name for name in names if (here / name).is_symlink()]
        names[:] = sorted(
            name for name in names if name not in {*SKIPPED, *links} and not ignored(_name(root, here / name) + "/")
        )
        yield from (here / name for name in names)
        for name in sorted([*files, *links]):
            if name not in SKIPPED and not name.endswith(".pyc") and not ignored(_name(root, here / name)):
                yield _checked(root, here / name)


def _name(root: Path, path: Path) -> str:
    name = path.relative_to(root).as_posix()
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PayloadError(
            f"The name of {os.fsencode(name)!r} is not UTF-8. Rename it, or move it out of model_dir."
        ) from error
    return name


def _checked(root: Path, path: Path) -> Path:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        target = Path(os.path.normpath(path.parent / os.readlink(path)))
        if not target.is_relative_to(root) or not Path(os.path.realpath(path)).is_relative_to(root):
            raise PayloadError(
                f"{path} is a link to {os.readlink(path)}, outside {root}, which is not sent to hosts. Copy the file "
                f"into the folder, or name the link in {IGNORE_FILE}."
            )
    elif not stat.S_ISREG(mode):
        raise PayloadError(f"{path} is not a file, folder or link. Remove it, or name it in {IGNORE_FILE}.")
    return path


def _check_size(root: Path, entries: list[Path], limit_bytes: int) -> None:
    sizes = sorted(((path.lstat().st_size, path) for path in entries if path.is_file()), reverse=True)
    total = sum(size for size, _ in sizes)
    if total <= limit_bytes:
        return
    largest = ", ".join(f"{path.relative_to(root)} ({byte_size(size)})" for size, path in sizes[:_LARGEST])
    raise PayloadError(
        f"{root} has {byte_size(total)} in {len(sizes)} files, at most {byte_size(limit_bytes)} may be sent. The "
        f"largest: {largest}. Name data and checkpoints in {IGNORE_FILE} and read them from storage."
    )


def packed(entries: Iterator[tuple[str, Path | bytes]]) -> Payload:
    """Return files as a reproducible archive.

    :param entries: name in the archive, with the file or its content
    """
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, source in sorted(entries, key=lambda entry: PurePosixPath(entry[0]).parts):
            _add(tar, name, source)
    # The gzip module is not used, because its header depends on the version of Python.
    squeeze = zlib.compressobj(6, zlib.DEFLATED, 31)
    content = squeeze.compress(plain.getbuffer()) + squeeze.flush()
    return Payload(digest=hashlib.sha256(content).hexdigest(), content=content)


def _add(tar: tarfile.TarFile, name: str, path: Path | bytes) -> None:
    member = tarfile.TarInfo(name)
    member.mtime = 0
    member.mode = 0o644
    if isinstance(path, bytes):
        member.size = len(path)
        tar.addfile(member, io.BytesIO(path))
    elif path.is_symlink():
        member.type = tarfile.SYMTYPE
        member.mode = 0o777
        member.linkname = _relative_target(path)
        tar.addfile(member)
    elif path.is_dir():
        member.type = tarfile.DIRTYPE
        member.mode = 0o755
        tar.addfile(member)
    else:
        # Read the whole file first: a file that grows meanwhile must not break the archive.
        content = _read(path)
        member.size = len(content)
        if path.stat().st_mode & 0o100:
            member.mode = 0o755
        tar.addfile(member, io.BytesIO(content))


def _relative_target(link: Path) -> str:
    target = os.path.normpath(link.parent / os.readlink(link))
    return PurePosixPath(os.path.relpath(target, link.parent)).as_posix()


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise PayloadError(
            f"{path} cannot be read: {error.strerror}. Fix its mode, or name it in .dtrainignore."
        ) from error
