"""Diagnosis of a training: short runs on one held gang, and the verdict that follows from their figures."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dtrain.core.diagnosis.runs import (
    REAL,
    SYNTHETIC,
    Limits,
    ShortRunSpec,
    check_config,
    document_of,
    first_runs,
    hyperparameters_of,
)
from airflow_provider_dtrain.core.diagnosis.verdict import (
    STEPS_LEAST,
    RunFigures,
    Verdict,
    as_data,
    by_gain,
    rank_figures,
    summary,
    verdict,
    with_try,
)
from airflow_provider_dtrain.core.hyperparameters.seeds import SEED_LIMIT
from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.session.runtime import take_over
from airflow_provider_dtrain.engine.session.threads import in_thread
from airflow_provider_dtrain.engine.submission.assembly import assembled
from airflow_provider_dtrain.engine.submission.submit import read_document, render, submit, template_of
from airflow_provider_dtrain.engine.upkeep.held_gangs import (
    GangWaiter,
    HeldGang,
    as_xcom,
    ask_for_gang,
    end_held_gang,
    end_older_gangs,
)
from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery
from airflow_provider_dtrain.errors import NotFoundError, TrialKilledError, UserError

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.core.documents import JsonObject
    from airflow_provider_dtrain.engine.attempt.outcome import Outcome
    from airflow_provider_dtrain.engine.logs.task_log import TaskLog
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.resources.provenance import DagBundle
    from airflow_provider_dtrain.store.records.gangs import GangView
    from airflow_provider_dtrain.store.records.trials import Config, Ticket, TrialKey

#: Tag of the experiment of a diagnosis.
TAG: Final = "diagnosis"
#: Time for which the gang is held between two runs, seconds.
HOLD_FOR_S: Final = 120.0
#: Trials of one try of a task at most, so that those of the next try have numbers of their own.
_RUNS_MAX: Final = 100
_NAME_CHARS: Final = 100
#: Most steps of a run, and limits of its time, seconds, as in section ``diagnosis`` of a configuration.
STEPS_MOST, TIME_LEAST_S, TIME_MOST_S = 100_000, 10, 86_400


@dataclass(frozen=True, kw_only=True)
class DiagnosisRequest:
    """A training to diagnose."""

    #: The gang and the trials belong to it.
    key: TrialKey
    #: Path, YAML text or dict.
    config: str | Mapping[str, Any]
    #: Name of a stored template, path or dict; None: the one that the configuration names.
    template: str | Mapping[str, Any] | None
    #: Base folder of relative paths.
    folder: Path
    limits: Limits
    #: Whether further runs try the suggestions.
    is_confirming: bool = True
    #: Name of the experiment for a configuration without one.
    name: str = "training"
    #: Try of the task, from 1.
    try_number: int = 1
    by: str = "diagnosis"
    bundle: DagBundle | None = None


def limits_of(steps: int | str, most_s: timedelta | float | str) -> Limits:
    """Return the limits of the runs of a diagnosis.

    :param steps: measured steps of each run, 5 at least
    :param most_s: time limit of each run, 10 s at least
    :raises UserError: one of them is not a number, or too small
    """
    try:
        seconds = most_s.total_seconds() if isinstance(most_s, timedelta) else float(most_s)
        found = Limits(steps=int(steps), most_s=seconds)
    except ValueError:
        raise UserError(f"steps and most_s must be numbers, got {steps!r} and {most_s!r}.") from None
    if not (STEPS_LEAST <= found.steps <= STEPS_MOST and TIME_LEAST_S <= found.most_s <= TIME_MOST_S):
        raise UserError(
            f"A run must have {STEPS_LEAST} to {STEPS_MOST} steps and {TIME_LEAST_S} to {TIME_MOST_S} s, got "
            f"{found.steps} steps and {found.most_s:g} s."
        )
    return found


def request_of_command(
    document: Mapping[str, Any],
    template: Mapping[str, Any] | None,
    folder: Path,
    limits: Limits,
    *,
    dag_id: str,
    name: str,
    by: str,
    is_confirming: bool,
) -> DiagnosisRequest:
    """Return the request of a command, which has no task. Users who may read the DAG see its experiment.

    :param name: of the experiment, if the configuration has none
    :param by: user of the command
    """
    from airflow_provider_dtrain.store.records.trials import TrialKey

    run = f"diagnosis__{datetime.now(UTC).isoformat(timespec='seconds')}_{secrets.token_hex(4)}"
    return DiagnosisRequest(
        key=TrialKey(dag_id=dag_id, run_id=run, task_id="diagnose"),
        config=document,
        template=template,
        folder=folder,
        limits=limits,
        is_confirming=is_confirming,
        name=name,
        by=by,
    )


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """The configuration to diagnose, read once."""

    source: Mapping[str, Any]
    config: ExperimentConfig
    pool: str
    name: str
    seed: int


class Diagnosis:
    """One diagnosis: it holds a gang, runs the program several times for some steps, and releases the gang.

    :param inform: called with a line about each step of the diagnosis
    :param watcher: readable name of this process
    """

    def __init__(
        self, hook: DtrainHook, request: DiagnosisRequest, log: TaskLog, inform: Callable[[str], None], *, watcher: str
    ) -> None:
        self.hook = hook
        self.request = request
        self.log = log
        self.inform = inform
        self.watcher = watcher
        self._runs: list[RunFigures] = []
        self._experiment: int | None = None

    async def run(self) -> JsonObject:
        """Return the verdict as plain JSON. The slots are free afterwards, also after an error or a cancellation.

        :raises ConfigError: the configuration is not valid, or does not describe a training
        :raises UnplaceableError: the hosts of the pool can never run it
        :raises DtrainError: the run as configured failed
        """
        subject = await in_thread(self._read)
        gang = await self._hold(subject)
        try:
            return await self._diagnose(subject, gang)
        finally:
            left = await end_held_gang(
                self.hook, gang.allocation_id, "its diagnosis has ended", self.log, watcher=self.watcher
            )
            if left.held_hosts:
                self.inform(f"The slots on {', '.join(left.held_hosts)} stay taken until these hosts answer.")

    def _read(self) -> _Subject:
        """Return the configuration. Blocks."""
        request, store = self.request, self.hook.store
        source = read_document(request.config, request.folder, what="configuration")
        named = request.template if request.template is not None else source.get("template")
        self.hook.ensure_local()
        found = assembled(store, source, template_of(store, named, request.folder)[0])
        if found.no_pool is not None:
            raise NotFoundError(found.no_pool)
        config = found.effective.config
        check_config(config)
        seed = config.reproducibility.experiment_seed
        return _Subject(
            source=source,
            config=config,
            pool=found.pool,
            name=f"{(config.name or request.name)[:_NAME_CHARS]} diagnosis",
            seed=secrets.randbelow(SEED_LIMIT) if seed is None else seed,
        )

    async def _hold(self, subject: _Subject) -> GangView:
        """Return the gang once it is held. One of an earlier try of the task is ended first."""
        from airflow_provider_dtrain.store.records.gangs import GangSubmission

        key, wanted = self.request.key, subject.config.resources
        submission = GangSubmission(
            key=key,
            pool=subject.pool,
            slots=wanted.slots_per_trial,
            priority=wanted.priority,
            is_single_host=wanted.is_single_host,
            hold_for_s=HOLD_FOR_S,
            on_unplaceable=subject.config.on_unplaceable,
        )
        await end_older_gangs(self.hook, key, self.log, watcher=self.watcher)
        asked = await in_thread(ask_for_gang, self.hook, submission)
        if asked.is_usable:
            because = "an earlier try of the diagnosis did not end"
            await end_held_gang(self.hook, asked.allocation_id, because, self.log, watcher=self.watcher)
            asked = await in_thread(ask_for_gang, self.hook, submission)
        waiter = GangWaiter(self.hook, asked.allocation_id, self.log, watcher=self.watcher)
        try:
            gang = await waiter.run()
        except asyncio.CancelledError:
            if waiter.watch is not None:
                await waiter.withdraw("its diagnosis was cancelled")
            raise
        assert gang is not None
        places = ", ".join(f"{host} {list(slots)}" for host, slots in sorted(gang.placement.items()))
        self.inform(f"Holding {gang.slots} slot(s) of pool '{gang.pool}': {places}")
        return gang

    async def _diagnose(self, subject: _Subject, gang: GangView) -> JsonObject:
        ranks = max(1, gang.slots)
        for spec in first_runs(ranks):
            if spec.name == SYNTHETIC and not _has_loader(self._runs[0]):
                problem = "the program does not load its data by ctx.loader or a trial class, so it cannot be replaced."
                self._runs.append(RunFigures(name=spec.name, title=spec.title, trial_id=None, problem=problem))
                continue
            await self._measure(subject, gang, spec)
        found = verdict(self._runs, subject.config)
        if self.request.is_confirming:
            found = await self._confirmed(subject, gang, found)
        result = {"experiment_id": self._experiment, **as_data(found, self._runs)}
        await in_thread(self._store, summary(found))
        return result

    async def _confirmed(self, subject: _Subject, gang: GangView, found: Verdict) -> Verdict:
        """Return a verdict whose suggestions were tried where that is possible."""
        suggestions = []
        for one in found.suggestions:
            if one.run is not None:
                one = with_try(one, await self._measure(subject, gang, one.run), found.step_s)
            suggestions.append(one)
        return replace(found, suggestions=tuple(sorted(suggestions, key=by_gain)))

    async def _measure(self, subject: _Subject, gang: GangView, spec: ShortRunSpec) -> RunFigures:
        """Run the program once, and return the figures of the run."""
        limits = self.request.limits
        self.inform(f"Run {len(self._runs) + 1}, {spec.title}: at most {limits.steps} steps and {limits.most_s:g} s")
        ticket = await in_thread(self._submit, subject, gang, spec)
        outcome = await self._carry(ticket.trial_id)
        found = await in_thread(self._figures, spec, ticket, outcome)
        self._runs.append(found)
        if outcome.state == "killed":
            message = f"The diagnosis ended, because its trial {ticket.trial_id} was killed."
            raise outcome.failure.brief if outcome.failure is not None else TrialKilledError(message)
        if found.problem is None:
            self.inform(f"  {found.steps} steps of {found.step_s:.4g} s")
        elif spec.name == REAL:
            raise self._failed(found, outcome)
        else:
            self.inform(f"  Not measured: {found.problem}")
        return found

    def _submit(self, subject: _Subject, gang: GangView, spec: ShortRunSpec) -> Ticket:
        """Store the trial of a run. Blocks."""
        request, number = self.request, len(self._runs)
        document = document_of(
            subject.source, subject.config, spec, request.limits, name=subject.name, seed=subject.seed
        )
        stored: Config = render(self.hook, document, request.template, request.folder, pool=gang.pool)
        hyperparameters = hyperparameters_of(subject.config, subject.seed, spec)
        ticket = submit(
            self.hook,
            stored,
            key=request.key,
            folder=request.folder,
            trial={"number": number, "hparams": hyperparameters},
            gang=HeldGang.parse(as_xcom(gang)),
            bundle=request.bundle,
            trial_index=(request.try_number - 1) * _RUNS_MAX + number,
            owner=request.by,
        )
        control = self.hook.store.control
        if self._experiment is None:
            self._experiment = ticket.experiment_id
            control.set("experiment", ticket.experiment_id, by=request.by, add_tags=[TAG])
        control.set("trial", ticket.trial_id, by=request.by, display_name=spec.title)
        return ticket

    async def _carry(self, trial_id: int) -> Outcome:
        """Follow a trial to its end. If this coroutine is cancelled, the trial is ended first."""
        runtime = await take_over(self.hook, trial_id, self.log, watcher=self.watcher)
        following = asyncio.ensure_future(AttemptRunner(runtime).run(BackgroundRecovery(self.hook)))
        try:
            outcome = await asyncio.shield(following)
        except asyncio.CancelledError:
            runtime.kill()
            with contextlib.suppress(Exception):
                await following
            raise
        assert outcome is not None
        return outcome

    def _figures(self, spec: ShortRunSpec, ticket: Ticket, outcome: Outcome) -> RunFigures:
        """Return the figures of a run that has ended, from the timings of its ranks. Blocks."""
        store = self.hook.store
        made = RunFigures(name=spec.name, title=spec.title, trial_id=ticket.trial_id)
        if outcome.failure is not None and outcome.failure.error != "MaxRuntimeError":
            return replace(made, problem=outcome.failure.cause)
        hosts = {one.rank: one.host for one in store.events.ranks(ticket.attempt_id)}
        totals: dict[int, dict[str, tuple[int, float]]] = {}
        for one in store.telemetry.timings(ticket.trial_id).totals:
            if one.total_s is not None:
                totals.setdefault(one.rank, {})[one.name] = (one.count, one.total_s)
        ranks = [rank_figures(rank, hosts.get(rank, ""), of) for rank, of in sorted(totals.items())]
        found = replace(made, ranks=tuple(rank for rank in ranks if rank is not None))
        if outcome.failure is None and found.steps >= STEPS_LEAST:
            return found
        return replace(made, problem=self._without_steps(ticket, found.steps))

    def _without_steps(self, ticket: Ticket, steps: int) -> str:
        """Return why a run has too few steps. Blocks."""
        store, limits = self.hook.store, self.request.limits
        if not store.events.of_attempt(ticket.attempt_id, kinds=("init",)):
            used = ", ".join(
                f"{one.metric} {one.mean:.4g} {one.unit} on {one.device or one.host}"
                for one in store.telemetry.ranges(ticket.trial_id)
                if one.metric in {"cpu_util", "gpu_util", "net_sent", "disk_read"}
            )
            return (
                "the program does not call dtrain.init(), so its steps can be neither counted nor timed. Only the use "
                f"of its hosts could be measured: {used or 'nothing, it ended too early'}."
            )
        return (
            f"it measured {steps} steps, and at least {STEPS_LEAST} are needed: the program ended before its warm-up "
            f"of {limits.warm_up} steps was over, did not call ctx.step or had not finished within {limits.most_s:g} s."
        )

    def _failed(self, run: RunFigures, outcome: Outcome) -> Exception:
        message = f"The run as configured (trial {run.trial_id}) failed, so nothing can be diagnosed: {run.problem}"
        if outcome.failure is None:
            return UserError(message)
        return replace(outcome.failure, message=message).exception()

    def _store(self, text: str) -> None:
        """Show the verdict on the page of the experiment. Blocks."""
        assert self._experiment is not None
        self.hook.store.control.set("experiment", self._experiment, by=self.request.by, description=text)


def _has_loader(run: RunFigures) -> bool:
    return all(rank.loading_s is not None for rank in run.ranks)
