"""Storage that the API server contacts for a download: see ``api/storage_access.py``."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.api.storage_access import place_of, storage_refusal

BUCKET = {"type": "s3", "bucket": "runs", "access_key": "********"}
SERVER = {**BUCKET, "endpoint_url": "https://minio.example.org:9000/"}
AZURE = {"type": "azure", "container": "runs"}


@pytest.mark.parametrize(
    "storage",
    [BUCKET, {"type": "s3", "bucket": "runs", "conn_id": "aws"}, {"type": "gcs", "bucket": "runs", "conn_id": "gcp"}],
)
def test_storage_with_credentials_of_its_own_and_no_server_needs_no_permission(storage):
    assert storage_refusal(storage, []) == ""


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        (SERVER, "names the server"),
        ({**SERVER, "conn_id": "aws"}, "names the server"),
        ({**AZURE, "account_url": "https://x.example.org"}, "names the server"),
        ({"type": "s3", "bucket": "runs"}, "no credentials"),
        ({"type": "gcs", "bucket": "runs"}, "no credentials"),
    ],
)
def test_other_storage_needs_an_entry_of_the_administrator(storage, words):
    refusal = storage_refusal(storage, ["s3://other", "https://elsewhere.example.org"])
    assert words in refusal
    assert f"[dtrain] download_storage: {place_of(storage)}" in refusal
    assert storage_refusal(storage, [place_of(storage)]) == ""


@pytest.mark.parametrize("more", [{}, {"conn_id": "azure"}, {"account_url": "https://x.example.org"}])
def test_a_connection_string_may_name_any_server_and_is_never_used(more):
    storage = {**AZURE, "connection_string": "BlobEndpoint=http://169.254.169.254/;AccountKey=a", **more}
    for shown in (storage, {**storage, "connection_string": "********"}):
        refusal = storage_refusal(shown, ["abfs://runs", "https://x.example.org", "http://169.254.169.254"])
        assert "connection string" in refusal
        assert "checkpoint_storage.conn_id" in refusal


@pytest.mark.parametrize(
    "allowed",
    ["https://minio.example.org:9000", "https://minio.example.org:9000/", "https://minio.example.org:9000/runs"],
)
def test_an_entry_allows_a_server_or_one_of_its_buckets(allowed):
    assert storage_refusal(SERVER, [allowed]) == ""
    assert storage_refusal({**SERVER, "bucket": "runs2"}, ["https://minio.example.org:9000/runs"]) != ""


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://minio.example.org:9000@evil.example.org", "https://minio.example.org:9000.evil.example.org",
        "https://minio.example.org:9000/runs/../..", "https://minio.example.org:9000/?x=",
        "HTTPS://minio.example.org:9000",
        "https://minio.example.org:9000/#", "https://minio.example.org:9000\\@evil.example.org", "file:///etc",
        "//evil", "https://evil.example.org/https://minio.example.org:9000", "https://minio.example.org:90001", "\n", "s3://runs",
    ],
)  # fmt: skip
def test_an_address_that_only_looks_like_an_allowed_one_is_refused(endpoint):
    assert storage_refusal({**SERVER, "endpoint_url": endpoint}, ["https://minio.example.org:9000", "s3://runs"]) != ""


@pytest.mark.parametrize("bucket", ["runs/../other", "..", "", "a b", "runs?x", "arn:aws:s3:eu-west-1:1:accesspoint/x"])
def test_a_bucket_without_a_plain_name_is_refused(bucket):
    assert storage_refusal({**BUCKET, "bucket": bucket}, ["s3://runs", "s3://"]) != ""
