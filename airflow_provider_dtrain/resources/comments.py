"""Comments of users on experiments and trials."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dtrain.resources.bounds import Id


@dataclass(frozen=True, kw_only=True)
class Comment:
    """One comment, in Markdown."""

    comment_id: Id
    at: datetime
    #: Name of the user.
    by: str
    text: str
    #: The reader wrote it, and may delete it.
    is_own: bool


@dataclass(frozen=True, kw_only=True)
class Comments:
    """Comments of an experiment or a trial, oldest first."""

    rows: list[Comment]
    #: The reader may add one.
    may_comment: bool
