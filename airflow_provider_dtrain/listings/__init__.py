"""Records of :mod:`airflow_provider_dtrain.terminal.records` from the store, for commands and for the API."""
