"""Answers that most commands need, besides the records that both programs print."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_dtrain.errors import Problem


@dataclass(frozen=True, kw_only=True)
class Message:
    """Outcome of a control request."""

    message: str = "Done."


@dataclass(frozen=True, kw_only=True)
class Token:
    """Outcome of a login."""

    access_token: str


@dataclass(frozen=True, kw_only=True)
class Detail:
    """Cause of a refusal, and the next step."""

    code: str
    message: str
    hint: str | None = None
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A refusal by a route of the provider, or of Airflow, which has a text."""

    detail: Detail | str
