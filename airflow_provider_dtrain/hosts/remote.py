"""Public names of the protocol with the hosts' supervisors."""

from __future__ import annotations

from airflow_provider_dtrain.hosts.link import HostLink
from airflow_provider_dtrain.hosts.links import HostAddress, Links
from airflow_provider_dtrain.hosts.wire import Frame, Hello

__all__ = ["Frame", "Hello", "HostAddress", "HostLink", "Links"]
