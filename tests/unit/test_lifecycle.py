from __future__ import annotations

import json

import pytest
from pydantic import TypeAdapter
from sqlalchemy import String, create_engine, literal_column, select, text

from airflow_provider_dtrain.core.lifecycle import states
from airflow_provider_dtrain.core.lifecycle.rank_exits import RankExit, classify, first_failure
from airflow_provider_dtrain.core.lifecycle.states import (
    HOLDING,
    TRANSITIONS,
    AllocationState,
    AttemptState,
    HostState,
    TrialState,
    allowed,
    check,
    is_final,
)
from airflow_provider_dtrain.errors import IllegalTransitionError

RESET = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.1]:2252: Connection reset by peer."
)
LATE = "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation"
NCCL = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE) ran for 600004 ms"
IN_USE = (
    "The server socket has failed to listen on any local network address. port: 45693, useIpv6: false, code: -98, "
    "name: EADDRINUSE, message: address already in use"
)
NO_MASTER = "The client socket has timed out after 3000ms while trying to connect to (10.0.0.1, 29713)."


def ended(rank: int, at: float, message: str | None = None, **fields) -> RankExit:
    error = {"message": message, "traceback": f"Traceback ...\n{message}"} if message else None
    values = {"host": f"h{rank}", "exit_code": 1, "error": error} | fields
    return RankExit(rank=rank, at=at, **values)


@pytest.mark.parametrize(
    ("kind", "states"),
    [("host", HostState), ("allocation", AllocationState), ("trial", TrialState), ("attempt", AttemptState)],
)
def test_the_table_has_every_state_and_names_no_other(kind, states):
    known = set(states)
    assert set(TRANSITIONS[kind]) == known
    assert set().union(*TRANSITIONS[kind].values()) <= known


def test_a_state_is_its_string_in_text_json_pydantic_and_sql():
    state, plain = TrialState.QUEUED, "queued"
    assert state == plain
    assert hash(state) == hash(plain)
    assert [str(state), f"{state:>8}", "%s" % state, state.value] == [plain, "  queued", plain, plain]  # noqa: UP031
    assert json.dumps({state: state}) == json.dumps({plain: plain})
    assert TypeAdapter(str).dump_json(state) == b'"queued"'
    engine = create_engine("sqlite://")
    with engine.connect() as conn:
        query = text("select :state, typeof(:state) where 'queued' = :state")
        assert tuple(conn.execute(query, {"state": state}).one()) == (plain, "text")
        column = literal_column("'queued'", String)
        assert conn.execute(select(column).where(column.in_(list(TrialState)))).scalar() == plain


def test_named_sets_are_plain_strings():
    found = [value for name, value in vars(states).items() if name.isupper() and isinstance(value, tuple | frozenset)]
    assert len(found) > 5
    assert {type(state) for named in found for state in named} == {str}


@pytest.mark.parametrize("kind", ["allocation", "trial", "attempt"])
def test_only_a_host_may_be_told_the_same_state_again(kind):
    assert all(state not in allowed(kind, state) for state in TRANSITIONS[kind])
    assert all(state in allowed("host", state) for state in TRANSITIONS["host"])


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("allocation", "waiting", "granted"),
        ("allocation", "granted", "waiting"),
        ("allocation", "starting", "waiting"),
        ("allocation", "stopping", "starting"),
        ("allocation", "expired", "released"),
        ("attempt", "starting", "waiting"),
        ("trial", "running", "queued"),
        ("trial", "errored", "queued"),
        ("host", "lost", "ready"),
        ("host", "ready", "ready"),
    ],
)
def test_a_legal_transition_passes(kind, old, new):
    check(kind, old, new)


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("allocation", "waiting", "running"),
        ("allocation", "expired", "waiting"),
        ("allocation", "released", "running"),
        ("attempt", "completed", "running"),
        ("trial", "killed", "running"),
        ("host", "ready", "lost"),
        ("host", "disabled", "draining"),
        ("host", "ready", "asleep"),
        ("host", "asleep", "ready"),
    ],
)
def test_an_illegal_transition_is_an_error_that_names_both_states(kind, old, new):
    with pytest.raises(IllegalTransitionError) as caught:
        check(kind, old, new)
    assert "asleep" in str(caught.value) or (old in str(caught.value) and new in str(caught.value))


