"""What Airflow reads about this provider. Called in every Airflow process: imports nothing heavy."""

from __future__ import annotations

from typing import Any

_INTEGRATION = "Distributed training (dtrain)"


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
            "Largest checkpoint, in bytes, that is copied from a host to checkpoint_dir.",
        ),
        "retention_days": _option(
            "integer",
            "30",
            "Age, in days, from which ended runs on hosts and payloads without a trial may be collected. 0 keeps them.",
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
        "max_connections_per_host": _option(
            "integer",
            "4",
            "Most SSH connections that one process opens to one host at a time. Keep it below the MaxStartups\n"
            "of the host's sshd.",
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
            "1000000",
            "Most bytes per second that a trial writes into its task log.",
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
            {"integration-name": _INTEGRATION, "external-doc-url": "https://pytorch.org/", "tags": ["service"]}
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
