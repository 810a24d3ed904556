"""Code of a user, which a later start of an experiment names by its digest."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from airflow_provider_dtrain.api.admission import received
from airflow_provider_dtrain.api.bounds import Digest
from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.code_archive import ARCHIVE, digest_of
from airflow_provider_dtrain.api.execution import WRITE_DEADLINE_S, StoreRoute
from airflow_provider_dtrain.api.init_dags import DAG_ID
from airflow_provider_dtrain.api.models.experiments import StoredCode
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store.records.trials import TrialKey

router = APIRouter(route_class=StoreRoute, tags=["starting"], responses=ERRORS)

_BODY = {"requestBody": {"required": True, "content": {"application/gzip": {"schema": {"type": "string"}}}}}


@router.get("/code/{digest}", **guarded(Rule.START))
def known(call: CallDep, digest: Annotated[Digest, Path()]) -> StoredCode:
    """Return whether the store holds code that the user has sent, and if so keep it for a start."""
    call.access.require_start()
    payloads = call.store.payloads
    if not payloads.is_sent_by(digest, call.access.user_id) or not payloads.use(digest):
        raise NotFoundError(f"You have sent no code {digest}, or the store no longer has it.")
    return StoredCode(digest=digest)


@router.post("/code", status_code=201, openapi_extra={**guarded(Rule.START)["openapi_extra"], **_BODY})
async def store(call: CallDep) -> StoredCode:
    """Check an archive (tar.gz) of code and store it under its digest."""
    await call.run(call.access.require_start, WRITE_DEADLINE_S, is_write=False)
    request = call.request
    with request.app.state.uploads.receiving(call.access.name):
        content = await received(request, request.receive, ARCHIVE)
        digest = await call.run(lambda: _stored(call, content), WRITE_DEADLINE_S * 3)
    return StoredCode(digest=digest)


def _stored(call: CallDep, content: bytes) -> str:
    digest = digest_of(content)
    key = TrialKey(dag_id=DAG_ID, run_id="", task_id="")
    call.log_action("code_store", key, digest=digest, size_bytes=len(content))
    if not call.store.payloads.use(digest):
        call.store.payloads.put(digest, content)
    call.store.payloads.note_sender(digest, call.access.user_id)
    return digest
