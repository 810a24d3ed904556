"""OpenTelemetry spans of a trial's life, sent once at its end. Nothing is imported while Airflow's traces are off."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.lifecycle.timeline import Detail, TimelineKind
from airflow_provider_dtrain.core.lifecycle.trial_spans import TrialSpan, trial_span
from airflow_provider_dtrain.engine.session.threads import in_thread

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.store.store import Store

log = logging.getLogger(__name__)

#: Carrier of a task instance's span, as W3C headers; None = the current span is the parent.
Carrier = Mapping[str, str] | None


def is_tracing() -> bool:
    """Return whether ``[traces] otel_on`` is set."""
    from airflow.sdk.configuration import conf

    return bool(conf.getboolean("traces", "otel_on", fallback=False))


async def trace_trial(rt: Runtime) -> None:
    """Send the spans of a trial that has ended. A failure is logged and affects nothing else."""
    try:
        if is_tracing():
            trial_id = (await rt.view()).trial_id
            await in_thread(send_spans, rt.store, trial_id, rt.trace_parent)
    except Exception:
        log.exception("The spans of the trial were not sent")


def send_spans(store: Store, trial_id: int, carrier: Carrier) -> None:
    """Send the spans of a trial to the tracer of this process, as children of its task instance. Blocks."""
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = TraceContextTextMapPropagator().extract(dict(carrier)) if carrier else None
    _send(trace.get_tracer(__name__), _span_of(store, trial_id), parent)


def _span_of(store: Store, trial_id: int) -> TrialSpan:
    trial = store.trials.get(trial_id)
    entries = store.timeline.of_trial(trial_id)
    submitted = next(entry.detail for entry in entries if entry.kind is TimelineKind.SUBMITTED)
    attributes: dict[str, Detail] = {
        "experiment": trial.experiment,
        "experiment_id": trial.experiment_id,
        "trial": trial.trial_id,
        "attempts": trial.attempts,
        "restarts": trial.restarts,
        "slots": submitted.get("slots"),
        "pool": submitted.get("pool"),
        "dag_id": trial.key.dag_id,
        "task_id": trial.key.task_id,
        "run_id": trial.key.run_id,
        "map_index": trial.key.map_index,
    }
    return trial_span(entries, attributes, store.db.now())


def _send(tracer: Any, span: TrialSpan, parent: Any) -> None:
    from opentelemetry import trace
    from opentelemetry.trace import StatusCode

    attributes = {f"dtrain.{name}": value for name, value in span.attributes.items()}
    # The names under which Airflow's own spans have them.
    renamed = {"dtrain.dag_id": "airflow.dag_id", "dtrain.task_id": "airflow.task_id"}
    renamed |= {"dtrain.run_id": "airflow.dag_run.run_id", "dtrain.map_index": "airflow.task_instance.map_index"}
    sent = tracer.start_span(
        span.name,
        context=parent,
        start_time=_ns(span.start),
        attributes={renamed.get(name, name): value for name, value in attributes.items()},
    )
    if span.error is not None:
        sent.set_status(StatusCode.ERROR, span.error)
    inside = trace.set_span_in_context(sent, parent)
    for child in span.children:
        _send(tracer, child, inside)
    sent.end(_ns(span.end))


def _ns(at: Any) -> int:
    """Return a time in nanoseconds since 1970."""
    return int(at.timestamp() * 1_000_000) * 1000
