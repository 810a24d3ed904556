"""Arguments of operators: a wrong value is an error of the DAG file that names its path, and never removes the DAG.

Airflow itself is the oracle: its parser of DAG files, its serialization, and the messages between its processes.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import importlib
import inspect
import json
import math
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from airflow.dag_processing.processor import DagFileParseRequest, DagFileParsingResult, _parse_file
from airflow.sdk import DAG, BaseOperator, Param, XComArg, task
from airflow.sdk.execution_time.comms import _RequestFrame
from airflow.serialization.definitions.dag import SerializedDAG
from airflow.serialization.serialized_objects import DagSerialization, LazyDeserializedDAG

import airflow_provider_dtrain
from airflow_provider_dtrain.decorators.dtrain import DtrainDecoratedOperator, dtrain_task
from airflow_provider_dtrain.decorators.dtrain_batch import DtrainBatchDecoratedOperator, dtrain_batch_task
from airflow_provider_dtrain.errors import ConfigError, FunctionError
from airflow_provider_dtrain.hooks.arguments import CheckedArguments
from airflow_provider_dtrain.operators.config import RenderConfigOperator
from airflow_provider_dtrain.operators.diagnose import DiagnoseOperator
from airflow_provider_dtrain.operators.gang import ReleaseGangOperator
from airflow_provider_dtrain.operators.inference import BatchInferenceOperator
from airflow_provider_dtrain.operators.operation import OperationOperator
from airflow_provider_dtrain.operators.search import PlanTrialsOperator, SelectBestTrialOperator
from airflow_provider_dtrain.operators.trial import TrialOperator
from airflow_provider_dtrain.sensors.experiment import ExperimentSensor
from airflow_provider_dtrain.sensors.gang import GangSensor
from airflow_provider_dtrain.task_groups import experiment

np = pytest.importorskip("numpy")
ROOT = Path(airflow_provider_dtrain.__file__).resolve().parents[1]
CONFIG = {"name": "x", "entrypoint": "python train.py"}
#: Operator -> arguments that make a valid task.
OPERATORS: dict[type[BaseOperator], dict[str, Any]] = {
    TrialOperator: {"config": CONFIG},
    BatchInferenceOperator: {"processor": "m:P", "inputs": "/in", "outputs": "/out"},
    RenderConfigOperator: {"config": CONFIG},
    DiagnoseOperator: {"config": CONFIG},
    PlanTrialsOperator: {"config": CONFIG},
    SelectBestTrialOperator: {"plan": [{"search_id": 1}]},
    ReleaseGangOperator: {"allocation": {"allocation_id": 1, "token": 2}},
    OperationOperator: {"operation_id": 1},
    GangSensor: {"slots": 2},
    ExperimentSensor: {"experiment": "digits"},
    DtrainDecoratedOperator: {"python_callable": lambda: None},
    DtrainBatchDecoratedOperator: {"python_callable": lambda batch: None, "outputs": "/out", "inputs": "/in"},
}  # fmt: skip


def one(lr: float = 0.1) -> float:
    return lr


def rows(batch: Any, threshold: float = 0.5) -> Any:
    return batch


OPERATORS[DtrainDecoratedOperator]["python_callable"] = one
OPERATORS[DtrainBatchDecoratedOperator]["python_callable"] = rows
#: Arguments of which each one excludes another.
EXCLUDES = {"config": ("slots",), "slots": ("config",), "trial_id": ("experiment",), "experiment": ("trial_id",)}


class Color(enum.Enum):
    RED = 1


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
#: Values that are never right.
WRONG = {
    "set": {1, 2}, "frozenset": frozenset(), "date": datetime.date(2024, 1, 1), "zone": datetime.UTC,
    "nan": math.nan, "infinite": math.inf, "huge": 2**70, "huge negative": -(2**64), "digits": 10**400, "bytes": b"x",
    "function": len, "lambda": lambda: 1, "object": object(), "class": int, "module": math, "numpy": np.int64(3),
    "numpy float": np.float32(0.5), "array": np.zeros(2), "complex": 1j, "decimal": decimal.Decimal("1.5"),
    "enum": Color.RED, "generator": (i for i in ()), "range": range(3), "surrogate": "\ud800", "key": {1: 2},
    "no key": {None: 1}, "tuple key": {(1, 2): 3}, "surrogate key": {"\ud800": 1}, "cycle": CYCLE, "param": Param(1),
}  # fmt: skip


def sent(dag: DAG) -> dict[str, Any]:
    """Return a DAG as the scheduler gets it, after every step that Airflow takes with it."""
    data = DagSerialization.to_dict(dag)
    result = DagFileParsingResult(fileloc="x.py", serialized_dags=[LazyDeserializedDAG(data=data)])
    _RequestFrame(id=0, body=result.model_dump()).as_bytes()
    # PostgreSQL takes no NaN.
    text = json.dumps(data, allow_nan=False)
    return arrived(json.loads(text))


def arrived(data: dict[str, Any]) -> dict[str, Any]:
    """Check that a DAG has all its tasks and values after its way to the scheduler, and return its data."""
    again = DagSerialization.from_dict(data)
    assert isinstance(again, SerializedDAG)
    tasks = {one["__var"]["task_id"]: one["__var"] for one in data["dag"]["tasks"]}
    assert set(again.task_dict) == set(tasks)
    for task_id, one in tasks.items():
        found = again.get_task(task_id)
        assert found.task_type == one["task_type"]
        assert sorted(found.downstream_task_ids) == sorted(one.get("downstream_task_ids", ()))
        for name in () if one.get("_is_mapped") else one.get("template_fields", ()):
            assert getattr(found, name) == one.get(name), (task_id, name)
    return data


def made(kind: type[BaseOperator], **arguments: Any) -> DAG:
    given = {name: value for name, value in OPERATORS[kind].items() if name not in arguments}
    for name in arguments:
        for other in EXCLUDES.get(name, ()):
            given.pop(other, None)
    with DAG("d", schedule=None) as dag:
        kind(task_id="t", **given, **arguments)
    return dag


def cases() -> Iterator[tuple[type[BaseOperator], str]]:
    for kind in OPERATORS:
        for name in kind.ARGUMENTS:  # type: ignore[attr-defined]
            # Airflow makes these two of the call of a function.
            if name not in ("op_args", "op_kwargs"):
                yield kind, name


@pytest.mark.parametrize(("kind", "name"), list(cases()), ids=lambda value: getattr(value, "__name__", value))
def test_a_wrong_value_is_named_when_the_dag_is_read(kind: type[BaseOperator], name: str) -> None:
    for what, wrong in WRONG.items():
        # States may be a set.
        places = {"": wrong} if name in ("deferrable", "is_single_host") else {"": wrong, ".x": {"x": wrong}}
        for path, value in places.items():
            if isinstance(value, (set, frozenset)) and name.endswith("_states"):
                continue
            with pytest.raises((ConfigError, ValueError)) as caught:
                made(kind, **{name: value})
            assert name in str(caught.value), (what, path)
            assert isinstance(caught.value, ConfigError) or name.endswith("_states"), what


@pytest.mark.parametrize("kind", [DtrainDecoratedOperator, DtrainBatchDecoratedOperator])
def test_a_wrong_argument_of_a_decorated_function_is_named(kind: type[BaseOperator]) -> None:
    name = "lr" if kind is DtrainDecoratedOperator else "threshold"
    for what, wrong in WRONG.items():
        with pytest.raises(ConfigError) as caught:
            made(kind, op_kwargs={name: wrong})
        assert caught.value.problems[0].path.startswith(f"op_kwargs.{name}"), what


TEMPLATES = {
    "jinja": lambda: "{{ params.x }}",
    "block": lambda: "{% if x %}1{% endif %}",
    "xcom": lambda: XComArg(BaseOperator(task_id="up")),
    "item": lambda: XComArg(BaseOperator(task_id="up"))["key"],
    "mapped xcom": lambda: XComArg(BaseOperator(task_id="up")).map(str),
}


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("kind", OPERATORS, ids=lambda kind: kind.__name__)
def test_a_value_that_only_the_run_knows_is_accepted_and_survives_serialization(
    kind: type[BaseOperator], template: str
) -> None:
    for name in kind.template_fields:
        is_of_function = name == "processor" and kind is DtrainBatchDecoratedOperator
        if is_of_function or name in ("templates_dict", "op_args", "op_kwargs"):
            continue
        with DAG("d", schedule=None, params={"x": 1}) as dag:
            value = TEMPLATES[template]()
            given = {**OPERATORS[kind], name: value}
            for other in EXCLUDES.get(name, ()):
                given.pop(other, None)
            found = kind(task_id="t", **given)
        assert getattr(found, name) is value
        sent(dag)


@pytest.mark.parametrize("kind", OPERATORS, ids=lambda kind: kind.__name__)
def test_every_operator_survives_serialization(kind: type[BaseOperator]) -> None:
    data = sent(made(kind))
    (found,) = data["dag"]["tasks"]
    assert found["__var"]["task_type"] == kind.__name__
    for name, value in OPERATORS[kind].items():
        if name in kind.template_fields:
            assert found["__var"][name] == value


def test_every_argument_of_every_operator_is_checked() -> None:
    #: Those of Airflow, and those that are checked elsewhere.
    elsewhere = {
        "retries", "retry_delay", "map_index_template", "trigger_rule", "notify", "python_callable",
    }  # fmt: skip
    kinds = set()
    for folder in ("operators", "sensors", "decorators"):
        package = importlib.import_module(f"airflow_provider_dtrain.{folder}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and issubclass(value, BaseOperator) and value.__module__ == module.name:
                    kinds.add(value)
    assert kinds == set(OPERATORS)
    for kind in kinds:
        assert issubclass(kind, CheckedArguments)
        own = {
            name
            for base in kind.__mro__
            if base.__module__.startswith("airflow_provider_dtrain")
            for name, one in inspect.signature(base.__init__).parameters.items()
            if one.kind is one.KEYWORD_ONLY
        }
        assert set(kind.ARGUMENTS) >= own - elsewhere
        assert set(kind.ARGUMENTS) >= set(kind.template_fields) - {"templates_dict"}


WRONG_DOCUMENTS = {
    "resources.slots_per_trial": {"resources": {"slots_per_trial": -1}},
    "hyperparameters.lr": {"hyperparameters": {"lr": {"type": "log", "minval": 1}}},
    "entrypiont": {"entrypiont": "python train.py"},
    "searcher.name": {"searcher": {"name": "magic"}},
    "resources": {"resources": []},
}


@pytest.mark.parametrize("path", WRONG_DOCUMENTS)
@pytest.mark.parametrize("kind", [TrialOperator, RenderConfigOperator, PlanTrialsOperator, GangSensor])
def test_a_wrong_field_of_a_configuration_in_the_file_is_named(kind: type[BaseOperator], path: str) -> None:
    document = WRONG_DOCUMENTS[path]
    with pytest.raises(ConfigError, match=rf"^{kind.__name__} 't': config\.{path}"):
        made(kind, config=document)
    with pytest.raises(ConfigError, match=rf": config\.{path}"):
        made(kind, config=json.dumps(document))


def test_fields_that_only_the_run_knows_hide_no_other_problem() -> None:
    config = {
        "resources": {"slots_per_trial": "{{ params.slots }}", "priority": 0},
        "hyperparameters": {"lr": "{{ params.lr }}"},
    }
    with pytest.raises(ConfigError) as caught:
        made(TrialOperator, config=config)
    assert [problem.path for problem in caught.value.problems] == ["config.resources.priority"]
    config["resources"]["priority"] = 1  # type: ignore[index]
    sent(made(TrialOperator, config=config))


@pytest.mark.parametrize(
    ("kind", "arguments", "path"),
    [
        (BatchInferenceOperator, {"on_bad_shard": "ignore"}, "on_bad_shard"),
        (BatchInferenceOperator, {"on_bad_row": "null"}, "on_bad_row"),
        (BatchInferenceOperator, {"batch_size": 0}, "batch_size"),
        (BatchInferenceOperator, {"processor": "digits.py"}, "processor"),
        (BatchInferenceOperator, {"slots": -1}, "slots"),
        (BatchInferenceOperator, {"inputs": {"path": "/in", "format": "exel"}}, "inputs.format"),
        (BatchInferenceOperator, {"inputs": {"path": "/in", "delimiter": ";;"}}, "inputs.delimiter"),
        (BatchInferenceOperator, {"outputs": {"path": "/out", "colums": ["id"]}}, "outputs.colums"),
        (BatchInferenceOperator, {"weights": "somewhere"}, "weights"),
        (GangSensor, {"slots": "two"}, "slots"),
        (GangSensor, {"priority": 100}, "priority"),
        (GangSensor, {"hold_for": -1}, "hold_for"),
        (GangSensor, {"hold_for": "soon"}, "hold_for"),
        (TrialOperator, {"overrides": {"resources.slots_per_trial": "many"}}, "overrides.resources.slots_per_trial"),
        (TrialOperator, {"template": {"template": "other"}}, "template.template"),
        (TrialOperator, {"notify_waiting_after": "an hour"}, "notify_waiting_after"),
        (DtrainDecoratedOperator, {"environment": {"variables": 5}}, "environment.variables"),
        (DtrainDecoratedOperator, {"op_kwargs": {"lr": {1, 2}}}, "op_kwargs.lr"),
        (DtrainBatchDecoratedOperator, {"op_kwargs": {"threshold": np.float32(1)}}, "op_kwargs.threshold"),
    ],
)  # fmt: skip
def test_an_argument_that_the_configuration_would_refuse_is_named(
    kind: type[BaseOperator], arguments: Mapping[str, Any], path: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        made(kind, **arguments)
    assert [problem.path for problem in caught.value.problems] == [path]


def test_arguments_may_add_to_a_configuration_that_is_not_known_yet() -> None:
    sent(made(BatchInferenceOperator, config="infer.yaml", inputs={"columns": ["x"]}, outputs={"columns": ["id"]}))
    sent(made(TrialOperator, config={"config_id": 3, "digest": "ab"}))
    sent(made(TrialOperator, config=Path("search.yaml"), template=Path("base.yaml")))
    found = made(BatchInferenceOperator, inputs=Path("/in"), outputs=Path("/out"))
    assert found.get_task("t").inputs == "/in"


@pytest.mark.parametrize("what", ["partial", "expand", "expand_kwargs"])
def test_mapped_tasks_are_checked_as_well(what: str) -> None:
    bad = {**CONFIG, "hyperparameters": {"x": {1}}}
    wrong = {
        "partial": lambda: TrialOperator.partial(task_id="t", config=bad),
        "expand": lambda: TrialOperator.partial(task_id="t").expand(config=[CONFIG, bad]),
        "expand_kwargs": lambda: TrialOperator.partial(task_id="t").expand_kwargs(
            [{"config": CONFIG}, {"config": bad}]
        ),
    }
    with DAG("d", schedule=None), pytest.raises(ConfigError, match=r"^TrialOperator 't': config.*\.x"):
        wrong[what]()  # type: ignore[no-untyped-call]
    with DAG("d", schedule=None) as dag:
        up = BaseOperator(task_id="up")
        TrialOperator.partial(task_id="a", config=CONFIG).expand(trial=XComArg(up))
        TrialOperator.partial(task_id="b").expand(config=[CONFIG, CONFIG], template=["x"])
        TrialOperator.partial(task_id="c").expand_kwargs([{"config": CONFIG}, XComArg(up)])
        BatchInferenceOperator.partial(task_id="e", processor="m:P", outputs="/out").expand(inputs=["/a", "/b"])
    sent(dag)


def test_decorated_tasks_and_task_groups_are_checked_as_well() -> None:
    train, label = dtrain_task(slots=2)(one), dtrain_batch_task(inputs="/in", outputs="/out")(rows)
    with DAG("d", schedule=None):
        for wrong, path in (
            (lambda: train(lr={1}), "op_kwargs.lr"),
            (lambda: train(2**70), "op_args.0"),
            (lambda: train.expand(lr=[0.1, math.nan]), "op_kwargs.lr"),
            (lambda: label(threshold=np.float32(1)), "op_kwargs.threshold"),
            (lambda: dtrain_task(slots="two")(one)(), "slots"),
            (lambda: dtrain_task(config={"resources": {"slots": 1}})(one)(), "config.resources.slots"),
            (lambda: experiment({**CONFIG, "data": {"x": {1}}}), "config.data.x"),
            (lambda: experiment(CONFIG, deferrable="yes", group_id="g"), "deferrable"),
        ):
            with pytest.raises(ConfigError) as caught:
                wrong()  # type: ignore[no-untyped-call]
            assert [problem.path for problem in caught.value.problems] == [path]
        with pytest.raises(FunctionError, match="processor is 'm:P'"):
            dtrain_batch_task(processor="m:P", inputs="/in", outputs="/out")(rows)()
    with DAG("d", schedule=None) as dag:

        @task
        def up() -> float:
            return 0.1

        value = up()
        train(lr=value)
        train.expand(lr=[0.1, 0.2])
        label(threshold=value)
        experiment(CONFIG, deferrable=True)
    sent(dag)


def parsed(file: Path) -> DagFileParsingResult:
    """Return what Airflow's parser makes of a DAG file, as another process gets it."""
    request = DagFileParseRequest(file=str(file), bundle_path=file.parent, bundle_name="dags")
    result = _parse_file(request, structlog.get_logger())
    assert result is not None
    _RequestFrame(id=0, body=result.model_dump()).as_bytes()
    return result


FILE = """
import datetime, math
from airflow.sdk import DAG
from airflow_provider_dtrain.operators.trial import TrialOperator
with DAG("d", schedule=None):
    TrialOperator(task_id="t", config={"name": "x", "entrypoint": "python x.py", "hyperparameters": {"x": VALUE}})
"""


@pytest.mark.airflow
@pytest.mark.parametrize("value", ["{1}", "math.nan", "2**70", "'\\ud800'", "datetime.date(2024, 1, 1)", "object()"])
def test_airflows_parser_shows_an_import_error_with_the_path(tmp_path: Path, value: str) -> None:
    (tmp_path / "dag.py").write_text(FILE.replace("VALUE", value))
    result = parsed(tmp_path / "dag.py")
    assert result.serialized_dags == []
    (error,) = (result.import_errors or {}).values()
    assert "config.hyperparameters.x: " in error


EXAMPLES = sorted((ROOT / "dags").glob("*.py"))


@pytest.mark.airflow
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_the_example_dags_survive_serialization(file: Path) -> None:
    result = parsed(file)
    assert not result.import_errors
    assert result.serialized_dags
    for dag in result.serialized_dags:
        arrived(json.loads(json.dumps(dag.data, allow_nan=False)))
