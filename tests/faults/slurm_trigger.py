"""Stand-in for a triggerer, as ``trigger.py``, with shorter periods for jobs of Slurm."""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_dtrain.engine.slots import job_request
from airflow_provider_dtrain.hosts.job import program
from airflow_provider_dtrain.hosts.slurm import client, scheduler
from airflow_provider_dtrain.store import external_jobs
from tests.faults import trigger

#: A job that no follower has reached ends itself after this time, in seconds.
UNATTENDED_S = 25.0


def shorten() -> None:
    """Shorten the periods whose length a fuzz run would wait for."""
    external_jobs.POLL_MOST_S = 5.0
    external_jobs.POLL_LEASE_S = 20.0
    external_jobs.ENDS_WITHIN = timedelta(seconds=5)
    external_jobs.CANCEL_AGAIN = timedelta(seconds=5)
    job_request.ANSWER_S = 45.0
    scheduler.LOST_AFTER_S = 5.0
    client.SlurmClient.__init__.__kwdefaults__["submit_timeout_s"] = 8.0
    client.SETTLES_AFTER_S = 12.0
    scheduler.PAUSE_MOST_S = 4.0
    program.serve_input.__kwdefaults__["unattended_s"] = UNATTENDED_S  # type: ignore[index]


if __name__ == "__main__":
    shorten()
    trigger.main()
