"""Provider metadata for Airflow. Every Airflow process calls this module, so it imports nothing heavy."""

from __future__ import annotations

from typing import Any

from airflow_provider_dtrain.core.documents import JsonObject

_INTEGRATION = "Distributed training (dtrain)"
#: Documentation of the technology that the provider integrates. Airflow lists it beside the provider's name.
_DOCUMENTATION = "https://docs.pytorch.org/docs/stable/distributed.html"


def _option(kind: str, default: str, description: str, *, example: str | None = None, **more: Any) -> JsonObject:
    return {
        "description": description + "\n",
        "version_added": "0.1.0",
        "type": kind,
        "example": example,
        "default": default,
        **more,
    }


def _storage_options() -> JsonObject:
    return {
        "sql_alchemy_conn": _option(
            "string",
            "",
            "SQLAlchemy URL of the store, which holds hosts, queue, grants, trials and metrics. Empty: the SQLite\n"
            "file dtrain.db in AIRFLOW_HOME. SQLite supports one machine only. Use PostgreSQL if triggerer and\n"
            "workers run on several machines.",
            example="postgresql+psycopg://dtrain@db.example.org/dtrain",
            sensitive=True,
        ),
        "checkpoint_dir": _option(
            "string",
            "",
            "Folder on the Airflow side for copies of the checkpoints that the policy keeps. It is used if a\n"
            "configuration has no checkpoint_storage. Empty: dtrain/checkpoints in AIRFLOW_HOME.",
        ),
        "download_storage": _option(
            "string",
            "",
            "Object storage from which the API server sends checkpoints to users of the pages: buckets\n"
            "(s3://bucket, gcs://bucket, abfs://container) and servers (https://minio.example.org, or with a bucket\n"
            "https://minio.example.org/bucket), separated by commas. Without an entry, it contacts only storage whose\n"
            "configuration has credentials or a conn_id and names no server.",
            example="s3://checkpoints, https://minio.example.org/checkpoints",
        ),
        "checkpoint_copy_limit": _option(
            "integer",
            str(2 * 1024**3),
            "Maximum size in bytes of a checkpoint that is copied from a host to checkpoint_dir, and of all outputs\n"
            "of a plain script together. The bytes are counted during the copy.",
        ),
        "collect_part_limit": _option(
            "integer",
            str(2 * 1024**3),
            "Maximum size in bytes of the result of one shard that inference.collect fetches from a host.",
        ),
        "collect_limit": _option(
            "integer",
            str(100 * 1024**3),
            "Maximum size in bytes of an output folder on this machine into which inference.collect fetches results.",
        ),
        "allow_exec": _option(
            "boolean",
            "False",
            "Let 'airflow dtrain trials exec' run commands in the environment of running ranks. The store records\n"
            "each use with user and command.",
        ),
        "output_sync_period": _option(
            "integer",
            "300",
            "Seconds between two copies to checkpoint_dir of the files that rank 0 of a plain script (one without the\n"
            "training library) has written. With the library, media and traces are copied, and a new one starts a\n"
            "copy earlier. The end of an attempt always copies all of them. 0: only the end copies them.",
        ),
        "trial_copy_limit": _option(
            "integer",
            str(20 * 1024**3),
            "Maximum total size in bytes of the copies of one trial in checkpoint_dir.",
        ),
        "trial_copies": _option(
            "integer",
            "100",
            "Maximum number of checkpoints of one trial with a copy in checkpoint_dir at a time. The latest are kept.",
        ),
        "retention_days": _option(
            "integer",
            "30",
            "Age in days from which ended runs on hosts, and payloads without a trial, may be garbage-collected.\n"
            "0 keeps them.",
        ),
        "telemetry_days": _option(
            "integer",
            "30",
            "Age in days from which telemetry (system metrics of hosts, timings of ranks) is removed from the store.\n"
            "It has one value per second for an hour, per 10 s for a day, and per minute for this time. 0 keeps it.",
        ),
        **_attempt_options(),
    }


def _attempt_options() -> JsonObject:
    return {
        "attempt_events_limit": _option(
            "integer",
            "500000",
            "Maximum number of events that the ranks of one attempt may store, with 1 KiB of events files for each. "
            "Later events are dropped, except those that end a trial; 'trials describe' shows it. 0 = no limit.",
        ),
        "attempt_checkpoints_limit": _option(
            "integer",
            "10000",
            "Maximum number of checkpoints that one attempt may store. 0 = no limit.",
        ),
        "attempt_metric_rows_limit": _option(
            "integer",
            "200000",
            "Maximum number of training metric reports that one attempt may store. The same limit applies separately "
            "to its validations. 0 = no limit.",
        ),
        "attempt_metric_names_limit": _option(
            "integer",
            "1000",
            "Maximum number of distinct metric names in one attempt. Metrics with further names are dropped. "
            "0 = no limit.",
        ),
    }


