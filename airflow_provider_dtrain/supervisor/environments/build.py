"""Build of an environment by a detached process, under its lock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Mapping, Sequence

from ..fields import Fields, parse_object
from ..files.archives import unpack_archive, unpack_member
from ..files.layout import Layout
from ..limits import MAX_LINE
from ..machine.processes import (
    LIBC,
    PR_SET_CHILD_SUBREAPER,
    die_with_parent,
    identity,
    kill_descendants,
    program,
)
from ..names import Json
from ..refusal import Refused, refusal_of
from .folder import EnvironmentFolder
from .garbage import make_room
from .install import Installer, find_uv
from .request import check_build

#: Name of the file that adds the packages of the interpreter to the path.
_SITE = "dtrain_interpreter.pth"
#: Time that a build waits for the end of another one of the same environment, beyond that one's time-out.
_MARGIN_S = 30.0
#: Least time between two records of the progress.
_RECORD_S = 0.5


class Build:
    """One build of one environment. The caller holds its lock exclusively.

    :param request: checked, see :func:`check_build`
    """

    def __init__(self, layout: Layout, folder: EnvironmentFolder, request: Json, lock: int) -> None:
        self.layout = layout
        self.folder = folder
        self.request = request
        self.lock = lock
        self.deadline = time.monotonic() + request["timeout_s"]
        self.began = time.time()
        self._recorded = 0.0

    def run(self) -> None:
        """Build the environment, or record the failure and leave nothing."""
        try:
            self.report(f"begins with {len(self.request['packages'])} package(s)", force=True)
            self.folder.clear()
            make_room(self.layout, self.folder)
            self._build(self.folder.make_room())
            self.report("is complete", force=True)
        except BaseException as error:
            failure = refusal_of(error).answer()
            self.folder.clear()
            self._record("failed", failure)
        finally:
            self.folder.clear_work()

    def report(self, text: str, *, force: bool = False) -> None:
        """Record the progress."""
        if force or time.monotonic() - self._recorded > _RECORD_S:
            self._recorded = time.monotonic()
            self._record(text)

    def _record(self, text: str, failure: Json | None = None) -> None:
        own = {"id": self.request["id"], "began": self.began, "process": identity()}
        self.folder.write_state({**own, "progress": text, "failure": failure})

    def _build(self, work: str) -> None:
        facts = self.request["facts"]
        files = [os.path.join(work, "files", name) for name in self._download(work)]
        environ = dict(os.environ)
        installer = Installer(facts, self._uv(), work, environ, self.deadline, self.lock)
        self.report(f"installs {len(files)} packages", force=True)
        installer.make(self.folder.path)
        wheels = [path for path in files if path.endswith(".whl")]
        sources = [path for path in files if not path.endswith(".whl")]
        if wheels:
            installer.install(self.folder.path, wheels, builds=False)
        if sources:
            self.report(f"builds {len(sources)} packages", force=True)
            installer.install(self.folder.path, sources, builds=True)
        if self.request["system_site_packages"]:
            self._add_packages_of_interpreter(facts["folders"])
        self.folder.complete(
            {
                "digest": self.folder.digest,
                "lock": self.request["lock"],
                "python": facts["python"],
                "interpreter": facts["executable"],
                "packages": [f"{one['name']}=={one['version']}" for one in self.request["packages"]],
                "built_at": time.time(),
                "built_s": round(time.time() - self.began, 1),
            }
        )

    def _uv(self) -> str | None:
        """Return uv of this host, else the one that was sent."""
        if (found := find_uv(os.environ.get("PATH"))) is not None:
            return found
        digest = self.request["uv"]
        if digest is None:
            return None
        target = self.layout.tool(digest)
        unpack_archive(self.layout.archive("tools", digest), target)
        return find_uv(target)

    def _add_packages_of_interpreter(self, folders: Sequence[str]) -> None:
        """Let the environment find the packages of its interpreter behind its own ones, also those of a venv."""
        found = [name for name in os.listdir(os.path.join(self.folder.path, "lib")) if name.startswith("python3")]
        place = os.path.join(self.folder.path, "lib", found[0], "site-packages", _SITE)
        with open(place, "w", encoding="utf-8") as file:
            file.writelines(f"import site; site.addsitedir({path!r})\n" for path in folders)

    def _download(self, work: str) -> list[str]:
        """Return the names of the files, downloaded by a process of its own."""
        target = os.path.join(work, "files")
        os.makedirs(target, mode=0o700)
        fields = ("packages", "tags", "allow_builds", "stall_s", "index")
        request = {
            **{name: self.request[name] for name in fields},
            "target": target,
            "folders": self._wheels(work),
            "pip": self.request["facts"]["pip"],
        }
        argv = [sys.executable, "-I", program(), "download"]
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
            pass_fds=[self.lock],
        )
        # This process builds, and needs the credentials no longer.
        self.request["index"] = None
        assert process.stdin is not None
        assert process.stdout is not None
        with process:
            signal.alarm(max(1, int(self.deadline - time.monotonic())))
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.close()
                answer = self._answer(process)
            finally:
                signal.alarm(0)
                process.kill()
        if answer.get("ok") is not True:
            details = {name: value for name, value in answer.items() if name not in ("ok", "code", "message")}
            raise Refused(str(answer.get("code", "internal")), str(answer.get("message", _NO_ANSWER)), **details)
        return list(answer["files"])

    def _answer(self, process: subprocess.Popen[bytes]) -> Json:
        assert process.stdout is not None
        answer: Json = {}
        for line in process.stdout:
            answer = parse_object(line) or {}
            if "progress" in answer:
                self.report(str(answer["progress"]))
        return answer

    def _wheels(self, work: str) -> list[str]:
        """Return the folders with wheels: one of this host, or one with those that were sent with the code."""
        place = self.request["wheels"]
        if place is None:
            return []
        if place.startswith("/"):
            return [str(place)]
        target = os.path.join(work, "sent")
        os.makedirs(target, mode=0o700)
        try:
            with tarfile.open(self.layout.archive("payloads", self.request["payload"]), "r:gz") as archive:
                for member in archive:
                    folder, _, name = member.name.rpartition("/")
                    if os.path.normpath(folder) == os.path.normpath(place) and member.isreg() and name:
                        unpack_member(archive, member, target, [name])
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise Refused("bad_archive", f"The archive of the code is damaged: {error}. Send it again.") from error
        return [target]


_NO_ANSWER = "The process that downloads packages ended without an answer. Is this host out of memory?"


def build(layout: Layout) -> None:
    """Build the environment that a request on standard input describes, unless it is complete already."""
    fields = Fields(parse_object(sys.stdin.buffer.readline(MAX_LINE)) or {})
    request = check_build(fields)
    folder = EnvironmentFolder(layout, request["digest"])
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    lock = folder.seize(time.monotonic() + request["timeout_s"] + _MARGIN_S)
    if lock is None:
        return
    if folder.mark() is not None:
        # Another build was faster.
        return
    signal.signal(signal.SIGALRM, _late)
    try:
        Build(layout, folder, request, lock).run()
    finally:
        kill_descendants()
        os.close(lock)


def _late(*_: object) -> None:
    raise Refused("timeout", "The download did not end within the time-out of the build.")


def start_build(arguments: Sequence[str], request: Json, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a detached process that builds an environment. A build outlives the channel that started it."""
    argv = [sys.executable, "-I", program(), "build", *arguments]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        env=dict(environ),
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.close()
    return process
