"""Sections of a configuration that are plain groups of fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from airflow_provider_dtrain.core.config.types import (
    AbsolutePath,
    ContainerPath,
    Count,
    Line,
    Name,
    Pattern,
    Positive,
    Seconds,
    Section,
    Size,
    refuse,
)
from airflow_provider_dtrain.core.safe_repr import shown


class Period(Section):
    """Length of training in exactly one of three units."""

    batches: Count | None = None
    records: Count | None = None
    epochs: Count | None = None

    @model_validator(mode="after")
    def _one_unit(self) -> Period:
        given = [name for name in ("batches", "records", "epochs") if getattr(self, name) is not None]
        if len(given) != 1:
            what = " and ".join(given) if given else "no unit"
            raise refuse(f"{what} given; exactly one of batches, records, epochs is accepted")
        return self

    @property
    def is_zero(self) -> bool:
        """Return True when the period is 0, which disables it."""
        return not (self.batches or self.records or self.epochs)


def _period(value: Any) -> Any:
    return {"batches": value} if type(value) is int else value


AnyPeriod = Annotated[Period, BeforeValidator(_period)]


def _mode(value: str) -> str:
    if not value or len(set(value)) != len(value) or not set(value) <= set("rwm"):
        raise refuse(f"must be made of r, w and m, each at most once and in any order, got {shown(value)}")
    return value


class Device(Section):
    """Device of the host that is mapped into the container."""

    host_path: AbsolutePath
    container_path: AbsolutePath
    mode: Annotated[str, AfterValidator(_mode)] = "mrw"


def _device(value: Any) -> Any:
    """Read Docker's short form ``host[:container[:mode]]``."""
    if not isinstance(value, str):
        return value
    parts = value.split(":")
    if len(parts) > 3:
        raise refuse("must be host_path[:container_path[:mode]]")
    return dict(zip(("host_path", "container_path", "mode"), [parts[0], *(parts[1:] or parts)], strict=False))


class BindMount(Section):
    """Folder of the host that is mounted into the container."""

    host_path: AbsolutePath
    #: A relative path is below the work folder.
    container_path: ContainerPath
    read_only: bool = False
    propagation: Literal["private", "rprivate", "shared", "rshared", "slave", "rslave"] = "rprivate"


class Resources(Section):
    """Resources that one trial requests from its pool."""

    #: 0 requests one CPU-only process that needs no slot.
    slots_per_trial: int = Field(default=1, ge=0, le=1_000_000)
    pool: Name | None = None
    #: A smaller number starts first.
    priority: int = Field(default=42, ge=1, le=99)
    weight: float = Field(default=1.0, gt=0)
    #: Maximum slots that all trials of the experiment hold at one time.
    max_slots: Positive | None = None
    is_single_host: bool = False
    #: ``all``: each rank sees the devices of all ranks of its host, as under torchrun. ``own``: only its own.
    visible_devices: Literal["all", "own"] = "all"
    shm_size: Size | None = None
    devices: list[Annotated[Device, BeforeValidator(_device)]] = []


def _compression(value: Any) -> Any:
    return "fp16" if value is True else value


def _precision(value: Any) -> Any:
    """Return ``none`` for false and for Determined's ``O0``, and the names here for those of Lightning."""
    names = {"O0": "none", "bf16-mixed": "bf16", "fp16-mixed": "fp16", "16-mixed": "fp16"}
    return "none" if value is False else names.get(value, value) if isinstance(value, str) else value


class Optimizations(Section):
    """Options for computing and exchanging gradients."""

    #: Batches per gradient exchange.
    aggregation_frequency: Positive = 1
    average_aggregated_gradients: bool = True
    average_training_metrics: bool = True
    gradient_compression: Annotated[Literal[False, "fp16", "bf16", "powersgd"], BeforeValidator(_compression)] = False
    #: Size of a DDP bucket, MiB.
    tensor_fusion_threshold: int = Field(default=25, ge=1, le=65536)
    auto_tune_tensor_fusion: bool = False
    mixed_precision: Annotated[Literal["none", "fp16", "bf16", "bf16-true"], BeforeValidator(_precision)] = "none"
    #: Names of modules that stay in float32, with ``*`` and ``?``.
    float32_modules: list[Line] = []


