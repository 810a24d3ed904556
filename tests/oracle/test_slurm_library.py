"""Slurm's own library is the oracle: its reasons, states, errors and times."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.slurm.job_states import JobState, job_state
from airflow_provider_dtrain.core.slurm.quantities import seconds_of
from airflow_provider_dtrain.core.slurm.reasons import slurm_reason
from airflow_provider_dtrain.core.slurm.refusals import FailureKind, command_failure

_PLACES = ("/usr/lib/*/slurm-wlm/libslurmfull.so", "/usr/lib64/slurm/libslurmfull.so", "/usr/lib/slurm/libslurmfull.so")
#: No entry of an enumeration in the library has a larger number.
_CODES = range(7100)


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    found = [path for place in _PLACES for path in sorted(Path("/").glob(place.lstrip("/")))]
    if not found:
        pytest.skip("libslurmfull.so is not installed")
    return ctypes.CDLL(str(found[0]))


def text_of(library: ctypes.CDLL, name: str) -> Callable[[int], str]:
    function: Any = getattr(library, f"slurm_{name}")
    function.restype = ctypes.c_char_p
    return lambda number: function(number).decode()


def test_each_pending_reason_has_a_sentence(library: ctypes.CDLL) -> None:
    reason_text = text_of(library, "job_reason_string")
    reasons = {reason_text(number) for number in range(400)}
    reasons = {reason for reason in reasons if not reason.isdecimal()}
    assert len(reasons) > 150
    assert [reason for reason in sorted(reasons) if slurm_reason(reason).sentence == reason] == []


def test_each_state_is_known(library: ctypes.CDLL) -> None:
    for name in ("job_state_string", "job_state_string_compact"):
        state_text = text_of(library, name)
        texts = {state_text(number) for number in [*range(12), *(1 << bit for bit in range(10, 24))]}
        assert len(texts) > 20
        assert {text: job_state(text) for text in texts if job_state(text) is JobState.UNKNOWN} == {}


def test_each_error_of_a_submission_has_a_kind(library: ctypes.CDLL) -> None:
    error_text = text_of(library, "strerror")
    errors = {number: error_text(number) for number in _CODES if number >= 1000}
    errors = {number: text for number, text in errors.items() if not text.startswith("Unknown error")}
    assert len(errors) > 200
    kinds = {
        number: command_failure(1, f"sbatch: error: Batch job submission failed: {text}").kind
        for number, text in errors.items()
    }
    assert FailureKind.UNKNOWN not in kinds.values()
    # Answers that were lost on their way. A job may have been accepted.
    lost = [1000, 1002, 1003, 1004, 1801, 1802, 1803, 5000, 5002, 5003, 5004, 5005]
    assert {number: kinds[number] for number in lost} == dict.fromkeys(lost, FailureKind.AMBIGUOUS)
    # Invalid partition, account, QOS, node configuration, time limit, generic resource.
    final = [2000, 2014, 2045, 2051, 2066, 2072]
    assert {number: kinds[number] for number in final} == dict.fromkeys(final, FailureKind.NEVER)
    away = [1001, 1800, 2007, 2027, 2131]
    assert {number: kinds[number] for number in away} == dict.fromkeys(away, FailureKind.AWAY)
    assert kinds[2050] is FailureKind.LIMIT
    assert kinds[2017] is FailureKind.NO_JOB
    assert {kinds[2068], kinds[2070], kinds[2101]} == {FailureKind.NOT_NOW}


@pytest.mark.parametrize(
    "text", ["0", "1", "90", "90:30", "24:00:00", "1-0", "1-12", "1-12:30", "7-23:59:59", "2:00", "100:00:00", "30-00"]
)
def test_times_mean_the_same(library: ctypes.CDLL, text: str) -> None:
    assert seconds_of(text) == library.slurm_time_str2secs(text.encode())
