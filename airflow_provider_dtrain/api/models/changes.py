"""Changes of trials and experiments. A field that is left out, or null, keeps its value."""

from __future__ import annotations

from pydantic import Field

from airflow_provider_dtrain.api import bounds
from airflow_provider_dtrain.api.models.common import Model


class TrialChange(Model):
    """Body of a change of a trial's labels, or of the priority of its gang, waiting or running."""

    #: Empty: the name from the configuration.
    display_name: str | None = Field(default=None, max_length=250)
    description: str | None = Field(default=None, max_length=10_000)
    #: All tags that it has from now on.
    tags: bounds.Tags | None = None
    #: Besides the tags that it has.
    add_tags: bounds.Tags | None = None
    #: An absent tag is ignored.
    remove_tags: bounds.Tags | None = None
    #: 1 is first, 99 is last.
    priority: int | None = Field(default=None, ge=1, le=99)


class ExperimentChange(TrialChange):
    """Body of a change of an experiment's labels, or of the priority and the share of its gangs."""

    #: Relative to other experiments; 1 is usual.
    weight: float | None = Field(default=None, gt=0, le=1_000_000)
    #: Most slots that its gangs hold together; 0: no cap.
    max_slots: int | None = Field(default=None, ge=0, le=2**31 - 1)
    #: Project of the experiment and its trials.
    project: bounds.Project | None = None
    #: Lists leave an archived experiment out. One that runs cannot be archived.
    archived: bool | None = None
