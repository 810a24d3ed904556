"""Airflow connections to login nodes of Slurm clusters."""

from __future__ import annotations

from airflow.sdk import BaseHook


class SlurmLoginHook(BaseHook):
    """Connection to a login node, by SSH: it has the fields of an ``ssh`` connection, and defaults of pools.

    :param slurm_conn_id: Airflow connection of type ``dtrain_slurm``
    """

    conn_name_attr = "slurm_conn_id"
    default_conn_name = "slurm_default"
    conn_type = "dtrain_slurm"
    hook_name = "Slurm login node (dtrain)"

    def __init__(self, slurm_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.slurm_conn_id = slurm_conn_id

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the login node answers and its Slurm can run jobs, and the finding in words."""
        from airflow_provider_dtrain.hosts.schedulers.registry import scheduler_kind

        try:
            return scheduler_kind("slurm").tested(self.get_connection(self.slurm_conn_id))
        except Exception as error:
            return False, str(error)
