"""Fixtures: ``pytest_plugins = ["testbed.netns.plugin"]`` in a test module."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from testbed.netns.hosts import NamespaceHosts, missing


@pytest.fixture(scope="module")
def namespace_hosts() -> Iterator[Callable[..., NamespaceHosts]]:
    """Factory of sets of hosts, with the arguments of ``NamespaceHosts``. All are removed after the module."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    made: list[NamespaceHosts] = []

    def make(count: int = 3, slots: int = 2, shared_home: bool = False, **sshd: object) -> NamespaceHosts:
        made.append(NamespaceHosts(count, slots, shared_home, **sshd))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for hosts in made:
        hosts.close()


@pytest.fixture(scope="module")
def hosts(namespace_hosts: Callable[..., NamespaceHosts]) -> NamespaceHosts:
    """Three hosts, each with two slots and its own home directory."""
    return namespace_hosts(count=3, slots=2, shared_home=False)
