"""GangSensor, ReleaseGangOperator and @task.dtrain in a worker, on this machine: no scheduler, real ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_dtrain.decorators.dtrain import DtrainDecoratedOperator, dtrain_task
from airflow_provider_dtrain.errors import ConfigError, FunctionError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.tasks import task_facts
from airflow_provider_dtrain.operators.gang import ReleaseGangOperator
from airflow_provider_dtrain.operators.trial import TrialOperator
from airflow_provider_dtrain.sensors.gang import GangSensor
from testbed.stores import new_sqlite
from testbed.wheels import make_wheel
from tests.support.engines import CODE, config, register

CONTEXT_KEYS = {"ds": "2026-01-02", "params": {"word": "given"}}
RANKS = config("facts")


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HOME", str(tmp_path))
    options = {"SQL_ALCHEMY_CONN": new_sqlite(tmp_path / "dtrain.db"), "CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    for name, value in {**options, "KILL_GRACE_S": "2"}.items():
        monkeypatch.setenv(f"AIRFLOW__DTRAIN__{name}", value)
    hook = DtrainHook()
    hook.links.close_all()
    register(hook, tmp_path / "state")
    yield hook
    hook.links.close_all()


def context(task_id: str, *, max_tries: int = 0, folder: Path = CODE) -> Any:
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id=task_id, map_index=-1, max_tries=max_tries)
    return {"ti": ti, "dag": SimpleNamespace(fileloc=str(folder / "dag.py")), **CONTEXT_KEYS}


def sensor(task_id: str = "gang", **options: Any) -> GangSensor:
    return GangSensor(task_id=task_id, **{"slots": 2, "deferrable": False, **options})


def taken(hook: DtrainHook) -> int:
    return sum(slot.allocation_id is not None for slot in hook.store.hosts.slots())


def test_tasks_share_a_gang_until_it_is_released(hook: DtrainHook) -> None:
    gang = sensor().execute(context("gang"))
    assert gang is not None
    assert gang["slots"] == {"local": [0, 1]}
    trial = TrialOperator(task_id="train", config=RANKS, allocation=gang, deferrable=False)
    result = trial.execute(context("train"))
    assert result is not None
    assert result["state"] == "completed"
    assert taken(hook) == 2
    release = ReleaseGangOperator(task_id="free", allocation=gang)
    for _ in range(2):
        release.execute(context("free"))
        assert taken(hook) == 0
    late = TrialOperator(task_id="late", config=RANKS, allocation=gang, deferrable=False)
    with pytest.raises(AirflowFailException, match="released by the task 'free'"):
        late.execute(context("late"))


def test_a_sensor_takes_what_a_configuration_asks_for(hook: DtrainHook) -> None:
    wanted = {"resources": {"slots_per_trial": 1, "priority": 7, "pool": "local"}}
    gang = sensor(config=wanted | {"entrypoint": "python x.py"}, slots=None, hold_for="60").execute(context("gang"))
    assert gang is not None
    view = hook.store.gangs.get(gang["allocation_id"])
    assert (view.slots, view.priority, view.hold_for_s, view.pool) == (1, 7, 60.0, "local")


def test_a_retry_returns_the_same_gang_and_a_clear_another_one(hook: DtrainHook) -> None:
    first = sensor().execute(context("gang"))
    assert sensor().execute(context("gang")) == first
    second = sensor().execute(context("gang", max_tries=1))
    assert first is not None
    assert second is not None
    assert second["allocation_id"] != first["allocation_id"]
    assert hook.store.gangs.get(first["allocation_id"]).state == "released"


def test_a_gang_that_is_not_free_is_waited_for_in_the_triggerer(hook: DtrainHook) -> None:
    assert sensor().execute(context("gang")) is not None
    with pytest.raises(TaskDeferred) as deferred:
        sensor("other", deferrable=True).execute(context("other"))
    path, kwargs = deferred.value.trigger.serialize()
    assert path.endswith(".GangTrigger")
    assert hook.store.gangs.get(kwargs["allocation_id"]).state == "waiting"


@pytest.mark.parametrize(("soft_fail", "error"), [(False, AirflowSensorTimeout), (True, AirflowSkipException)])
def test_a_sensor_that_times_out_leaves_the_queue(hook: DtrainHook, soft_fail: bool, error: type[Exception]) -> None:
    assert sensor().execute(context("gang")) is not None
    with pytest.raises(error, match="No gang of 2 slots"):
        sensor("other", timeout=0.5, soft_fail=soft_fail).execute(context("other"))
    assert [entry.key.task_id for entry in hook.store.queue_view.tasks()] == ["gang"]


def test_a_gang_that_never_fits_fails_at_once(hook: DtrainHook) -> None:
    with pytest.raises(AirflowFailException, match="999"):
        sensor(slots="999").execute(context("gang"))


@pytest.mark.parametrize(
    ("event", "error", "words"),
    [
        ({"timed_out": "too late"}, AirflowSensorTimeout, "too late"),
        ({"failure": {"error": "UnplaceableError", "kind": "user", "message": "never"}}, AirflowFailException, "never"),
    ],
)
def test_what_the_trigger_says_becomes_the_tasks_error(event: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        sensor().execute_complete(context("gang"), event)


@pytest.mark.parametrize(
    "options", [{"slots": None}, {"config": {}, "slots": 1}, {"mode": "reschedule"}], ids=["neither", "both", "mode"]
)
def test_a_sensor_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="GangSensor"):
        sensor(**options)


# -- functions -------------------------------------------------------------------------------------
def function_task(function: Callable[..., Any], *args: Any, **options: Any) -> DtrainDecoratedOperator:
    return DtrainDecoratedOperator(
        task_id=function.__name__, python_callable=function, op_args=args, **{"deferrable": False, **options}
    )


def adds(number: int, ds: str = None, *, more: int = 2) -> dict:  # type: ignore[assignment]  # noqa: RUF013
    import os

    return {"sum": number + more, "ds": ds, "rank": os.environ["RANK"], "ranks": os.environ["WORLD_SIZE"]}


def imports_a_neighbour():
    import neighbour  # a file of model_dir

    return neighbour.ANSWER


def returns_nan():
    return {"loss": float("nan")}


@pytest.mark.nightly
def test_a_function_returns_what_rank_0_returned(hook: DtrainHook) -> None:
    found = function_task(adds, 3, slots="2", pool="default_pool").execute(context("adds"))
    assert found == {"sum": 5, "ds": "2026-01-02", "rank": "0", "ranks": "2"}
    assert taken(hook) == 0


def version_of_demo():
    import demo

    return demo.VERSION


@pytest.mark.nightly
def test_a_function_runs_in_an_environment_from_a_lock_file(hook: DtrainHook, tmp_path: Path) -> None:
    folder = tmp_path / "dags"
    make_wheel(folder / "code" / "wheels", "demo")
    (folder / "code" / "requirements.lock").write_text("demo==1.0\n")
    section = {"requirements": "requirements.lock", "wheels": "wheels"}
    given = {"config": {"model_dir": "code"}, "environment": section}
    found = function_task(version_of_demo, slots=1, pool="default_pool", **given).execute(
        context("version_of_demo", folder=folder)
    )
    assert found == "1.0"


def returns_many(count):
    return ["a"] * count


@pytest.mark.nightly
def test_a_function_may_return_what_is_twice_as_long_once_it_is_escaped(hook: DtrainHook) -> None:
    # 0.9 MB as JSON, 1.3 MB as text inside the JSON of an event.
    assert function_task(returns_many, 180_000).execute(context("many")) == ["a"] * 180_000
    assert taken(hook) == 0


def test_a_result_above_the_limit_fails_the_task_with_limit_and_size(hook: DtrainHook) -> None:
    with pytest.raises(AirflowFailException, match=r"1,048,576 bytes as JSON, this one of returns_many\(\) has"):
        function_task(returns_many, 400_000).execute(context("many"))
    assert taken(hook) == 0


@pytest.mark.nightly
def test_a_function_runs_on_a_held_gang_of_its_size(hook: DtrainHook) -> None:
    gang = sensor().execute(context("gang"))
    found = function_task(adds, 3, allocation=gang).execute(context("adds"))
    assert found["ranks"] == "2"
    assert taken(hook) == 2


@pytest.mark.nightly
def test_a_function_may_import_files_of_the_model_dir(hook: DtrainHook, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "neighbour.py").write_text("ANSWER = 42\n")
    options = {"config": {"model_dir": "code", "environment": {"python": sys.executable}}}
    assert function_task(imports_a_neighbour, **options).execute(context("imports", folder=tmp_path)) == 42


@pytest.mark.nightly
def test_a_result_that_is_no_json_fails_the_task(hook: DtrainHook) -> None:
    with pytest.raises(AirflowFailException, match=r"ResultError: .*result\['loss'\] is nan"):
        function_task(returns_nan).execute(context("nan"))
    assert hook.store.trials.get(1).attempts == 1, "it is not started again"


def test_an_entrypoint_beside_a_function_fails_before_anything_starts(hook: DtrainHook) -> None:
    with pytest.raises(AirflowFailException, match="has the entrypoint 'python x.py'"):
        function_task(adds, 1, config={"entrypoint": "python x.py"}).execute(context("bad"))
    assert hook.store.trials.list() == []


def test_an_argument_that_is_no_plain_data_is_an_error_when_the_dag_is_read() -> None:
    with pytest.raises(ConfigError, match=r"op_args\.0: a value of the type set is not plain data"):
        function_task(adds, {1, 2})


def test_a_name_from_outside_is_an_error_when_the_dag_is_read() -> None:
    def outside():
        return CODE

    with pytest.raises(FunctionError, match=r"outside\(\) uses 'CODE'"):
        dtrain_task(outside)()


def test_airflow_knows_the_decorator() -> None:
    assert task.dtrain is dtrain_task


@pytest.mark.parametrize(("default_args", "retries"), [({}, 3), ({"retries": 1}, 1)])
def test_mapped_tasks_keep_the_defaults_of_single_ones(default_args: dict[str, Any], retries: int) -> None:
    with DAG("mapped", schedule=None, default_args=default_args) as dag:
        decorated = dtrain_task(slots=1)(returns_nan)
        decorated.expand_kwargs([{}])
        decorated.override(task_id="given", retries=7, retry_delay=timedelta(seconds=1)).expand_kwargs([{}])
        TrialOperator.partial(task_id="trial").expand(config=[RANKS])
        GangSensor.partial(task_id="gang").expand(slots=[1])
        ReleaseGangOperator.partial(task_id="free").expand(allocation=[None])
    known = DagSerialization.from_dict(DagSerialization.to_dict(dag)).task_dict
    found = {name: (one.retries, one.retry_delay.total_seconds()) for name, one in known.items()}
    usual = (retries, 30.0)
    assert found == {"returns_nan": usual, "given": (7, 1.0), "trial": usual, "gang": usual, "free": usual}
    unmapped = dag.task_dict["returns_nan"].unmap({"op_kwargs": {}})
    assert (unmapped.retries, unmapped.retry_delay) == (retries, timedelta(seconds=30))


def test_pool_is_airflows_and_host_pool_is_a_pool_of_hosts() -> None:
    gang = sensor(host_pool="gpus", pool="few")
    assert (gang.host_pool, gang.pool) == ("gpus", "few")
    with DAG("pools", schedule=None) as dag:
        dtrain_task(slots=1, host_pool="gpus", pool="few")(returns_nan)()
        GangSensor.partial(task_id="mapped", host_pool="gpus", pool="few").expand(slots=[1])
        GangSensor.partial(task_id="plain").expand(slots=[1])
    function = dag.task_dict["returns_nan"]
    assert isinstance(function, DtrainDecoratedOperator)
    assert (function.host_pool, function.pool) == ("gpus", "few")
    assert function._document(CODE, "x.py", slots=None)["resources"] == {"slots_per_trial": 1, "pool": "gpus"}
    unmapped = [dag.task_dict[name].unmap({"slots": 1}) for name in ("mapped", "plain")]
    assert [(one.host_pool, one.pool) for one in unmapped] == [("gpus", "few"), (None, "default_pool")]


def test_a_pool_of_hosts_in_place_of_airflows_is_named_in_the_log(
    hook: DtrainHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(
        GangSensor, "log", SimpleNamespace(warning=lambda text, *values: warnings.append(text % values))
    )
    sensor(pool="local")._submission(hook, task_facts(context("gang")).key, CODE)
    sensor(pool="local", host_pool="local")._submission(hook, task_facts(context("gang")).key, CODE)
    sensor()._submission(hook, task_facts(context("gang")).key, CODE)
    expected = (
        "pool='local' is Airflow's pool of this task. If it should name the pool of hosts, use host_pool='local'."
    )
    assert warnings == [expected]
