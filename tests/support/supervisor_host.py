"""A host for tests: its own folders, and channels to ``follow`` as a real process."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.core.event_log import read_measurements
from airflow_provider_dtrain.supervisor.refusal import Refused
from airflow_provider_dtrain.supervisor.run.plan import check_plan
from airflow_provider_dtrain.supervisor.run.warm_record import WarmRecord
from testbed.programs import unpacked_supervisor
from tests.support.lock_dirs import new_lock_dir
from tests.support.warm_parents import end_warm_parents

#: Command line of a role of the supervisor. Such a process never runs a user's code.
ROLE = re.compile(rb"[^\0]*\0(-I\0)?[^\0]*supervisor/[0-9a-f]{64}(/__main__\.py)?\0")
#: The supervisor as hosts have it: its archive, unpacked.
SUPERVISOR = unpacked_supervisor()
#: Ranks are forked from warm parents wherever that is possible: every test of the supervisor holds for them too.
WARM_STARTS = "DTRAIN_TEST_WARM" in os.environ
#: Longer than programs need to start on a busy machine: nothing waits that long unless it fails.
DEADLINE_S = 60.0

SLEEP = ("sh", "-c", "exec sleep 1000")
#: It prints "ready" once a grandchild sleeps that has left session, process group and parent: sleep closes the pipe.
DETACHED = (
    "python", "-c",
    "import os, time\n"
    "waiting, open_until_exec = os.pipe()\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        os.execvp('sleep', ['sleep', '1000'])\n"
    "    os._exit(0)\n"
    "os.close(open_until_exec)\n"
    "os.read(waiting, 1)\n"
    "print('ready', flush=True); time.sleep(1000)\n",
)  # fmt: skip


def interpreters() -> list[str]:
    """Return this interpreter and, if installed, the oldest one that hosts may have."""
    found = [sys.executable]
    old = sorted(Path.home().glob(".pyenv/versions/3.9.*/bin/python"))
    return found + [str(path) for path in old[:1]]


def until(condition: Callable[[], Any], what: str = "the condition", timeout_s: float = DEADLINE_S) -> Any:
    """Wait until a condition holds that depends on another process."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not come within {timeout_s} s"
        select.select([], [], [], 0.005)
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Refusal(Exception):
    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(str(answer))
        self.answer = answer
        self.code = answer["code"]


