"""Submissions of users of the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Rights of one DAG run, after the API has asked for the rights of the user who requested the run."""

    dag_id: str
    run_id: str
    #: Stored configuration, whose connection and source checkpoint the user may use.
    config_id: int
    #: Digest of stored code that the user has sent or may read; None = the code in the folder of the DAG.
    payload: str | None
    #: Airflow's id of the user; None = an administrator with the command line.
    user_id: str | None
    #: The trial that the DAG run runs again; None: it runs none again.
    reproduces: int | None = None
    #: The experiment of which the DAG run is a fork; None: it is none.
    fork_of: int | None = None
    #: State of the folder of the code in git, on the machine from which the code was sent; None = it was not sent.
    git: Mapping[str, Any] | None = None
