"""The faults by name. Each function injects its fault and returns a function that undoes it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from testbed.netns import NamespaceHost
from tests.faults.databases import hold_lock
from tests.faults.processes import Holder, lives, stat_of
from tests.faults.user_actions import ACTIONS
from tests.faults.world import World

Undo = Callable[[], object]


def nothing() -> None:
    return


def wait(seconds: float) -> None:
    """Wait for the duration of a fault."""
    threading.Event().wait(seconds)


def _signal(pid: int, number: int) -> None:
    if pid <= 0:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _rank(world: World, dice: random.Random) -> Holder | None:
    found = sorted(world.ranks(), key=lambda one: (one.run, one.host, one.slot))
    return dice.choice(found) if found else None


def _supervisor(world: World, dice: random.Random) -> int | None:
    found = world.supervisors()
    return dice.choice(found) if found else None


def busy_host(world: World, dice: random.Random) -> NamespaceHost:
    """Return a host on which ranks run, any host when there is none."""
    names = sorted({one.host for one in world.ranks()})
    return world.host(dice.choice(names)) if names else dice.choice(list(world.hosts))


def sessions(host: NamespaceHost) -> list[int]:
    """Return the pids of the host's sshd processes."""
    found = []
    for pid in host.pids():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
                found.append(pid)
    return found


def kill_rank(world: World, dice: random.Random) -> Undo:
    if (rank := _rank(world, dice)) is not None:
        _signal(rank.pid, signal.SIGKILL)
    return nothing


def kill_supervisor(world: World, dice: random.Random) -> Undo:
    if (pid := _supervisor(world, dice)) is not None:
        _signal(pid, signal.SIGKILL)
    return nothing


def kill_trigger(world: World, dice: random.Random) -> Undo:
    world.trigger.kill()
    return lambda: None if world.trigger.alive else world.trigger.start()


def kill_database(world: World, dice: random.Random) -> Undo:
    world.db.kill()
    return world.db.come_back


def crash_host(world: World, dice: random.Random) -> Undo:
    host = busy_host(world, dice)
    host.crash()

    # The host may be cut off as well, so the undo does not wait for its sshd.
    return host.boot


def reboot_host(world: World, dice: random.Random) -> Undo:
    host = busy_host(world, dice)
    host.crash()
    host.boot()
    return nothing


def cut_host(world: World, dice: random.Random) -> Undo:
    host = busy_host(world, dice)
    host.partition()
    return host.heal


def cut_all(world: World, dice: random.Random) -> Undo:
    for host in world.hosts:
        host.partition()
    return lambda: [host.heal() for host in world.hosts]


def restart_sshd(world: World, dice: random.Random) -> Undo:
    """Kill every sshd session and let sshd restart."""
    host = busy_host(world, dice)
    for pid in sessions(host):
        _signal(pid, signal.SIGKILL)
    _signal(host.init_pid, signal.SIGHUP)
    return nothing


def stop_proxy(world: World, dice: random.Random) -> Undo:
    """Stop the sshd sessions of a host, which delays data in both directions as a stopped proxy does."""
    host = busy_host(world, dice)
    stopped = [(pid, found[2]) for pid in sessions(host) if (found := stat_of(pid))]
    for pid, _ in stopped:
        _signal(pid, signal.SIGSTOP)
    return lambda: [_signal(pid, signal.SIGCONT) for pid, start in stopped if lives(pid, start)]


def stop_supervisor(world: World, dice: random.Random) -> Undo:
    return _stop(_supervisor(world, dice))


def stop_rank(world: World, dice: random.Random) -> Undo:
    rank = _rank(world, dice)
    return _stop(rank.pid if rank else None)


def stop_trigger(world: World, dice: random.Random) -> Undo:
    world.trigger.signal(signal.SIGSTOP)
    return lambda: world.trigger.signal(signal.SIGCONT)


def _stop(pid: int | None) -> Undo:
    found = stat_of(pid) if pid else None
    if pid is None or found is None:
        return nothing
    _signal(pid, signal.SIGSTOP)
    return lambda: _signal(pid, signal.SIGCONT) if lives(pid, found[2]) else None


def set_clock(world: World, dice: random.Random) -> Undo:
    """Step the wall clock of a host by an hour. Requires a world with clocks."""
    host, off_s = busy_host(world, dice), dice.choice([3600, -3600])
    (host.folder / "clock").write_text(str(off_s))
    return lambda: (host.folder / "clock").write_text("0")


def set_database_clock(world: World, dice: random.Random) -> Undo:
    world.trigger.clock.write_text(str(dice.choice([3600, -3600])))
    return lambda: world.trigger.clock.write_text("0")


def unlink_lock(world: World, dice: random.Random) -> Undo:
    host = busy_host(world, dice)
    for path in (host.folder / "var-tmp").glob("dtrain-*/*/slots/*.lock"):
        path.unlink()
    host.exec(["sh", "-c", "rm -f /run/lock/dtrain-*.lock"])
    return nothing


def lock_store(world: World, dice: random.Random) -> Undo:
    thread = hold_lock(world.db, dice.uniform(2.0, 6.0))
    return thread.join


def leak_child(world: World, dice: random.Random) -> Undo:
    """Let each rank of a host leave a detached process."""
    mark = busy_host(world, dice).folder / "var-tmp" / "leak"
    mark.touch()
    return lambda: mark.unlink(missing_ok=True)


def read_only_home(world: World, dice: random.Random) -> Undo:
    host = busy_host(world, dice)
    home = str(host.home)
    host.exec(["mount", "--bind", home, home])
    host.exec(["mount", "-o", "remount,ro,bind", home])
    return lambda: host.exec(["umount", "-l", home])


def fill_disk(world: World, dice: random.Random) -> Undo:
    """Fill the disk that holds a host's state. Requires a world whose hosts have a small disk."""
    path = busy_host(world, dice).folder / "var-tmp" / "filled"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 20)):
            pass
    return lambda: path.unlink(missing_ok=True)


def flood_log(world: World, dice: random.Random) -> Undo:
    """Let each rank of a host flood its log."""
    mark = busy_host(world, dice).folder / "var-tmp" / "flood"
    mark.touch()
    return lambda: mark.unlink(missing_ok=True)


def restore_backup(world: World, dice: random.Random) -> Undo:
    """Back up the store now. The undo restores the backup while no process has the store open."""
    world.trigger.kill()
    world.db.backup()
    world.trigger.start()

    def restore() -> None:
        world.trigger.kill()
        world.store.close()
        world.db.restore()
        world.reopen()
        world.trigger.start()

    return restore


#: name -> fault. Every fault may occur at any time, in each world that supports it.
FAULTS: Mapping[str, Callable[[World, random.Random], Undo]] = {
    "kill rank": kill_rank, "kill supervisor": kill_supervisor, "kill trigger": kill_trigger,
    "host crash": crash_host, "reboot": reboot_host, "cut host": cut_host, "cut all": cut_all,
    "sshd restart": restart_sshd, "stopped proxy": stop_proxy, "stop supervisor": stop_supervisor,
    "stop rank": stop_rank, "stop trigger": stop_trigger, "database clock": set_database_clock,
    "lock unlinked": unlink_lock, "store locked": lock_store, "read-only home": read_only_home,
    "database killed": kill_database, "host clock": set_clock, "leaked child": leak_child,
    "full disk": fill_disk, "log flood": flood_log, "backup restored": restore_backup, **ACTIONS,
}  # fmt: skip
#: The store must be restored and unlocked before other faults are undone.
UNDONE_FIRST = ("store locked", "database killed", "backup restored")
