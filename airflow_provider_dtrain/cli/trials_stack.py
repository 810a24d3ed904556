"""``airflow dtrain trials stack``: Python stacks of running ranks, requested from their hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.core.lifecycle.states import STARTED
from airflow_provider_dtrain.errors import DtrainError, HostRefusedError, NotFoundError
from airflow_provider_dtrain.terminal.output import FAILURE, NotNowError, hint, is_table, note, plain, show

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.trials import AttemptView, RankView

#: Seconds for the answer of a host. It waits 5 s for its ranks.
CALL_TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class RankStack:
    """The stacks of one rank, or the reason why there are none."""

    rank: int
    host: str
    pid: int
    text: str
    problem: str


@command
def stack(args: Namespace) -> int:
    """Print the Python stacks of a trial's running ranks. Exit 3 if none runs."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    hook = DtrainHook()
    trial = hook.store.trials.get(args.trial_id)
    view = hook.store.attempts.get(trial.attempt_id)
    if view.state not in STARTED or view.run is None:
        raise NotNowError(f"Trial {args.trial_id} has no running ranks: its attempt {view.number} is {view.state}.")
    ranks = _wanted(hook.store.events.ranks(view.attempt_id), args.rank, view)
    found: list[RankStack] = []
    for host in sorted({rank.host for rank in ranks}):
        try:
            found += _stacks(hook, view, host, [rank.rank for rank in ranks if rank.host == host])
        except DtrainError as error:
            note(f"No stacks of the ranks on host '{host}': {_words(error, host)}")
    found.sort(key=lambda one: one.rank)
    _print(args, found)
    hint(f"airflow dtrain trials logs {args.trial_id}")
    return 0 if any(one.text for one in found) else FAILURE


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


def _words(error: DtrainError, host: str) -> str:
    if isinstance(error, HostRefusedError) and error.code == "unknown_command":
        return f"its supervisor is of an earlier version. To replace it, run: airflow dtrain hosts probe {host}"
    return str(error)


def _print(args: Namespace, found: Sequence[RankStack]) -> None:
    if not is_table(args):
        rows: list[dict[str, Any]] = [vars(one) for one in found]
        return show(args, rows)
    for one in found:
        print(f"rank {one.rank} on {plain(one.host)}, pid {one.pid}{f': {plain(one.problem)}' if one.problem else ''}")
        if one.text:
            print("\n".join(f"  {line}" for line in plain(one.text.rstrip()).splitlines()) + "\n")
    return None
