"""Distributed PyTorch training as Airflow tasks, on hosts reached by SSH."""

__version__ = "0.1.0rc1"
