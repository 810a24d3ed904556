"""Body of a new comment."""

from __future__ import annotations

from pydantic import Field

from airflow_provider_dtrain.api.models.common import Model
from airflow_provider_dtrain.store.comments import TEXT_CHARS


class NewComment(Model):
    """A comment of the user of the request."""

    #: Markdown.
    text: str = Field(min_length=1, max_length=TEXT_CHARS)
