"""What Airflow reads about this provider. Called in every Airflow process: imports nothing heavy."""

from __future__ import annotations

from typing import Any

_INTEGRATION = "Distributed training (dtrain)"
#: Of the technology that the provider integrates, as Airflow lists it beside its name.
_DOCUMENTATION = "https://docs.pytorch.org/docs/stable/distributed.html"


def _option(kind: str, default: str, description: str, *, example: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "description": description + "\n",
        "version_added": "0.1.0",
        "type": kind,
        "example": example,
        "default": default,
        **more,
    }


def _storage_options() -> dict[str, Any]:
    return {
        "sql_alchemy_conn": _option(
            "string",
            "",
            "SQLAlchemy URL of the store: hosts, queue, grants, trials, metrics. Empty: the SQLite file dtrain.db in\n"
            "AIRFLOW_HOME. SQLite serves one machine; use PostgreSQL when triggerer and workers run on several.",
            example="postgresql+psycopg://dtrain@db.example.org/dtrain",
            sensitive=True,
        ),
        "checkpoint_dir": _option(
            "string",
            "",
            "Folder on the Airflow side for copies of the checkpoints that the policy keeps, used when a\n"
            "configuration names no checkpoint_storage. Empty: dtrain/checkpoints in AIRFLOW_HOME.",
        ),
        "checkpoint_copy_limit": _option(
            "integer",
            str(2 * 1024**3),
            "Largest checkpoint, in bytes, that is copied from a host to checkpoint_dir, and most bytes that the\n"
            "outputs of a plain script may have. Counted while they are copied.",
        ),
        "output_sync_period": _option(
            "integer",
            "300",
            "Seconds between two copies of the files that rank 0 of a plain script (one without the training library)\n"
            "has written, to checkpoint_dir. They are copied at the end of an attempt in any case. 0 copies only then.",
        ),
        "trial_copy_limit": _option(
            "integer",
            str(20 * 1024**3),
            "Most bytes that the copies of one trial take in checkpoint_dir together.",
        ),
        "trial_copies": _option(
            "integer",
            "100",
            "Most checkpoints of one trial that have a copy in checkpoint_dir at a time: the latest ones.",
        ),
        "retention_days": _option(
            "integer",
            "30",
            "Age, in days, from which ended runs on hosts and payloads without a trial may be collected. 0 keeps them.",
        ),
        **_attempt_options(),
    }


def _attempt_options() -> dict[str, Any]:
    return {
        "attempt_events_limit": _option(
            "integer",
            "500000",
            "Events that the ranks of one attempt may store, and 1 KiB of events files for each. Later ones are left "
            "out, but for those that end a trial; trial describe shows it. 0 = no limit.",
        ),
        "attempt_checkpoints_limit": _option(
            "integer",
            "10000",
            "Checkpoints that one attempt may store. 0 = no limit.",
        ),
        "attempt_metric_rows_limit": _option(
            "integer",
            "200000",
            "Reports of training metrics that one attempt may store, and as many validations. 0 = no limit.",
        ),
        "attempt_metric_names_limit": _option(
            "integer",
            "1000",
            "Different names of metrics in one attempt; metrics with further names are left out. 0 = no limit.",
        ),
    }


def _host_options() -> dict[str, Any]:
    return {
        "remote_dir": _option(
            "string",
            ".dtrain",
            "Folder on each host for the supervisor and payloads: absolute, or relative to the account's home\n"
            "directory. May lie on a file system that hosts share.",
        ),
        "lock_dir": _option(
            "string",
            "",
            "Folder on each host for the locks of slots that all accounts of the machine share: a folder of root with\n"
            "mode 1777. Empty: /run/lock where it is one; else, and for 'none', locks protect the own account only.\n"
            "hosts add --lock-dir sets it for one host.",
        ),
        "orphan_timeout": _option(
            "integer",
            "900",
            "Seconds after which a run ends itself when nobody has renewed its lease. 0 never ends it.",
        ),
        "kill_grace_s": _option(
            "integer",
            "30",
            "Seconds between SIGTERM and SIGKILL when the ranks of a run are stopped.",
        ),
        "log_limit": _option(
            "integer",
            str(256 * 1024**2),
            "Bytes of log kept per rank on its host. Beyond that the head and the tail stay and one marker says\n"
            "how much was left out.",
        ),
    }


def _engine_options() -> dict[str, Any]:
    return {
        "task_log_rate": _option(
            "integer",
            "250000",
            "Most bytes per second that a trial writes into its task log. What is beyond is left out there, and a\n"
            "line names the bytes and the command that shows them.",
        ),
        "task_log_records": _option(
            "float",
            "20.0",
            "Most log records per second in which one triggerer or worker process sends lines of ranks to Airflow,\n"
            "for all its trials together. A record holds many lines. Airflow's cost is per record, 1 to 2 ms.",
        ),
        "pass_interval": _option(
            "float",
            "1.0",
            "Seconds between two looks at the queue while a gang waits for its slots.",
        ),
        "defer_after": _option(
            "integer",
            "20",
            "Seconds that a trial whose slots are granted at once stays in its worker before it defers\n"
            "to the triggerer.",
        ),
    }


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description in the form of Airflow's provider-info schema."""
    return {
        "package-name": "airflow-provider-dtrain",
        "name": "dtrain",
        "description": "Multi-GPU, multi-host PyTorch training as Airflow tasks, on hosts reached by SSH.",
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://docs.pytorch.org/docs/stable/distributed.html",
                "tags": ["service"],
            }
        ],
        "operators": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    "airflow_provider_dtrain.operators.config",
                    "airflow_provider_dtrain.operators.gang",
                    "airflow_provider_dtrain.operators.search",
                    "airflow_provider_dtrain.operators.trial",
                ],
            }
        ],
        "sensors": [{"integration-name": _INTEGRATION, "python-modules": ["airflow_provider_dtrain.sensors.gang"]}],
        "hooks": [{"integration-name": _INTEGRATION, "python-modules": ["airflow_provider_dtrain.hooks.dtrain"]}],
        "triggers": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["airflow_provider_dtrain.triggers.gang", "airflow_provider_dtrain.triggers.trial"],
            }
        ],
        "task-decorators": [{"name": "dtrain", "class-name": "airflow_provider_dtrain.decorators.dtrain.dtrain_task"}],
        "plugins": [{"name": "dtrain", "plugin-class": "airflow_provider_dtrain.plugins.dtrain_plugin.DtrainPlugin"}],
        "extra-links": [],
        "cli": ["airflow_provider_dtrain.cli.get_dtrain_commands"],
        "config": {
            "dtrain": {
                "description": "Options of the dtrain provider.",
                "options": {**_storage_options(), **_host_options(), **_engine_options()},
            }
        },
    }
