"""Authentication and authorization of every route, by Airflow's own auth manager.

This module imports modules of Airflow that Airflow does not document. If one of them is missing, the application
refuses all requests: see ``app.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from functools import cached_property
from typing import Annotated, Any

import sqlalchemy as sa
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AccessView,
    ConnectionDetails,
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import GetUserDep, bearer_scheme, get_user, requires_access_view
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials

from airflow_provider_dtrain.api.errors import ApiError, forbidden
from airflow_provider_dtrain.api.init_dags import DAG_ID, OPERATIONS_DAG_ID, DagState, dag_state, starting
from airflow_provider_dtrain.api.models.me import Starting
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store.records.pages import Dags
from airflow_provider_dtrain.store.store import Store

#: Header that a page of another site cannot add to a request without permission of this server.
GUARD_HEADER = "X-Dtrain"
READING = ("GET", "HEAD", "OPTIONS")


class Rule(Enum):
    """Right that a route needs besides access to the plugin, with a sentence for the documentation."""

    #: Rows of DAGs that the user may not read are left out.
    READ = "read"
    READ_LOGS = "read task logs"
    FETCH = "read, from hosts"
    EDIT_DAG = "edit a DAG run"
    CHANGE_HOSTS = "edit connections"
    EXEC = "edit a DAG run and connections"
    START = "trigger the DAG that starts experiments"

    @property
    def meaning(self) -> str:
        """The permission of Airflow behind the rule, in words."""
        return {
            Rule.READ: "access to the plugin; rows and ids of DAGs that the user cannot read do not exist for them",
            Rule.READ_LOGS: "also: reading task logs of the DAG that the trial belongs to",
            Rule.FETCH: "as for reading; a follower or a run of a DAG reads from hosts",
            Rule.EDIT_DAG: "also: editing DAG runs of the DAG that the trial or experiment belongs to",
            Rule.CHANGE_HOSTS: "also: editing connections",
            Rule.EXEC: "also: editing connections, and DAG runs of the DAG that the trial belongs to",
            Rule.START: "also: triggering the DAG that starts experiments",
        }[self]


def guarded(rule: Rule) -> dict[str, Any]:
    """Return the argument of a route that declares its rule. The tests read it, and so does the documentation."""
    return {"openapi_extra": {"x-dtrain-rule": rule.value}}


def refuse_cross_site(
    request: Request,
    user: GetUserDep,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer_scheme)],
) -> None:
    """Refuse a change that a page of another site may have sent with the user's cookie.

    A request with a bearer token carries no ambient credential: Airflow ignores the cookie then.
    """
    if request.method in READING or (bearer is not None and bearer.scheme.lower() == "bearer"):
        return
    if request.headers.get(GUARD_HEADER) != "1":
        raise ApiError(
            403, "cross_site", f"The request changes something, but lacks the header {GUARD_HEADER}: 1.",
            "Send the header, or authenticate with a bearer token instead of the cookie.",
        )  # fmt: skip


class Access:
    """The user of one request and their rights. Rights are looked up once per request."""

    def __init__(self, user: Any) -> None:
        self.user = user
        self._may_edit: dict[str, bool] = {}
        #: DAG -> its team, of the DAGs that this request asked for, and those of them that Airflow does not know.
        self._teams: dict[str, str | None] = {}
        self._unknown: set[str] = set()

    def teams(self, dag_ids: Collection[str]) -> dict[str, str | None]:
        """Return the DAGs that Airflow knows, each with its team. Each DAG is looked up once per request."""
        if missing := set(dag_ids) - self._teams.keys() - self._unknown:
            found = _teams(missing)
            self._teams |= found
            self._unknown |= missing - found.keys()
        return {dag_id: self._teams[dag_id] for dag_id in dag_ids if dag_id in self._teams}

    @cached_property
    def name(self) -> str:
        """The user's name, for audit logs."""
        return str(self.user.get_name())

    def readable(self, store: Store) -> Dags:
        """Return the DAGs of the store that the user may read, None for all of them."""
        known = store.queue_view.dags()
        readable = self._readable(known)
        return None if readable == known else readable

    def may_read(self, dag_id: str) -> bool:
        """Return whether the user may read a DAG."""
        return dag_id in self._readable({dag_id})

    def _readable(self, dag_ids: Collection[str]) -> frozenset[str]:
        manager = get_auth_manager()
        found: set[str] = set()
        teams = self.teams(dag_ids)
        for team in set(teams.values()):
            own = {dag_id for dag_id, of in teams.items() if of == team}
            found |= manager.filter_authorized_dag_ids(dag_ids=own, user=self.user, method="GET", team_name=team)
        # Airflow cannot name the team of a DAG that was deleted.
        unknown = set(dag_ids) - set(teams)
        return frozenset(found | unknown if unknown and self.may_change_hosts else found)

    def may_edit(self, dag_ids: Collection[str]) -> frozenset[str]:
        """Return those of the DAGs whose runs the user may edit."""
        if missing := set(dag_ids) - set(self._may_edit):
            teams = self.teams(missing)
            for dag_id in missing:
                self._may_edit[dag_id] = get_auth_manager().is_authorized_dag(
                    method="PUT",
                    access_entity=DagAccessEntity.RUN,
                    details=DagDetails(id=dag_id, team_name=teams.get(dag_id)),
                    user=self.user,
                ) and (dag_id in teams or self.may_change_hosts)
        return frozenset(dag_id for dag_id in dag_ids if self._may_edit[dag_id])

    @cached_property
    def may_change_hosts(self) -> bool:
        """True if the user may change hosts, slots, pools and priorities."""
        return bool(
            get_auth_manager().is_authorized_connection(method="PUT", details=ConnectionDetails(), user=self.user)
        )

    def may_trigger(self, dag_id: str) -> bool:
        """Return whether the user may trigger a DAG, as Airflow's own route for it decides."""
        return bool(
            get_auth_manager().is_authorized_dag(
                method="POST",
                access_entity=DagAccessEntity.RUN,
                details=DagDetails(id=dag_id, team_name=self.teams({dag_id}).get(dag_id)),
                user=self.user,
            )
        )

    @cached_property
    def starter(self) -> DagState:
        """State of the DAG that starts experiments."""
        return dag_state(DAG_ID)

    @cached_property
    def operations_dag(self) -> DagState:
        """State of the DAG that reaches hosts."""
        return dag_state(OPERATIONS_DAG_ID)

    @cached_property
    def starting(self) -> Starting:
        """The DAG that starts experiments, and whether the user may trigger it now."""
        return starting(self.starter, may_trigger=self.may_trigger(DAG_ID))

    def require_read(self, dag_id: str, missing: str) -> None:
        """Check that the user may read a DAG.

        :param missing: the message of an id that does not exist, so that both look the same
        :raises NotFoundError: they may not
        """
        if not self.may_read(dag_id):
            raise NotFoundError(missing)

    def may_read_logs(self, dag_id: str) -> bool:
        """Return whether the user may read the task logs of a DAG, as Airflow's own route for them decides."""
        return bool(
            get_auth_manager().is_authorized_dag(
                method="GET",
                access_entity=DagAccessEntity.TASK_LOGS,
                details=DagDetails(id=dag_id, team_name=self.teams({dag_id}).get(dag_id)),
                user=self.user,
            )
        )

    def require_logs(self, dag_id: str) -> None:
        """Check that the user may read the task logs of a DAG.

        :raises ApiError: they may not
        """
        if not self.may_read_logs(dag_id):
            raise forbidden(f"read task logs of DAG '{dag_id}'", "The permission to read its task logs is needed.")

    def require_edit(self, dag_id: str) -> None:
        """Check that the user may edit runs of a DAG.

        :raises ApiError: they may not
        """
        if not self.may_edit({dag_id}):
            raise forbidden(f"edit runs of DAG '{dag_id}'", "The permission to edit its DAG runs is needed.")

    def require_start(self) -> None:
        """Check that the user may start experiments now.

        :raises ApiError: they may not, or the DAG is missing or paused
        """
        if not self.may_trigger(DAG_ID):
            raise forbidden(f"trigger the DAG '{DAG_ID}'", "The permission to trigger this DAG is needed.")
        if self.starting.hint:
            raise ApiError(409, "conflict", self.starting.hint)

    def require_hosts(self) -> None:
        """Check that the user may change hosts.

        :raises ApiError: they may not
        """
        if not self.may_change_hosts:
            raise forbidden("change hosts, slots and priorities", "The permission to edit connections is needed.")


def _teams(dag_ids: Collection[str]) -> dict[str, str | None]:
    """Return the DAGs that Airflow knows, each with its team."""
    if not dag_ids:
        return {}
    wanted = sorted(dag_ids)
    with create_session() as session:
        known = session.scalars(sa.select(DagModel.dag_id).where(DagModel.dag_id.in_(wanted))).all()
        teams = DagModel.get_dag_id_to_team_name_mapping(wanted, session=session)
    return {dag_id: teams.get(dag_id) for dag_id in known}


def access_of(user: GetUserDep) -> Access:
    """Return the rights of the user of a request."""
    return Access(user)


AccessDep = Annotated[Access, Depends(access_of)]
#: Dependencies of every route.
EVERY_ROUTE: list[Callable[..., Any]] = [get_user, requires_access_view(AccessView.PLUGINS), refuse_cross_site]
