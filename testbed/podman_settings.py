"""Settings with which podman runs containers on this machine."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Sequence
from pathlib import Path

_RUNTIME = """#!/bin/sh
exec unshare --mount sh -c 'umount /sys/fs/cgroup/unified && exec "$0" "$@"' {crun} "$@"
"""


def write_settings(folder: Path, *, engine: Sequence[str] = (), network: Sequence[str] = ()) -> Path:
    """Write the file for ``CONTAINERS_CONF``, and return its path.

    Podman requests limits that an account without CAP_SYS_RESOURCE does not get: those of the file are the ones that it
    has. crun refuses a mix of both versions of cgroups: where both are mounted, version 2 is hidden from it.

    :param folder: gets the file and the program that starts crun
    :param engine: lines of the section ``[engine]``
    :param network: lines of the section ``[network]``
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    processes = min(resource.getrlimit(resource.RLIMIT_NPROC)[1], 32768)
    limits = f'default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]'
    lines = ["[containers]", limits, "[network]", *network, "[engine]", *engine]
    if Path("/sys/fs/cgroup/memory").is_dir() and Path("/sys/fs/cgroup/unified").is_mount():
        program = folder / "crun-on-version-1"
        program.write_text(_RUNTIME.format(crun=shutil.which("crun")))
        program.chmod(0o755)
        lines += [f'runtime = "{program.name}"', "[engine.runtimes]", f'{program.name} = ["{program}"]']
    path = folder / "containers.conf"
    path.write_text("\n".join(lines) + "\n")
    return path
