"""Slurm's programs: those of this machine, or those of a later Debian suite in a folder of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd", "slurmstepd")
COMMANDS = (
    "sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "sdiag", "sinfo", "sprio",
    "squeue", "sreport", "srun", "sshare", "sstat", "strigger",
)  # fmt: skip
PACKAGES = ("slurm-wlm", "munge")
_FOLDERS = ("usr/bin", "usr/sbin")


def find(program: str, root: Path | None = None) -> Path | None:
    """Return the path of one of Slurm's programs.

    :param root: folder that :func:`make_root` made, None for the programs of this machine
    """
    if root is None:
        path = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
        return Path(path) if path else None
    return next((root / folder / program for folder in _FOLDERS if (root / folder / program).is_file()), None)


def missing(root: Path | None = None) -> str | None:
    """Return the reason why a cluster cannot run on this machine, None when it can."""
    lacking = [name for name in (*DAEMONS, "sbatch") if find(name, root) is None]
    if lacking:
        packages = f"apt-get install {' '.join(PACKAGES)}" if root is None else f"{root} is incomplete"
        return f"missing: {', '.join(lacking)} ({packages})"
    user = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
    argv = ["unshare", *user, "--pid", "--mount", "--mount-proc", "--fork", "true"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError:
        return "missing: unshare (apt-get install util-linux)"
    return f"no PID namespace here: {done.stderr.strip()}" if done.returncode else None


def why_no_cgroups() -> str | None:
    """Return the reason why jobs cannot run in cgroups here, None if they can.

    With version 2, Slurm requires systemd or a delegated cgroup.
    """
    if os.geteuid() != 0 or not os.access("/sys/fs/cgroup/freezer", os.W_OK):
        return "cgroups of version 1 and root are required"
    return None


def version(root: Path | None = None) -> tuple[int, int]:
    """Return Slurm's version, e.g. ``(22, 5)``."""
    output = subprocess.check_output([str(find("slurmd", root)), "-V"], text=True, timeout=20)
    major, minor = re.findall(r"\d+", output)[:2]
    return int(major), int(minor)


def plugins(root: Path | None = None) -> Path | None:
    """Return the folder of the plugins in a root, None for that of this machine's programs."""
    return next(root.glob("usr/lib/*/slurm-wlm"), None) if root else None


def make_root(suite: str, folder: Path) -> None:
    """Unpack Slurm's packages of a Debian suite, with their libraries, so that they run without ``chroot``.

    The programs get the loader and the library path of the folder. Jobs run in the machine's own files. The mirror is
    that of this machine's apt sources.

    :param folder: folder that does not exist, is empty, or holds a complete root, which is kept
    :raises RuntimeError: no apt source has a Debian mirror, or a program failed; the message has its output
    """
    if (folder / ".complete").is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)
    apt = folder / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(f"deb [check-valid-until=no] {_mirror()} {suite} main\n")
    options = {
        "Dir::State": apt, "Dir::State::status": apt / "status", "Dir::Cache": apt / "cache",
        "Dir::Etc::SourceList": apt / "sources.list", "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null", "APT::Sandbox::User": "root", "Acquire::Retries": 2,
    }  # fmt: skip
    get = ["apt-get", "-qq", *(part for key, value in options.items() for part in ("-o", f"{key}={value}"))]
    _run(*get, "update")
    _run(*get, "install", "-y", "--no-install-recommends", "--download-only", *PACKAGES, "slurmdbd", "patchelf")
    for package in (apt / "cache/archives").glob("*.deb"):
        _run("dpkg-deb", "-x", str(package), str(folder))
    shutil.rmtree(apt)
    # Debian's alternatives, which its installation scripts would set.
    for program in (folder / "usr/sbin").glob("*-wlm"):
        program.with_name(program.name.removesuffix("-wlm")).symlink_to(program.name)
    _use_own_libraries(folder)
    (folder / ".complete").touch()


def _mirror() -> str:
    """Return the address of the first apt source that has this machine's own suite."""
    release = re.findall(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    suite = "".join(release)
    for source in (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))):
        text = re.sub(r"^\s*#.*\n", "", source.read_text() if source.is_file() else "", flags=re.MULTILINE)
        for block in re.split(r"\n\s*\n", text):
            fields = dict(re.findall(r"^(\w+):\s*(.*)$", block, re.MULTILINE))
            if suite in fields.get("Suites", "").split():
                return fields["URIs"].split()[0]
        if found := re.search(rf"^deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+{suite}\s", text, re.MULTILINE):
            return found[1]
    raise RuntimeError(f"No apt source of this machine has the suite {suite or 'that /etc/os-release names'}.")


def _use_own_libraries(root: Path) -> None:
    """Set loader and library path of Slurm's programs and plugins to those of their root."""
    loader = next(root.glob("usr/lib/*/ld-linux-*.so.*"))
    libraries = f"{loader.parent}:{loader.parent}/slurm-wlm"
    patch = [str(loader), "--library-path", libraries, str(root / "usr/bin/patchelf")]
    own_path = ["--force-rpath", "--set-rpath", libraries]
    programs = [str(path) for name in (*DAEMONS, *COMMANDS, "slurmdbd") if (path := find(name, root))]
    _run(*patch, "--set-interpreter", str(loader), *own_path, *programs)
    _run(*patch, *own_path, *(str(one) for one in loader.parent.glob("slurm-wlm/*.so") if not one.is_symlink()))


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{argv[0]} failed: {(done.stderr or done.stdout).strip()[-1000:]}")


def default_root(suite: str) -> Path:
    """Return the folder in which the root of a suite is kept between runs."""
    home = Path("/var/cache") if os.geteuid() == 0 else Path.home() / ".cache"
    return home / f"dtrain-slurm-{suite}"
