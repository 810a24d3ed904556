"""Authentication and authorization of every route, by Airflow's own auth manager.

This module imports modules of Airflow that Airflow does not document. If one of them is missing, the application
refuses all requests: see ``app.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from functools import cached_property
from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import (
    ConnectionDetails,
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import bearer_scheme, get_user, oauth2_scheme
from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials

from airflow_provider_dtrain.api.airflow_facts import AirflowFacts
from airflow_provider_dtrain.api.errors import ApiError, forbidden
from airflow_provider_dtrain.api.init_dags import DAG_ID, OPERATIONS_DAG_ID, DagState, starting
from airflow_provider_dtrain.api.models.me import Starting
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store.records.pages import Dags
from airflow_provider_dtrain.store.records.trials import HostRecord
from airflow_provider_dtrain.store.store import Store

#: Header that a page of another site cannot add to a request without permission of this server.
GUARD_HEADER = "X-Dtrain"
READING = ("GET", "HEAD", "OPTIONS")
#: Attribute of the state of a request with the rights of its user.
ADMITTED = "dtrain_access"


class Rule(Enum):
    """Right that a route needs besides access to the plugin, with a sentence for the documentation."""

    #: Rows of DAGs that the user may not read are left out.
    READ = "read"
    READ_LOGS = "read task logs"
    READ_CODE = "read the code of a DAG"
    FETCH = "read, from hosts"
    EDIT_DAG = "edit a DAG run"
    CHANGE_HOSTS = "edit connections"
    EXEC = "edit a DAG run and connections"
    START = "trigger the DAG that starts experiments"
    #: Views of other users do not exist for a change.
    OWN_VIEWS = "change own views"

    @property
    def meaning(self) -> str:
        """The permission of Airflow behind the rule, in words."""
        return {
            Rule.READ: "access to the plugin; rows and ids of DAGs that the user cannot read do not exist for them",
            Rule.READ_LOGS: "also: reading task logs of the DAG that the trial belongs to",
            Rule.READ_CODE: "also: reading the code of the DAG that the trial belongs to",
            Rule.FETCH: "as for reading; a follower or a run of a DAG reads from hosts",
            Rule.EDIT_DAG: "also: editing DAG runs of the DAG that the trial or experiment belongs to",
            Rule.CHANGE_HOSTS: "also: editing the connections of the hosts",
            Rule.EXEC: "also: editing the connections of the trial's hosts, and runs of the DAG that it belongs to",
            Rule.START: "also: triggering the DAG that starts experiments",
            Rule.OWN_VIEWS: "access to the plugin; a user changes only views that they saved themselves",
        }[self]


def guarded(rule: Rule) -> dict[str, Any]:
    """Return the argument of a route that declares its rule. The tests read it, and so does the documentation."""
    return {"openapi_extra": {"x-dtrain-rule": rule.value}}


async def user_of(request: Request) -> Any:
    """Return the user of a request, as Airflow's own routes know them.

    :raises fastapi.HTTPException: there is no valid login
    """
    return await get_user(request, None, await bearer_scheme(request))


def refuse_cross_site(request: Request) -> None:
    """Refuse a change that a page of another site may have sent with the user's cookie.

    A request with a bearer token carries no ambient credential: Airflow ignores the cookie then.

    :raises ApiError: the request changes something, and has neither the header nor a token
    """
    scheme = request.headers.get("authorization", "").partition(" ")[0]
    if request.method in READING or scheme.lower() == "bearer":
        return
    if request.headers.get(GUARD_HEADER) != "1":
        raise ApiError(
            403, "cross_site", f"The request changes something, but lacks the header {GUARD_HEADER}: 1.",
            "Send the header, or authenticate with a bearer token instead of the cookie.",
        )  # fmt: skip


class Access:
    """The user of one request and their rights. Rights are looked up once per request.

    :param manager: Airflow's auth manager
    :param facts: facts of Airflow's metadata that rights depend on
    """

    def __init__(self, user: Any, manager: Any, facts: AirflowFacts) -> None:
        self.user, self.manager, self.facts = user, manager, facts
        self._may_edit: dict[str, bool] = {}
        self._connections: dict[tuple[str, str | None, str | None], bool] = {}
        #: DAG -> its team, of the DAGs that this request asked for, and those of them that Airflow does not know.
        self._teams: dict[str, str | None] = {}
        self._unknown: set[str] = set()

    def teams(self, dag_ids: Collection[str]) -> dict[str, str | None]:
        """Return the DAGs that Airflow knows, each with its team. Each DAG is looked up once per request."""
        if missing := set(dag_ids) - self._teams.keys() - self._unknown:
            found = self.facts.teams_of_dags(missing)
            self._teams |= found
            self._unknown |= missing - found.keys()
        return {dag_id: self._teams[dag_id] for dag_id in dag_ids if dag_id in self._teams}

    @cached_property
    def name(self) -> str:
        """The user's name, for audit logs."""
        return str(self.user.get_name())

    @cached_property
    def user_id(self) -> str:
        """Airflow's id of the user, which no later user gets."""
        return str(self.user.get_id())

    def readable(self, store: Store) -> Dags:
        """Return the DAGs of the store that the user may read, None for all of them."""
        known = store.queue_view.dags()
        readable = self._readable(known)
        return None if readable == known else readable

    def may_read(self, dag_id: str) -> bool:
        """Return whether the user may read a DAG."""
        return dag_id in self._readable({dag_id})

    def _readable(self, dag_ids: Collection[str]) -> frozenset[str]:
        found: set[str] = set()
        teams = self.teams(dag_ids)
        for team in set(teams.values()):
            own = {dag_id for dag_id, of in teams.items() if of == team}
            found |= self.manager.filter_authorized_dag_ids(dag_ids=own, user=self.user, method="GET", team_name=team)
        # Airflow cannot name the team of a DAG that was deleted.
        unknown = set(dag_ids) - set(teams)
        return frozenset(found | unknown if unknown and self.may_change_hosts else found)

    def may_edit(self, dag_ids: Collection[str]) -> frozenset[str]:
        """Return those of the DAGs whose runs the user may edit."""
        if missing := set(dag_ids) - set(self._may_edit):
            teams = self.teams(missing)
            for dag_id in missing:
                is_known = dag_id in teams or self.may_change_hosts
                self._may_edit[dag_id] = is_known and self._may_dag("PUT", DagAccessEntity.RUN, dag_id)
        return frozenset(dag_id for dag_id in dag_ids if self._may_edit[dag_id])

    def _may_connections(self, method: str, conn_id: str | None, team: str | None) -> bool:
        key = (method, conn_id, team)
        if key not in self._connections:
            self._connections[key] = bool(
                self.manager.is_authorized_connection(
                    method=method, details=ConnectionDetails(conn_id=conn_id, team_name=team), user=self.user
                )
            )
        return self._connections[key]

    def may_use_connection(self, conn_id: str) -> bool:
        """Return whether the user may read a connection, as Airflow's own route for it decides."""
        team = self.facts.teams_of_connections([conn_id]).get(conn_id)
        return self._may_connections("GET", conn_id, team)

    def may_change(self, hosts: Sequence[HostRecord]) -> set[str]:
        """Return the names of those hosts that the user may change: whose connections they may edit.

        The right is asked for with the team of the connection. A host without a connection has no team.
        """
        own = {host.conn_id for host in hosts if host.conn_id is not None}
        teams = self.facts.teams_of_connections(own)
        of_team: dict[str | None, set[str]] = {}
        for conn_id in own:
            of_team.setdefault(teams.get(conn_id), set()).add(conn_id)
        may: set[str | None] = set()
        for team, conn_ids in of_team.items():
            may |= self.manager.filter_authorized_connections(
                conn_ids=conn_ids, user=self.user, method="PUT", team_name=team
            )
        if len(own) < len(hosts) and self._may_connections("PUT", None, None):
            may.add(None)
        return {host.name for host in hosts if host.conn_id in may}

    @cached_property
    def may_change_hosts(self) -> bool:
        """True if the user may edit the connections of all teams, and so change every host."""
        return all(self._may_connections("PUT", None, team) for team in (None, *sorted(self.facts.teams())))

    @cached_property
    def may_change_some_hosts(self) -> bool:
        """True if the user may edit the connections of a team, or those without a team."""
        return any(self._may_connections("PUT", None, team) for team in (None, *sorted(self.facts.teams())))

    def may_change_queue(self, dag_id: str) -> bool:
        """Return whether the user may change the priorities of a DAG: edit the connections of its team."""
        return self._may_connections("PUT", None, self.teams({dag_id}).get(dag_id))

    def may_trigger(self, dag_id: str) -> bool:
        """Return whether the user may trigger a DAG, as Airflow's own route for it decides."""
        return self._may_dag("POST", DagAccessEntity.RUN, dag_id)

    def may_read_code(self, dag_id: str) -> bool:
        """Return whether the user may read the code of a DAG, as Airflow's own route for it decides."""
        return self.may_read(dag_id) and self._may_dag("GET", DagAccessEntity.CODE, dag_id)

    def _may_dag(self, method: str, entity: DagAccessEntity, dag_id: str) -> bool:
        details = DagDetails(id=dag_id, team_name=self.teams({dag_id}).get(dag_id))
        return bool(
            self.manager.is_authorized_dag(method=method, access_entity=entity, details=details, user=self.user)
        )

    @cached_property
    def starter(self) -> DagState:
        """State of the DAG that starts experiments."""
        return self.facts.dag(DAG_ID)

    @cached_property
    def operations_dag(self) -> DagState:
        """State of the DAG that reaches hosts."""
        return self.facts.dag(OPERATIONS_DAG_ID)

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
        return self._may_dag("GET", DagAccessEntity.TASK_LOGS, dag_id)

    def require_logs(self, dag_id: str) -> None:
        """Check that the user may read the task logs of a DAG.

        :raises ApiError: they may not
        """
        if not self.may_read_logs(dag_id):
            raise forbidden(f"read task logs of DAG '{dag_id}'", "The permission to read its task logs is needed.")

    def require_code(self, dag_id: str) -> None:
        """Check that the user may read the code of a DAG.

        :raises ApiError: they may not
        """
        if not self.may_read_code(dag_id):
            raise forbidden(f"read the code of DAG '{dag_id}'", "The permission to read the code of the DAG is needed.")

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

    def require_hosts(self, hosts: Sequence[HostRecord]) -> None:
        """Check that the user may change some hosts.

        :raises ApiError: they may not
        """
        may = self.may_change(hosts)
        for host in hosts:
            if host.name not in may:
                raise forbidden(f"change host '{host.name}'", "The permission to edit its connection is needed.")

    def require_all_hosts(self) -> None:
        """Check that the user may change every host.

        :raises ApiError: they may not
        """
        if not self.may_change_hosts:
            raise forbidden("change hosts, slots and priorities", _EDIT_CONNECTIONS)

    def require_some_hosts(self) -> None:
        """Check that the user may change a host.

        :raises ApiError: they may not
        """
        if not self.may_change_some_hosts:
            raise forbidden("change hosts, slots and priorities", _EDIT_CONNECTIONS)

    def require_queue(self, dag_id: str) -> None:
        """Check that the user may change the priorities of a DAG.

        :raises ApiError: they may not
        """
        if not self.may_change_queue(dag_id):
            raise forbidden("change hosts, slots and priorities", _EDIT_CONNECTIONS)


_EDIT_CONNECTIONS = "The permission to edit connections is needed."


async def signed_in(
    request: Request,
    _oauth: Annotated[str | None, Depends(oauth2_scheme)],
    _bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer_scheme)],
) -> Access:
    """Return the rights of a request that was admitted. The schemes are parameters for the OpenAPI document.

    :raises fastapi.HTTPException: it was not
    """
    access: Access | None = getattr(request.state, ADMITTED, None)
    if access is None:
        raise HTTPException(401, "Not authenticated")
    return access


AccessDep = Annotated[Access, Depends(signed_in)]
