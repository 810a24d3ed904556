"""slurm.conf, gres.conf and cgroup.conf of a cluster."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Ports below those that the kernel gives to connections.
_PORTS = range(20000, 32000)
_MEMORY_MIB_PER_NODE = 4096
DEFAULT_PARTITIONS: Mapping[str, Mapping[str, object]] = {"main": {"Default": "YES", "MaxTime": "1-00:00:00"}}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Size and settings of a cluster."""

    nodes: int = 4
    #: Nodes are named n1, n2 ... A cluster with cgroups beside another one needs its own names.
    node_prefix: str = "n"
    cpus_per_node: int = 8
    gpus_per_node: int = 2
    #: Name -> options of its line, e.g. ``{"short": {"MaxTime": 1, "PreemptMode": "REQUEUE", "GraceTime": 30}}``.
    partitions: Mapping[str, Mapping[str, object]] = field(default_factory=lambda: DEFAULT_PARTITIONS)
    #: Lines of slurm.conf, which replace ours, e.g. ``{"SelectTypeParameters": "CR_Core"}``; None removes a line.
    conf: Mapping[str, object] = field(default_factory=dict)
    #: Lines of cgroup.conf, e.g. ``{"ConstrainDevices": "yes"}``. They need ``ProctrackType=proctrack/cgroup``.
    cgroup: Mapping[str, object] = field(default_factory=dict)
    #: Folder of :func:`testbed.slurm.accounting.make_root`: jobs are accounted; empty: they are not.
    accounting: str = ""

    def names(self) -> list[str]:
        """Return the names of the nodes."""
        return [f"{self.node_prefix}{number}" for number in range(1, self.nodes + 1)]

    def uses_cgroups(self) -> bool:
        """Return whether jobs run in cgroups. Their folders are named after the node, in all clusters alike."""
        return "cgroup" in f"{self.conf.get('ProctrackType')}{self.conf.get('TaskPlugin')}"


def free_ports(count: int) -> list[int]:
    """Return ports in a row that are free now. Clusters begin their search at different places."""
    starts = [_PORTS.start + (os.getpid() * 37 + step * 97) % (len(_PORTS) - count) for step in range(400)]
    for start in starts:
        ports = list(range(start, start + count))
        if all(_is_free(port) for port in ports):
            return ports
    raise RuntimeError(f"No {count} ports in a row are free between {_PORTS.start} and {_PORTS.stop}.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def write(
    folder: Path,
    options: Options,
    *,
    version: tuple[int, int],
    plugins: Path | None,
    controller: str = "127.0.0.1",
    hosts: Sequence[tuple[str, str]] = (),
) -> int:
    """Write the files of a cluster into its folder, and return a free port.

    :param controller: address of slurmctld for the nodes
    :param hosts: host name and address of each node; without, all nodes share 127.0.0.1
    """
    ports = free_ports(options.nodes + 2)
    lines = {**_slurm_conf(folder, ports[0], controller), **options.conf}
    if options.accounting:
        lines |= {
            "AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": ports[-1], "AccountingStoragePass": folder / "munge/socket",
        }  # fmt: skip
    if plugins:
        lines["PluginDir"] = plugins
    text = _lines(lines)
    for index, name in enumerate(options.names()):
        host, address = hosts[index] if hosts else ("localhost", "127.0.0.1")
        node = {
            "NodeName": name, "NodeHostname": host, "NodeAddr": address, "Port": ports[index + 1],
            "CPUs": options.cpus_per_node, "RealMemory": _MEMORY_MIB_PER_NODE, "State": "UNKNOWN",
        }  # fmt: skip
        if options.gpus_per_node:
            node["Gres"] = f"gpu:{options.gpus_per_node}"
        text += _line(node)
    for name, settings in options.partitions.items():
        text += _line({"PartitionName": name, "Nodes": "ALL", "State": "UP", **settings})
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text(_gres_conf(folder, options))
    (folder / "cgroup.conf").write_text(_lines({**_cgroup_conf(version, options), **options.cgroup}))
    return ports[-1]


def _cgroup_conf(version: tuple[int, int], options: Options) -> dict[str, object]:
    mount = Path("/sys/fs/cgroup")
    if options.uses_cgroups():
        plugin = "cgroup/v2" if (mount / "cgroup.controllers").exists() else "cgroup/v1"
        return {"CgroupPlugin": plugin, "CgroupMountpoint": mount}
    # Before 23.11 a plugin cannot be disabled, and slurmd ends if it finds no cgroups by itself, as in a test host.
    return {"CgroupPlugin": "disabled" if version >= (23, 11) else "cgroup/v1"}


def _slurm_conf(folder: Path, port: int, controller: str) -> dict[str, object]:
    user = pwd.getpwuid(os.geteuid()).pw_name
    return {
        "ClusterName": "testbed",
        "SlurmctldHost": f"{socket.gethostname().partition('.')[0]}({controller})",
        "SlurmctldPort": port,
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge/socket",
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "SlurmctldPidFile": folder / "run/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/run/slurmd-%n.pid",
        "SlurmctldLogFile": folder / "log/slurmctld.log",
        "SlurmdLogFile": f"{folder}/log/slurmd-%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/linux",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": 128,
        "GresTypes": "gpu",
        "MpiDefault": "none",
        # Nodes may have more CPUs and memory than this machine.
        "SlurmdParameters": "config_overrides",
        "ReturnToService": 1,
        "KillWait": 5,
        "SchedulerParameters": "batch_sched_delay=0,bf_interval=5",
    }


def _gres_conf(folder: Path, options: Options) -> str:
    text = ""
    for name in options.names():
        for device in devices(folder, name, options.gpus_per_node):
            text += _line({"NodeName": name, "Name": "gpu", "File": device})
    return text


def devices(folder: Path, node: str, count: int) -> list[Path]:
    """Return the files of a node's GPUs."""
    return [folder / "devices" / node / f"nvidia{index}" for index in range(count)]


def _lines(values: Mapping[str, object]) -> str:
    return "".join(f"{key}={value}\n" for key, value in values.items() if value is not None)


def _line(values: Mapping[str, object]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items() if value is not None) + "\n"
