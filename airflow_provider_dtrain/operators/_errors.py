"""Which errors of the provider end an Airflow task at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_dtrain.errors import DtrainError


def as_airflow(error: DtrainError) -> Exception:
    """Return what the task should raise: a retry helps against infra and platform failures only."""
    if error.kind != "user":
        return error
    failure = AirflowFailException(str(error))
    failure.__cause__ = error
    return failure


@contextmanager
def failing_at_once() -> Iterator[None]:
    """Let errors of kind ``user`` fail the task without a retry."""
    try:
        yield
    except DtrainError as error:
        raise as_airflow(error) from error
