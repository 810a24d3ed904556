"""Sections of a configuration that are tagged unions: ``searcher`` by name, ``checkpoint_storage`` by type."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from airflow_provider_dtrain.core.config.merge import UNION_TAG
from airflow_provider_dtrain.core.config.sections import AnyPeriod
from airflow_provider_dtrain.core.config.types import (
    AbsolutePath,
    Count,
    Line,
    Name,
    Path,
    Positive,
    Secret,
    Section,
    refuse,
)

Mode = Literal["aggressive", "standard", "conservative"]


class _Search(Section):
    """Fields common to all searchers."""

    #: It samples hyperparameters: those that the training code refuses are replaced by another sample.
    draws_samples: ClassVar[bool]
    metric: Line | None = None
    smaller_is_better: bool = True
    #: Maximum training length of a trial.
    max_length: AnyPeriod | None = None
    #: The same limit in units of ``time_metric``.
    max_time: Positive | None = None
    time_metric: Line | None = None
    source_checkpoint: Line | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> _Search:
        if self.max_length is not None and self.max_time is not None:
            raise refuse("max_length and max_time are both given; remove one of them")
        if self.max_length is not None and self.max_length.is_zero:
            raise refuse("max_length must be at least 1, got 0")
        return self


class _SeveralTrials(_Search):
    """Fields common to all searchers but ``single``."""

    metric: Line
    max_concurrent_trials: Count = 16
    #: Trials that one task of Airflow runs.
    trials_per_task: Positive = 1


class SingleSearcher(_Search):
    """One trial."""

    draws_samples = False
    name: Literal["single"] = "single"


class RandomSearcher(_SeveralTrials):
    """Independent samples."""

    draws_samples = True
    name: Literal["random"]
    max_trials: Positive


class GridSearcher(_SeveralTrials):
    """Every point of the grid."""

    draws_samples = False
    name: Literal["grid"]


class _Halving(_SeveralTrials):
    max_trials: Positive
    divisor: int = Field(default=4, ge=2, le=1_000_000)
    sampler: Literal["random", "gp"] = "random"


class AsyncHalvingSearcher(_Halving):
    """ASHA with one bracket."""

    draws_samples = True
    name: Literal["async_halving"]
    num_rungs: int = Field(ge=1, le=100)


class AdaptiveAshaSearcher(_Halving):
    """ASHA with several brackets."""

    draws_samples = True
    name: Literal["adaptive_asha"]
    mode: Mode = "standard"
    max_rungs: int = Field(default=5, ge=1, le=100)
    bracket_rungs: list[Annotated[int, Field(ge=1, le=100)]] = []


class OptunaSearcher(_SeveralTrials):
    """Samples drawn by Optuna when a trial starts."""

    draws_samples = True
    name: Literal["optuna"]
    max_trials: Positive
    sampler: Literal["tpe", "cmaes", "gp"] = "tpe"


class _Storage(Section):
    """Fields common to all storages: numbers of checkpoints to keep."""

    save_experiment_best: Count = 0
    save_trial_best: Count = 1
    save_trial_latest: Count = 1


class RunFolderStorage(_Storage):
    """Run folder of the chief, used when ``type`` is not set."""

    type: None = None


class SharedFsStorage(_Storage):
    """Folder that all hosts mount."""

    type: Literal["shared_fs"]
    host_path: AbsolutePath
    #: Relative to ``host_path``. An absolute path must be below it.
    storage_path: Path | None = None
    propagation: Literal["private", "rprivate", "shared", "rshared", "slave", "rslave"] = "rprivate"

    @model_validator(mode="after")
    def _below(self) -> SharedFsStorage:
        inner = self.storage_path
        outer = self.host_path.rstrip("/") + "/"
        if inner is not None and inner.startswith("/") and not (inner.rstrip("/") + "/").startswith(outer):
            raise refuse(f"storage_path '{inner}' is not below host_path '{self.host_path}'")
        return self


class DirectoryStorage(_Storage):
    """Folder that exists on every host, or in every container."""

    type: Literal["directory"]
    container_path: AbsolutePath


class S3Storage(_Storage):
    """Bucket of S3 or of a service with its protocol."""

    type: Literal["s3"]
    bucket: Line
    access_key: Secret | None = Field(default=None, repr=False)
    secret_key: Secret | None = Field(default=None, repr=False)
    endpoint_url: Line | None = None
    prefix: Path | None = None
    #: Airflow connection with the credentials.
    conn_id: Name | None = None


class GcsStorage(_Storage):
    """Bucket of Google Cloud Storage."""

    type: Literal["gcs"]
    bucket: Line
    prefix: Path | None = None
    conn_id: Name | None = None


class AzureStorage(_Storage):
    """Container of Azure Blob Storage."""

    type: Literal["azure"]
    container: Line
    connection_string: Secret | None = Field(default=None, repr=False)
    account_url: Line | None = None
    credential: Secret | None = Field(default=None, repr=False)
    conn_id: Name | None = None

    @model_validator(mode="after")
    def _one_address(self) -> AzureStorage:
        if self.connection_string is not None and (self.account_url is not None or self.credential is not None):
            raise refuse("connection_string cannot be combined with account_url or credential; remove one of them")
        return self


#: Name -> model of a searcher.
SEARCHERS: Final[dict[str, type[_Search]]] = {
    "single": SingleSearcher,
    "random": RandomSearcher,
    "grid": GridSearcher,
    "async_halving": AsyncHalvingSearcher,
    "adaptive_asha": AdaptiveAshaSearcher,
    "optuna": OptunaSearcher,
}
#: Union -> member -> model. The first member is the default.
MEMBERS: Final[dict[str, dict[str, type[Section]]]] = {
    "searcher": {**SEARCHERS},
    "checkpoint_storage": {
        "run folder": RunFolderStorage,
        "shared_fs": SharedFsStorage,
        "directory": DirectoryStorage,
        "s3": S3Storage,
        "gcs": GcsStorage,
        "azure": AzureStorage,
    },
}


def _tag_of(union: str, value: Any) -> str | None:
    tag = UNION_TAG[union]
    named = value.get(tag) if isinstance(value, dict) else getattr(value, tag, None)
    first = next(iter(MEMBERS[union]))
    if named is None:
        return first
    is_default_storage = union == "checkpoint_storage" and named == first
    return named if isinstance(named, str) and named in MEMBERS[union] and not is_default_storage else None


def _searcher_tag(value: Any) -> str | None:
    return _tag_of("searcher", value)


def _storage_tag(value: Any) -> str | None:
    return _tag_of("checkpoint_storage", value)


Searcher = Annotated[
    Annotated[SingleSearcher, Tag("single")]
    | Annotated[RandomSearcher, Tag("random")]
    | Annotated[GridSearcher, Tag("grid")]
    | Annotated[AsyncHalvingSearcher, Tag("async_halving")]
    | Annotated[AdaptiveAshaSearcher, Tag("adaptive_asha")]
    | Annotated[OptunaSearcher, Tag("optuna")],
    Discriminator(_searcher_tag),
]
CheckpointStorage = Annotated[
    Annotated[RunFolderStorage, Tag("run folder")]
    | Annotated[SharedFsStorage, Tag("shared_fs")]
    | Annotated[DirectoryStorage, Tag("directory")]
    | Annotated[S3Storage, Tag("s3")]
    | Annotated[GcsStorage, Tag("gcs")]
    | Annotated[AzureStorage, Tag("azure")],
    Discriminator(_storage_tag),
]
