"""The end of a DAG run ends its held gangs, without Airflow around it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.plugins import listener
from airflow_provider_dtrain.store.records.gangs import GangSubmission
from airflow_provider_dtrain.store.records.trials import TrialKey
from testbed.standalone import wait_until
from testbed.stores import host


@pytest.fixture
def hook(tmp_path, monkeypatch: pytest.MonkeyPatch) -> DtrainHook:
    monkeypatch.setenv("AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN", f"sqlite:///{tmp_path}/dtrain.db")
    return DtrainHook()


def hold(hook: DtrainHook, run_id: str) -> int:
    key = TrialKey(dag_id="dag", run_id=run_id, task_id="gang")
    view = hook.store.gangs.submit(GangSubmission(key=key, pool="gpus", slots=1))
    watch = hook.store.gangs.watch(view.allocation_id, watcher="test")
    hook.store.queue.schedule("gpus")
    assert hook.store.gangs.take_up(view.allocation_id, watch) is not None
    return view.allocation_id


@pytest.mark.parametrize("notice", [listener.on_dag_run_success, listener.on_dag_run_failed])
def test_the_end_of_a_dag_run_frees_its_gangs_and_no_others(hook: DtrainHook, notice) -> None:
    hook.store.hosts.add(host("gpu-01", slots=2))
    ended, other = hold(hook, "ended"), hold(hook, "other")
    notice(dag_run=SimpleNamespace(dag_id="dag", run_id="ended"), msg="")
    wait_until(lambda: hook.store.gangs.get(ended).state == "released", timeout_s=60, what="a free gang", poll_s=0.05)
    assert "its DAG run has ended" in str(hook.store.gangs.get(ended).ended_because)
    assert hook.store.gangs.get(other).is_usable


def test_a_store_that_does_not_exist_is_not_made(hook: DtrainHook, tmp_path) -> None:
    assert listener.end_gangs("dag", "run", "its DAG run has ended") == []
    assert not (tmp_path / "dtrain.db").exists()
