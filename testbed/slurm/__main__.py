"""Slurm cluster by hand: ``start``, ``status`` and ``stop``, and ``root`` for a later version."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from testbed.slurm import accounting, programs
from testbed.slurm.cluster import SlurmCluster, default_folder
from testbed.slurm.configuration import DEFAULT_PARTITIONS, Options


def main() -> int:
    options = _parser().parse_args()
    try:
        return _run(options)
    except (RuntimeError, TimeoutError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/slurm-testbed", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="start a cluster and print the line for a shell that uses it")
    start.add_argument("--nodes", type=int, default=Options.nodes)
    start.add_argument("--cpus-per-node", type=int, default=Options.cpus_per_node)
    start.add_argument("--gpus-per-node", type=int, default=Options.gpus_per_node, help="files without hardware")
    start.add_argument(
        "--partition", action="append", type=_partition, metavar="NAME[:OPTION=VALUE,...]",
        help="repeatable, e.g. short:MaxTime=1,GraceTime=30; without: main, with a time limit of a day",
    )  # fmt: skip
    start.add_argument(
        "--conf",
        action="append",
        type=_setting,
        default=[],
        metavar="OPTION=VALUE",
        help="line of slurm.conf, repeatable",
    )
    start.add_argument("--accounting", action="store_true", help="with slurmdbd and a MariaDB, which are downloaded")
    version = start.add_mutually_exclusive_group()
    version.add_argument("--suite", help="use Slurm of this Debian suite, e.g. trixie; downloads it at the first time")
    version.add_argument("--root", type=Path, help="use Slurm of a folder that the command root made")
    root = commands.add_parser("root", help="unpack Slurm of another Debian suite into a folder")
    root.add_argument("--suite", required=True)
    root.add_argument("root", type=Path, metavar="FOLDER")
    stop = commands.add_parser("stop", help="end the cluster, its jobs and every process that they started")
    status = commands.add_parser("status", help="print nodes and daemons that do not run")
    for command in (start, stop, status):
        command.add_argument("--folder", type=Path, default=default_folder(), help="default: %(default)s")
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.command == "root":
        programs.make_root(options.suite, options.root.absolute())
    elif options.command == "start":
        return _start(options)
    elif options.command == "stop":
        SlurmCluster(options.folder).stop()
    else:
        return _status(SlurmCluster.read(options.folder))
    return 0


def _start(options: argparse.Namespace) -> int:
    root = options.root.absolute() if options.root else None
    if options.suite:
        root = programs.default_root(options.suite)
        programs.make_root(options.suite, root)
    partitions = dict(options.partition) if options.partition else DEFAULT_PARTITIONS
    if options.accounting:
        accounting.make_root(accounting.default_root())
    cluster = SlurmCluster(
        options.folder, root=root, nodes=options.nodes, cpus_per_node=options.cpus_per_node,
        gpus_per_node=options.gpus_per_node, partitions=partitions, conf=dict(options.conf),
        accounting=str(accounting.default_root()) if options.accounting else "",
    )  # fmt: skip
    cluster.start()
    print(_line(cluster))
    return 0


def _status(cluster: SlurmCluster) -> int:
    stopped = cluster.stopped_daemons()
    for daemon in stopped:
        print(f"not running: {daemon}")
    for node, state in cluster.node_states().items():
        print(f"{node} {state}")
    print(_line(cluster))
    return int(bool(stopped))


def _line(cluster: SlurmCluster) -> str:
    line = f"export SLURM_CONF={shlex.quote(cluster.environment['SLURM_CONF'])}"
    return f"{line} PATH={shlex.quote(str(cluster.folder / 'bin'))}:$PATH" if cluster.root else line


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected OPTION=VALUE, got {text!r}")
    return name, value


def _partition(text: str) -> tuple[str, dict[str, str]]:
    name, _, settings = text.partition(":")
    return name, dict(_setting(one) for one in settings.split(",") if one)


if __name__ == "__main__":
    sys.exit(main())
