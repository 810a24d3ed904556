"""Slot hours by day: from the grant to the release of each gang, with the rights of the reader."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_dtrain.core.slot_hours import SlotUse, days_until, slot_hours
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.resources.usage import UsageBy
from airflow_provider_dtrain.store.queries.rights import AllRights
from airflow_provider_dtrain.store.queries.usage import ROWS_MOST, usage_of
from airflow_provider_dtrain.store.records.submissions import Submission
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.cli_world import run_command  # noqa: F401
from tests.support.search_world import Search

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)


def use(name: str, slots: int, since: datetime, hours: float) -> SlotUse:
    return SlotUse(name=name, slots=slots, since=since, until=since + timedelta(hours=hours))
