"""Facts of Airflow's metadata database on which rights depend: teams, and the state of DAGs."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from airflow.configuration import conf
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from airflow.models.team import Team
from airflow.utils.session import create_session

from airflow_provider_dtrain.api.init_dags import DagState, dag_state


class AirflowFacts:
    """Facts of Airflow's metadata database, read when they are asked for."""

    def teams_of_dags(self, dag_ids: Collection[str]) -> dict[str, str | None]:
        """Return those of the DAGs that Airflow knows, each with its team."""
        if not dag_ids:
            return {}
        wanted = sorted(dag_ids)
        with create_session() as session:
            known = session.scalars(sa.select(DagModel.dag_id).where(DagModel.dag_id.in_(wanted))).all()
            teams = DagModel.get_dag_id_to_team_name_mapping(wanted, session=session)
        return {dag_id: teams.get(dag_id) for dag_id in known}

    def teams_of_connections(self, conn_ids: Collection[str]) -> dict[str, str | None]:
        """Return connections with their teams. One without a team, or that is not in the database, may be left out."""
        if not conn_ids or not _has_teams():
            return {}
        return dict(Connection.get_conn_id_to_team_name_mapping(sorted(conn_ids)))

    def teams(self) -> set[str]:
        """Return all teams, none unless Airflow runs in multi-team mode."""
        return Team.get_all_team_names() if _has_teams() else set()

    def dag(self, dag_id: str) -> DagState:
        """Return the state of a DAG."""
        return dag_state(dag_id)


def _has_teams() -> bool:
    return bool(conf.getboolean("core", "multi_team"))