class Reproducibility(Section):
    """Sources of randomness."""

    #: Drawn at random and stored when it is not set.
    experiment_seed: int | None = Field(default=None, ge=0, le=2**31 - 1)
    deterministic: bool = False
    #: Record a digest of the weights after each step.
    record_steps: bool = False


class Trace(Section):
    """Batches that the profiler of PyTorch records."""

    #: Batches before each trace: not recorded, and recorded without being kept.
    wait: int = Field(default=10, ge=0, le=1_000_000_000)
    warmup: int = Field(default=2, ge=0, le=1_000_000_000)
    #: Batches in a trace, and number of traces.
    active: int = Field(default=3, ge=1, le=100)
    repeat: int = Field(default=1, ge=1, le=20)
    ranks: Literal["all"] | list[Annotated[int, Field(ge=0)]] = [0]
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False


class Profiling(Section):
    """Measurements taken in addition to the metrics."""

    enabled: bool = True
    sampling_interval_s: float = Field(default=1.0, ge=0.1, le=3600)
    timings: bool = True
    #: A rank is slow that needs more than this multiple of the other ranks' time for a step, over ``straggler_after``.
    straggler_share: float = Field(default=1.2, ge=1.05, le=100)
    straggler_after: Annotated[Seconds, Field(ge=10, le=86400)] = 60.0
    trace: Trace | None = None
    #: Metrics that the training library records by itself.
    builtin_metrics: bool = True
    #: Steps between two norms of gradients that are not clipped by their norm; 0: none.
    gradient_norm_every: int = Field(default=0, ge=0, le=1_000_000_000)
    tokens_per_sample: int | None = Field(default=None, ge=1, le=1_000_000_000)
    #: Floating-point operations of a training step per sample, forward and backward.
    flops_per_sample: float | None = Field(default=None, gt=0, le=1e24, allow_inf_nan=False)
    #: Count the operations of one batch instead.
    count_flops: bool = False
    #: Peak of one device, operations per second; None: of a table.
    device_peak_flops: float | None = Field(default=None, gt=0, le=1e24, allow_inf_nan=False)
    #: Record allocations of GPU memory, and keep a snapshot when it runs out.
    memory_snapshot: bool = False

    @model_validator(mode="after")
    def _one_source_of_flops(self) -> Profiling:
        if self.count_flops and self.flops_per_sample is not None:
            raise refuse("count_flops and flops_per_sample are both given; remove one of them")
        return self


class DiagnosisRun(Section):
    """Limits of a short run, which ``DiagnoseOperator`` and ``airflow dtrain diagnose`` set."""

    #: Steps that are measured, and steps before them, which are not.
    steps: int = Field(default=100, ge=5, le=100_000)
    warm_up: int = Field(default=10, ge=1, le=10_000)
    #: Seconds of the whole run.
    most_s: float = Field(default=300.0, ge=10, le=86_400)
    #: The training loader repeats its first batch.
    synthetic: bool = False
    #: Rank 0 trains alone, and the other ranks end at once.
    alone: bool = False


class LogPolicy(Section):
    """Action for a line of a rank's log that matches a pattern.

    A policy without a pattern does nothing, which switches off a default policy of the same name.
    """

    name: Line | None = None
    pattern: Pattern | None = None
    action: Literal["cancel_retries", "exclude_host"] | None = None

    @model_validator(mode="after")
    def _check_purpose(self) -> LogPolicy:
        if self.name is None and self.pattern is None:
            raise refuse("a policy needs a name or a pattern")
        return self


#: Default policies, below all other layers. A policy of the same name replaces one of these.
DEFAULT_LOG_POLICIES: tuple[dict[str, str], ...] = (
    {"name": "CUDA OOM", "pattern": ".*CUDA out of memory.*", "action": "cancel_retries"},
    {"name": "ECC Error", "pattern": ".*uncorrectable ECC error encountered.*", "action": "exclude_host"},
)
