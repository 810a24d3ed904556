"""Cause of a gang's failure by the exits of all ranks, from records as ranks and supervisors write them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dtrain.core.lifecycle.failure_cause import CauseKind, cause_of
from airflow_provider_dtrain.core.lifecycle.rank_exits import (
    DeviceFault,
    HostFacts,
    RankExit,
    RankPlace,
    Remoteness,
    remoteness,
)
from airflow_provider_dtrain.core.lifecycle.stack_text import frames_of_crash, frames_of_stack, places_of_ranks
from airflow_provider_dtrain.engine.attempt.gang import GangEnd
from airflow_provider_dtrain.engine.attempt.outcome import Failure
from airflow_provider_dtrain.engine.attempt.teardown import cause
from airflow_provider_dtrain.errors import HostLostError, RankFailedError, RankHangsError

WORK = "/home/u/.dtrain/state/runs/0a1b2c3d-t1.1.1/work"
PAIR = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
CLOSED = f"{PAIR}pair.cc:553] Connection closed by peer [127.0.0.1]:17797. This is typically caused by a crash"
RESET = f"{PAIR}pair.cc:537] Read error [10.0.0.1]:2252: Connection reset by peer."
LATE = f"{PAIR}unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation to complete"
NCCL = (
    "[rank3]:[E1127 12:00:00 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE) ran for 600004 milliseconds before timing out.\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'"
)
REMOTE = (
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, "
    "remote process exited or there was a network error, NCCL version 2.21.5"
)
DURING = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
BECAUSE = "\n\nThe above exception was the direct cause of the following exception:\n\n"
DOWNLOAD = (
    "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by "
    "peer'))"
)
STACK = f"""Thread 0x00007f4ec31456c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f4ec3eaab80 (most recent call first):
  File "/usr/lib/python3.11/socket.py", line 718 in readinto
  File "{WORK}/data.py", line 41 in fetch
  File "{WORK}/train.py", line 60 in <module>
