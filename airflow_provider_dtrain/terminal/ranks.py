"""Output of stacks of ranks, and of commands beside them, for both programs."""

from __future__ import annotations

from argparse import Namespace

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.rank_results import OUTPUT_BYTES, CommandResult, ProfileRequest, RankStack, Stacks
from airflow_provider_dtrain.terminal.log_text import LogWriter
from airflow_provider_dtrain.terminal.output import FAILURE, fail, is_table, note, show

#: Exit code after the time limit, as of ``timeout``. A command that a signal ended has this code plus its number.
TIMED_OUT, SIGNALLED = 124, 128


def show_stacks(args: Namespace, found: Stacks) -> int:
    """Print stacks, and return the exit code."""
    for problem in found.problems:
        note(problem)
    if not is_table(args):
        show(args, [vars(one) for one in found.ranks])
    else:
        for one in found.ranks:
            _show_one(one)
    return 0 if any(one.text for one in found.ranks) else FAILURE


def show_profile(args: Namespace, found: ProfileRequest) -> int:
    """Print which ranks record their next batches, and return the exit code."""
    for problem in found.problems:
        note(problem)
    if not is_table(args):
        show(args, [{"rank": rank} for rank in found.ranks])
    elif found.ranks:
        ranks = ", ".join(map(str, found.ranks))
        print(f"Recorded from the next batch on, by rank {ranks}.")
        print(f"Traces of the host of rank 0 become outputs of trial {args.trial_id}: trials outputs {args.trial_id}")
    return 0 if found.ranks else FAILURE


def _show_one(one: RankStack) -> None:
    problem = f": {one.problem}" if one.problem else ""
    print(f"rank {one.rank} on {one.host}, pid {one.pid}{problem}")
    if one.text:
        print("\n".join(f"  {line}" for line in one.text.rstrip().split("\n")) + "\n")


def show_command(result: CommandResult, timeout_s: int) -> int:
    """Print the output of a command, and return its exit code."""
    writer = LogWriter()
    writer.write(result.output.encode())
    writer.end()
    # Bytes that are no UTF-8 are shown as one character each.
    if result.size_bytes > OUTPUT_BYTES:
        note(f"The output was cut: it has {byte_size(result.size_bytes)}, of which the first part is shown.")
    if result.killed and not result.timed_out:
        note(f"{result.killed} process(es) that the command left behind were killed.")
    if result.timed_out:
        return fail(f"The command was killed after {timeout_s} s. Set a longer --timeout.", TIMED_OUT)
    if result.exit_code is None:
        return fail("The command was killed with its channel.", FAILURE)
    return SIGNALLED - result.exit_code if result.exit_code < 0 else result.exit_code
