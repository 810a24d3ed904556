"""The HTTP API behind the pages: Airflow's API server mounts it at ``/dtrain``."""
