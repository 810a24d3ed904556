"""Records of :mod:`airflow_provider_dtrain.resources` from the store, for commands and for the API."""
