"""From an Airflow connection to the credentials of a bucket."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.core.config import ExperimentConfig
from airflow_provider_dtrain.engine.attempt.job import bucket_url, storage_modules
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.hooks import secrets
from airflow_provider_dtrain.store.records.trials import Config


def connection(login: str = "", password: str = "", host: str = "", **extra: Any) -> Any:
    return SimpleNamespace(login=login, password=password, host=host, extra_dejson=extra)


@pytest.mark.parametrize(
    ("kind", "given", "found"),
    [
        ("s3", connection("id", "key", endpoint_url="http://s", region_name="eu"),
         {"access_key": "id", "secret_key": "key", "endpoint_url": "http://s", "region_name": "eu"}),
        ("s3", connection(aws_access_key_id="id", aws_secret_access_key="key", aws_session_token="tok"),
         {"access_key": "id", "secret_key": "key", "session_token": "tok"}),
        ("gcs", connection(keyfile_dict='{"type": "service_account"}', project="p"),
         {"token": {"type": "service_account"}, "project": "p"}),
        ("azure", connection(connection_string="AccountName=x"), {"connection_string": "AccountName=x"}),
        ("azure", connection("acc", "key"), {"account_url": "https://acc.blob.core.windows.net", "credential": "key"}),
    ],
)  # fmt: skip
def test_a_connection_says_what_its_bucket_needs(kind: str, given: Any, found: dict[str, Any]) -> None:
    assert secrets.credentials(kind, given) == found


def config(**storage: Any) -> ExperimentConfig:
    return ExperimentConfig.model_validate({"entrypoint": "python x.py", "checkpoint_storage": storage})


async def test_the_configuration_wins_over_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    given = json.dumps({"conn_type": "aws", "login": "id", "password": "key", "extra": {"endpoint_url": "http://conn"}})
    monkeypatch.setenv("AIRFLOW_CONN_STORE_X", given)
    named = config(type="s3", bucket="b", conn_id="store_x", endpoint_url="http://config")
    variables = await secrets.with_connection(named, {})
    assert json.loads(variables[secrets.VARIABLE]) == {
        "checkpoint_storage.access_key": "id", "checkpoint_storage.secret_key": "key",
    }  # fmt: skip
    whole = await secrets.storage_config(named, None)
    assert (whole["access_key"], whole["endpoint_url"]) == ("id", "http://config")
    assert secrets.storage_config_now(named, None) == whole


async def test_a_connection_that_is_not_there_is_named() -> None:
    with pytest.raises(NotFoundError, match="checkpoint_storage.conn_id names connection 'nowhere'"):
        await secrets.with_connection(config(type="s3", bucket="b", conn_id="nowhere"), {})


def test_a_bucket_has_a_url_and_asks_for_its_module() -> None:
    assert bucket_url(config(type="s3", bucket="b", prefix="p")) == "s3://b/p"
    assert storage_modules(config(type="s3", bucket="b")) == ("s3fs",)
    assert storage_modules(config(type="azure", container="c")) == ("adlfs",)
    assert bucket_url(config(type="directory", container_path="/x")) is None
    assert storage_modules(config(type="directory", container_path="/x")) == ()


def stored(**storage: Any) -> Config:
    document, sealed = secrets.seal(
        {
            "entrypoint": "python x.py",
            "checkpoint_storage": storage,
            "data": {"secrets": {"token": "of-the-data"}},
            "environment": {"variables": {"PLACE": "variable-1"}},
        }
    )
    return Config(
        config_id=1, digest=json.dumps(document), document=document, origins={}, template=None, template_version=None,
        secrets=sealed, created_at=datetime.now(UTC),
    )  # fmt: skip


async def test_the_mask_of_a_trial_has_its_secrets_its_variables_and_those_of_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = json.dumps(
        {"conn_type": "aws", "login": "the-id", "password": "the-key", "extra": {"region_name": "region"}}
    )
    monkeypatch.setenv("AIRFLOW_CONN_STORE_X", given)
    found = stored(type="s3", bucket="the-bucket", conn_id="store_x")
    for mask in (await secrets.redactor(found), secrets.redactor_now(found)):
        assert mask.withheld == ""
        text = mask.rank_text("the-id the-key of-the-data variable-1 region the-bucket store_x")
        assert text == "****** ******* ******** ******** region the-bucket store_x"


async def test_without_the_connection_all_text_of_ranks_is_withheld_and_the_known_secrets_are_masked() -> None:
    found = stored(type="s3", bucket="b", conn_id="nowhere")
    for mask in (await secrets.redactor(found), secrets.redactor_now(found)):
        assert "names connection 'nowhere'" in mask.rank_text("anything")
        assert mask.text("own text, of-the-data") == "own text, ********"
    broken = replace(found, secrets=b"not sealed by this key")
    assert "withheld" in secrets.redactor_now(broken).rank_text("anything")
