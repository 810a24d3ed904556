"""Snapshot of GPU memory where it ran out. A stand-in takes the place of PyTorch's recorder, which needs a GPU."""

from __future__ import annotations

import json
import logging
import pickle

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train.reports import failure, memory_snapshot  # noqa: E402
from tests.support.event_lines import lines_of  # noqa: E402

NAME = "rank0-attempt1-out-of-memory.pickle"


def block(size, *frames, state="active_allocated"):
    named = [{"filename": file, "line": line, "name": name} for file, line, name in frames]
    return {"size": size, "state": state, "frames": named}


INSIDE = ("/env/site-packages/torch/nn/modules/linear.py", 5, "forward")
SNAPSHOT = {
    "segments": [
        {
            "blocks": [
                block(3 << 20, INSIDE, ("/code/train.py", 31, "forward")),
                block(2 << 20, ("??", 0, "unknown"), ("/code/train.py", 31, "forward")),
                block(4 << 20, INSIDE),
                block(1 << 20, ("/code/data.py", 7, "load"), ("/code/train.py", 40, "main")),
                block(9 << 20, ("/code/freed.py", 7, "load"), state="inactive"),
            ]
        }
    ],
    "device_traces": [[{"action": "alloc", "size": number} for number in range(100)]],
}


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """PyTorch sees a GPU, and records: the list of calls."""
    calls = []

    class Recorder:
        snapshot = SNAPSHOT

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DTRAIN_EVENTS", str(tmp_path / "events"))
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **options: calls.append(options))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: Recorder.snapshot)
    Recorder.calls = calls
    yield Recorder
    failure.explain_by(lambda _: "")
    failure._state.update(failed=False, path=None)


def fail(error, **profiling):
    with (
        pytest.raises(type(error)),
        dtrain.init(device="cpu", config={"profiling": {"memory_snapshot": True, **profiling}}),
    ):
        raise error


def test_the_failure_names_the_snapshot_and_the_places_that_hold_most(gpu, tmp_path, caplog):
    caplog.set_level(logging.INFO, "airflow_provider_dtrain.train")
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    fail(error)
    expected = (
        f"OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. Snapshot of GPU memory: work/traces/{NAME} "
        "(0.0 MiB). Most memory was allocated by train.py:31 in forward 5 MiB, data.py:7 in load 1 MiB."
    )
    assert json.loads((tmp_path / "error.json").read_text())["message"] == expected
    assert "Most memory was allocated by train.py:31" in caplog.text
    assert pickle.loads((tmp_path / "traces" / NAME).read_bytes()) == SNAPSHOT
    (event,) = [event for event in lines_of(tmp_path / "events") if event["kind"] == "trace"]
    assert event["path"] == f"work/traces/{NAME}"
    assert gpu.calls == [{"max_entries": memory_snapshot.MOST_EVENTS, "stacks": "python"}, {"enabled": None}]
    # The interpreter records it once more on its way out.
    failure.record(error)
    assert json.loads((tmp_path / "error.json").read_text())["message"] == expected


@pytest.mark.parametrize("profiling", [{"memory_snapshot": False}, {"enabled": False}])
def test_nothing_is_recorded_unless_the_configuration_says_so(gpu, tmp_path, profiling):
    fail(torch.OutOfMemoryError("CUDA out of memory."), **profiling)
    assert gpu.calls == []
    assert json.loads((tmp_path / "error.json").read_text())["message"] == "OutOfMemoryError: CUDA out of memory."


def test_another_error_keeps_no_snapshot(gpu, tmp_path):
    fail(RuntimeError("shape"))
    assert len(gpu.calls) == 1
    assert not (tmp_path / "traces").exists()
    assert json.loads((tmp_path / "error.json").read_text())["message"] == "RuntimeError: shape"


def test_without_a_gpu_nothing_is_recorded(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    fail(torch.OutOfMemoryError("CPU"))
    assert gpu.calls == []


def test_a_file_is_bounded_by_leaving_out_the_oldest_events(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(memory_snapshot, "MOST_BYTES", len(pickle.dumps(SNAPSHOT)) // 2)
    fail(torch.OutOfMemoryError("CUDA out of memory."))
    path = tmp_path / "traces" / NAME
    assert path.stat().st_size <= memory_snapshot.MOST_BYTES
    kept = pickle.loads(path.read_bytes())
    (events,) = kept["device_traces"]
    assert events == SNAPSHOT["device_traces"][0][-len(events) :]
    assert 0 < len(events) < 100
    assert kept["segments"] == SNAPSHOT["segments"]
    assert len(SNAPSHOT["device_traces"][0]) == 100


@pytest.mark.parametrize("way", ["no recorder", "no snapshot", "too large", "odd frames"])
def test_a_recorder_that_fails_hides_no_failure(gpu, tmp_path, monkeypatch, way):
    if way == "no recorder":
        monkeypatch.delattr(torch.cuda.memory, "_record_memory_history")
    elif way == "no snapshot":
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: 1 / 0)
    elif way == "too large":
        monkeypatch.setattr(memory_snapshot, "MOST_BYTES", 10)
    else:
        gpu.snapshot = {"segments": [{"blocks": [{"state": "active_allocated", "frames": 5, "size": "x"}]}]}
    fail(torch.OutOfMemoryError("CUDA out of memory."))
    assert json.loads((tmp_path / "error.json").read_text())["message"] == "OutOfMemoryError: CUDA out of memory."
    if way != "odd frames":
        assert list((tmp_path / "traces").glob("*") if (tmp_path / "traces").exists() else ()) == []
