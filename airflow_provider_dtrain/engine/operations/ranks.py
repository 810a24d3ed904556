"""Work beside running ranks: their stacks, and commands in their environment. Blocks."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.states import STARTED
from airflow_provider_dtrain.core.rank_results import EXEC_MOST_S, CommandResult, ProfileRequest, RankStack, Stacks
from airflow_provider_dtrain.engine.copies.outputs import chief_of
from airflow_provider_dtrain.errors import DtrainError, NotFoundError, NotNowError, UserError

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.trials import AttemptView, RankView

#: Seconds for the answer of a host. It waits 5 s for its ranks.
CALL_TIMEOUT_S = 20.0
#: Time that the answer to a command may take beyond its time limit.
MARGIN_S = 30.0
_EXEC_OFF = "Commands in the environment of ranks are off. To allow them, set [dtrain] allow_exec = True."


class NotWantedError(Exception):
    """The user no longer waits for the result."""


def running_attempt(hook: DtrainHook, trial_id: int) -> AttemptView:
    """Return the running attempt of a trial.

    :raises NotNowError: no rank runs
    """
    trial = hook.store.trials.get(trial_id)
    view = hook.store.attempts.get(trial.attempt_id)
    if view.state not in STARTED or view.run is None:
        raise NotNowError(f"Trial {trial_id} has no running ranks: its attempt {view.number} is {view.state}.")
    return view


def stacks(hook: DtrainHook, trial_id: int, rank: int | None) -> Stacks:
    """Return the Python stacks of running ranks.

    :param rank: None = all ranks
    :raises NotNowError: no rank runs
    :raises NotFoundError: the attempt has no such rank
    """
    view = running_attempt(hook, trial_id)
    ranks = _wanted(hook.store.events.ranks(view.attempt_id), rank, view)
    found: list[RankStack] = []
    problems: list[str] = []
    for host in sorted({one.host for one in ranks}):
        try:
            found += _stacks(hook, view, host, [one.rank for one in ranks if one.host == host])
        except DtrainError as error:
            problems.append(f"No stacks of the ranks on host '{host}': {error}")
    found.sort(key=lambda one: one.rank)
    return Stacks(ranks=found, problems=problems)


def _wanted(ranks: Sequence[RankView], number: int | None, view: AttemptView) -> list[RankView]:
    wanted = [rank for rank in ranks if number in (None, rank.rank)]
    if not wanted:
        known = f"it has 0 to {len(ranks) - 1}" if ranks else "none of its ranks is known yet"
        raise NotFoundError(f"Attempt {view.number} has no rank {number}: {known}.")
    return wanted


def _stacks(hook: DtrainHook, view: AttemptView, host: str, ranks: Sequence[int]) -> list[RankStack]:
    link = hook.link(hook.store.hosts.get(host))
    answer = link.call("stacks", timeout_s=CALL_TIMEOUT_S, run=view.run, ranks=list(ranks)).result(CALL_TIMEOUT_S + 5)
    names = ("rank", "pid", "text", "problem")
    return [RankStack(host=host, **{name: one[name] for name in names}) for one in answer["ranks"]]


def profile(
    hook: DtrainHook, trial_id: int, numbers: Sequence[int] | None, batches: int, *, with_stack: bool
) -> ProfileRequest:
    """Ask running ranks to record their next batches. Traces of rank 0's host become outputs of the trial.

    :param numbers: the ranks; None = all
    :param batches: recorded batches of each rank, after one that warms up
    :param with_stack: record the lines of the program as well, which costs more
    :raises NotNowError: no rank runs
    :raises NotFoundError: the attempt has none of the ranks
    """
    view = running_attempt(hook, trial_id)
    known = hook.store.events.ranks(view.attempt_id)
    wanted = known if numbers is None else [one for number in numbers for one in _wanted(known, number, view)]
    recording: list[int] = []
    problems: list[str] = []
    chief = chief_of(view)
    for host in sorted({one.host for one in wanted}):
        ranks = sorted({one.rank for one in wanted if one.host == host})
        fields = {"ranks": ranks, "batches": batches, "with_stack": with_stack}
        try:
            link = hook.link(hook.store.hosts.get(host))
            answer = link.call("profile", timeout_s=CALL_TIMEOUT_S, run=view.run, **fields).result(CALL_TIMEOUT_S + 5)
        except DtrainError as error:
            problems.append(f"Ranks on host '{host}' record nothing: {error}")
            continue
        recording += [one["rank"] for one in answer["ranks"] if not one["problem"]]
        if host != chief:
            problems.append(
                f"Traces of ranks on host '{host}' stay there, at the paths in the task log: only those of rank 0's "
                "host are copied."
            )
        problems += [f"Rank {one['rank']}: {one['problem']}" for one in answer["ranks"] if one["problem"]]
    return ProfileRequest(ranks=sorted(recording), problems=problems)


def require_exec(hook: DtrainHook, timeout_s: float) -> None:
    """Check that commands beside ranks are allowed, and their time limit.

    :raises UserError: they are off, or the limit is out of range
    """
    if not hook.settings.allow_exec:
        raise UserError(_EXEC_OFF)
    if not 0 < timeout_s <= EXEC_MOST_S:
        raise UserError(f"--timeout must be a number of seconds from 1 to {EXEC_MOST_S}, got {timeout_s}.")


def exec_in_rank(
    hook: DtrainHook,
    trial_id: int,
    rank: int,
    argv: Sequence[str],
    timeout_s: int,
    *,
    by: str,
    is_wanted: Callable[[], bool] = lambda: True,
) -> CommandResult:
    """Run a command in the environment of a rank, after its user and its words are recorded.

    :param by: the user
    :param is_wanted: returns False once the user no longer waits. The caller then ends the channel, and the command
        with it
    :raises UserError: commands are off
    :raises NotNowError: no rank runs
    :raises NotWantedError: the user no longer waits
    """
    require_exec(hook, timeout_s)
    view = running_attempt(hook, trial_id)
    [found] = _wanted(hook.store.events.ranks(view.attempt_id), rank, view)
    hook.store.control.note_exec(trial_id, rank, by, shlex.join(argv))
    link = hook.link(hook.store.hosts.get(found.host))
    most_s = timeout_s + MARGIN_S
    call = link.call("exec", timeout_s=most_s, run=view.run, rank=rank, argv=list(argv), limit_s=float(timeout_s))
    answer = _answer(call, most_s + 5, is_wanted)
    names = ("exit_code", "timed_out", "output", "size_bytes", "killed")
    return CommandResult(**{name: answer[name] for name in names})


def _answer(call: Future[JsonObject], most_s: float, is_wanted: Callable[[], bool]) -> JsonObject:
    deadline = time.monotonic() + most_s
    while True:
        try:
            return call.result(min(1.0, max(0.0, deadline - time.monotonic())))
        except LateError:
            if not is_wanted():
                raise NotWantedError from None
            if time.monotonic() >= deadline:
                raise
