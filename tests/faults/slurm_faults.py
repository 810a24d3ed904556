"""Faults of a Slurm cluster by name. Each function injects its fault and returns a function that undoes it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Mapping

from tests.faults.inject import nothing, sessions
from tests.faults.processes import lives, stat_of
from tests.faults.slurm_world import SlurmWorld

Undo = Callable[[], object]
#: Longest wait for a controller that writes its state; it does so every five seconds at most.
STATE_SAVE_S = 15.0


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if pid > 0:
            os.kill(pid, number)


def _freeze(pids: list[int]) -> Undo:
    stopped = [(pid, found.start_time) for pid in pids if pid and (found := stat_of(pid))]
    for pid, _ in stopped:
        _signal(pid, signal.SIGSTOP)
    return lambda: [_signal(pid, signal.SIGCONT) for pid, start in stopped if lives(pid, start)]


def _busy_node(world: SlurmWorld, dice: random.Random) -> str:
    """Return a node with processes of a job, any node when there is none."""
    found = sorted({node for _, node in world.processes()}) or sorted(world.nodes)
    return dice.choice(found)


def _number(world: SlurmWorld, dice: random.Random) -> str | None:
    """Return Slurm's number of a live job."""
    found = sorted(job.number for job in world.jobs() if job.number is not None)
    return dice.choice(found) if found else None


def _scontrol(world: SlurmWorld, *argv: str) -> None:
    world.slurm.run("scontrol", *argv, check=False, timeout_s=40)


# -- the follower --------------------------------------------------------------------------------
def kill_follower(world: SlurmWorld, dice: random.Random) -> Undo:
    world.trigger.kill()
    return lambda: None if world.trigger.alive else world.trigger.start()


def restart_follower(world: SlurmWorld, dice: random.Random) -> Undo:
    world.trigger.restart()
    return nothing


def freeze_follower(world: SlurmWorld, dice: random.Random) -> Undo:
    world.trigger.signal(signal.SIGSTOP)
    return lambda: world.trigger.signal(signal.SIGCONT)


# -- the controller ------------------------------------------------------------------------------
def stop_controller(world: SlurmWorld, dice: random.Random) -> Undo:
    world.slurm.stop_controller()
    return world.slurm.start_controller


def kill_controller(world: SlurmWorld, dice: random.Random) -> Undo:
    """Kill the controller when it has written what it knows of jobs, which it does within seconds of a change."""
    return _kill_controller(world, STATE_SAVE_S)


def kill_controller_unsaved(world: SlurmWorld, dice: random.Random) -> Undo:
    """Kill the controller at once: it may forget jobs and ends of jobs, and give a number again."""
    return _kill_controller(world, 0.0)


def _kill_controller(world: SlurmWorld, patience_s: float) -> Undo:
    give_up_at = time.monotonic() + patience_s
    # While it is stopped, its file and its log do not change.
    thaw = _freeze([world.slurm.controller.daemon("slurmctld")])
    while not (is_saved := world.is_state_saved()) and time.monotonic() < give_up_at:
        thaw()
        time.sleep(0.2)
        thaw = _freeze([world.slurm.controller.daemon("slurmctld")])
    if not is_saved:
        world.forgets()
    world.slurm.controller.end("slurmctld", by=signal.SIGKILL)
    return world.slurm.start_controller


def freeze_controller(world: SlurmWorld, dice: random.Random) -> Undo:
    return _freeze([world.slurm.controller.daemon("slurmctld")])


# -- nodes ---------------------------------------------------------------------------------------
def kill_slurmd(world: SlurmWorld, dice: random.Random) -> Undo:
    node = _busy_node(world, dice)
    world.slurm.stop_node(node)
    return lambda: world.slurm.start_node(node)


def freeze_slurmd(world: SlurmWorld, dice: random.Random) -> Undo:
    node = _busy_node(world, dice)
    return _freeze([world.slurm.nodes[node].daemon("slurmd")])


def crash_node(world: SlurmWorld, dice: random.Random) -> Undo:
    node = _busy_node(world, dice)
    world.slurm.crash_node(node)
    return lambda: world.slurm.start_node(node)


def reboot_node(world: SlurmWorld, dice: random.Random) -> Undo:
    node = _busy_node(world, dice)
    world.slurm.crash_node(node)
    world.slurm.start_node(node)
    return nothing


def cut_node(world: SlurmWorld, dice: random.Random) -> Undo:
    host = world.node(_busy_node(world, dice))
    host.partition()
    return host.heal