"""


def trace(error: str, file: str = f"{WORK}/train.py", line: int = 41, name: str = "step") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line {line}, in {name}\n    x()\n{error}'


def left(rank: int, text: str | None = None, *, code: int | None = 1, at: float = 10.0, **more: Any) -> RankExit:
    if text is not None:
        more["error"] = {"message": text.splitlines()[-1], "traceback": trace(text)}
    return RankExit(rank=rank, host=f"h{rank}", exit_code=code, at=at, **more)


def killed(rank: int, number: int, name: str, *, log: str = "", **more: Any) -> RankExit:
    message = f"killed by signal {number} ({name})"
    return left(rank, code=-number, error={"message": message, "traceback": log}, **more)


def signalled(rank: int, **more: Any) -> RankExit:
    return left(rank, code=-15, sent_signal=True, at=12.0, **more)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("KeyError: 'label'", "exception"),
        ("OSError: [Errno 28] No space left on device", "disk_full"),
        ("OSError: [Errno 122] Disk quota exceeded: '/home/u/model.pt'", "disk_full"),
        (
            "RuntimeError: [enforce fail at inline_container.cc:659] . PytorchStreamWriter failed writing file",
            "disk_full",
        ),
        ("sqlite3.OperationalError: database or disk is full", "disk_full"),
        ("RuntimeError: unable to write to file </torch_12_34>: No space left on device (28)", "shared_memory"),
        ("OSError: [Errno 24] Too many open files: '/tmp/x'", "open_files"),
        ("RuntimeError: received 0 items of ancdata", "open_files"),
        ("RuntimeError: can't start new thread", "processes"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "processes"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB", "device_memory"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)", "device_memory"),
        ("RuntimeError: CUDA error: device-side assert triggered", "device_error"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "device_broken"),
        ("MemoryError", "host_memory"),
        ("RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598", "disk_full"),
        ("LoaderWorkerError: A worker ended by itself. If the host or its /dev/shm is full, lower it", "loader_worker"),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory", "host_memory"),
        ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 8.0 GiB for an array", "host_memory"),
        ("ModuleNotFoundError: No module named 'timm'", "missing_module"),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", "missing_module"),
        ("NonFiniteLossError: loss is NaN at step 3 on rank 1.", "not_finite"),
        ("RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed.", "loader_worker"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/part-1'", "exception"),
    ],
)
def test_an_error_of_a_rank_has_a_kind_and_a_place(error: str, kind: str) -> None:
    found = cause_of([left(0, f"RuntimeError: {CLOSED}", at=9.0), left(1, error)])
    assert found is not None
    assert (found.kind, found.leaving.rank) == (kind, 1)
    assert found.fact.startswith(error.splitlines()[-1].rstrip("."))
    assert found.fact.endswith("at train.py:41 in step")


@pytest.mark.parametrize(
    ("leaving", "kind"),
    [
        (killed(1, 9, "SIGKILL"), "killed"),
        (killed(1, 15, "SIGTERM"), "killed"),
        (killed(1, 11, "SIGSEGV"), "crashed"),
        (killed(1, 6, "SIGABRT"), "crashed"),
        (killed(1, 7, "SIGBUS"), "crashed"),
        (left(1, code=3, error={"message": "exit code 3: done", "traceback": "done"}), "exit_code"),
        (left(1, code=126, error={"message": "cannot execute 'x': Permission denied", "traceback": ""}), "not_started"),
        (killed(1, 9, "SIGKILL", facts=HostFacts(oom_kills=1)), "out_of_memory"),
        (
            left(1, "airflow_provider_dtrain.train.errors.LoaderWorkerError: A worker", facts=HostFacts(oom_kills=1)),
            "out_of_memory",
        ),
        (left(1, "KeyError: 'a'", facts=HostFacts(oom_kills=1)), "exception"),
    ],
)
def test_an_end_without_an_exception_has_a_kind(leaving: RankExit, kind: str) -> None:
    found = cause_of([left(0, f"RuntimeError: {RESET}", at=9.0), leaving, signalled(2)])
    assert found is not None
    assert (found.kind, found.leaving.rank) == (kind, 1)


@pytest.mark.parametrize(
    ("consequence", "far"),
    [
        (left(0, f"RuntimeError: {CLOSED}"), Remoteness.AFTERMATH),
        (left(0, REMOTE), Remoteness.AFTERMATH),
        (left(0, "torch.distributed.DistNetworkError: failed to recv, got 0 bytes"), Remoteness.AFTERMATH),
        # The program wraps the error that it gets in an exchange, or fails in its own handler.
        (left(0, f"RuntimeError: {CLOSED}{BECAUSE}{trace('TrainingFailed: step 3')}"), Remoteness.AFTERMATH),
        (left(0, f"RuntimeError: {RESET}{DURING}{trace('ValueError: no progress bar')}"), Remoteness.AFTERMATH),
        # The watchdog of NCCL ends its process, and so does the end of an interpreter after an error of gloo.
        (killed(0, 6, "SIGABRT", log=NCCL), Remoteness.AFTERMATH),
        (killed(0, 11, "SIGSEGV", log=f"RuntimeError: {RESET}"), Remoteness.AFTERMATH),
        # The program prints the error and ends itself.
        (left(0, error={"message": "exit code 1: bye", "traceback": f"{CLOSED}\nbye"}), Remoteness.UNCERTAIN),
        # A rank that has failed, and loses the other ones while it cleans up.
        (left(0, f"KeyError: 'a'{DURING}{trace(f'RuntimeError: {CLOSED}')}"), Remoteness.UNCERTAIN),
        (left(0, DOWNLOAD), Remoteness.UNCERTAIN),
        (signalled(0), Remoteness.SIGNALLED),
    ],
)
def test_a_consequence_is_not_the_cause_however_early_it_is(consequence: RankExit, far: Remoteness) -> None:
    assert remoteness(consequence) == far
    first = replace(consequence, at=1.0)
    for real in (left(1, "KeyError: 'a'"), killed(1, 9, "SIGKILL"), killed(1, 11, "SIGSEGV")):
        found = cause_of([first, real])
        assert found is not None
        assert found.leaving.rank == 1


def test_an_error_in_a_handler_of_the_program_is_the_cause_with_the_one_before_it() -> None:
    found = cause_of([left(0, f"KeyError: 'a'{DURING}{trace('ValueError: no such table', line=50)}")])
    assert found is not None
    assert found.fact == "ValueError: no such table, after KeyError: 'a', at train.py:50 in step"


def test_a_failed_download_is_the_cause_if_the_other_ranks_only_lost_that_rank() -> None:
    found = cause_of([left(0, f"RuntimeError: {CLOSED}", at=9.9), left(1, DOWNLOAD)])
    assert found is not None
    assert (found.leaving.rank, found.kind) == (1, "exception")


def test_a_rank_that_recorded_its_error_and_was_ended_in_its_cleanup_is_the_cause() -> None:
    waited = "LostRankError: Rank 0 waited for the other ranks in its training loop, after 3 steps, until its time-out"
    chain = f"{trace('KeyError: a')}{DURING}{trace(f'RuntimeError: {LATE}')}{BECAUSE}{waited} ({LATE})"
    record = {"message": f"{waited} ({LATE})", "traceback": chain}
    found = cause_of([left(0, code=-15, at=11.0, error=record), left(1, f"RuntimeError: {CLOSED}")])
    assert found is not None
    assert (found.kind, found.leaving.rank) == (CauseKind.EXCEPTION, 0)
    assert "after KeyError: a" in found.fact


def test_a_rank_that_ended_early_without_an_error_is_the_cause() -> None:
    exits = [left(0, f"RuntimeError: {CLOSED}"), left(1, code=0, at=9.0), left(2, f"RuntimeError: {RESET}")]
    error = cause(GangEnd(exits=exits))
    assert isinstance(error, RankFailedError)
    assert str(error).startswith(
        "Rank 1 on host 'h1' failed first (exit code 0 at 00:00:09 UTC): it ended with exit code 0 while ranks 0 and 2 "
        "were in training. Let all ranks do the same steps"
    )
    assert Failure.of(error).cause_kind == "early_end"


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        # The supervisor of a busy host has noticed its end late.
        ({"at": 11.5}, CauseKind.EARLY_END),
        ({"at": 13.0}, CauseKind.CONNECTION),
        ({"at": 10.1, "sent_signal": True}, CauseKind.CONNECTION),
    ],
)
def test_a_rank_that_ended_well_after_the_failure_or_on_request_is_not_the_cause(
    more: dict[str, Any], kind: CauseKind
) -> None:
    found = cause_of([left(0, f"RuntimeError: {CLOSED}"), left(1, code=0, **more)])
    assert found is not None
    assert (found.kind, found.leaving.rank) == (kind, int(kind == CauseKind.EARLY_END))


GLOO_MISMATCH = f"""terminate called after throwing an instance of 'gloo::EnforceNotMet'
  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. \
