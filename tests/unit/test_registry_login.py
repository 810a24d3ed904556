"""Credentials of registries: from configurations and connections to the files and variables of runtimes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.fernet import Fernet

from airflow_provider_dtrain.api.named_objects import require_names
from airflow_provider_dtrain.core.config import ExperimentConfig, literal_secrets, mask
from airflow_provider_dtrain.core.config.assembly import assemble
from airflow_provider_dtrain.core.launch.registry import registry_of, server_name
from airflow_provider_dtrain.engine.submission.granted import check_names
from airflow_provider_dtrain.errors import ConfigError, NotFoundError
from airflow_provider_dtrain.hooks import secrets
from airflow_provider_dtrain.supervisor.images.login import RegistryLogin, login_settings

IMAGE = "registry.example.org/team/train:1"
AUTH = {"username": "me", "password": "s3cret-text"}
LOGIN = RegistryLogin("registry.example.org", "me", "s3cret-text")


def config(**environment: Any) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {"entrypoint": "python x.py", "environment": {"image": IMAGE, **environment}}
    )


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("train", "docker.io"), ("team/train:1", "docker.io"), ("docker.io/team/train", "docker.io"),
        ("localhost/train", "localhost"), ("host:5000/train:1", "host:5000"), ("Host.org/a/b@sha256:1", "host.org"),
        ("docker://images.example/a/b", "images.example"), ("index.docker.io/a/b", "docker.io"),
    ],
)  # fmt: skip
def test_the_registry_of_an_image_is_that_of_docker(image: str, registry: str) -> None:
    assert registry_of(image) == registry


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("https://index.docker.io/v1/", "docker.io"),
        ("http://host:5000/v2/", "host:5000"),
        ("images.example", "images.example"),
    ],
)
def test_an_address_of_a_registry_becomes_its_name(text: str, name: str) -> None:
    assert server_name(text) == name


def test_determined_s_credentials_are_read_and_the_rest_of_them_is_named() -> None:
    given = {**AUTH, "serveraddress": "https://images.example", "email": "me@example.org", "identitytoken": ""}
    with pytest.warns(UserWarning, match="environment.registry_auth.email"):
        found = config(registry_auth=given).environment.registry_auth
    assert found is not None
    assert (found.username, found.password, found.server) == ("me", "s3cret-text", "https://images.example")
    assert "s3cret" not in repr(found)
    assert config(registry_auth={}).environment.registry_auth is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"registry_auth": {"username": "me"}}, "registry_auth.password"),
        ({"registry_auth": {**AUTH, "username": "a:b"}}, "has a colon"),
        ({"registry_auth": {**AUTH, "password": "s3cret\n"}}, "is empty, or has a control character"),
        ({"registry_auth": "me:s3cret"}, "registry_auth"),
        ({"registry_auth": AUTH, "registry_conn_id": "other"}, "cannot be combined with registry_conn_id"),
    ],
)
def test_credentials_that_cannot_be_used_are_refused_without_showing_them(changes: Any, words: str) -> None:
    document = {"entrypoint": "python x.py", "environment": {"image": IMAGE, **changes}}
    with pytest.raises(ConfigError, match=words) as caught:
        assemble(None, document)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("name", ["password", "auth", "identitytoken", "registrytoken", "unknown"])
def test_everything_but_names_is_masked_as_written_and_effective(name: str) -> None:
    document = {"environment": {"registry_auth": {"username": "me", "serveraddress": "images.example", name: "s3cret"}}}
    assert mask(document)["environment"]["registry_auth"] == {
        "username": "me", "serveraddress": "images.example", name: "********",
    }  # fmt: skip
    assert literal_secrets(document) == [f"environment.registry_auth.{name}"]
    assert "s3cret" not in str(mask({"environment": {"registry_auth": "me:s3cret"}}))


async def test_a_password_is_sealed_and_goes_to_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", Fernet.generate_key().decode())
    whole = config(registry_auth=AUTH).model_dump(mode="json")
    public, sealed = secrets.seal(whole)
    assert "s3cret" not in str(public)
    assert secrets.as_variables(sealed) == {}
    stored = ExperimentConfig.model_validate(public)
    assert await secrets.registry_login(stored, sealed, IMAGE) == {**AUTH, "server": "registry.example.org"}
    hub = config(registry_auth={**AUTH, "server": "https://index.docker.io/v1/"})
    assert await secrets.registry_login(hub, None, IMAGE) == {**AUTH, "server": "docker.io"}
    assert await secrets.registry_login(config(), None, IMAGE) is None


async def test_a_connection_gives_its_credentials_to_its_own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"conn_type": "docker", "host": "https://other.example.org", "login": "me", "password": "s3cret-text"}
    monkeypatch.setenv("AIRFLOW_CONN_IMAGES", json.dumps({**given, "port": 5000}))
    found = await secrets.registry_login(config(registry_conn_id="images"), None, IMAGE)
    assert found == {**AUTH, "server": "other.example.org:5000"}
    monkeypatch.setenv("AIRFLOW_CONN_IMAGES", json.dumps({**given, "host": ""}))
    with pytest.raises(ConfigError, match="must have the name of a registry as its host, a login and a password"):
        await secrets.registry_login(config(registry_conn_id="images"), None, IMAGE)
    with pytest.raises(NotFoundError, match="environment.registry_conn_id names connection 'nowhere'"):
        await secrets.registry_login(config(registry_conn_id="nowhere"), None, IMAGE)


def test_a_file_for_podman_exists_during_the_download_only() -> None:
    with login_settings("podman", LOGIN, "") as (options, variables, files):
        assert options[0] == "--authfile"
        content = json.loads(Path(options[1]).read_text())
        # No other account can follow the link, and there is no other name.
        assert os.stat(options[1]).st_nlink == 0
        assert os.stat(options[1]).st_mode & 0o077 == 0
    assert content == {"auths": {"registry.example.org": {"auth": "bWU6czNjcmV0LXRleHQ="}}}
    assert variables == {}
    assert files == (int(options[1].rpartition("/")[2]),)
    assert not os.path.exists(options[1])


def test_docker_keeps_the_settings_of_the_account_but_its_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    own = {"currentContext": "rootless", "credsStore": "desktop", "auths": {"images.example": {"auth": "b3RoZXI="}}}
    (tmp_path / "config.json").write_text(json.dumps(own))
    (tmp_path / "contexts/meta").mkdir(parents=True)
    own_folder = tmp_path / "download"
    own_folder.mkdir()
    with login_settings("docker", LOGIN._replace(server="docker.io"), str(own_folder)) as (options, variables, files):
        assert variables == {"DOCKER_CONFIG": str(own_folder)}
        content = json.loads((own_folder / "config.json").read_text())
        assert (own_folder / "contexts/meta").is_dir()
    assert options == []
    assert content.pop("currentContext") == "rootless"
    assert content == {"auths": dict.fromkeys(("docker.io", "https://index.docker.io/v1/"), {"auth": LOGIN.encoded})}
    assert not (own_folder / "config.json").exists()


def test_apptainer_gets_variables_and_without_credentials_nothing_is_changed() -> None:
    with login_settings("apptainer", LOGIN, "") as (options, variables, files):
        assert options == []
        assert set(variables.values()) == {"me", "s3cret-text"}
    for runtime in ("podman", "docker", "apptainer"):
        with login_settings(runtime, None, "") as settings:
            assert settings == ([], {}, ())


def test_what_a_registry_repeats_is_hidden() -> None:
    assert LOGIN.hidden("no s3cret-text, Basic bWU6czNjcmV0LXRleHQ=") == "no ********, Basic ********"


@pytest.mark.parametrize("name", ["index_conn_id", "registry_conn_id"])
def test_a_connection_needs_a_submission_and_the_right_to_read_it(name: str) -> None:
    named = config(**{name: "team", "container": "off", "requirements": "requirements.lock"})
    path = f"environment.{name}"
    with pytest.raises(ConfigError, match=f"{path}: names a connection of Airflow"):
        check_names(named)
    asked: list[str] = []
    access = SimpleNamespace(may_use_connection=lambda conn_id: bool(asked.append(conn_id)))
    with pytest.raises(ConfigError, match=f"{path}: you may not read the connection 'team'"):
        require_names(SimpleNamespace(access=access), named)  # type: ignore[arg-type]
    assert asked == ["team"]
