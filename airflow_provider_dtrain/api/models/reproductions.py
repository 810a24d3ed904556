"""Reproductions of trials."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from airflow_provider_dtrain.api.bounds import PATH_CHARS
from airflow_provider_dtrain.api.models.common import Model
from airflow_provider_dtrain.core.config.secrets import MOST_SECRETS


class GivenSecret(Model):
    """Value of a secret."""

    #: Of a private variable, or path of another secret.
    name: Annotated[str, Field(max_length=PATH_CHARS)]
    value: Annotated[str, Field(max_length=64 * 1024)]


class ReproductionRequest(Model):
    """Body of a request to run a trial again."""

    #: Those of a trial of another user are not copied.
    secrets: Annotated[list[GivenSecret], Field(max_length=MOST_SECRETS)] = []
