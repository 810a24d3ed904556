"""Bounds of what a request may say: every text and every list of a parameter or a body has a type from here.

A list becomes part of a query, so its length bounds the work of the database. ``tests/unit/test_api_document.py``
fails on a text, a list or a number of the OpenAPI document without a bound.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import Field

from airflow_provider_dtrain.core.expressions.tokens import LENGTH_MOST
from airflow_provider_dtrain.core.lifecycle.states import TrialState
from airflow_provider_dtrain.core.projects import PROJECT_CHARS
from airflow_provider_dtrain.store.labels import TAG_CHARS, TAGS_MAX
from airflow_provider_dtrain.store.queries.rights import ID_MOST

#: Largest number of a rank, an attempt or a slot.
NUMBER_MOST = 2**31 - 1
#: Largest number of rows or bytes before a page.
OFFSET_MOST = 2**53
#: Most characters of an id of Airflow, and of a name of a host, a pool or a template.
AIRFLOW_CHARS, NAME_CHARS = 250, 63
#: Most characters of the name of a user. Source: Airflow's column ``dag_run.triggering_user_name``.
USER_CHARS = 512
#: Most characters of a path.
PATH_CHARS = 4096
#: Trials of one chart, and trials beside each other.
TRIALS_MOST, COMPARED_MOST = 200, 8
#: Metrics of one trial in one answer, and characters of the name of one.
METRICS_MOST, METRIC_CHARS = 100, 1000
#: Hosts of one request.
HOSTS_MOST = 1000

AirflowId = Annotated[str, Field(max_length=AIRFLOW_CHARS)]
Name = Annotated[str, Field(max_length=NAME_CHARS)]
#: Name in a path, and number of a slot in a path.
NameInPath = Annotated[str, Path(max_length=NAME_CHARS)]
SlotInPath = Annotated[int, Path(ge=0, le=NUMBER_MOST)]
OperationInPath = Annotated[int, Path(ge=1, le=ID_MOST)]
Digest = Annotated[str, Field(min_length=64, max_length=64, pattern="^[0-9a-f]{64}$")]
Id = Annotated[int, Field(ge=1, le=ID_MOST)]
Number = Annotated[int, Field(ge=0, le=NUMBER_MOST)]
AttemptNumber = Annotated[
    int | None, Query(ge=1, le=NUMBER_MOST, description="number of the attempt; the latest without it")
]
Offset = Annotated[int, Field(ge=0, le=OFFSET_MOST)]
#: Airflow's name of a user, and the name of a project.
OwnerFilter = Annotated[str | None, Query(max_length=USER_CHARS, description="only those of this owner")]
Project = Annotated[str, Field(min_length=1, max_length=PROJECT_CHARS)]
ProjectFilter = Annotated[str | None, Query(max_length=PROJECT_CHARS, description="only those in this project")]
Tag = Annotated[str, Field(max_length=TAG_CHARS)]
#: An object has at most this many tags, so that none has all of a longer list.
Tags = Annotated[list[Tag], Field(max_length=TAGS_MAX)]
TagFilter = Annotated[list[Tag] | None, Query(max_length=TAGS_MAX, description="only those with all of these")]
StateFilter = Annotated[list[TrialState] | None, Query(max_length=len(TrialState))]
TrialIds = Annotated[list[Annotated[int, Field(le=ID_MOST)]] | None, Query(max_length=TRIALS_MOST)]
ComparedIds = Annotated[list[Annotated[int, Field(le=ID_MOST)]] | None, Query(max_length=COMPARED_MOST)]
#: Path of a file in packed code.
FilePath = Annotated[str, Field(min_length=1, max_length=PATH_CHARS)]
#: The two things that are compared, in their order.
TwoIds = Annotated[list[Annotated[int, Field(le=ID_MOST)]], Query(min_length=2, max_length=2)]
Metric = Annotated[str, Field(min_length=1, max_length=METRIC_CHARS)]
MetricFilter = Annotated[list[Metric] | None, Query(max_length=METRICS_MOST)]
HostFilter = Annotated[list[Name] | None, Query(max_length=HOSTS_MOST, description="names; unknown ones are left out")]
#: Hosts whose day is requested at once.
DAY_HOSTS_MOST = 100
DayHosts = Annotated[
    list[Name], Query(min_length=1, max_length=DAY_HOSTS_MOST, description="names; unknown ones are left out")
]
#: Filter expression of trials.
Where = Annotated[str, Query(max_length=LENGTH_MOST, description="filter expression; empty: all")]