def set_down(world: SlurmWorld, dice: random.Random) -> Undo:
    node = _busy_node(world, dice)
    _scontrol(world, "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    return lambda: _scontrol(world, "update", f"NodeName={node}", "State=RESUME")


def drain(world: SlurmWorld, dice: random.Random) -> Undo:
    node = _busy_node(world, dice)
    _scontrol(world, "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    return lambda: _scontrol(world, "update", f"NodeName={node}", "State=RESUME")


# -- the way to the job --------------------------------------------------------------------------
def cut_login(world: SlurmWorld, dice: random.Random) -> Undo:
    world.login_host.partition()
    return world.login_host.heal


def kill_logins(world: SlurmWorld, dice: random.Random) -> Undo:
    """Kill every session at the login node, and with them the channels."""
    for pid in sessions(world.login_host):
        _signal(pid, signal.SIGKILL)
    _signal(world.login_host.init_pid, signal.SIGHUP)
    return nothing


def freeze_logins(world: SlurmWorld, dice: random.Random) -> Undo:
    return _freeze(sessions(world.login_host))


# -- processes of the job ------------------------------------------------------------------------
def _one_of(world: SlurmWorld, dice: random.Random, word: str) -> int:
    found = sorted(pid for pid, _ in world.processes(word))
    return dice.choice(found) if found else 0


def _serving(world: SlurmWorld, dice: random.Random) -> int:
    found = sorted(pid for pid, _ in world.serving())
    return dice.choice(found) if found else 0


def kill_serve(world: SlurmWorld, dice: random.Random) -> Undo:
    _signal(_serving(world, dice), signal.SIGKILL)
    return nothing


def freeze_serve(world: SlurmWorld, dice: random.Random) -> Undo:
    return _freeze([_serving(world, dice)])


def kill_rank(world: SlurmWorld, dice: random.Random) -> Undo:
    _signal(_one_of(world, dice, "steps.py"), signal.SIGKILL)
    return nothing


def kill_supervisor(world: SlurmWorld, dice: random.Random) -> Undo:
    _signal(_one_of(world, dice, "supervisor/"), signal.SIGKILL)
    return nothing


def kill_script(world: SlurmWorld, dice: random.Random) -> Undo:
    """Kill the batch script, or its srun."""
    _signal(_one_of(world, dice, dice.choice(["slurm_script", "srun"])), signal.SIGKILL)
    return nothing


# -- by hand -------------------------------------------------------------------------------------
def scancel(world: SlurmWorld, dice: random.Random) -> Undo:
    if (number := _number(world, dice)) is not None:
        for trial in world.goals:
            if any(job.number == number for job in world.jobs(trial)):
                world.may_end(trial, "killed")
        world.slurm.run("scancel", number, check=False)
    return nothing


def hold(world: SlurmWorld, dice: random.Random) -> Undo:
    if (number := _number(world, dice)) is None:
        return nothing
    _scontrol(world, "hold", number)
    return lambda: _scontrol(world, "release", number)


def requeue(world: SlurmWorld, dice: random.Random) -> Undo:
    if (number := _number(world, dice)) is not None:
        _scontrol(world, "update", f"JobId={number}", "Requeue=1")
        _scontrol(world, "requeue", number)
    # Slurm would let it wait for two minutes.
    return lambda: _scontrol(world, "update", f"JobId={number}", "StartTime=now")


def shorten(world: SlurmWorld, dice: random.Random) -> Undo:
    if (number := _number(world, dice)) is not None:
        _scontrol(world, "update", f"JobId={number}", dice.choice(["TimeLimit=1", "EndTime=now+1"]))
    return nothing


def rename(world: SlurmWorld, dice: random.Random) -> Undo:
    if (number := _number(world, dice)) is not None:
        _scontrol(world, "update", f"JobId={number}", "JobName=mine")
    return nothing


def suspend(world: SlurmWorld, dice: random.Random) -> Undo:
    if (number := _number(world, dice)) is None:
        return nothing
    _scontrol(world, "suspend", number)
    return lambda: _scontrol(world, "resume", number)


# -- users of Airflow ----------------------------------------------------------------------------
def _live_trial(world: SlurmWorld, dice: random.Random) -> int | None:
    found = [one for one in world.goals if not world.over(one)]
    return dice.choice(found) if found else None


def kill_trial(world: SlurmWorld, dice: random.Random) -> Undo:
    if (trial := _live_trial(world, dice)) is not None:
        world.may_end(trial, "killed")
        world.store.control.kill(trial, "ann")
    return nothing


def pause_trial(world: SlurmWorld, dice: random.Random) -> Undo:
    if (trial := _live_trial(world, dice)) is None:
        return nothing
    world.store.control.pause(trial, "ann")
    return lambda: world.store.control.activate(trial, "ann")


FAULTS: Mapping[str, Callable[[SlurmWorld, random.Random], Undo]] = {
    "follower killed": kill_follower,
    "follower restarted": restart_follower,
    "follower frozen": freeze_follower,
    "controller stopped": stop_controller,
    "controller killed": kill_controller,
    "controller killed unsaved": kill_controller_unsaved,
    "controller frozen": freeze_controller,
    "slurmd killed": kill_slurmd,
    "slurmd frozen": freeze_slurmd,
    "node crashed": crash_node,
    "node rebooted": reboot_node,
    "node cut off": cut_node,
    "node set down": set_down,
    "node drained": drain,
    "login cut off": cut_login,
    "sessions killed": kill_logins,
    "sessions frozen": freeze_logins,
    "serve killed": kill_serve,
    "serve frozen": freeze_serve,
    "rank killed": kill_rank,
    "supervisor killed": kill_supervisor,
    "script killed": kill_script,
    "job cancelled": scancel,
    "job held": hold,
    "job requeued": requeue,
    "job shortened": shorten,
    "job renamed": rename,
    "job suspended": suspend,
    "trial killed": kill_trial,
    "trial paused": pause_trial,
}
