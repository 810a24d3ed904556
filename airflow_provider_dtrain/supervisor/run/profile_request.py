"""Request to running ranks to record their next batches, which the training library reads from a file."""

from __future__ import annotations

import time

from ..files.layout import RunFolder, process_records
from ..machine.processes import signals_in
from ..names import Json
from ..refusal import Refused
from .stacks import STACK_FILE, STACK_SIGNAL, running_rank

#: File in the run's folder. The training library has the same name.
PROFILE_FILE = "profile_requested"


def request_profile(folder: RunFolder, ranks: list[int], batches: int, with_stack: bool) -> Json:
    """Write the request, in place of an earlier one.

    :param ranks: those of them that run on another host are left out
    :return: ``ranks``: number, and the reason if it records nothing
    :raises Refused: ``not_running``, no rank of the run runs here
    """
    here = {one["rank"] for one in process_records(folder) if one.get("rank") in ranks}
    found = [{"rank": rank, "problem": _problem(folder, rank)} for rank in sorted(here)]
    if not found:
        raise Refused("not_running", f"Run {folder.name} has no such running rank on this host.")
    able = [one["rank"] for one in found if not one["problem"]]
    if able:
        document = {"at": time.time(), "ranks": able, "batches": batches, "with_stack": with_stack}
        folder.command(PROFILE_FILE, document)
    return {"ranks": found}


def _problem(folder: RunFolder, rank: int) -> str:
    """Return why a rank would not read the request, "" if it does."""
    proc = running_rank(folder, rank)
    if proc is None:
        return "it does not run"
    # A program that joins the library installs the handler for its stacks first.
    joined = folder.has(f"rank{rank}/{STACK_FILE}") and STACK_SIGNAL in signals_in(proc.pid, "SigCgt")
    return "" if joined else "its program has not joined the training library"