8 vs 4. Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?
Fatal Python error: Aborted

Thread 0x00007f2f76ffd6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Thread 0x00007f2f9caa3b80 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "{WORK}/train.py", line 169 in exchange
  File "{WORK}/train.py", line 183 in <module>
"""


@pytest.mark.parametrize(
    ("log", "received"),
    [
        (GLOO_MISMATCH, "8 bytes where it expected 4, at train.py:169 in exchange"),
        ("RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running", "data of another one"),
    ],
)
def test_a_crash_of_gloo_by_data_of_another_collective_blames_no_rank(log: str, received: str) -> None:
    other = left(1, f"RuntimeError: {RESET}", at=9.0, place=RankPlace(phase="exchange", what="the gradient exchange"))
    error = cause(GangEnd(exits=[killed(0, 6, "SIGABRT", log=log), other]))
    assert isinstance(error, RankHangsError)
    assert str(error).startswith(
        f"The ranks call collectives in different orders: rank 0 on host 'h0' received {received}; rank 1 was in the "
        "gradient exchange. Let all ranks do the same steps"
    )
    assert (error.rank, error.host, error.cause_kind) == (0, "h0", "mismatch")


WAITED = (
    "airflow_provider_dtrain.train.errors.LostRankError: Rank 0 waited for the other ranks in the gradient exchange, "
    f"after 3 steps, until its time-out ({LATE})"
)


def place(collectives: int, phase: str = "exchange") -> RankPlace:
    return RankPlace(phase=phase, what="its training loop", steps=3, collectives=collectives)


def test_the_rank_that_never_entered_the_collective_is_named_and_not_those_that_waited_like_the_others() -> None:
    exits = [
        left(0, WAITED, at=30.0, place=place(12, "ended")),
        signalled(1, place=place(12)),
        signalled(2, place=place(11, "compute"), stack=STACK),
        signalled(3, place=place(12)),
    ]
    error = cause(GangEnd(exits=exits))
    assert isinstance(error, RankHangsError)
    assert (error.rank, error.host, error.cause_kind, error.kind) == (2, "h2", "missing", "user")
    assert str(error).splitlines()[0] == (
        "Rank 2 on host 'h2' never entered the gradient exchange (collective number 12), in which rank 0 waited since "
        "00:00:10 UTC until the time-out; it was at data.py:41 in fetch. Show its stacks during such a wait: airflow "
        "dtrain trials stack."
    )


@pytest.mark.parametrize("known", [None, place(12), place(0)])
def test_no_rank_is_blamed_for_a_time_out_without_evidence(known: RankPlace | None) -> None:
    exits = [left(0, WAITED, at=30.0, place=place(12, "ended")), signalled(1, place=known), signalled(2, place=known)]
    found = cause_of(exits)
    assert found is not None
    assert found.kind == CauseKind.CONNECTION
    assert found.fact.endswith("No rank failed by itself before that")


def test_a_lost_host_explains_consequences_but_no_error_of_a_rank() -> None:
    lost = {"h9": HostLostError("h9", "Host 'h9' was restarted while the run was on it.")}
    for consequence in (left(0, f"RuntimeError: {CLOSED}"), left(0, WAITED)):
        assert cause(GangEnd(exits=[consequence], lost=dict(lost))) is lost["h9"]
    assert isinstance(cause(GangEnd(exits=[left(0, "KeyError: 'a'")], lost=dict(lost))), RankFailedError)


def test_the_facts_of_the_host_are_part_of_the_sentence() -> None:
    facts = HostFacts(oom_kills=1, memory_limit_bytes=8 << 30, memory_bytes=64 << 30, peak_bytes=7 << 30)
    found = cause_of([killed(1, 9, "SIGKILL", facts=facts)])
    assert found is not None
    assert found.fact.endswith("the rank had used 7.0 GiB, the limit is 8.0 GiB")
    found = cause_of([killed(1, 9, "SIGKILL", facts=replace(facts, memory_limit_bytes=None))])
    assert found is not None
    assert found.fact.endswith("the host has 64.0 GiB")
    found = cause_of([left(1, "OSError: [Errno 28] No space left on device", facts=HostFacts(full=["/tmp"]))])  # noqa: S108
    assert found is not None
    assert "full: /tmp" in found.fact
    found = cause_of([left(1, "OSError: [Errno 24] Too many open files", facts=HostFacts(open_files=64))])
    assert found is not None
    assert "the limit is 64 files" in found.fact


def test_a_fault_of_a_gpu_is_the_cause_also_if_its_rank_reports_a_lost_peer() -> None:
    faults = [DeviceFault(uuid="GPU-1", xid=63, at=-900.0), DeviceFault(uuid="GPU-1", xid=79, at=8.0)]
    broken = left(1, REMOTE, at=12.0, facts=HostFacts(faults=faults))
    found = cause_of([left(0, REMOTE, at=9.0), broken])
    assert found is not None
    assert (found.kind, found.leaving.rank) == (CauseKind.DEVICE_BROKEN, 1)
    assert "GPU-1 reported Xid 79 (it has fallen off the bus) at 00:00:08 UTC" in found.fact
    page_fault = HostFacts(faults=[DeviceFault(uuid="GPU-1", xid=31, at=8.0)])
    found = cause_of([left(1, "RuntimeError: CUDA error: an illegal memory access was encountered", facts=page_fault)])
    assert found is not None
    assert found.kind == CauseKind.DEVICE_ERROR
    assert "Xid 31" in found.fact


def test_a_fault_of_a_gpu_does_not_explain_an_error_of_the_program() -> None:
    faults = HostFacts(faults=[DeviceFault(uuid="GPU-1", xid=63, at=8.0)])
    found = cause_of([left(1, "KeyError: 'label'", facts=faults)])
    assert found is not None
    assert (found.kind, "Xid" in found.fact) == (CauseKind.EXCEPTION, False)


def test_ranks_with_the_same_error_are_counted_and_the_first_is_named() -> None:
    found = cause_of([left(rank, "ModuleNotFoundError: No module named 'timm'", at=5.0 + rank) for rank in range(4)])
    assert found is not None
    assert found.leaving.rank == 0
    assert found.fact.endswith("as ranks 1, 2 and 3")


def test_the_main_threads_place_in_the_users_code_is_found_in_a_stack() -> None:
    assert [frame.line for frame in frames_of_stack(STACK)] == [60, 41, 718]
    only = 'Thread 0x1 (most recent call first):\n  File "/usr/lib/python3.11/runpy.py", line 7 in main\n'
    assert places_of_ranks({3: STACK, 0: STACK, 1: only, 2: ""}) == (
        "ranks 0 and 3 are at data.py:41 in fetch; rank 1 is at /usr/lib/python3.11/runpy.py:7 in main"
    )


def test_the_place_of_a_crash_is_that_of_the_current_thread() -> None:
    crashed = f'Current thread 0x1 (most recent call first):\n  File "{WORK}/a.py", line 5 in f\n'
    other = f'Thread 0x2 (most recent call first):\n  File "{WORK}/b.py", line 9 in g\n'
    fatal = f"Fatal Python error: Segmentation fault\n\n{crashed}\n{other}"
    assert [frame.text for frame in frames_of_crash(fatal)] == ["a.py:5 in f"]
    found = cause_of([killed(1, 11, "SIGSEGV", log=fatal)])
    assert found is not None
    assert found.fact == "killed by signal 11 (SIGSEGV), at a.py:5 in f"
