"""Host side of the provider: standard library and pynvml only, Python >= 3.9.

Hosts run this package from one archive, see :func:`airflow_provider_dtrain.hosts.payload.supervisor`. No module here
imports another package of the project. ``docs/host-protocol.md`` lists the files and messages.
"""
