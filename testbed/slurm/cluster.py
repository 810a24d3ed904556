"""One Slurm cluster: its folder, daemons and nodes."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.netns import NamespaceHosts
from testbed.netns.network import Network, namespace_name, tear_down
from testbed.slurm import configuration, programs
from testbed.slurm.accounting import Accounting
from testbed.slurm.configuration import Options
from testbed.slurm.machine import HostMachine, Machine, end_all
from testbed.standalone import wait_until

_START_TIMEOUT_S = 60.0
#: Machine of munged and slurmctld.
CONTROLLER = "controller"
#: Final states of jobs.
ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT",
)  # fmt: skip
_RECORD = "cluster.json"
#: Major number of NVIDIA's devices. No driver is needed to create the files.
_NVIDIA = 195


class SlurmCluster:
    """A cluster whose nodes are namespaces on one machine. Usable as a context manager.

    Nodes have network, host name and processes of their own and share all files. This machine is the login node. Only
    root may create networks: clusters of other accounts share that of this machine.

    :param folder: new or empty folder, or that of the same cluster; other accounts must be able to enter it
    :param root: folder of another Slurm version, made by :func:`testbed.slurm.programs.make_root`
    :param hosts: test hosts that become the nodes, which end with the cluster: their /tmp is their own
    :param options: fields of :class:`testbed.slurm.configuration.Options`
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        root: Path | None = None,
        hosts: NamespaceHosts | None = None,
        **options: Any,
    ) -> None:
        # Test hosts do not see this machine's /tmp and /var/tmp.
        default = hosts.folder / "slurm" if hosts else default_folder()
        self.folder, self.root = (folder or default).absolute(), root
        self.options = Options(**options, **({"nodes": len(hosts)} if hosts else {}))
        self.controller, self._hosts = Machine(self.folder, CONTROLLER), hosts
        names = self.options.names()
        #: Begins the names of links and namespaces. It follows from the folder, so that a later process removes them.
        self.network_tag = f"ds{hashlib.sha256(bytes(self.folder)).hexdigest()[:6]}"
        self._has_network = not hosts and os.geteuid() == 0 and shutil.which("ip") is not None
        networks = [namespace_name(self.network_tag, index) if self._has_network else "" for index in range(len(names))]
        self.nodes = {name: Machine(self.folder, name, network) for name, network in zip(names, networks, strict=True)}
        if hosts:
            self.nodes = {name: HostMachine(self.folder, name, hosts.host(i)) for i, name in enumerate(names)}

    @classmethod
    def read(cls, folder: Path) -> SlurmCluster:
        """Return the cluster that has been started in a folder.

        :raises RuntimeError: the folder has none
        """
        try:
            record = json.loads((folder.absolute() / _RECORD).read_text())
        except FileNotFoundError:
            raise RuntimeError(f"{folder} has no cluster: scripts/slurm-testbed start --folder {folder}") from None
        return cls(folder, root=Path(record["root"]) if record["root"] else None, **record["options"])

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a shell that uses this cluster: SLURM_CONF, and PATH if the programs are in a root."""
        path = {"PATH": f"{self.folder}/bin:{os.environ.get('PATH', os.defpath)}"} if self.root else {}
        return {"SLURM_CONF": f"{self.folder}/slurm.conf", **path}

    def shared(self) -> dict[str, object]:
        """Return the lines of slurm.conf with which a further cluster shares this one's key and accounting.

        Commands reach the further one by ``-M`` with its ClusterName, which must be a name of its own.
        """
        text = (self.folder / "slurm.conf").read_text()
        lines = dict(line.split("=", 1) for line in text.splitlines() if not line.startswith(("NodeName", "Partition")))
        return {name: value for name, value in lines.items() if name.startswith(("AuthInfo", "AccountingStorage"))}

    def start(self) -> None:
        """Start all daemons and wait until every node is idle. Does nothing if the same cluster is running.

        :raises RuntimeError: Slurm is missing, the folder holds something else, or a cluster with other options runs
        :raises TimeoutError: the nodes were not idle after 60 s; the message has the ends of the logs
        """
        if reason := programs.missing(self.root):
            raise RuntimeError(f"No Slurm cluster can run here: {reason}")
        record = self._record()
        if self.controller.init_pid and self._read_record() == record and not self.stopped_daemons():
            return
        if self.controller.init_pid and self._read_record() not in (None, record):
            raise RuntimeError(f"{self.folder} has a cluster with other options: scripts/slurm-testbed stop")
        self.stop()
        try:
            self._make_folder(record)
            self._start_daemons()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of the cluster, jobs too, and remove its folder. Safe to call repeatedly."""
        end_all(self.folder)
        for host in self._hosts or ():
            host.crash()
        if self._has_network:
            tear_down(self.network_tag)
        record = self._read_record()
        if record and (options := Options(**record["options"])).uses_cgroups():
            for name in options.names():
                _remove_cgroups(f"slurm_{name}")
        if record:
            shutil.rmtree(self.folder)

    def __enter__(self) -> SlurmCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(
        self, *argv: str, user: str | None = None, input: str | None = None, check: bool = True, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands, or another program with this cluster's environment.

        :param user: account that runs it; root may name any
        :raises RuntimeError: it failed and ``check`` is set
        """
        account: dict[str, Any] = {}
        if user:
            account = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
        done = subprocess.run(
            [str(self._program(argv[0]) or argv[0]), *argv[1:]], input=input, capture_output=True, text=True,
            timeout=timeout_s, check=False, env={**os.environ, **self.environment}, cwd="/", **account,
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr.strip()}")
        return done

    def submit(self, script: str, *options: str, user: str | None = None) -> str:
        """Submit a script and return the id of its job."""
        output = self.run("sbatch", "--parsable", "--output=/dev/null", *options, input=script, user=user).stdout
        return output.strip().partition(";")[0]

    def job(self, job_id: str) -> dict[str, str]:
        """Return the fields of ``scontrol show job``, empty if the controller has forgotten the job."""
        done = self.run("scontrol", "--oneliner", "show", "job", job_id, check=False)
        return dict(field.split("=", 1) for field in done.stdout.split() if "=" in field)

    def wait_for(self, job_id: str, *states: str, timeout_s: float = 60) -> dict[str, str]:
        """Wait until a job is in one of the states, and return its fields.

        :raises TimeoutError: it was not, or has ended in another state; the message has the state
        """
        seen: dict[str, str] = {}

        def has_state_or_end() -> bool:
            seen.update(self.job(job_id))
            return seen.get("JobState") in {*states, *ENDED}

        with contextlib.suppress(TimeoutError):
            wait_until(has_state_or_end, timeout_s=timeout_s, what="state", poll_s=0.2)
        if seen.get("JobState") not in states:
            wanted = " or ".join(states)
            raise TimeoutError(f"job {job_id} is {seen.get('JobState')} ({seen.get('Reason')}), expected {wanted}")
        return seen

    def stop_controller(self) -> None:
        """End slurmctld. Jobs continue."""
        self.controller.end("slurmctld")

    def start_controller(self) -> None:
        """Start slurmctld again, with the state that it saved, and wait until it answers."""
        self._daemon(self.controller, "slurmctld", "-D")
        wait_until(self._answers, timeout_s=_START_TIMEOUT_S, what="slurmctld's answer", poll_s=0.2)

    def stop_node(self, name: str) -> None:
        """Kill a node's slurmd. Its jobs continue, as steps do on a node whose slurmd has died."""
        self.nodes[name].end("slurmd", by=signal.SIGKILL)

    def crash_node(self, name: str) -> None:
        """End every process of a node at once, as a power cut does."""
        self.nodes[name].crash()

    def start_node(self, name: str) -> None:
        """Start a node's slurmd, after a crash in a new namespace."""
        self.nodes[name].boot()
        self._daemon(self.nodes[name], "slurmd", "-D", "-N", name)

    def update_node(self, name: str, state: str, reason: str = "by hand") -> None:
        """Set a node's state by ``scontrol``, e.g. to DOWN, DRAIN or RESUME."""
        self.run("scontrol", "update", f"NodeName={name}", f"State={state}", f"Reason={reason}")

    def node_states(self) -> dict[str, str]:
        """Return the state of each node."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %T", check=False).stdout.splitlines()
        return dict(line.split() for line in lines)

    def stopped_daemons(self) -> list[str]:
        """Return the daemons that do not run, e.g. ``slurmd on n2``."""
        wanted = [(self.controller, "munged"), (self.controller, "slurmctld")]
        wanted += [(machine, "slurmd") for machine in self.nodes.values()]
        return [f"{program} on {machine.name}" for machine, program in wanted if not machine.daemon(program)]

    def pids(self) -> list[int]:
        """Return all processes of the cluster, those of jobs too."""
        return [pid for machine in (self.controller, *self.nodes.values()) for pid in machine.pids()]

    def _program(self, name: str) -> Path | None:
        return programs.find(name, self.root) if name in (*programs.COMMANDS, *programs.DAEMONS) else None

    def _record(self) -> dict[str, Any]:
        return json.loads(json.dumps({"root": self.root, "options": dataclasses.asdict(self.options)}, default=str))

    def _read_record(self) -> dict[str, Any] | None:
        with contextlib.suppress(FileNotFoundError):
            return json.loads((self.folder / _RECORD).read_text())
        return None

    def _make_folder(self, record: dict[str, Any]) -> None:
        if self.folder.is_dir() and any(self.folder.iterdir()):
            raise RuntimeError(f"{self.folder} is not empty and not the folder of a cluster.")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / _RECORD).write_text(json.dumps(record))
        for name in ("bin", "devices", "log", "munge", "run", "spool", "state"):
            (self.folder / name).mkdir()
        for command in programs.COMMANDS:
            if path := self._program(command):
                (self.folder / "bin" / command).symlink_to(path)
        for node in self.options.names():
            (self.folder / "devices" / node).mkdir()
            (self.folder / "spool" / node).mkdir()
        self._make_devices()
        version, plugins = programs.version(self.root), programs.plugins(self.root)
        addresses = self._addresses()
        self._port = configuration.write(self.folder, self.options, version=version, plugins=plugins, **addresses)

    def _addresses(self) -> dict[str, Any]:
        """Create the network of the nodes, and return its addresses as arguments of :func:`configuration.write`."""
        if self._hosts:
            return {"controller": self._hosts.gateway, "hosts": [(host.name, host.address) for host in self._hosts]}
        if not self._has_network:
            return {}
        names = self.options.names()
        network = Network(self.network_tag, len(names))
        network.up(names)
        return {
            "controller": network.gateway, "hosts": [(name, network.address(i)) for i, name in enumerate(names)],
        }  # fmt: skip

    def _make_devices(self) -> None:
        """Create a character device for each GPU, as a link to an existing one where only root may create devices."""
        count = self.options.gpus_per_node
        for number, node in enumerate(self.options.names()):
            for index, path in enumerate(configuration.devices(self.folder, node, count)):
                if os.geteuid() == 0:
                    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(_NVIDIA, number * count + index))
                else:
                    path.symlink_to("/dev/null")

    def _start_daemons(self) -> None:
        for machine in (self.controller, *self.nodes.values()):
            machine.boot()
        self._start_munged()
        if self.options.accounting:
            Accounting(self.folder, Path(self.options.accounting), self.controller).start(self._port)
        self._daemon(self.controller, "slurmctld", "-D")
        for name in self.nodes:
            self.start_node(name)
        try:
            wait_until(self._all_idle, timeout_s=_START_TIMEOUT_S, what="idle nodes", poll_s=0.2)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.node_states()}\n{self._ends_of_logs()}") from None

    def _start_munged(self) -> None:
        folder = self.folder / "munge"
        (folder / "key").write_bytes(secrets.token_bytes(128))
        (folder / "key").chmod(0o600)
        names = ("socket", "key-file", "log-file", "pid-file", "seed-file")
        argv = ["--foreground", "--force", *(f"--{name}={folder}/{name.removesuffix('-file')}" for name in names)]
        as_user = []
        with contextlib.suppress(KeyError):
            if os.geteuid() == 0:
                account = pwd.getpwnam("munge")
                for path in (folder, folder / "key"):
                    os.chown(path, account.pw_uid, account.pw_gid)
                as_user = ["setpriv", "--reuid=munge", f"--regid={account.pw_gid}", "--clear-groups"]
        self._daemon(self.controller, "munged", *argv, prefix=as_user)
        socket = folder / "socket"
        try:
            wait_until(socket.is_socket, timeout_s=20, what=f"munged's socket {socket}", poll_s=0.05)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self._ends_of_logs()}") from None

    def _daemon(self, machine: Machine, program: str, *arguments: str, prefix: Sequence[str] = ()) -> None:
        log = self.folder / "log" / f"{program}-{machine.name}.out"
        stepd = ["-d", str(self._program("slurmstepd"))] if program == "slurmd" else []
        environment: Mapping[str, str] = {
            "PATH": f"{self.folder}/bin:{os.defpath}:/usr/sbin:/sbin", "SLURM_CONF": f"{self.folder}/slurm.conf",
        }  # fmt: skip
        machine.run([*prefix, str(self._program(program)), *arguments, *stepd], log, environment)

    def _answers(self) -> bool:
        return self.run("scontrol", "ping", check=False).returncode == 0

    def _all_idle(self) -> bool:
        if stopped := self.stopped_daemons():
            raise TimeoutError(f"ended at the start: {', '.join(stopped)}")
        states = self.node_states()
        return len(states) == self.options.nodes and set(states.values()) == {"idle"}

    def _ends_of_logs(self) -> str:
        files = [*sorted((self.folder / "log").iterdir()), self.folder / "munge/log"]
        return "\n".join(f"{file.name}:\n{_end_of(file)}" for file in files if file.is_file() and file.stat().st_size)


def _remove_cgroups(name: str) -> None:
    """Remove the empty cgroups below a name, of version 1 of the interface. Others stay."""
    for group in Path("/sys/fs/cgroup").glob(f"*/{name}"):
        for one in (*sorted(group.glob("**/"), reverse=True), group):
            with contextlib.suppress(OSError):
                one.rmdir()


def _end_of(file: Path) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-8:])


def default_folder() -> Path:
    """Return the folder of the cluster that is started by hand."""
    return Path("/var/lib/dtrain-slurm") if os.geteuid() == 0 else Path.home() / ".cache/dtrain-slurm"
