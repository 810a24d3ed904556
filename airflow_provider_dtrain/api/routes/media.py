"""Images, tables and texts of a trial. Hosts write them, so their content decides what a browser gets."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError

from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.errors import ApiError
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.media import (
    MediaContent,
    MediaCurve,
    MediaHistogram,
    MediaMatrix,
    MediaTable,
)
from airflow_provider_dtrain.api.routes.files import generation
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.media_names import MediaName
from airflow_provider_dtrain.core.shown_images import shown_image
from airflow_provider_dtrain.core.untrusted_json import UntrustedInputError, check_size
from airflow_provider_dtrain.engine.copies.media_files import media_of, read_media
from airflow_provider_dtrain.engine.copies.output_generations import Generation
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.resources.media import TrialMedia
from airflow_provider_dtrain.store.queries.rights import readable_trial

router = APIRouter(route_class=StoreRoute, tags=["media"], responses=ERRORS)

_FORMS: Final[dict[str, type[BaseModel]]] = {
    "table": MediaTable,
    "histogram": MediaHistogram,
    "matrix": MediaMatrix,
    "curve": MediaCurve,
}
#: Deepest nesting and most values of a document: a table has the most.
_DEPTH, _VALUES = 4, 110_000
_TEXT_CHARS = 100_000
_IMAGE_HEADERS: Final = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Content-Disposition": "inline",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, max-age=300",
    "Content-Encoding": "identity",
}
MediaPath = Annotated[str, Query(max_length=1024, description="path of an item of the list")]


@router.get("/trials/{trial_id}/media", **guarded(Rule.READ))
def media(call: CallDep, trial_id: int) -> TrialMedia:
    """Return the images, tables and texts of a trial, as of their last copy on this machine."""
    return media_of(_copy(call, trial_id))


@router.get("/trials/{trial_id}/media/image", response_class=Response, **guarded(Rule.READ))
def media_image(call: CallDep, trial_id: int, path: MediaPath) -> Response:
    """Send an image that is a PNG or JPEG file by its content, without what its pixels do not need."""
    name, content = _read(call, trial_id, path)
    try:
        image = shown_image(content if name.kind == "image" else b"")
    except UntrustedInputError as error:
        raise _not_shown(name, error) from None
    return Response(image.content, media_type=image.media_type, headers=_IMAGE_HEADERS)


@router.get("/trials/{trial_id}/media/content", **guarded(Rule.READ))
def media_content(call: CallDep, trial_id: int, path: MediaPath) -> MediaContent:
    """Return the content of a text, table, histogram, confusion matrix or curve."""
    name, content = _read(call, trial_id, path)
    if name.kind == "image":
        raise _not_shown(name, UntrustedInputError("it is an image"))
    if name.kind == "text":
        return MediaContent(kind="text", text=content.decode("utf-8", "replace")[:_TEXT_CHARS])
    try:
        check_size(content, depth=_DEPTH, values=_VALUES)
        document = _FORMS[name.kind].model_validate_json(content)
        return MediaContent.model_validate({"kind": name.kind, name.kind: document})
    except ValidationError:
        raise _not_shown(name, UntrustedInputError(f"it has not the form of a {name.kind}")) from None
    except UntrustedInputError as error:
        raise _not_shown(name, error) from None


def _copy(call: Call, trial_id: int) -> Generation | None:
    return generation(call, readable_trial(call.store, call.access, trial_id))


def _read(call: Call, trial_id: int, path: str) -> tuple[MediaName, bytes]:
    found = _copy(call, trial_id)
    try:
        return read_media(found, path)
    except FileNotFoundError:
        raise NotFoundError(f"Trial {trial_id} has no media {path[:200]!r} here.") from None
    except UntrustedInputError as error:
        raise ApiError(409, "conflict", f"The file cannot be shown: {error}.") from None


def _not_shown(name: MediaName, error: UntrustedInputError) -> ApiError:
    return ApiError(409, "conflict", f"{name.key!r} of step {name.step} cannot be shown: {error}.")
