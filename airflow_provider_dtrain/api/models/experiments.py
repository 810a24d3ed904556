"""The page of an experiment, starts and actions."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from airflow_provider_dtrain.api.models.common import Model
from airflow_provider_dtrain.api.models.configs import Document
from airflow_provider_dtrain.resources.experiments import ExperimentDetail, ExperimentSummary
from airflow_provider_dtrain.resources.trials import TrialSummary


class Fork(Model):
    """Possibility of a fork, or the reason against it."""

    possible: bool
    #: Why not, with the command that changes it; empty: it can.
    reason: str


@dataclass(frozen=True, kw_only=True)
class ForkableExperiment(ExperimentDetail):
    """An experiment, and whether the user can fork it."""

    fork: Fork


class ExperimentAction(Model):
    """Outcome of an action on an experiment."""

    message: str
    experiment: ExperimentSummary


class TrialAction(Model):
    """Outcome of an action on a trial."""

    message: str
    trial: TrialSummary


class Started(Model):
    """Outcome of a start: the DAG run that plans the experiment."""

    dag_id: str
    run_id: str
    message: str


class SentGitState(Model):
    """The folder of sent code as git sees it, on the machine of the sender."""

    commit: str | None = Field(default=None, max_length=64, pattern=r"^[0-9a-f]{40,64}$")
    is_clean: bool | None = None
    #: Why it is not known.
    problem: str = Field(default="", max_length=500)


class NewExperiment(Document):
    """Body of a start."""

    #: Of the code in ``payload``; None: not known, and for a fork that of the forked experiment.
    git: SentGitState | None = None

    #: Name of an experiment whose configuration has none.
    default_name: str = Field(default="experiment", min_length=1, max_length=200)


class StoredCode(Model):
    """Code that the store holds."""

    #: SHA-256 of the archive.
    digest: str


class ForkSource(Model):
    """The submitted configuration of an experiment as a start for another one."""

    #: Values that a user or a template has set. Secrets are masked. A masked value that is sent back unchanged keeps
    #: the secret of the forked experiment.
    yaml: str
    #: Digest of its stored code, which the fork uses; None: the fork uses the code that ``model_dir`` names.
    payload_digest: str | None
    #: The store no longer has the code of the experiment.
    code_removed: bool
    #: The fork uses the same stored template; None: the values of the template are in the text.
    template: str | None
