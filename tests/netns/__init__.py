"""Test hosts on one machine: network namespaces with one sshd each. They require root.

As a fixture: ``pytest_plugins = ["tests.netns.plugin"]``. In a script: ``with NamespaceHosts(count=3)
as hosts``. By hand: ``python -m tests.netns up --count 3``.
"""

from __future__ import annotations

from tests.netns.host import NamespaceHost
from tests.netns.hosts import NamespaceHosts, missing, remove_stale

__all__ = ["NamespaceHost", "NamespaceHosts", "missing", "remove_stale"]
