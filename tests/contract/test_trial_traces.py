"""OpenTelemetry spans of a trial's life, as the SDK's exporter gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from airflow_provider_dtrain.engine.attempt import spans
from airflow_provider_dtrain.engine.attempt.outcome import Outcome
from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.attempt.spans import trace_trial
from airflow_provider_dtrain.hooks.tasks import task_facts
from airflow_provider_dtrain.operators.trial import TrialOperator
from airflow_provider_dtrain.store.records.trials import Ticket
from airflow_provider_dtrain.store.store import Store
from airflow_provider_dtrain.triggers.trial import TrialTrigger
from testbed.stores import host
from tests.support.store_world import Clock

FAILED = {"error": "RankFailedError", "kind": "user", "message": "ValueError: no data", "host": None, "rank": 0}
#: A sampled span of a task instance.
CARRIER = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The exporter of a tracer, with Airflow's traces switched on."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))
    monkeypatch.setenv("AIRFLOW__TRACES__OTEL_ON", "True")
    yield exporter
    provider.shutdown()


@pytest.fixture
def ended(
    store: Store, clock: Clock, submit: Callable[..., Ticket], start: Callable[[Ticket], int]
) -> Callable[[str], Ticket]:
    """Return a trial that waited, saved a checkpoint, was restarted once and has ended."""
    store.hosts.add(host("a", 4))

    def end(state: Any) -> Ticket:
        ticket = submit(slots=2)
        clock.advance(50)
        watch = start(ticket)
        clock.advance(60)
        now = clock.now.timestamp()
        batch = [
            {"seq": 0, "at": now - 30, "kind": "first_step"},
            {"seq": 1, "at": now - 10, "kind": "checkpoint", "step": 10, "path": "checkpoints/10"},
        ]
        store.events.commit(ticket.attempt_id, watch, "a", "rank0.events", 0, 10, batch, clock_offset_s=0.0)
        again = store.attempts.next(ticket.attempt_id, watch, failure=FAILED, counted=True)
        second = store.attempts.watch(again.attempt_id, watcher="test")
        clock.advance(10)
        store.attempts.set_running(again.attempt_id, second)
        clock.advance(100)
        store.attempts.end(again.attempt_id, second, state=state, failure=FAILED if state == "errored" else None)
        return again

    return end


def runtime(store: Store, ticket: Ticket, carrier: dict[str, str] | None = CARRIER) -> Any:
    """Return what a follower has when its trial has ended."""

    async def view() -> Any:
        return store.attempts.get(ticket.attempt_id)

    return SimpleNamespace(store=store, trace_parent=carrier, view=view)


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def seconds(span: ReadableSpan) -> float:
    return ((span.end_time or 0) - (span.start_time or 0)) / 1e9


async def test_a_trial_is_one_tree_of_spans_inside_its_task_instance(
    store: Store, ended: Callable[[str], Ticket], exported: InMemorySpanExporter
) -> None:
    await trace_trial(runtime(store, ended("completed")))
    spans = by_name(exported)
    root = spans["dtrain.trial"]
    assert root.parent is not None
    assert f"{root.parent.trace_id:032x}-{root.parent.span_id:016x}" in CARRIER["traceparent"]
    names = {span.context.span_id: span.name for span in exported.get_finished_spans()}
    tree = sorted((names.get(span.parent.span_id, ""), span.name) for span in exported.get_finished_spans())
    assert tree == sorted(
        [
            ("", "dtrain.trial"),
            *(("dtrain.trial", name) for name in ("waiting", "attempt 1", "restart", "attempt 2")),
            *(("attempt 1", name) for name in ("launch", "first step", "training", "checkpoint")),
            *(("attempt 2", name) for name in ("launch", "training")),
        ]
    )
    assert {span.context.trace_id for span in spans.values()} == {root.parent.trace_id}
    assert {name: seconds(spans[name]) for name in ("dtrain.trial", "waiting", "attempt 2", "first step")} == {
        "dtrain.trial": 220, "waiting": 50, "attempt 2": 110, "first step": 30,
    }  # fmt: skip
    facts = dict(root.attributes or {})
    assert facts["airflow.dag_id"] == "d"
    assert facts["dtrain.experiment"] == "e"
    assert (facts["dtrain.slots"], facts["dtrain.state"], facts["dtrain.restarts"]) == (2, "completed", 1)
    assert dict(spans["attempt 1"].attributes or {})["dtrain.hosts"] == "a (0-1)"
    assert root.status.is_ok


async def test_the_span_of_a_trial_that_failed_names_the_cause(
    store: Store, ended: Callable[[str], Ticket], exported: InMemorySpanExporter
) -> None:
    await trace_trial(runtime(store, ended("errored")))
    status = by_name(exported)["dtrain.trial"].status
    assert status.status_code is trace.StatusCode.ERROR
    assert "ValueError: no data" in str(status.description)


class Runner(AttemptRunner):
    """A runner whose trial has ended already."""

    async def _run_to_end(self) -> Outcome:
        return Outcome(state="completed", result={})


async def test_a_follower_sends_the_spans_once_its_trial_has_ended(
    store: Store, ended: Callable[[str], Ticket], exported: InMemorySpanExporter
) -> None:
    await Runner(runtime(store, ended("completed"))).run(SimpleNamespace(once=lambda: None))
    assert [span.name for span in exported.get_finished_spans()].count("dtrain.trial") == 1


async def test_worker_and_trigger_pass_the_span_of_their_task_instance_on(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []

    async def take_over(*args: object, **options: object) -> Any:
        taken.append(SimpleNamespace(logs=SimpleNamespace(unconfirmed=[]), trace_parent=None))
        return taken[-1]

    class Runs:
        def __init__(self, *args: object, **options: object) -> None:
            pass

        async def run(self, recovery: object) -> Outcome:
            return Outcome(state="completed", result={})

    hook = SimpleNamespace(settings=SimpleNamespace(task_log_rate_bytes_per_s=1, defer_after_s=1.0), store=None)
    monkeypatch.setattr("airflow_provider_dtrain.engine.session.runtime.take_over", take_over)
    monkeypatch.setattr("airflow_provider_dtrain.engine.attempt.runner.AttemptRunner", Runs)
    monkeypatch.setattr("airflow_provider_dtrain.engine.upkeep.recovery.BackgroundRecovery", lambda hook: None)
    monkeypatch.setattr("airflow_provider_dtrain.triggers._followed_trial.DtrainHook", lambda: hook)
    names = {"dag_id": "d", "run_id": "r", "task_id": "train", "map_index": -1}
    instance: Any = SimpleNamespace(**names, context_carrier=CARRIER, id=1, try_number=1, max_tries=0)
    context: Any = {"ti": instance, "dag": SimpleNamespace(fileloc="/dags/d.py")}
    operator = TrialOperator(task_id="train", config={"entrypoint": "python train.py"})
    await operator._main(hook, [7], None, task_facts(context))  # type: ignore[arg-type]
    trigger = TrialTrigger(trial_ids=[7])
    trigger.task_instance = instance
    await trigger._trials[7].take_over()
    assert [one.trace_parent for one in taken] == [CARRIER, CARRIER]


async def test_without_a_carrier_the_current_span_is_the_parent(
    store: Store, ended: Callable[[str], Ticket], exported: InMemorySpanExporter
) -> None:
    with trace.get_tracer("test").start_as_current_span("worker.train") as worker:
        await trace_trial(runtime(store, ended("completed"), None))
    root = by_name(exported)["dtrain.trial"]
    assert root.parent is not None
    assert root.parent.span_id == worker.get_span_context().span_id


async def test_spans_that_cannot_be_made_disturb_nothing(
    store: Store, ended: Callable[[str], Ticket], exported: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    found = runtime(store, ended("completed"))
    found.store = None
    await trace_trial(found)
    assert "spans of the trial were not sent" in caplog.text
    assert exported.get_finished_spans() == ()


async def test_nothing_is_read_or_sent_while_traces_are_off(
    store: Store, ended: Callable[[str], Ticket], exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TRACES__OTEL_ON", "False")
    monkeypatch.setattr(spans, "send_spans", None)
    await trace_trial(runtime(store, ended("completed")))
    assert exported.get_finished_spans() == ()
