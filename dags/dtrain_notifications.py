"""Notifies about a search: its end, failures, long waits, and each new best trial.

``LogNotifier`` writes to the task log and needs no account. Put Airflow's other notifiers in its place, for example
``SlackNotifier(slack_conn_id="slack", text="{{ dtrain.slack }}", channel="#training")`` or
``SmtpNotifier(to="me@example.org", subject="{{ dtrain.title }}", html_content="{{ dtrain.html }}")``.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider_dtrain.notifications.log import LogNotifier
from airflow_provider_dtrain.task_groups import experiment

with DAG(
    "dtrain_notifications",
    description="A grid of hyperparameters on handwritten digits, with notifications",
    schedule=None,
    tags=["dtrain", "example"],
    params={
        "pool": Param(None, type=["null", "string"], description="pool of hosts; empty: the default pool"),
        "epochs": Param(3, type="integer", minimum=1),
    },
) as dag:
    experiment(
        "digits/grid.yaml",
        template="digits/template.yaml",
        overrides={
            "model_dir": "digits",
            "hyperparameters.epochs": "{{ params.epochs }}",
            "resources.pool": "{{ params.pool or 'null' }}",
        },
        name="digits-notified",
        deferrable=True,
        notify={
            # Of the experiment.
            "finished": LogNotifier(),
            "failed": LogNotifier("Look at {{ dtrain.link }}: {{ dtrain.cause }}"),
            # Of its trials.
            "trial_failed": LogNotifier(),
            "best": LogNotifier(
                "{{ dtrain.metric }} {{ dtrain.value }} with {{ dtrain.name }}, before {{ dtrain.before }}"
            ),
            "straggler": [LogNotifier("Trial {{ dtrain.trial_id }}: {{ dtrain.reason }}")],
            "waited": [LogNotifier("Trial {{ dtrain.trial_id }} waits: {{ dtrain.reason }}")],
        },
        notify_waiting_after=timedelta(minutes=30),
    )
