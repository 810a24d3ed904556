"""The protocol with the supervisors of hosts, as the rest of the package uses it."""

from __future__ import annotations

from airflow_provider_dtrain.hosts.link import HostLink
from airflow_provider_dtrain.hosts.links import HostAddress, Links
from airflow_provider_dtrain.hosts.wire import Frame, Hello

__all__ = ["Frame", "Hello", "HostAddress", "HostLink", "Links"]