def test_final_states_and_states_that_hold_slots():
    assert [state for state in TRANSITIONS["attempt"] if is_final("attempt", state)] == [
        "completed",
        "failed",
        "lost",
        "preempted",
    ]
    assert is_final("allocation", "released")
    assert "expired" in HOLDING
    assert set(TRANSITIONS["allocation"]) - {"waiting", "released"} == HOLDING


def test_every_state_is_reached_from_the_first_one():
    for kind, first in {"host": "ready", "allocation": "waiting", "trial": "queued", "attempt": "waiting"}.items():
        seen, todo = {first}, [first]
        while todo:
            todo += [state for state in allowed(kind, todo.pop()) if state not in seen and not seen.add(state)]
        assert seen == set(TRANSITIONS[kind])


def test_the_first_failure_is_the_first_by_time():
    assert first_failure([ended(0, 20.0, "ValueError: b"), ended(1, 10.0, "ValueError: a")]).rank == 1


def test_clock_offsets_of_the_hosts_are_taken_out():
    ahead = ended(0, 1000.0, "ValueError: first", offset_s=995.0)
    assert first_failure([ended(1, 10.0, "ValueError: second"), ahead]) is ahead


@pytest.mark.parametrize("message", [RESET, LATE, NCCL, NO_MASTER, "RuntimeError: Connection closed by peer"])
def test_what_the_other_ranks_say_ranks_behind_a_real_error(message):
    real = ended(3, 50.0, "ValueError: loss is NaN")
    assert first_failure([ended(0, 10.0, message), real]) is real


def test_a_watchdog_abort_without_a_record_is_read_from_the_log():
    aborted = ended(0, 10.0, exit_code=-6, log_tail=f"step 10\n{NCCL}\n")
    killed = ended(1, 11.0, exit_code=-9)
    assert first_failure([aborted, killed]) is killed


def test_ranks_that_we_signalled_come_last():
    stopped = ended(1, 9.0, exit_code=-15, sent_signal=True)
    noise = ended(0, 10.0, RESET)
    assert first_failure([stopped, noise]) is noise
    assert first_failure([stopped]) is stopped


def test_a_gang_that_ended_well_has_no_failure():
    assert first_failure([ended(0, 1.0, exit_code=0), ended(1, 2.0, exit_code=0)]) is None
    assert first_failure([]) is None


@pytest.mark.parametrize(
    ("leaving", "kind"),
    [
        (ended(0, 1.0, "ValueError: x"), "user"),
        (ended(0, 1.0, exit_code=-9), "user"),
        (ended(0, 1.0, IN_USE), "infra"),
        (ended(1, 1.0, NO_MASTER), "infra"),
        (ended(1, 1.0, "[c10d] TCPStore: connect: Connection refused"), "infra"),
        (ended(0, 1.0, IN_USE, has_stepped=True), "user"),
        (ended(0, 1.0, "OSError: [Errno 98] Address already in use"), "user"),
        (ended(0, 1.0, "psycopg.OperationalError: connection refused", has_stepped=True), "user"),
        (ended(0, 1.0, "RuntimeError: CUDA error: GPU is lost", has_stepped=True), "infra"),
        (ended(0, 1.0, exit_code=-6, log_tail="CUDA error: uncorrectable NVLink error detected"), "infra"),
        (ended(0, 1.0, "torch.OutOfMemoryError: CUDA out of memory"), "user"),
        (ended(0, 1.0, exit_code=-15, sent_signal=True), "platform"),
    ],
)
def test_a_failure_is_classified(leaving, kind):
    assert classify(leaving) == kind


def test_the_named_sets_of_states_divide_the_tables() -> None:
    trials, attempts, allocations = (set(states.TRANSITIONS[kind]) for kind in ("trial", "attempt", "allocation"))
    assert sorted((*states.TRIAL_LIVE, *states.TRIAL_ENDED)) == sorted(trials)
    assert set(states.TRIAL_SUCCEEDED) == set(states.TRIAL_ENDED) - {"errored", "killed"}
    assert set(states.ACTIVE) < attempts & allocations
    assert set(states.STARTED) == set(states.ACTIVE) - {"starting"}
    assert set(states.ALLOCATION_LIVE) == allocations - {"expired", "released"}
