"""Section ``inference``: what a batch inference reads, computes and writes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from airflow_provider_dtrain.core.config.types import Line, Positive, Section, refuse
from airflow_provider_dtrain.core.safe_repr import shown

#: Command that runs a batch inference in the host's interpreter.
INFERENCE: Final = ("python", "-m", "airflow_provider_dtrain.train.inference")
InputFormat = Literal["parquet", "csv", "jsonl", "text", "files", "images"]
OutputFormat = Literal["parquet", "jsonl"]

_PROCESSOR: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")
_TRIAL: Final = re.compile(r"trial:(\d{1,18})(?::(best|latest|\d{1,18}))?\Z", re.ASCII)
#: Prefix of the weights of an experiment's best trial.
EXPERIMENT: Final = "experiment:"
_FORMS: Final = (
    "trial:ID, trial:ID:best, trial:ID:latest, trial:ID:STEP, experiment:NAME, the absolute path or URL of a "
    "checkpoint, {experiment: NAME}, {trial: ID, which: best|latest|STEP}, or the result (XCom) of a trial"
)
LARGEST_BATCH: Final = 1 << 30
#: Field of the inputs -> the formats that it is for.
_ONLY_FOR: Final = {"schema": ("csv", "jsonl"), "delimiter": ("csv",), "orient": ("images",)}
#: Names under which frameworks ask for a model that is spread over several slots.
MODEL_PARALLEL: Final = frozenset(
    {
        "slots_per_replica", "tensor_parallel", "tensor_parallel_size", "pipeline_parallel", "pipeline_parallel_size",
        "model_parallel", "model_parallel_size", "device_map", "expert_parallel",
    }
)  # fmt: skip


def is_url(path: str) -> bool:
    """Return whether a path is a URL such as ``s3://bucket/folder``."""
    return "://" in path


def _processor(value: str) -> str:
    if not _PROCESSOR.match(value):
        raise refuse(f"must be module:Name of a BatchProcessor, a function or a trial class, got {shown(value)}")
    return value


def _paths(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _distinct(value: list[str]) -> list[str]:
    twice = sorted(name for name, count in Counter(value).items() if count > 1)
    if twice:
        raise refuse(f"{', '.join(map(shown, twice[:5]))} is given twice")
    return value


def _batch_size(value: Any) -> Any:
    if value != "auto" and not (type(value) is int and 1 <= value <= LARGEST_BATCH):
        raise refuse(f"must be a number of rows from 1 to {LARGEST_BATCH}, or auto, got {shown(value)}")
    return value


def _weights(value: Any) -> Any:
    """Return one text for each way to name weights."""
    if isinstance(value, str):
        return _named_weights(value)
    if not isinstance(value, Mapping):
        raise refuse(f"must be {_FORMS}, got {shown(value)}")
    if "checkpoint" in value or "trial_id" in value:
        return _of_result(value)
    if set(value) == {"experiment"}:
        name = value["experiment"]
        is_name = (isinstance(name, str) and name.strip() and name.isprintable()) or type(name) is int
        if not is_name:
            raise refuse(f"experiment must be the name or the id of an experiment, got {shown(name)}")
        return f"{EXPERIMENT}{name}"
    if set(value) in ({"trial"}, {"trial", "which"}):
        return _named_weights(f"trial:{value['trial']}:{value.get('which', 'best')}")
    raise refuse(f"must be {_FORMS}, got a map with {', '.join(sorted(map(shown, value))) or 'no field'}")


def _named_weights(value: str) -> str:
    is_path = (value.startswith("/") or is_url(value)) and ".." not in value.split("/")
    is_experiment = value.startswith(EXPERIMENT) and len(value) > len(EXPERIMENT)
    if not value.isprintable() or not (is_path or is_experiment or _TRIAL.match(value)):
        raise refuse(f"must be {_FORMS}, got {shown(value)}")
    return value


def _of_result(value: Mapping[str, Any]) -> str:
    """Return the weights that the XCom of a trial or of a search's best trial names."""
    trial = value.get("trial_id")
    if (checkpoint := value.get("checkpoint")) is None:
        subject = f"trial {trial}" if type(trial) is int else "the trial"
        raise refuse(f"{subject} has no checkpoint; its code must save one, and checkpoint_policy must not be none")
    if type(trial) is int and trial >= 0:
        return f"trial:{trial}:best"
    if isinstance(checkpoint, str):
        return _named_weights(checkpoint)
    raise refuse(f"must be {_FORMS}, got a map without trial_id")


_TEXT_OR_TEXTS: Final = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
    "title": "Path",
}
_ANY_WEIGHTS: Final = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {"experiment": {"type": ["string", "integer"]}},
            "required": ["experiment"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"trial": {"type": "integer"}, "which": {"type": ["string", "integer"]}},
            "required": ["trial"],
            "additionalProperties": False,
        },
        {"type": "object", "properties": {"checkpoint": {"type": "string"}}, "required": ["checkpoint"]},
    ],
    "title": "Weights",
}
Processor = Annotated[str, AfterValidator(_processor)]
Paths = Annotated[list[Line], Field(min_length=1), BeforeValidator(_paths), WithJsonSchema(_TEXT_OR_TEXTS)]
Columns = Annotated[list[Line], AfterValidator(_distinct)]
Weights = Annotated[str, BeforeValidator(_weights), WithJsonSchema(_ANY_WEIGHTS)]
BatchSize = Annotated[
    int | str,
    BeforeValidator(_batch_size),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": LARGEST_BATCH}, {"const": "auto"}]}),
]
#: Type of a column in a declared schema: ``int64``, ``list<float>``. The ranks read it.
TypeName = Annotated[Line, Field(max_length=256)]


