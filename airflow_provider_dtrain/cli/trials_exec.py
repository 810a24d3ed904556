"""``airflow dtrain trials exec``: a command in the environment of a running rank."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.core.lifecycle.states import STARTED
from airflow_provider_dtrain.errors import NotFoundError, UserError
from airflow_provider_dtrain.terminal.output import FAILURE, NotNowError, fail, note, plain, size, user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.trials import AttemptView

#: Exit code after the time limit, as of ``timeout``. A command that a signal ended has this code plus its number.
TIMED_OUT, SIGNALLED = 124, 128
#: Most bytes of the output that a host sends.
OUTPUT_BYTES = 1 << 20
#: Longest time limit in seconds, and the time that the answer may take beyond it.
MOST_S, MARGIN_S = 3600, 30.0


@command
def exec_in_rank(args: Namespace) -> int:
    """Run a command in the environment of a rank, and exit with its code. Exit 3 if the rank does not run."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    hook = DtrainHook()
    if not hook.settings.allow_exec:
        raise UserError("Commands in the environment of ranks are off. To allow them, set [dtrain] allow_exec = True.")
    if not 0 < args.timeout <= MOST_S:
        raise UserError(f"--timeout must be a number of seconds from 1 to {MOST_S}, got {args.timeout}.")
    trial = hook.store.trials.get(args.trial_id)
    view = hook.store.attempts.get(trial.attempt_id)
    if view.state not in STARTED or view.run is None:
        raise NotNowError(f"Trial {args.trial_id} has no running ranks: its attempt {view.number} is {view.state}.")
    host = _host(hook, view, args.rank)
    hook.store.control.note_exec(args.trial_id, args.rank, user(), shlex.join(args.argv))
    return _show(_answer(hook, view, host, args), args)


def _host(hook: DtrainHook, view: AttemptView, number: int) -> str:
    ranks = hook.store.events.ranks(view.attempt_id)
    for rank in ranks:
        if rank.rank == number:
            return rank.host
    known = f"it has 0 to {len(ranks) - 1}" if ranks else "none of its ranks is known yet"
    raise NotFoundError(f"Attempt {view.number} has no rank {number}: {known}.")


def _answer(hook: DtrainHook, view: AttemptView, host: str, args: Namespace) -> dict[str, Any]:
    link = hook.link(hook.store.hosts.get(host))
    most_s = args.timeout + MARGIN_S
    call = link.call(
        "exec", timeout_s=most_s, run=view.run, rank=args.rank, argv=list(args.argv), limit_s=float(args.timeout)
    )
    return dict(call.result(most_s + 5))


def _show(answer: dict[str, Any], args: Namespace) -> int:
    sys.stdout.write(plain(answer["output"]) if sys.stdout.isatty() else answer["output"])
    sys.stdout.flush()
    # Bytes that are no UTF-8 are shown as one character each.
    if answer["size_bytes"] > OUTPUT_BYTES:
        note(f"The output was cut: it has {size(answer['size_bytes'])}, of which the first part is shown.")
    if answer["killed"] and not answer["timed_out"]:
        note(f"{answer['killed']} process(es) that the command left behind were killed.")
    if answer["timed_out"]:
        return fail(f"The command was killed after {args.timeout} s. Set a longer --timeout.", TIMED_OUT)
    code = answer["exit_code"]
    if code is None:
        return fail("The command was killed with its channel.", FAILURE)
    return int(SIGNALLED - code if code < 0 else code)
