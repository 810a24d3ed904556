"""Code of trials and experiments, as the page shows it: files, texts, and changes between two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query
from fastapi.responses import Response

from airflow_provider_dtrain.api.bounds import FilePath, TwoIds
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import READ_DEADLINE_S, StoreRoute, tagged
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.resources.code import CodeChanges, CodeListing, CodeText
from airflow_provider_dtrain.store.queries.code import code_changes, code_listing, code_text
from airflow_provider_dtrain.store.queries.experiments import trial_of_experiment

router = APIRouter(route_class=StoreRoute, tags=["code"], responses=ERRORS)

_File = Annotated[FilePath, Query(description="path of the file, as the listing has it")]
_Record = TypeVar("_Record", CodeListing, CodeText, CodeChanges)


@router.get("/trials/{trial_id}/code", response_model=CodeListing, **guarded(Rule.READ))
async def of_trial(call: CallDep, trial_id: int) -> Response:
    """Return the files of the code of a trial. Their names are for users who may read the code of its DAG."""
    return await _answer(call, lambda: code_listing(call.store, call.access, trial_id))


@router.get("/experiments/{experiment_id}/code", response_model=CodeListing, **guarded(Rule.READ))
async def of_experiment(call: CallDep, experiment_id: int) -> Response:
    """Return the files of the code of an experiment: that of its best trial, else of its latest one."""

    def listing() -> CodeListing:
        trial_id = trial_of_experiment(call.store, call.access, experiment_id)
        return code_listing(call.store, call.access, trial_id)

    return await _answer(call, listing)


@router.get("/trials/{trial_id}/code/text", response_model=CodeText, **guarded(Rule.READ_CODE))
async def text(call: CallDep, trial_id: int, file: _File) -> Response:
    """Return the text of a file of the code of a trial, at most 512 KiB."""
    return await _answer(call, lambda: code_text(call.store, call.access, trial_id, file))


@router.get("/differences/code", response_model=CodeChanges, **guarded(Rule.READ_CODE))
async def changes(call: CallDep, trial: TwoIds) -> Response:
    """Return the changes from the code of one trial to that of another one, as unified diffs."""
    return await _answer(call, lambda: code_changes(call.store, call.access, trial))


async def _answer(call: Call, make: Callable[[], _Record]) -> Response:
    """Return a record that takes CPU time to make: archives are unpacked, lines are compared."""
    answer: Response = await call.compute(lambda: tagged(call.request, make()), READ_DEADLINE_S, is_write=False)
    return answer
