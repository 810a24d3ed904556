"""Only what lies in the storage of the ending trial's own configuration is removed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_provider_dtrain.core.checkpoint_location import CheckpointPlace, CheckpointPlaces
from airflow_provider_dtrain.engine.copies.checkpoint_cleanup import removable
from airflow_provider_dtrain.store.records.trials import CheckpointView

ROOT = "s3://b/p"
PLACES = CheckpointPlaces.of({"type": "s3", "bucket": "b", "prefix": "p"}, experiment_id=1, trial_id=2)
IN_BUCKET = PLACES.find(f"{ROOT}/experiment-1/trial-2/step-1")
IN_RUN = PLACES.find("checkpoints/step-1")


def view(place: CheckpointPlace | None, refused: str | None = None) -> CheckpointView:
    return CheckpointView(
        checkpoint_id=1, trial_id=2, attempt=1, run="t2.1.1", host="a", step=1, path="file:///srv/models",
        size_bytes=None, sha256=None, metrics={}, at=datetime.now(UTC), copy_url=None, place=place, refused=refused,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("checkpoint", "root", "found"),
    [
        (view(IN_BUCKET), ROOT, IN_BUCKET),
        (view(IN_RUN), ROOT, IN_RUN),
        (view(IN_RUN), "", IN_RUN),
        (view(IN_BUCKET), "s3://other/p", None),
        (view(IN_BUCKET), "", None),
        (view(None, "elsewhere"), ROOT, None),
        (view(IN_BUCKET, "elsewhere"), ROOT, None),
    ],
)
def test_a_place_is_removed_only_below_the_configured_root(checkpoint, root, found) -> None:
    assert removable(checkpoint, root) is found
