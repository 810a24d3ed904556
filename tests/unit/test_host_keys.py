"""A connection that disables the check of host keys."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.hosts.transport.host_keys import ignored_settings, pin
from airflow_provider_dtrain.hosts.transport.ssh import hook_from_connection

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1kU4y8v3wq1mLrNfV0o4ZC3kqkq0cXk2cEoQkYl0Yd"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"


def hook(**extra: Any) -> Any:
    connection = SimpleNamespace(
        conn_id="ssh_a", conn_type="ssh", host="127.0.0.1", port=22, login="me", password=None, extra="x",
        extra_dejson=extra, get_extra_dejson=lambda: extra,
    )  # fmt: skip
    return hook_from_connection(connection)


@pytest.mark.parametrize("setting", ["no_host_key_check", "allow_host_key_change"])
def test_a_pinned_key_is_checked_whatever_the_connection_says(setting: str) -> None:
    one = hook(**{setting: True})
    pin("a", one, KEY)
    assert one.host_key.get_base64() == KEY.split()[1]
    assert not one.no_host_key_check
    assert not one.allow_host_key_change


def test_without_any_key_the_check_stays_on() -> None:
    one = hook(no_host_key_check=True)
    pin("a", one, None)
    assert (one.host_key, one.no_host_key_check) == (None, False)


def test_a_key_of_the_connection_prevails_over_the_pinned_one() -> None:
    one = hook(host_key=OTHER)
    pin("a", one, KEY)
    assert one.host_key.get_base64() == OTHER.split()[1]


def test_the_setting_that_is_ignored_is_named_with_its_connection() -> None:
    assert ignored_settings("ssh_a", hook(no_host_key_check=False)) is None
    warning = ignored_settings("ssh_a", hook(no_host_key_check="true"))
    assert warning is not None
    assert warning.startswith("connection 'ssh_a' sets no_host_key_check: true, which would let any machine answer")
