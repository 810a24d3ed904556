"""Facts of this host, and checks before a run is placed on it."""

from __future__ import annotations

import os
import sys
import time

from ..environments.inventory import totals
from ..environments.request import check_setup
from ..environments.setup_script import run_setup
from ..fields import Fields
from ..file_access import names_in, read_text, write_atomic
from ..files.layout import Layout
from ..limits import WITHHELD_LIMIT
from ..machine.container_runtime import find_runtime
from ..machine.gpu import driver_version, gpus
from ..machine.host import distribution_version, lingers, machine_id, memory_bytes, mount_of
from ..machine.host_environment import withheld
from ..machine.network import candidates
from ..machine.processes import boot_id, boottime, pid_namespace, read_proc
from ..names import DEVICE, MODULE, WORD, Json
from ..run.device_users import device_problems
from .interpreters import Interpreters
from .self_test import self_test

#: Made by the driver of AMD's GPUs.
AMD_DEVICE = "/dev/kfd"


def probe(layout: Layout) -> Json:
    """Return the facts of this host."""
    disk = os.statvfs(layout.state_dir)
    problems, doubts = self_test(layout)
    return {
        "problems": problems,
        "doubts": doubts,
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "executable": sys.executable,
        "torch": distribution_version("torch"),
        "gpus": gpus(),
        "has_amd_gpus": os.path.exists(AMD_DEVICE),
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes(),
        "interfaces": [
            {
                "name": found["interface"],
                **{key: found[key] for key in ("address", "prefix", "mtu", "speed_mbps", "family")},
            }
            for found in candidates()
        ],
        "container_runtime": find_runtime(None),
        "environments": totals(layout),
        "wall_s": time.time(),
        "boottime_s": boottime(),
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
        "machine_id": machine_id(),
        "boot_id": boot_id(),
        "pid_ns": pid_namespace(),
        "pid1_start_time": getattr(read_proc(1), "start_time", 0),
        "stores": layout.stores(),
        "state_dir_fs": mount_of(layout.state_dir)[1],
        "lock_dir": layout.lock_dir,
        "lock_problem": layout.lock_problem,
        "withheld_variables": withheld(os.environ)[:WITHHELD_LIMIT],
        **logout_facts(),
    }


def logout_facts() -> Json:
    """Return whether logind ends an account's processes when its last session ends, None without logind."""
    if not os.path.isdir("/run/systemd/system"):
        return {"linger": None, "kill_user_processes": None}
    return {
        "linger": lingers(),
        "kill_user_processes": kills_user_processes(),
    }


def kills_user_processes() -> bool | None:
    """Return logind's setting ``KillUserProcesses``, None if it is not set and the built-in default applies."""
    name = "systemd/logind.conf"
    found = None
    drop_ins: dict[str, str] = {}
    for folder in ("/usr/lib", "/run", "/etc"):
        parts = os.path.join(folder, f"{name}.d")
        # A file in a later folder replaces one of the same name in an earlier folder.
        drop_ins.update({entry: os.path.join(parts, entry) for entry in names_in(parts) if entry.endswith(".conf")})
    for path in [os.path.join("/etc", name), *(drop_ins[entry] for entry in sorted(drop_ins))]:
        for line in (read_text(path) or "").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "KillUserProcesses":
                found = value.strip().lower() in ("yes", "true", "on", "1")
    return found


def check_shared(path: str, nonce: str) -> tuple[Json, list[str]]:
    """Write this host's mark below a shared path and return the marks of all hosts found there."""
    folder = os.path.join(os.path.expanduser(path), f".dtrain-check-{nonce}")
    own = f"{machine_id()}-{pid_namespace()}"
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        write_atomic(os.path.join(folder, own), nonce.encode(), durable=False)
        seen = sorted(name for name in os.listdir(folder) if WORD.fullmatch(name) and not name.endswith(".tmp"))
    except OSError as error:
        return {"writable": False, "self": own, "seen": []}, [f"{path} cannot be written: {error.strerror}"]
    return {"writable": True, "self": own, "seen": seen}, []


def mount_problem(host_path: str, container_path: str) -> str | None:
    """Return the reason why a folder is not below another path too, None if it is the same folder."""
    try:
        if os.path.samefile(host_path, container_path):
            return None
    except OSError as error:
        return f"{error.filename} cannot be used: {error.strerror}"
    return f"{container_path} is another folder than {host_path}"


def preflight(layout: Layout, interpreters: Interpreters, fields: Fields) -> Json:
    """Return the facts needed to run a plan here: interpreter, modules, processes on devices, folders."""
    python = fields.text("python", default=None)
    modules = fields.texts("modules", MODULE, limit=256, default=[])
    slots = [Fields(slot, "slots") for slot in fields.items("slots", default=[])]
    devices = [device for device in (slot.text("device", DEVICE, default=None) for slot in slots) if device]
    paths = fields.texts("shared_paths", limit=64, default=[])
    nonce = fields.text("nonce", WORD) if paths else ""
    pairs = [Fields(mount, "mounts") for mount in fields.items("mounts", default=[])]
    mounts = [mount_problem(pair.text("host_path"), pair.text("container_path")) for pair in pairs]
    setup = check_setup(fields)
    with_packages = fields.flag("packages", default=False)
    variables = run_setup(layout, setup["payload"], setup["path"]).variables if setup is not None else {}
    answer, problems = interpreters.find(python, modules, layout.state_dir, variables, with_packages=with_packages)
    shared = {}
    for path in paths:
        shared[path], faults = check_shared(path, nonce)
        problems += faults
    foreign, unusable = device_problems(layout, devices)
    return {
        **answer,
        "driver": driver_version() if devices else None,
        "foreign": foreign,
        "problems": problems + unusable,
        "shared": shared,
        "mounts": [faults for faults in mounts if faults is not None],
    }
