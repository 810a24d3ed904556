"""Digests of the weights: which tensors they cover, how large a record is, and when one is written."""

from __future__ import annotations

import json

import pytest

import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.core.event_log import WEIGHT_DIGITS, WEIGHTS_LIMIT, EventSource, read_lines
from airflow_provider_dtrain.train.checkpoint import weight_digests
from airflow_provider_dtrain.train.checkpoint.weight_digests import PART_DIGITS, PARTS_MOST, summary
from airflow_provider_dtrain.train.reports.events import encode_event
from tests.support.event_lines import lines_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that trains as a trial's only rank, and returns the records of a kind."""

    def run(kind, *, config=None, steps=3, save_at=(), make=None, folder="run", drift=0.0):
        run_dir = tmp_path / folder
        run_dir.mkdir()
        document = {"trial_id": 1, "attempt": 1, "hparams": {"global_batch_size": 4}, "seed": 3, "config": config or {}}
        (run_dir / "context.json").write_text(json.dumps(document))
        names = {"RUN": "t1.1.7", "RUN_DIR": run_dir, "EVENTS": run_dir / "events", "CONTEXT": run_dir / "context.json"}
        for name, value in names.items():
            monkeypatch.setenv(f"DTRAIN_{name}", str(value))
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(run_dir / "error.json"))
        with dtrain.init() as ctx:
            model = (make or network)()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model, optimizer = ctx.prepare(model, optimizer)
            for step in range(1, steps + 1):
                loss = model(torch.full((4, 2), float(step))).sum()
                ctx.backward(loss)
                ctx.step(optimizer)
                if drift and step == 2:
                    with torch.no_grad():
                        model[2].bias += drift
                if step in save_at:
                    ctx.save_checkpoint(step)
        return [event for event in lines_of(run_dir / "events") if event["kind"] == kind]

    return run


def network():
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))


STEPS = {"reproducibility": {"record_steps": True}}


def test_each_checkpoint_has_the_digests_of_parameters_and_buffers(run):
    first, second = run("weights", save_at=(1, 3))
    assert (first["step"], second["step"]) == (1, 3)
    assert sorted(first["names"]) == sorted(network().state_dict())
    assert len(first["tensors"]) == PART_DIGITS * len(first["names"])
    assert first["digest"] != second["digest"]


def test_steps_are_recorded_only_on_request(run):
    assert run("step_weights", folder="off") == []
    records = run("step_weights", config=STEPS, folder="on")
    assert [one["step"] for one in records] == [1, 2, 3]
    # The names are in the first record only.
    assert ["names" in one for one in records] == [True, False, False]
    assert len({one["digest"] for one in records}) == 3


def test_two_runs_are_equal_and_a_changed_bit_shows_in_the_step_and_the_tensor(run):
    run_a, run_b = (run("step_weights", config=STEPS, folder=name) for name in "ab")
    assert [one["digest"] for one in run_a] == [one["digest"] for one in run_b]
    # The smallest change of a number near 1.
    other = run("step_weights", config=STEPS, folder="c", drift=2.0**-20)
    assert [x["digest"] == y["digest"] for x, y in zip(run_a, other, strict=True)] == [True, True, False]
    cut = [one["tensors"] for one in (run_a[2], other[2])]
    parts = [[text[at : at + PART_DIGITS] for at in range(0, len(text), PART_DIGITS)] for text in cut]
    differing = [name for name, x, y in zip(run_a[0]["names"], *parts, strict=True) if x != y]
    assert "2.bias" in differing


def test_a_step_and_a_checkpoint_of_it_have_the_same_digest(run):
    events = {}
    for kind in ("weights", "step_weights"):
        events[kind] = run(kind, config=STEPS, save_at=(3,), folder=kind)[-1]
    assert set(events["weights"]["names"]) == set(network().state_dict())
    assert sorted(_parts(events["weights"])) == sorted(_parts(events["step_weights"]))


def _parts(event):
    return [event["tensors"][at : at + PART_DIGITS] for at in range(0, len(event["tensors"]), PART_DIGITS)]


def test_name_dtype_shape_and_bytes_count_and_strides_do_not():
    plain = torch.arange(6.0).reshape(2, 3)
    turned = plain.t().contiguous().t()
    assert turned.stride() != plain.stride()
    same = summary([("a", plain)])
    assert summary([("a", turned)]) == same
    for other in (plain.reshape(3, 2), plain.to(torch.float64), plain.view(torch.int32), -plain):
        assert summary([("a", other)])["digest"] != same["digest"]
    for index in range(6):
        other = plain.clone()
        other.view(-1)[index] += 1
        assert summary([("a", other)])["digest"] != same["digest"]
    assert summary([("b", plain)])["digest"] != same["digest"]
    # A negative zero equals zero, and is another bit pattern.
    zero = torch.zeros(1)
    assert summary([("a", zero)])["digest"] != summary([("a", -zero)])["digest"]
    assert summary([]) is None


def test_a_record_of_many_tensors_with_long_names_is_accepted():
    named = [(f"models.0.{'block.' * 60}{number}\n.weight", torch.full((1,), float(number))) for number in range(1000)]
    record = summary(named)
    assert len(record["names"]) * PART_DIGITS == len(record["tensors"]) <= PARTS_MOST * PART_DIGITS
    line = encode_event(1, 1.0, "weights", {"step": 1, **record})
    (read,) = read_lines(line, EventSource(0, frozenset({0})))
    assert read.event is not None, read.reason
    # One changed tensor changes its group and the whole.
    named[999] = (named[999][0], torch.full((1,), -1.0))
    other = summary(named)
    assert other["digest"] != record["digest"]
    assert other["tensors"][:-PART_DIGITS] == record["tensors"][:-PART_DIGITS]
    assert other["tensors"] != record["tensors"]


def test_limits_of_both_sides_agree():
    assert (PARTS_MOST, PART_DIGITS) == (WEIGHTS_LIMIT, WEIGHT_DIGITS)


def test_later_steps_are_left_out(run, monkeypatch):
    monkeypatch.setattr(weight_digests, "STEPS_MOST", 2)
    assert [one["step"] for one in run("step_weights", config=STEPS, steps=4)] == [1, 2]
