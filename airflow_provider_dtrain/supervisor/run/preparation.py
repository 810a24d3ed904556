"""Preparation of a run before its ranks exist: claim of the run and its slots, files, port and container."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Sequence

from ..environments.folder import EnvironmentFolder
from ..environments.setup_script import run_setup
from ..file_access import below, sync_folder, write_atomic, write_json
from ..files.archives import unpack_archive
from ..files.layout import Layout, inode_of, why_lost
from ..files.outputs import note_baseline, take_carried
from ..limits import ATTACH_WAIT_S, IN_PLACE_BYTES, RESERVE
from ..machine.locks import take_lock
from ..machine.processes import identity, start_time
from ..machine.sockets import bind_everywhere, ports_of
from ..names import Json
from ..refusal import Refused, fenced_refusal
from .cgroup import Cgroup
from .container import Container
from .fencing import recover
from .ranks import Rank
from .slot_locks import SlotLocks
from .warm_record import WarmRecord
from .warm_start import warm_folder


class Preparation:
    """Everything that a supervisor holds for its run before the first rank exists.

    :param context: values of the trial
    :param ranks: of this host
    :param container: of the run; None: the ranks run without one
    """

    def __init__(
        self, layout: Layout, plan: Json, context: Json, ranks: Sequence[Rank], container: Container | None
    ) -> None:
        self.layout = layout
        #: With the variables of the setup script, once it has run.
        self.plan = plan
        self.context = context
        self.ranks = ranks
        self.container = container
        self.folder = layout.run(plan["run"])
        self.slots = SlotLocks(layout, self.folder, plan)
        self.run_lock = -1
        #: Descriptor, None without an environment from a lock file.
        self.environment_lock: int | None = None
        #: Of the run's folder.
        self.inode = 0
        self.identity = Json()
        self.port: int | None = None
        self.port_socket: socket.socket | None = None
        self.cgroup: Cgroup | None = None
        self._made_folder = not os.path.lexists(self.folder.path)

    def run(self) -> Json | None:
        """Prepare the run. Return an answer instead if it is alive or has ended already.

        :raises Refused: this run cannot start here; :meth:`give_up` removes what was made for it
        """
        answer = self._claim()
        if answer is not None:
            return answer
        self._check_archives()
        self._hold_environment()
        self.slots.take()
        self.slots.check_tokens()
        if self.folder.has_tombstone:
            raise fenced_refusal(self.folder.name)
        self._write_files()
        self.port = self._bind_port()
        self._start_container()
        return None

    def give_up(self) -> None:
        """Remove what was made, and release the slots."""
        is_ended = self.container is None or self.container.kill() is None
        self.leave_cgroup()
        if self.cgroup is not None:
            self.cgroup.remove()
        if self._made_folder and self.run_lock >= 0 and is_ended:
            shutil.rmtree(self.folder.path, ignore_errors=True)
        # Before the control side reads the refusal, so that its next status query finds the slots free.
        self.slots.release()

    def _claim(self) -> Json | None:
        """Lock the run folder. Return an answer instead if the run is alive or has ended already."""
        deadline = time.monotonic() + ATTACH_WAIT_S
        while True:
            if self.folder.has_tombstone or self.folder.has_tombstone_of(self.plan["launch"]):
                raise fenced_refusal(self.folder.name)
            if self._lock_run():
                break
            state = self.folder.state()
            if self.folder.alive() and state.get("state") in ("prepared", "running", "stopping", "killing"):
                self._refuse_namesake()
                shown = "prepared" if state["state"] == "prepared" else "running"
                return {"state": shown, "attached": True, "port": state.get("port")}
            if time.monotonic() > deadline:
                raise Refused("busy", f"Run {self.folder.name} is locked by a start that does not become ready.")
            time.sleep(0.005)
        if self.folder.has("started") or self.folder.has("ended"):
            return self._was_started()
        # Files of an earlier supervisor that died before the start must not be mistaken for this one's.
        for name in ("go.json", "stop.json", "state.json", "renewed"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.folder.file(name))
        self.identity = {**identity(), "reaper": {"pid": os.getppid(), "start_time": start_time(os.getppid())}}
        write_json(self.folder.file("supervisor.json"), self.identity, durable=False)
        return None

    def _lock_run(self) -> bool:
        try:
            os.makedirs(self.folder.path, mode=0o700, exist_ok=True)
            lock = take_lock(self.folder.file("lock"))
        except FileNotFoundError:
            return False
        if lock is not None and self.folder.alive():
            # Another process removed the file that the run's supervisor has locked.
            os.close(lock)
            lock = None
        self.run_lock = -1 if lock is None else lock
        self.inode = inode_of(self.folder.path)
        return lock is not None

    def _was_started(self) -> Json:
        """Return the end of a run that was started. A run without an end is lost and never starts again."""
        os.close(self.run_lock)
        self.run_lock = -1
        self._refuse_namesake()
        cause, message = why_lost(self.folder)
        recover(self.folder)
        ended = self.folder.ended() or {"reason": "lost", "cause": cause}
        if ended.get("reason") != "lost":
            return {"state": "ended", "attached": True, "port": None, "reason": ended.get("reason")}
        cause = str(ended.get("cause", cause))
        raise Refused("lost", f"Run {self.folder.name} was started here and did not end: {message}.", cause=cause)

    def _refuse_namesake(self) -> None:
        """Refuse a run whose name another launch uses here. Its grant was issued twice."""
        if self.folder.is_other_launch(self.plan["launch"]):
            message = f"Run {self.folder.name} of another launch is on this host: the store was restored from a backup."
            raise Refused("other_launch", f"{message} Request a new grant.", run=self.folder.name)

    def _check_archives(self) -> None:
        missing = {}
        for kind, name in (("payloads", "payload"), ("libraries", "library")):
            digest = self.plan[name]
            unpacked = kind == "libraries" and digest and os.path.isdir(self.layout.library(digest))
            if digest and not unpacked and not os.path.isfile(self.layout.archive(kind, digest)):
                missing[kind] = [digest]
        if missing:
            message = ", ".join(f"{kind}/{digests[0][:12]}" for kind, digests in missing.items())
            digests = [digest for found in missing.values() for digest in found]
            message = f"This host does not have {message}. Send it and prepare again."
            raise Refused("need", message, missing=digests, kinds=missing)

    def _hold_environment(self) -> None:
        """Keep the environment of the run from being removed or replaced while this process lives."""
        digest = self.plan["environment"]
        if digest is None:
            return
        folder = EnvironmentFolder(self.layout, digest)
        with contextlib.suppress(FileNotFoundError):
            self.environment_lock = folder.share()
        if self.environment_lock is None or folder.mark() is None:
            message = f"This host no longer has environment {digest[:12]}, or builds it again. Start the run again."
            raise Refused("need_environment", message)

    def _write_files(self) -> None:
        """Unpack the code and write all files that ranks and followers read."""
        folder = self.folder
        for name in ("checkpoints", *(f"rank{rank.number}" for rank in self.ranks)):
            os.makedirs(folder.file(name), mode=0o700, exist_ok=True)
        for rank in self.ranks:
            # This allocates its block now, so that it can be overwritten once the log has filled the disk.
            write_json(os.path.join(rank.folder, "gaps.json"), {"gaps": []}, durable=False)
        write_atomic(folder.file("renewed"), b"{}".ljust(IN_PLACE_BYTES), durable=False)
        if self.plan["payload"]:
            unpack_archive(self.layout.archive("payloads", self.plan["payload"]), folder.file("work"))
        os.makedirs(folder.file("work"), mode=0o700, exist_ok=True)
        note_baseline(folder)
        if self.plan["setup"] is not None and self.plan["payload"]:
            variables = run_setup(self.layout, self.plan["payload"], self.plan["setup"]).variables
            if self.plan["warm"] is not None:
                WarmRecord(warm_folder(self.layout), self.plan).note_setup(variables)
            # Those of the host and of the configuration replace them.
            self.plan = {**self.plan, "env": {**variables, **self.plan["env"]}}
        take_carried(folder, self.plan["carried"])
        if self.plan["library"]:
            digest = self.plan["library"]
            unpack_archive(self.layout.archive("libraries", digest), self.layout.library(digest))
        self.cgroup = Cgroup.create(folder)
        # Ranks are forked inside it. Moving a process takes the kernel milliseconds and delays every fork.
        if self.cgroup is not None and not self.cgroup.enter():
            self.leave_cgroup()
            self.cgroup.remove()
            self.cgroup = None
        own = {**self.identity, "cgroup": self.cgroup.path if self.cgroup else None}
        documents = {"context.json": self.context, "supervisor.json": own, "plan.json": self.plan}
        for name, document in documents.items():
            write_json(folder.file(name), document, durable=False)
        # Make the name of the folder durable, for the ``started`` mark that the start writes into it.
        sync_folder(os.path.dirname(folder.path))
        with open(folder.file("reserve"), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE)

    def _start_container(self) -> None:
        if self.container is None:
            return
        for name in self.plan["container"]["folders"]:
            # The runtime would make it as another user.
            os.makedirs(below(self.folder.file("work"), name), mode=0o700, exist_ok=True)
        path = [self.layout.library(self.plan["library"])] if self.plan["library"] else []
        self.container.start(path, [lock for locks in self.slots.held.values() for lock in locks])

    def _bind_port(self) -> int | None:
        """Bind the rendezvous port on the host of rank 0, without listening.

        It is bound exclusively, so that it is not a port of another run. SO_REUSEADDR is set afterwards,
        so that rank 0 can listen on it and no other process gets it by chance.
        """
        if not any(rank.number == 0 for rank in self.ranks):
            return None
        for port in ports_of(self.plan["port_range"]):
            try:
                self.port_socket = bind_everywhere(port)
            except OSError:
                continue
            self.port_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return int(self.port_socket.getsockname()[1])
        raise Refused("no_port", f"No free port in {self.plan['port_range']}. Widen port_range or free its ports.")

    def leave_cgroup(self) -> None:
        """Leave the cgroup that is about to be killed. If that fails, only the process tree is killed."""
        if self.cgroup is not None and self.cgroup.is_inside() and not self.cgroup.leave():
            self.cgroup = None
