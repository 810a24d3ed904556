"""Evacuations of hosts at random moments: the weights of each step equal those of a run that nothing disturbed.

Hosts are this machine, several times. A follower is a process, which is killed in the middle of some evacuations.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.core.lifecycle.states import TRIAL_ENDED, HostState
from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind

FOLDER = Path(__file__).parent
HOSTS = ("a", "b", "c")
DEADLINE_S = 300.0
#: Follower processes are forked, so that they need not import Airflow again.
_FORK = multiprocessing.get_context("fork")


@dataclass
class Evacuated:
    """Record of one trial that was evacuated several times."""

    seed: int
    slots: int
    frequency: int
    #: Evacuations that the timeline of the trial has, and how often a follower was killed.
    evacuations: int = 0
    kills: int = 0
    lost_steps: int = 0
    seconds: float = 0.0
    actions: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def document(slots: int, frequency: int, epochs: int, pause_s: float) -> dict[str, Any]:
    """Return the configuration of a training of ``30 * epochs`` batches."""
    return {
        "name": "evacuated",
        "entrypoint": f"python evacuated.py {pause_s}",
        "model_dir": "evacuated_code",
        "hyperparameters": {"global_batch_size": 8, "epochs": epochs},
        "optimizations": {"aggregation_frequency": frequency},
        "resources": {"slots_per_trial": slots},
        "max_restarts": 0,
        "preemption_timeout": 60,
        "on_unplaceable": "wait",
        "reproducibility": {"experiment_seed": 17, "record_steps": True},
    }


class World:
    """A store, hosts of one slot each, and the followers of trials.

    :param folder: of everything, the home of the hosts as well
    """

    def __init__(self, folder: Path) -> None:
        from airflow_provider_dtrain.hooks.settings import settings
        from testbed.stores import new_sqlite

        self.folder = folder
        os.environ["HOME"] = str(folder)
        self.options = dataclasses.replace(
            settings(),
            sql_alchemy_conn=new_sqlite(folder / "dtrain.db"),
            checkpoint_dir=folder / "checkpoints",
            kill_grace_s=2.0,
        )
        self.runs = 0
        in_child(self._register)
        self.store = self._hook().store

    def _hook(self) -> Any:
        from airflow_provider_dtrain.hooks.dtrain import DtrainHook

        return DtrainHook(self.options)

    def _register(self) -> None:
        from tests.support.engines import register
        from tests.support.lock_dirs import new_lock_dir

        hook = self._hook()
        register(hook, self.folder / "state", slots="cpu:1")
        record = hook.store.hosts.get("local")
        for name in HOSTS:
            state_dir = self.folder / f"state-{name}"
            state_dir.mkdir(mode=0o700)
            folders = {"state_dir": str(state_dir), "lock_dir": new_lock_dir(state_dir)}
            hook.store.hosts.add(dataclasses.replace(record, name=name, pid_ns=None, machine_id=None, **folders))
        hook.store.hosts.remove("local")
        hook.links.close_all()

    def submit(self, config: dict[str, Any]) -> int:
        """Submit a trial and return its id."""
        from tests.support.engines import Engine

        self.runs += 1
        return Engine(self._hook()).submit(config, folder=FOLDER, run_id=str(self.runs)).trial_id

    def follow(self, trial_id: int) -> Any:
        """Start a follower of a trial, and return its process."""
        process = _FORK.Process(target=self._follow, args=(trial_id,))
        process.start()
        return process

    def _follow(self, trial_id: int) -> None:
        from tests.support.engines import Engine

        with (self.folder / "followers.log").open("a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True)
        hurry()
        hook = self._hook()
        ticket = type("Ticket", (), {"trial_id": trial_id})
        asyncio.run(Engine(hook).carry(ticket, most_s=DEADLINE_S))  # type: ignore[arg-type]
        os._exit(0)

    def state(self, trial_id: int) -> str:
        """Return the state of a trial."""
        return str(self.store.trials.get(trial_id).state)

    def hosts_of(self, trial_id: int) -> list[str]:
        """Return the hosts on which a trial holds slots."""
        return sorted(self.store.attempts.get(self.store.trials.get(trial_id).attempt_id).held_hosts)

    def steps(self, trial_id: int) -> list[tuple[int, int, str]]:
        """Return (step, rank, digest of the weights) of each step that a trial has trained, in order of arrival."""
        found = self.store.weights.of_trial(trial_id)
        return [(one.step, one.rank, one.digest) for one in found if one.kind == "step_weights"]


def hurry() -> None:
    """Shorten the periods of a follower to fractions of a second."""
    from airflow_provider_dtrain.engine.attempt import graceful_stop, restarts, runner
    from airflow_provider_dtrain.engine.session import runtime

    periods = [(runtime, "CONTROL_CHECK_S"), (graceful_stop, "STOP_AGAIN_S"), (runner, "RETAKE_POLL_S")]
    for module, name in [*periods, (restarts, "FENCE_AGAIN_S")]:
        setattr(module, name, 0.2)


def in_child(work: Callable[[], None]) -> None:
    """Run work in a forked process, so that this process has no threads when it forks again."""
    process = _FORK.Process(target=work)
    process.start()
    process.join(DEADLINE_S)
    if process.exitcode != 0:
        raise RuntimeError(f"The work in a child process ended with {process.exitcode}.")


@contextlib.contextmanager
def followed(world: World, trial_id: int) -> Iterator[list[Any]]:
    """Follow a trial within the block. The last process of the list is its follower."""
    followers = [world.follow(trial_id)]
    try:
        yield followers
    finally:
        for process in followers:
            process.kill()
            process.join(30)


def undisturbed(world: World, config: dict[str, Any]) -> list[tuple[int, int, str]]:
    """Return the digests of a run that nothing disturbs."""
    trial_id = world.submit(config)
    with followed(world, trial_id):
        until(lambda: world.state(trial_id) in TRIAL_ENDED, "the reference to end")
    assert world.state(trial_id) == "completed", world.store.trials.get(trial_id).failure
    return world.steps(trial_id)


def one_run(
    world: World, seed: int, config: dict[str, Any], reference: list[tuple[int, int, str]], *, most: int
) -> Evacuated:
    """Evacuate the hosts of a trial several times, and compare its steps with the reference.

    :param most: evacuations at most
    """
    dice, begun = random.Random(seed), time.monotonic()
    resources, optimizations = config["resources"], config["optimizations"]
    run = Evacuated(seed, resources["slots_per_trial"], optimizations["aggregation_frequency"])
    trial_id = world.submit(config)
    with followed(world, trial_id) as followers:
        try:
            for _ in range(most):
                if not _evacuate(world, trial_id, dice, run, followers):
                    break
            _enable_all(world)
            until(lambda: _has_ended(world, trial_id, followers), "the trial to end")
        except TimeoutError as error:
            run.violations.append(str(error))
        finally:
            _enable_all(world)
    _judge(world, trial_id, run, reference)
    run.seconds = time.monotonic() - begun
    return run


def _has_ended(world: World, trial_id: int, followers: list[Any]) -> bool:
    """Return whether a trial has ended. A follower that another one superseded is replaced."""
    if world.state(trial_id) in TRIAL_ENDED:
        return True
    if not followers[-1].is_alive():
        followers.append(world.follow(trial_id))
    return False


def _evacuate(world: World, trial_id: int, dice: random.Random, run: Evacuated, followers: list[Any]) -> bool:
    """Evacuate hosts of a trial once, and return whether it goes on."""
    way = dice.choice(["now", "now", "now", "by", "launch", "two hosts", "all hosts", "taken back"])
    moment = dice.uniform(0.0, 2.0)
    if way == "launch":
        until(lambda: bool(world.hosts_of(trial_id)) or _has_ended(world, trial_id, followers), "slots")
    else:
        until(lambda: _trains(world, trial_id) or _has_ended(world, trial_id, followers), "the trial to train")
        time.sleep(moment)
    mine = world.hosts_of(trial_id)
    if _has_ended(world, trial_id, followers) or not mine:
        return world.state(trial_id) not in TRIAL_ENDED
    names = {"two hosts": {*mine, *dice.sample(HOSTS, 1)}, "all hosts": {*HOSTS}}.get(way, {dice.choice(mine)})
    run.actions.append(f"{way} {'+'.join(sorted(names))}")
    after_s = 61.0 if way == "by" else 0.0
    for name in sorted(names):
        by = world.store.db.now() + timedelta(seconds=after_s)
        world.store.hosts.drain(name, "fuzz", deadline=by, by="fuzz")
    if way == "taken back":
        time.sleep(dice.uniform(0.0, 0.6))
        _enable_all(world)
    if dice.random() < 0.4:
        time.sleep(dice.uniform(0.0, 1.5))
        os.kill(followers[-1].pid, signal.SIGKILL)
        followers[-1].join(30)
        run.kills += 1
        followers.append(world.follow(trial_id))
    if way != "taken back":
        until(lambda: _are_empty(world, names) or _has_ended(world, trial_id, followers), f"{names} to be empty")
    if way in ("now", "by", "launch") and run.slots == 1:
        until(lambda: bool(world.hosts_of(trial_id)) or _has_ended(world, trial_id, followers), "another host")
    if way in ("all hosts", "two hosts") or dice.random() < 0.7:
        _enable_all(world)
    else:
        # One host stays drained until the next round, so that the trial has fewer places.
        _enable_all(world, but=dice.choice(HOSTS) if run.slots == 1 else None)
    return world.state(trial_id) not in TRIAL_ENDED


def _trains(world: World, trial_id: int) -> bool:
    view = world.store.attempts.get(world.store.trials.get(trial_id).attempt_id)
    return view.state == "running" and bool(world.store.events.of_attempt(view.attempt_id, kinds=("first_step",)))


def _are_empty(world: World, names: set[str]) -> bool:
    return all(world.store.hosts.get(name).state in (HostState.DRAINED, HostState.READY) for name in names)


def _enable_all(world: World, but: str | None = None) -> None:
    for name in HOSTS:
        if name != but and world.store.hosts.get(name).state in (HostState.DRAINING, HostState.DRAINED):
            world.store.hosts.set_state(name, HostState.READY, by="fuzz")


def _judge(world: World, trial_id: int, run: Evacuated, reference: list[tuple[int, int, str]]) -> None:
    """Add the violations of a trial that has ended."""
    trial = world.store.trials.get(trial_id)
    if (trial.state, trial.restarts) != ("completed", 0):
        failures = [one.failure for one in world.store.attempts.of_trial(trial_id) if one.failure]
        run.violations.append(f"trial {trial_id} is {trial.state} after {trial.restarts} restarts: {failures}")
    known: Mapping[tuple[int, int], str] = {(step, rank): digest for step, rank, digest in reference}
    found = world.steps(trial_id)
    for step, rank, digest in found:
        if known.get((step, rank)) != digest:
            run.violations.append(f"trial {trial_id}: step {step} of rank {rank} has other weights")
            break
    if missing := known.keys() - {(step, rank) for step, rank, _ in found}:
        run.violations.append(f"trial {trial_id}: {len(missing)} steps are missing, the first is {min(missing)}")
    entries = [one for one in world.store.timeline.of_trial(trial_id) if one.kind == TimelineKind.EVACUATED]
    run.evacuations = len(entries)
    run.lost_steps = sum(int(one.detail.get("lost_steps") or 0) for one in entries)
    if run.lost_steps > run.evacuations:
        run.violations.append(f"trial {trial_id}: {run.lost_steps} steps were lost in {run.evacuations} evacuations")
    if left := [slot for slot in world.store.hosts.slots() if slot.allocation_id is not None]:
        run.violations.append(f"slots are still held: {left}")


def until(condition: Callable[[], bool], text: str, most_s: float = DEADLINE_S) -> None:
    """Wait for a condition.

    :param text: the condition, for the error
    :raises TimeoutError: it did not become true
    """
    end = time.monotonic() + most_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"Waited {most_s:g} s for {text}.")
        time.sleep(0.05)


def main() -> int:
    """Run trials until enough evacuations are done, print a line for each, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fuzz_evacuation", description=__doc__)
    parser.add_argument("--evacuations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="start no trial after this time")
    options = parser.parse_args()
    begun, done, wrong, references = time.monotonic(), 0, 0, {}
    with tempfile.TemporaryDirectory(prefix="dtrain-evacuation-") as folder:
        world = World(Path(folder))
        seed = options.seed
        while done < options.evacuations and time.monotonic() - begun < options.minutes * 60:
            dice = random.Random(-seed)
            shape = (dice.choice([1, 1, 1, 2]), dice.choice([1, 3]))
            config = document(*shape, epochs=40, pause_s=0.04)
            if shape not in references:
                references[shape] = undisturbed(world, document(*shape, epochs=40, pause_s=0.0))
            run = one_run(world, seed, config, references[shape], most=40)
            done += run.evacuations
            wrong += bool(run.violations)
            load = os.getloadavg()[0]
            print(f"{done} evacuations, load {load:.0f}: {run}", flush=True)
            seed += 1
    print(f"{done} evacuations in {seed - options.seed} trials, {wrong} trials with violations")
    return 1 if wrong or done < options.evacuations else 0


if __name__ == "__main__":
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="dtrain-evacuation-home-")
    sys.exit(main())
