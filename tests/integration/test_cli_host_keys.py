"""Connections that disable the check of host keys, in the commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from testbed.netns import NamespaceHosts
from tests.support.cli_world import World

pytest_plugins = ["testbed.netns.plugin", "tests.support.cli_world"]
pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.netns]
WORDS = "connection 'unchecked' sets no_host_key_check: true"


def test_a_connection_that_skips_the_check_is_reported_and_the_key_is_pinned(
    world: World, namespace_hosts: Callable[..., NamespaceHosts]
) -> None:
    host = namespace_hosts(count=1).host(0)
    document = json.loads(host.airflow_conn(host_key=False, no_host_key_check=True))
    assert world.airflow("connections", "add", "unchecked", "--conn-json", json.dumps(document)).code == 0
    add = ("hosts", "add", "h", "--conn", "unchecked", "--slots", "cpu:2", "--python", sys.executable)
    unasked = world(*add)
    assert (unasked.code, "--accept-host-key SHA256:" in unasked.err) == (1, True)
    listed = subprocess.run(["ssh-keygen", "-lf", "-"], input=host.host_key, capture_output=True, text=True, check=True)
    added = world(*add, "--accept-host-key", listed.stdout.split()[1])
    assert added.code == 0, added.err
    assert f"Warning: {WORDS}" in added.err
    probed = world("hosts", "probe", "h", "-o", "json")
    assert (probed.code, WORDS in probed.json[0]["problem"]) == (1, True)
    line = next(line for line in world("doctor", "-o", "json").json if line["check"] == "host h: host key")
    assert (line["ok"], WORDS in line["message"]) == (False, True)
