"""Requests of users to trials, experiments, gangs and hosts: each is checked, stored and answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle import states
from airflow_provider_dtrain.core.lifecycle.control import OF_PLACE, OF_QUEUE, Change, Deadline, HostVerb, Noun, Verb
from airflow_provider_dtrain.core.lifecycle.states import EXPERIMENT_LIVE, TRIAL_ENDED, TRIAL_LIVE, HostState
from airflow_provider_dtrain.core.projects import check_project
from airflow_provider_dtrain.core.scheduling.evacuation import time_text
from airflow_provider_dtrain.engine.upkeep.evacuation import effects, evacuate, lines, trials_due
from airflow_provider_dtrain.engine.upkeep.host_actions import refuse_node, runs_on
from airflow_provider_dtrain.errors import ConflictError, UserError

if TYPE_CHECKING:
    from airflow_provider_dtrain.resources.bulk import BulkAction, BulkResult
    from airflow_provider_dtrain.store.records.trials import TrialView
    from airflow_provider_dtrain.store.store import Store


#: Carries out the stored requests to trials whose followers are gone, and returns what happens. Its arguments are the
#: trials, and the command of ``airflow dtrain`` with the same effect.
Takeover = Callable[[Sequence[int], str], str]
#: Removes files and rows of experiments that are marked for deletion, and returns what happens.
Remove = Callable[[Sequence[int]], str]
#: Connects to a host that does not answer, and raises an error if it still does not.
Reach = Callable[[str], None]


_DONE: Mapping[HostVerb, str] = {"enable": "enabled", "disable": "disabled"}


class StoreControl:
    """Requests of one user to trials, experiments, gangs and hosts. Each method returns what happens.

    :param by: the user
    :param takeover: acts in place of followers that are gone
    :param reach: connects to a host that is to be enabled and does not answer
    :param remove: removes deleted experiments
    """

    def __init__(self, store: Store, by: str, takeover: Takeover, reach: Reach, remove: Remove) -> None:
        self.store = store
        self.by = by
        self.takeover = takeover
        self.reach = reach
        self.remove = remove

    def request(self, noun: Noun, number: int, verb: Verb) -> str:
        """Pause, activate, stop or kill a trial, or all trials of an experiment.

        :raises NotFoundError: there is none with this id
        :raises ConflictError: its state does not allow it
        """
        if verb == "activate":
            return self._activate_trial(number) if noun == "trial" else self._activate_experiment(number)
        act = self._to_trial if noun == "trial" else self._to_experiment
        return act(number, verb)

    def _to_trial(self, trial_id: int, verb: Verb) -> str:
        trial = self.store.trials.get(trial_id)
        if verb != "pause" and trial.state not in TRIAL_LIVE:
            raise ConflictError(f"Trial {trial_id} has ended already: {trial.state}.")
        sentence = {"pause": self._pause, "stop": self._stop, "kill": self._kill}[verb](trial)
        alone = self.store.recovery.unfollowed(trial_id=trial_id, has_ranks=verb == "pause")
        if alone:
            instead = self.takeover(alone, f"trials {verb} {trial_id}")
            return f"The request to {verb} trial {trial_id} is stored. {instead}"
        return sentence

    def _pause(self, trial: TrialView) -> str:
        resumption = _resumption(self.store, trial)
        self.store.control.pause(trial.trial_id, self.by)
        if self.store.trials.get(trial.trial_id).state == "paused":
            return f"Trial {trial.trial_id} is paused. It keeps its place in the queue."
        return f"Trial {trial.trial_id} was asked to release its slots. It {resumption}."

    def _stop(self, trial: TrialView) -> str:
        self.store.control.stop(trial.trial_id, self.by)
        head = f"Trial {trial.trial_id} was asked to end with its result so far."
        return f"{head} If it runs, it writes a checkpoint first."

    def _kill(self, trial: TrialView) -> str:
        waits = self.store.attempts.get(trial.attempt_id).state == "waiting"
        self.store.control.kill(trial.trial_id, self.by)
        if waits:
            return f"Trial {trial.trial_id} holds no slots. The process that waits for it ends it within seconds."
        return f"Trial {trial.trial_id} will be stopped on every host by the process that follows it, within seconds."

    def _activate_trial(self, trial_id: int) -> str:
        if not self.store.control.activate(trial_id, self.by):
            raise ConflictError(f"Trial {trial_id} is not paused: {self.store.trials.get(trial_id).state}.")
        state = self.store.attempts.get(self.store.trials.get(trial_id).attempt_id).state
        if state == "waiting":
            return f"Trial {trial_id} is resumed: it waits for slots at its place in the queue."
        if state == "stopping":
            return f"Trial {trial_id} is still stopping. Then it waits at its place in the queue and resumes."
        head = f"The pause of trial {trial_id} is cancelled: it keeps running."
        return f"{head} If its ranks have just been asked to stop, it resumes from there automatically."

    def _to_experiment(self, experiment_id: int, verb: Verb) -> str:
        experiments = self.store.experiments
        if verb != "pause":
            view = experiments.get(experiment_id)
            if view.state not in EXPERIMENT_LIVE and not any(view.trials.get(state) for state in TRIAL_LIVE):
                raise ConflictError(f"Experiment {experiment_id} has ended already: {view.state}.")
        count = {"pause": experiments.pause, "stop": experiments.stop, "kill": experiments.kill}[verb](
            experiment_id, self.by
        )
        effect = {
            "pause": "paused or asked to release slots, and none starts. Running trials write a checkpoint first",
            "stop": "asked to end. Running trials write a checkpoint first",
            "kill": "killed within seconds",
        }[verb]
        sentence = f"Experiment {experiment_id}: {_trials(count)} {effect}."
        alone = self.store.recovery.unfollowed(experiment_id=experiment_id, has_ranks=verb == "pause")
        return f"{sentence} {self.takeover(alone, f'experiments {verb} {experiment_id}')}" if alone else sentence

    def _activate_experiment(self, experiment_id: int) -> str:
        count = self.store.experiments.activate(experiment_id, self.by)
        return f"Experiment {experiment_id} is resumed: {_trials(count)} back in the queue."

    def set(self, noun: Noun, number: int, change: Change) -> str:
        """Change labels, priority and share of a trial or an experiment, all of them or none.

        :raises NotFoundError: there is none with this id
        :raises ConflictError: the priority of a trial that has ended
        :raises UserError: a value is out of range, or there is none
        """
        if not change:
            raise UserError("Nothing to set: the change has no field.")
        if noun == "trial" and "priority" in change and (state := self.store.trials.get(number).state) in TRIAL_ENDED:
            raise ConflictError(f"Trial {number} has ended ({state}), so its priority cannot be changed.")
        self.store.control.set(noun, number, by=self.by, **change)
        values = [f"{name} {change[name]:g}" for name in ("priority", "weight", "max_slots") if name in change]
        parts = [f"{noun.capitalize()} {number} has {', '.join(values)}."] if values else []
        if "project" in change:
            parts.append(f"{noun.capitalize()} {number} is in project '{check_project(change['project'])}'.")
        if "archived" in change:
            place = "archived" if change["archived"] else "in the lists again"
            parts.append(f"{noun.capitalize()} {number} is {place}.")
        has_labels = change.keys() - OF_QUEUE - OF_PLACE
        parts += [f"The labels of {noun} {number} are changed."] if has_labels else []
        if wider := self._wider(number, change.get("max_slots", 0)):
            parts.append(f"Warning: trials that request more slots can never start: {', '.join(wider)}")
        return " ".join(parts)

    def act(
        self,
        action: BulkAction,
        experiment_ids: Sequence[int],
        *,
        project: str | None = None,
        tags: Sequence[str] = (),
        dry_run: bool = False,
    ) -> BulkResult:
        """Carry out an action for several experiments, see :func:`bulk_action`."""
        from airflow_provider_dtrain.engine.bulk_actions import bulk_action

        return bulk_action(self, action, experiment_ids, project=project, tags=tags, dry_run=dry_run)

    def drain(self, name: str, reason: str = "", *, deadline: Deadline | None = None, dry_run: bool = False) -> str:
        """Grant no new slots on a host, and with a deadline let its gangs resume elsewhere.

        :param reason: shown to other users
        :param deadline: None = gangs may finish
        :param dry_run: only return what would happen
        :raises NotFoundError: there is no such host
        :raises ConflictError: it is the node of a job
        """
        record = self.store.hosts.get(name)
        refuse_node(self.store, record, "be drained")
        reason = reason or f"drained by {self.by}"
        head = f"Host '{name}' gets no new gangs."
        if deadline is None:
            if not dry_run:
                self.store.hosts.set_state(name, HostState.DRAINING, reason, by=self.by)
            return f"{head} Running trials may finish."
        if deadline.by > self.store.db.now():
            head = f"{head} It is to be empty by {time_text(deadline.by)}."
        if dry_run:
            states.check("host", record.state, HostState.DRAINING)
            return lines(head, effects(self.store, name, deadline))
        found = evacuate(self.store, name, deadline, reason, self.by)
        due = trials_due(self.store, name, deadline)
        unfollowed = self.store.recovery.unfollowed
        alone = [trial_id for trial_id in due if unfollowed(trial_id=trial_id, has_ranks=True)]
        if alone:
            found.append(self.takeover(alone, f"hosts drain {name} --now"))
        return lines(head, found)

    def host(self, name: str, verb: HostVerb, *, slot: int | None = None, reason: str = "") -> str:
        """Enable or disable a host, or one of its slots.

        :param reason: shown to other users
        :raises NotFoundError: there is no such host or slot
        :raises ConflictError: it is the node of a job
        """
        record = self.store.hosts.get(name)
        refuse_node(self.store, record, f"be {_DONE[verb]}")
        if slot is not None:
            is_enabled = verb == "enable"
            self.store.hosts.set_slot_enabled(name, slot, is_enabled, by=self.by)
            after = "enabled." if is_enabled else "disabled. A trial that holds it continues."
            return f"Slot {slot} of host '{name}' is {after}"
        if verb == "enable":
            if record.state in ("unreachable", "lost"):
                self.reach(name)
            self.store.hosts.set_state(name, HostState.READY, by=self.by)
            return f"Host '{name}' gets gangs again."
        running = [str(view.trial_id) for view in runs_on(self.store, name)]
        self.store.hosts.set_state(name, HostState.DISABLED, reason or f"disabled by {self.by}", by=self.by)
        for trial_id in running:
            self.store.control.kill(int(trial_id), self.by)
        ended = f" Trials {', '.join(running)} are killed." if running else ""
        return f"Host '{name}' is disabled.{ended}"

    def set_gang_priority(self, allocation_id: int, priority: int) -> str:
        """Change the priority of a gang that waits or holds slots.

        :raises NotFoundError: no such gang waits or holds slots
        """
        self.store.control.set_gang_priority(allocation_id, priority, self.by)
        return f"Gang {allocation_id} has priority {priority}."

    def end_gang(self, allocation_id: int) -> str:
        """End a gang that is held for several tasks."""
        self.store.gangs.end(allocation_id, f"ended by {self.by}")
        return f"Held gang {allocation_id} ends. A trial that uses it is stopped first."

    def _wider(self, experiment_id: int, most: int) -> list[str]:
        """Return the waiting trials of an experiment that request more slots than it may hold."""
        waiting = [one for one in self.store.queue_view.tasks() if one.experiment_id == experiment_id and most]
        return [str(one.trial_id) for one in waiting if one.state == "waiting" and one.slots > most]


def lost_followers(trials: Sequence[int]) -> str:
    """Return that the followers of trials are gone, as the begin of a sentence."""
    if len(trials) == 1:
        return f"The process that followed trial {trials[0]} is gone"
    return f"The processes that followed trials {', '.join(map(str, trials))} are gone"


def _resumption(store: Store, trial: TrialView) -> str:
    """Return how a trial resumes after a pause."""
    if store.attempts.get(trial.attempt_id).state not in ("starting", "running"):
        return "resumes where it was"
    joined = bool(store.events.of_attempt(trial.attempt_id, kinds=("init", "first_step")))
    if found := store.checkpoints.of_trial(trial.trial_id):
        last = f"the checkpoint of step {max(found, key=lambda one: one.checkpoint_id).step}"
        return f"writes a checkpoint, and resumes from it or from {last}" if joined else f"resumes from {last}"
    if joined:
        return "has written no checkpoint yet: unless its program writes one now, it resumes from the beginning"
    return "has no checkpoint, and its program does not use the library: it resumes with the files that it has written"


def _trials(count: int) -> str:
    return "1 trial" if count == 1 else f"{count} trials"