def _delimiter(value: str) -> str:
    if len(value) != 1 or not value.isascii() or value in '"\r\n\0':
        raise refuse(f"must be one ASCII character other than a quote or a line break, got {shown(value)}")
    return value


Delimiter = Annotated[str, AfterValidator(_delimiter)]


class Inputs(Section):
    """Data that is read, or the size of the shards of a data set from code."""

    model_config = ConfigDict(serialize_by_alias=True)

    #: Local paths or fsspec URLs of files, folders or globs. None: the processor builds the data set.
    path: Paths | None = None
    #: None: by the suffixes of the files.
    format: InputFormat | None = None
    #: Columns that are read. None: all.
    columns: Columns | None = None
    #: Column of a text file -> type. None: numbers if the first rows are, else texts.
    column_types: Annotated[dict[Line, TypeName], Field(min_length=1)] | None = Field(default=None, alias="schema")
    #: Character between the values of a CSV file. None: a comma, or a tab in files named ``.tsv``.
    delimiter: Delimiter | None = None
    #: Turn images as their EXIF orientation says. None: yes.
    orient: bool | None = None
    #: Most rows of a shard. None: chosen by the size of the input.
    shard_rows: Positive | None = None

    @model_validator(mode="after")
    def _fits_format(self) -> Inputs:
        given = {
            "format": self.format, "columns": self.columns, "schema": self.column_types, "delimiter": self.delimiter,
            "orient": self.orient,
        }  # fmt: skip
        names = [name for name, value in given.items() if value is not None]
        if self.path is None and names:
            raise refuse(f"{' and '.join(names)} given without path; a data set from code has none of them")
        for name, formats in _ONLY_FOR.items():
            if name in names and self.format is not None and self.format not in formats:
                raise refuse(f"{name} is for inputs of format {' and '.join(formats)}, and format is {self.format}")
        return self


class InferenceOutputs(Section):
    """Folder that gets the results."""

    model_config = ConfigDict(serialize_by_alias=True)

    #: Folder or fsspec URL.
    path: Line
    format: OutputFormat = "parquet"
    #: Columns of the input that are passed through.
    columns: Columns = []
    #: Name of a column with the position of the row in the input. None: there is none.
    row_id: Line | None = None
    #: Column -> type. None: the types of the first results.
    column_types: Annotated[dict[Line, TypeName], Field(min_length=1)] | None = Field(default=None, alias="schema")
    #: First rows that the trial's page shows. 0: none is stored.
    preview: Annotated[int, Field(ge=0, le=100)] = 20
    #: Replace the results of another input, other code or other weights.
    overwrite: bool = False

    @model_validator(mode="after")
    def _own_names(self) -> InferenceOutputs:
        if self.row_id in self.columns:
            raise refuse(f"row_id {shown(self.row_id)} is also one of columns; choose another name")
        declared = self.column_types or {}
        for what, names in (("row_id", [self.row_id]), ("columns", self.columns)):
            both = [shown(name) for name in names if name in declared]
            if both:
                raise refuse(f"schema declares {', '.join(both[:5])}, which {what} adds; remove it from one of them")
        return self


class Inference(Section):
    """A batch inference."""

    #: ``module:Name`` of a ``BatchProcessor``, a function ``batch -> rows`` or a trial class.
    processor: Processor | None = None
    #: None: the processor builds the data set.
    inputs: Inputs | None = None
    outputs: InferenceOutputs
    #: Checkpoint whose weights the processor gets. None: none.
    weights: Weights | None = None
    #: Rows that the processor gets at a time. ``auto``: as many as memory and throughput allow.
    batch_size: BatchSize = 64
    #: End of a run with a shard that failed three times: ``skip`` sets the shard aside.
    on_bad_shard: Literal["fail", "skip"] = "fail"
    #: End of a shard with a row that cannot be read or computed: ``skip`` leaves the row out, ``mark`` writes its error
    #: into the column ``error``.
    on_bad_row: Literal["fail", "skip", "mark"] = "fail"
    #: ``outputs.path`` is a folder of the Airflow machine, which fetches the results from the hosts.
    collect: bool = False
    #: Compile the model of the processor with ``torch.compile``.
    compile: bool = False
