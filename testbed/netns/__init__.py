"""Test hosts on one machine: network namespaces with one sshd each. They require root.

As a fixture: ``pytest_plugins = ["testbed.netns.plugin"]``. In a script: ``with NamespaceHosts(count=3)
as hosts``. By hand: ``python -m testbed.netns up --count 3``.
"""

from __future__ import annotations

from testbed.netns.host import NamespaceHost
from testbed.netns.hosts import NamespaceHosts, missing, remove_stale

__all__ = ["NamespaceHost", "NamespaceHosts", "missing", "remove_stale"]
