"""A reported checkpoint path is compared with derived paths and never used itself."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.core.checkpoint_location import (
    ALIASES,
    SCHEMES,
    CheckpointPlaces,
    StorageKind,
    UntrustedPathError,
    shown_path,
    storage_root,
    url_problem,
)
from airflow_provider_dtrain.train.files.file_systems import PROTOCOLS

S3 = {"type": "s3", "bucket": "b", "prefix": "/runs/all/"}
SHARED = {"type": "shared_fs", "host_path": "/ckpt//", "storage_path": "team"}
DIRECTORY = {"type": "directory", "container_path": "/ckpt/"}
IN_S3, IN_SHARED = "s3://b/runs/all/experiment-3/trial-12", "/ckpt/team/experiment-3/trial-12"


def places(storage: dict[str, str] | None) -> CheckpointPlaces:
    return CheckpointPlaces.of(storage, experiment_id=3, trial_id=12)


@pytest.mark.parametrize(
    ("storage", "path", "kind", "folder"),
    [
        (None, "checkpoints/step-00000001", StorageKind.RUN, "checkpoints"),
        (None, "step-1", StorageKind.RUN, ""),
        (S3, f"{IN_S3}/step-00000001.2", StorageKind.BUCKET, "experiment-3/trial-12"),
        (S3, f"{IN_S3}-draw-7/step-1", StorageKind.BUCKET, "experiment-3/trial-12-draw-7"),
        (SHARED, f"{IN_SHARED}/step-1", StorageKind.SHARED, "experiment-3/trial-12"),
        (DIRECTORY, "/ckpt/experiment-3/trial-12/step-1", StorageKind.SHARED, "experiment-3/trial-12"),
        ({**DIRECTORY, "container_path": "/"}, "/experiment-3/trial-12/s", StorageKind.SHARED, "experiment-3/trial-12"),
        (SHARED, "checkpoints/step-1", StorageKind.RUN, "checkpoints"),
    ],
)
def test_a_trial_may_name_its_own_places(storage, path, kind, folder) -> None:
    place = places(storage).find(path)
    assert (place.kind, place.folder, place.path) == (kind, folder, path)


@pytest.mark.parametrize(
    ("storage", "path"),
    [
        (None, "file:///srv/models"),
        (None, "/srv/models/prod"),
        (None, "s3://b/x"),
        (None, "file:srv"),
        (None, "../t1.1.1/checkpoints/step-1"),
        (None, "checkpoints/../../other"),
        (None, "checkpoints//step-1"),
        (None, "checkpoints/"),
        (None, "./checkpoints/step-1"),
        (None, ".ssh/id"),
        (None, "checkpoints/step\0"),
        (None, "checkpoints/step-1\n"),
        (None, "checkpoints\\step"),
        (None, "~/x"),
        (SHARED, "/step-1"),
        (SHARED, "-draw-7/step-1"),
        (SHARED, "/"),
        (None, "a/" * 9 + "b"),
        (None, "x" * 2000),
        (None, ""),
        (None, None),
        (None, 7),
        (S3, IN_S3),
        (S3, f"{IN_S3}/"),
        (S3, f"{IN_S3}/step-1/"),
        (S3, f"{IN_S3}//step-1"),
        (S3, f"{IN_S3}/step-1/state.pt"),
        (S3, f"{IN_S3}/*"),
        (S3, f"{IN_S3}/step-[0-9]"),
        (S3, f"{IN_S3}/.."),
        (S3, f"{IN_S3}/../trial-13/step-1"),
        (S3, f"{IN_S3}/%2e%2e"),
        (S3, f"{IN_S3}3/step-1"),
        (S3, f"{IN_S3}-evil/step-1"),
        (S3, f"{IN_S3}-draw-/step-1"),
        (S3, f"{IN_S3}-draw-07/step-1"),
        (S3, f"{IN_S3}/step-1::file:///srv"),
        (S3, "file://" + IN_SHARED + "/step-1"),
        (S3, "s3a://b/runs/all/experiment-3/trial-12/step-1"),
        (S3, "S3://b/runs/all/experiment-3/trial-12/step-1"),
        (S3, "s3://B/runs/all/experiment-3/trial-12/step-1"),
        (S3, "s3://b2/runs/all/experiment-3/trial-12/step-1"),
        (S3, "s3://b/runs/all-evil/experiment-3/trial-12/step-1"),
        (S3, "s3://b/runs/all/experiment-4/trial-12/step-1"),
        (S3, "s3:///b/runs/all/experiment-3/trial-12/step-1"),
        (S3, "/ckpt/experiment-3/trial-12/step-1"),
        (SHARED, "/ckpt/team-evil/experiment-3/trial-12/step-1"),
        (SHARED, "/ckpt/experiment-3/trial-12/step-1"),
        (SHARED, f"/{IN_SHARED}/step-1"),
        (SHARED, f"{IN_SHARED}/../trial-13/step-1"),
        (SHARED, f"file://{IN_SHARED}/step-1"),
        (SHARED, f"{IN_SHARED}/step-\u0661"),
    ],
)
def test_every_other_path_is_refused(storage, path) -> None:
    with pytest.raises(UntrustedPathError):
        places(storage).find(path)


def test_schemes_are_those_of_the_training_library() -> None:
    assert {kind: protocol for kind, (protocol, _) in PROTOCOLS.items()} == SCHEMES
    assert set(ALIASES.values()) == set(SCHEMES.values())


def test_the_root_is_what_the_configuration_names() -> None:
    assert storage_root(S3) == "s3://b/runs/all"
    assert storage_root({"type": "azure", "container": "c"}) == "abfs://c"
    assert storage_root({"type": "gcs", "bucket": "b", "prefix": None}) == "gcs://b"
    assert storage_root(SHARED) == "/ckpt/team"
    assert storage_root({**SHARED, "storage_path": "/ckpt/abs"}) == "/ckpt/abs"
    assert storage_root({"type": None}) is storage_root({}) is None


@pytest.mark.parametrize(
    ("url", "storage"),
    [
        ("file:///srv/models", S3),
        ("http://internal/x", S3),
        ("gs://b/x", S3),
        ("s3://b/x", {}),
        ("s3://b/x", SHARED),
        ("s3://b/x::file:///srv", S3),
        ("s3://b/../x", S3),
        ("s3://b/x*", S3),
        ("simplecache::s3://b/x", S3),
    ],
)
def test_only_urls_of_the_configured_storage_are_opened_from_here(url, storage) -> None:
    assert url_problem(url, storage)


def test_a_url_of_the_configured_storage_is_opened_under_each_spelling() -> None:
    assert url_problem("s3://b/x/step-1", S3) is url_problem("s3a://other/step-1", S3) is None
    assert url_problem("gs://b/step-1", {"type": "gcs", "bucket": "b"}) is None


def test_a_refused_path_is_shown_in_one_short_line_of_ascii() -> None:
    assert shown_path("a\0b\n\u202ec\ud800") == "a\\x00b\\x0a\\u202ec\\ud800"
    assert len(shown_path("x" * 10**6)) < 300