def _host_options() -> JsonObject:
    return {
        "remote_dir": _option(
            "string",
            ".dtrain",
            "Folder on each host for the supervisor and payloads: absolute, or relative to the account's home\n"
            "directory. It may be on a file system that hosts share.",
        ),
        "lock_dir": _option(
            "string",
            "",
            "Folder on each host for the slot locks that all accounts of the machine share. It must belong to root\n"
            "and have mode 1777. Empty: /run/lock if it is such a folder. Otherwise, and for 'none', the locks\n"
            "protect only runs of the own account. 'hosts add --lock-dir' sets it for one host.",
        ),
        "orphan_timeout": _option(
            "integer",
            "900",
            "Seconds without a lease renewal after which a run ends itself. 0: it never ends itself.",
        ),
        "kill_grace_s": _option(
            "integer",
            "30",
            "Seconds between SIGTERM and SIGKILL when the ranks of a run are stopped.",
        ),
        "log_limit": _option(
            "integer",
            str(256 * 1024**2),
            "Bytes of log kept per rank on its host. Of a longer log, the head and the tail are kept, and one marker\n"
            "states how much was dropped.",
        ),
    }


def _engine_options() -> JsonObject:
    return {
        "task_log_rate": _option(
            "integer",
            "4000000",
            "Maximum bytes per second that a trial writes to its task log. Further bytes are left out there, and a\n"
            "log line states their number and the command that shows them.",
        ),
        "task_log_records": _option(
            "float",
            "80.0",
            "Maximum log records per second in which one triggerer or worker process sends lines of ranks to Airflow,\n"
            "for all its trials together. A record holds many lines. Each record costs Airflow 1 to 2 ms.",
        ),
        "pass_interval": _option(
            "float",
            "1.0",
            "Seconds between two polls of the queue while a gang waits for its slots.",
        ),
        "defer_after": _option(
            "integer",
            "20",
            "Seconds that a trial stays in its worker, if its slots are granted at once, before it defers\n"
            "to the triggerer.",
        ),
    }


def _field(label: str, description: str, **schema: Any) -> JsonObject:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"], **schema}}


def _slurm_login() -> JsonObject:
    """Return the form of connections to login nodes. The fields of SSH have the names of ``ssh`` connections."""
    return {
        "connection-type": "dtrain_slurm",
        "hook-class-name": "airflow_provider_dtrain.hooks.slurm.SlurmLoginHook",
        "hook-name": "Slurm login node (dtrain)",
        "ui-field-behaviour": {
            "hidden-fields": ["schema"],
            "relabeling": {"host": "Login node", "login": "Username"},
            "placeholders": {"host": "login.cluster.example.org", "port": "22"},
        },
        "conn-fields": {
            "private_key": _field("Private key", "Text of the key, instead of a password.", format="multiline"),
            "private_key_passphrase": _field("Passphrase", "Passphrase of the private key.", format="password"),
            "key_file": _field("Key file", "Path of the private key on the machines of Airflow."),
            "host_key": _field(
                "Host key",
                "Public key that the login node must show: TYPE BASE64. Of several login nodes, one line each.",
                format="multiline",
            ),
            "account": _field("Account", "Account of jobs (--account), unless a pool names one."),
            "partition": _field("Partition", "Partition of jobs, unless a pool names one. Empty: the default one."),
            "setup": _field(
                "Setup lines",
                "Lines that a login shell runs on each node before the supervisor, e.g. module load python/3.11.",
                format="multiline",
            ),
        },
    }


def get_provider_info() -> JsonObject:
    """Return the provider's description in the form of Airflow's provider-info schema."""
    return {
        "package-name": "airflow-provider-dtrain",
        "name": "dtrain",
        "description": "Multi-GPU, multi-host PyTorch training as Airflow tasks, on hosts reached by SSH.",
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": _DOCUMENTATION,
                "tags": ["service"],
            }
        ],
        "operators": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    "airflow_provider_dtrain.operators.config",
                    "airflow_provider_dtrain.operators.diagnose",
                    "airflow_provider_dtrain.operators.gang",
                    "airflow_provider_dtrain.operators.inference",
                    "airflow_provider_dtrain.operators.operation",
                    "airflow_provider_dtrain.operators.search",
                    "airflow_provider_dtrain.operators.trial",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    "airflow_provider_dtrain.sensors.experiment",
                    "airflow_provider_dtrain.sensors.gang",
                ],
            }
        ],
        "hooks": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["airflow_provider_dtrain.hooks.dtrain", "airflow_provider_dtrain.hooks.slurm"],
            }
        ],
        "connection-types": [_slurm_login()],
        "triggers": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    "airflow_provider_dtrain.triggers.experiment",
                    "airflow_provider_dtrain.triggers.gang",
                    "airflow_provider_dtrain.triggers.trial",
                ],
            }
        ],
        "task-decorators": [
            {"name": "dtrain", "class-name": "airflow_provider_dtrain.decorators.dtrain.dtrain_task"},
            {"name": "dtrain_batch", "class-name": "airflow_provider_dtrain.decorators.dtrain_batch.dtrain_batch_task"},
        ],
        "plugins": [{"name": "dtrain", "plugin-class": "airflow_provider_dtrain.plugins.dtrain_plugin.DtrainPlugin"}],
        "extra-links": [
            "airflow_provider_dtrain.links.pages.ExperimentLink",
            "airflow_provider_dtrain.links.pages.QueueLink",
            "airflow_provider_dtrain.links.pages.TrialLink",
        ],
        "notifications": ["airflow_provider_dtrain.notifications.log.LogNotifier"],
        "cli": ["airflow_provider_dtrain.cli.get_dtrain_commands"],
        "config": {
            "dtrain": {
                "description": "Options of the dtrain provider.",
                "options": {**_storage_options(), **_host_options(), **_engine_options()},
            }
        },
    }