class Channel:
    """The control side of one follow process."""

    def __init__(self, host: Host, argv: list[str]) -> None:
        self.host = host
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=host.env, cwd=host.root,
            **host.account,
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.buffer = bytearray()
        self.answers: dict[str, dict[str, Any]] = {}
        self.frames: list[dict[str, Any]] = []
        self.count = 0
        self.acks = True
        line = self._line(time.monotonic() + DEADLINE_S)
        assert line.startswith(b"DTRAIN/1 "), line
        self.hello = json.loads(line[9:])

    def _fill(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self.stdout], [], [], left)[0]:
            raise TimeoutError(f"nothing came; frames so far: {self.frames[-5:]}")
        data = os.read(self.stdout.fileno(), 1 << 20)
        if not data:
            stderr = self.process.stderr
            raise EOFError((stderr.read() if stderr else b"").decode())
        self.buffer += data

    def _take(self, count: int) -> bytes:
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        return taken

    def _line(self, deadline: float) -> bytes:
        while (end := self.buffer.find(b"\n")) < 0:
            self._fill(deadline)
        return self._take(end + 1)

    def read(self, timeout_s: float = DEADLINE_S) -> dict[str, Any]:
        """Read one frame or answer."""
        deadline = time.monotonic() + timeout_s
        frame: dict[str, Any] = json.loads(self._line(deadline))
        while len(self.buffer) < frame.get("bytes", 0):
            self._fill(deadline)
        frame["raw"] = self._take(frame.get("bytes", 0))
        if "re" in frame:
            self.answers[str(frame["re"])] = frame
        else:
            self.frames.append(frame)
            if frame["t"] == "data" and self.acks:
                end = frame["offset"] + frame["bytes"]
                self.send(cmd="ack", run=frame["run"], stream=frame["stream"], offset=end)
        return frame

    def send(self, **message: Any) -> None:
        self.send_raw(json.dumps(message).encode() + b"\n")

    def send_raw(self, data: bytes) -> None:
        self.stdin.write(data)
        self.stdin.flush()

    def post(self, cmd: str, **arguments: Any) -> str:
        if cmd == "prepare" and self.host.warm_starts:
            arguments["plan"] = self.host.warm(arguments["plan"])
        self.count += 1
        key = f"q{self.count}"
        self.send(id=key, cmd=cmd, **arguments)
        return key

    def answer(self, key: str) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_S
        while key not in self.answers:
            self.read(deadline - time.monotonic())
        answer = self.answers.pop(key)
        if not answer["ok"]:
            raise Refusal(answer)
        return answer

    def call(self, cmd: str, **arguments: Any) -> dict[str, Any]:
        return self.answer(self.post(cmd, **arguments))

    def wait(self, condition: Callable[[], Any]) -> Any:
        """Read frames until the condition holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            self.read(deadline - time.monotonic())
        return found

    def stream(self, run: str, name: str) -> bytes:
        """Return the received bytes of a stream, and assert that its frames do not overlap."""
        parts = [f for f in self.frames if f["t"] == "data" and f["run"] == run and f["stream"] == name]
        for one, other in zip(parts, parts[1:], strict=False):
            assert other["offset"] >= one["offset"] + one["bytes"]
        return b"".join(part["raw"] for part in parts)

    def events(self, run: str, name: str = "supervisor.events") -> list[dict[str, Any]]:
        found = []
        for line in self.stream(run, name).splitlines():
            assert line[:8] == b"%08x" % zlib.crc32(line[9:])
            found.append(json.loads(line[9:]))
        return found

    def event(self, run: str, kind: str) -> dict[str, Any] | None:
        return next((event for event in self.events(run) if event["kind"] == kind), None)

    def wait_event(self, run: str, kind: str) -> dict[str, Any]:
        found: dict[str, Any] = self.wait(lambda: self.event(run, kind))
        return found

    def close(self) -> int:
        if not self.stdin.closed:
            self.stdin.close()
        try:
            code = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.stdout.close()
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code


class Host:
    """Folders of one host. Several hosts on one machine are independent.

    :param uid: account of the host's processes; None: the account of the tests
    :param lock_dir: lock folder of another host, which makes both hosts accounts of one machine
    """

    def __init__(
        self, root: Path, python: str = sys.executable, *, cgroup: bool = True, uid: int | None = None,
        lock_dir: str | None = None,
    ) -> None:  # fmt: skip
        self.root, self.python = root, python
        self.account = {} if uid is None else {"user": uid, "group": uid, "extra_groups": ()}
        self.remote_dir, self.state_dir = root / "remote", root / "state"
        self.root.mkdir(parents=True, exist_ok=True)
        self.lock_dir = lock_dir or new_lock_dir(root)
        if uid is not None:
            os.chown(root, uid, uid)
        self.env = {**os.environ, **({} if cgroup else {"DTRAIN_NO_CGROUP": "1"})}
        self.channels: list[Channel] = []
        self.warm_starts = WARM_STARTS

    def argv(self, role: str, *arguments: str) -> list[str]:
        folders = ["--remote-dir", str(self.remote_dir), "--state-dir", str(self.state_dir)]
        # Hosts start it relative to the home directory too.
        program = os.path.relpath(SUPERVISOR, self.root)
        return [self.python, "-I", program, role, *folders, "--lock-dir", self.lock_dir, *arguments]

    def channel(self) -> Channel:
        found = Channel(self, self.argv("follow"))
        self.channels.append(found)
        return found

    def warm(self, plan: dict[str, Any]) -> dict[str, Any]:
        """Return a plan whose ranks are forked from a warm parent, as at the second launch of its program here."""
        plan = {**plan, "warm": plan.get("warm") or {"idle_s": 60, "private": []}}
        with suppress(KeyError, OSError, Refused):
            folder = self.state_dir / "warm"
            if not folder.exists():
                folder.mkdir(mode=0o700, parents=True)
                self.state_dir.chmod(0o700)
                for path in (folder, self.state_dir) if self.account else ():
                    os.chown(path, self.account["user"], self.account["group"])
            record = WarmRecord(str(folder), check_plan(plan))
            record.why_executed(plan["payload"])
            if self.account:
                os.chown(record.path, self.account["user"], self.account["group"])
        return plan

    def command(self, role: str, *arguments: str, stdin: bytes = b"") -> tuple[int, bytes]:
        done = subprocess.run(
            self.argv(role, *arguments), input=stdin, capture_output=True, env=self.env, timeout=60, cwd=self.root,
            **self.account,
        )  # fmt: skip
        return done.returncode, done.stdout or done.stderr

    def run_dir(self, run: str) -> Path:
        return self.state_dir / "runs" / run

    def send_archive(self, kind: str, files: Mapping[str, str]) -> str:
        content = archive(files)
        digest = hashlib.sha256(content).hexdigest()
        assert self.command("receive", kind, digest, stdin=content) == (0, b"ok\n")
        return digest

    def supervisor_pid(self, run: str) -> int:
        pid: int = json.loads((self.run_dir(run) / "supervisor.json").read_text())["pid"]
        return pid

    def reaper_pid(self, run: str) -> int:
        pid: int = json.loads((self.run_dir(run) / "supervisor.json").read_text())["reaper"]["pid"]
        return pid

    def kill_parents(self, run: str) -> None:
        """Kill reaper and supervisor, so that neither adopts the run's orphans.

        The supervisor is stopped until the reaper is dead. Dead before it, it would leave its orphans to a reaper that
        a fence still finds alive on a busy machine.
        """
        reaper, supervisor = self.reaper_pid(run), self.supervisor_pid(run)
        os.kill(supervisor, signal.SIGSTOP)
        os.kill(reaper, signal.SIGKILL)
        until(lambda: not is_alive(reaper), "the death of the reaper")
        os.kill(supervisor, signal.SIGKILL)
        until(lambda: not is_alive(supervisor), "the death of the supervisor")

    def processes(self, run: str | None = None) -> list[int]:
        """Return the living processes of a run of this host."""
        found = []
        wanted = f"DTRAIN_RUN_DIR={self.state_dir}/runs/{run or ''}".encode()
        for entry in Path("/proc").iterdir():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
            except OSError:
                continue
            if any(v == wanted if run else v.startswith(wanted) for v in variables) and is_alive(int(entry.name)):
                found.append(int(entry.name))
        return found

    def clean(self) -> None:
        """Kill the processes that a test has left, and only these."""
        for channel in self.channels:
            channel.close()
        end_warm_parents(self.state_dir)
        runs = self.state_dir / "runs"
        for folder in runs.iterdir() if runs.is_dir() else ():
            if (folder / "supervisor.json").exists() and not (folder / "ended").exists():
                pid = self.supervisor_pid(folder.name)
                if is_alive(pid) and str(self.state_dir).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        for pid in self.processes():
            # The reaper may kill the same processes at the same time.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self.processes(), "the end of the test's processes")
        for file in runs.glob("*/supervisor.json"):
            path = json.loads(file.read_text()).get("cgroup")
            until(lambda path=path: not path or not os.path.isdir(path) or removed(path), "an empty cgroup")


def removed(path: str) -> bool:
    """Remove a cgroup, and return False while its last process has not ended."""
    try:
        os.rmdir(path)
    except OSError:
        return False
    return True


def archive(files: Mapping[str, str], *members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Return a tar.gz with some files, followed by hand-made members."""
    target = io.BytesIO()
    # Equal files have an equal digest, so the header of gzip has no time.
    with gzip.GzipFile(fileobj=target, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
        for member, content in members:
            tar.addfile(member, io.BytesIO(content))
    return target.getvalue()


def make_plan(run: str, *argv: str, ranks: int = 1, devices: Sequence[str] = (), **changes: Any) -> dict[str, Any]:
    """Return a plan of one host, in which rank k has slot k, and the device k if there are devices."""
    plan: dict[str, Any] = {
        "protocol": 1, "run": run, "store": "store-1", "token": int(run.rpartition(".")[2]), "host": "here",
        "group_rank": 0, "group_world_size": 1, "world_size": ranks, "argv": list(argv), "per_host": False,
        "ranks": [
            {
                "rank": k, "local_rank": k, "slot": k,
                "device": devices[k] if devices else None, "visible_devices": list(devices),
            }
            for k in range(ranks)
        ],
        "python": None, "environment": None, "setup": None,
        "env": {}, "payload": None, "library": None, "port_range": None,
        "grace_s": 5, "orphan_timeout_s": 900, "prepare_timeout_s": 60, "timeout_s": None,
        "log_limit_bytes": 1 << 20, "cpu_slots": True,
    }  # fmt: skip
    plan.update(changes)
    return plan


def start(
    channel: Channel, plan: dict[str, Any], *, logs: str = "all", context: Any = None, secrets: Any = None
) -> dict[str, Any]:
    """Send prepare, subscribe and go, as the control side does."""
    run = plan["run"]
    answer = channel.call("prepare", plan=plan, context=context or {}, secrets=secrets or {})
    channel.call("subscribe", run=run, offsets={}, logs=logs)
    state = channel.call("go", run=run, master_addr="127.0.0.1", master_port=answer["port"])["state"]
    # A short program may end before the answer is written.
    assert state in ("running", "ended")
    return answer


def read_samples(data: bytes) -> list[dict[str, Any]]:
    """Return the measurements of a samples file, without an unfinished line."""
    return [dict(one.event) for one in read_measurements(data) if one.event is not None]
