"""Copies of a trial's metrics in MLflow and Weights & Biases, as ``loggers`` of the configuration names them.

Both are optional. Their own environment variables say where they write: ``MLFLOW_TRACKING_URI``,
``WANDB_MODE=offline``. A logger that fails is named once and left out. It never ends a training.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.values import Metrics

log = logging.getLogger(__name__)


class MetricsLogger(Protocol):
    """Receives the metrics that rank 0 writes."""

    name: str

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record finite metrics of a step."""

    def close(self) -> None:
        """Send what is left, and end the run."""


class MlflowLogger:
    """A run of MLflow per attempt, through its client, so that the program may have an active run of its own."""

    name = "mlflow"

    def __init__(self, env: RankEnvironment, hparams: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient()
        title = _experiment(env)
        known = self._client.get_experiment_by_name(title)
        experiment = known.experiment_id if known is not None else self._client.create_experiment(title)
        self._run = self._client.create_run(experiment, run_name=_run(env)).info.run_id
        for name, value in _flat(hparams).items():
            self._client.log_param(self._run, name, value)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of a step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run, [Metric(name, value, now, step) for name, value in metrics.items()])

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._run)


class WandbLogger:
    """A run of Weights & Biases per attempt."""

    name = "wandb"

    def __init__(self, env: RankEnvironment, hparams: Mapping[str, Any]) -> None:
        import wandb

        self._run = wandb.init(project=_experiment(env), name=_run(env), config=dict(hparams), reinit="create_new")
        # Validations may come after training metrics of later steps.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of a step."""
        self._run.log({**metrics, "step": step})

    def close(self) -> None:
        """End the run."""
        self._run.finish()


KINDS: Mapping[str, Callable[[RankEnvironment, Mapping[str, Any]], MetricsLogger]] = {
    "mlflow": MlflowLogger,
    "wandb": WandbLogger,
}


class Loggers:
    """The configured loggers of rank 0. The other ranks have none.

    :param loggers: open ones
    """

    def __init__(self, loggers: Sequence[MetricsLogger] = ()) -> None:
        self._loggers = list(loggers)

    def log(self, step: int, metrics: Mapping[str, float | None], group: str = "") -> None:
        """Record the finite metrics of a step.

        :param group: prefix of the names
        """
        if not self._loggers:
            return
        finite = {f"{group}{name}": value for name, value in metrics.items() if value is not None}
        for logger in list(self._loggers):
            try:
                logger.log(step, finite)
            except Exception as error:
                self._loggers.remove(logger)
                log.warning(
                    "%s gets no further metrics, because it failed: %s. The trial continues.", logger.name, error
                )

    def close(self) -> None:
        """End the runs."""
        while self._loggers:
            logger = self._loggers.pop()
            try:
                logger.close()
            except Exception as error:
                log.warning("%s did not end its run: %s", logger.name, error)


def open_loggers(env: RankEnvironment, hparams: Mapping[str, Any]) -> Loggers:
    """Return the loggers that ``loggers`` of the configuration names, on rank 0.

    :raises SetupError: a logger is unknown, or its module is not installed
    """
    wanted = env.config.get("loggers") or []
    unknown = [name for name in wanted if name not in KINDS] if isinstance(wanted, (list, tuple)) else [wanted]
    if unknown:
        raise SetupError(f"loggers must be a list of {', '.join(KINDS)}, got {unknown[0]!r}.")
    if env.rank != 0:
        return Loggers()
    return Loggers([found for name in dict.fromkeys(wanted) if (found := _open(name, env, hparams)) is not None])


def _open(name: str, env: RankEnvironment, hparams: Mapping[str, Any]) -> MetricsLogger | None:
    try:
        return KINDS[name](env, hparams)
    except ImportError as error:
        raise SetupError(
            f"loggers names {name}, which is not installed where the ranks run ({error}). Install it there: "
            f"python -m pip install {'mlflow-skinny' if name == 'mlflow' else name}"
        ) from error
    except Exception as error:
        log.warning("%s gets no metrics, because it cannot be opened: %s. The trial continues.", name, error)
        return None


def _experiment(env: RankEnvironment) -> str:
    return str(env.config.get("name") or "dtrain")


def _run(env: RankEnvironment) -> str:
    return f"trial {env.trial_id}, attempt {env.attempt}" if env.trial_id is not None else "off-cluster"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Metrics:
    found: Metrics = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = value
    return found
