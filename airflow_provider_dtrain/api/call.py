"""One request: its user, and the store that it reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request

from airflow_provider_dtrain.api.execution import Workers, prepared, unless_known
from airflow_provider_dtrain.api.importances import Importances
from airflow_provider_dtrain.api.kept import Kept
from airflow_provider_dtrain.api.names import Names
from airflow_provider_dtrain.api.samples import Samples
from airflow_provider_dtrain.api.security import READING, Access, AccessDep
from airflow_provider_dtrain.store.records.pages import Dags, PageVersion
from airflow_provider_dtrain.store.records.trials import TrialKey

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.store import Store

#: Longest time for which an answer is kept that also depends on the time, such as the expected end of an experiment.
TIMES_S = 60


class Call:
    """One request of a page. Its attributes may block, so only handlers use them."""

    def __init__(self, request: Request, access: Access) -> None:
        self.request = request
        self.access = access

    @property
    def workers(self) -> Workers:
        """The threads of the application."""
        found: Workers = self.request.app.state.workers
        return found

    async def run(self, work: Callable[[], Any], deadline_s: float, *, is_write: bool | None = None) -> Any:
        """Return the result of blocking work, in a thread of this user.

        :param is_write: the work may still be done after its deadline; None: by the method of the request
        :raises ApiError: the deadline passed, or the threads of the user are late already
        """
        is_write = self.is_write if is_write is None else is_write
        return await self.workers.run(work, user=self.access.name, deadline_s=deadline_s, is_write=is_write)

    async def compute(self, work: Callable[[], Any], deadline_s: float, *, is_write: bool | None = None) -> Any:
        """Return the result of work that takes much CPU time, in threads of their own, one at a time per user."""
        workers: Workers = self.request.app.state.computing
        is_write = self.is_write if is_write is None else is_write
        return await workers.run(work, user=self.access.name, deadline_s=deadline_s, is_write=is_write)

    async def read_file(self, work: Callable[[], Any], deadline_s: float) -> Any:
        """Return the result of work that reads files, in threads of their own."""
        workers: Workers = self.request.app.state.downloads
        return await workers.run(work, user=self.access.name, deadline_s=deadline_s, is_write=False)

    @property
    def is_write(self) -> bool:
        """True if the request changes something."""
        return self.request.method not in READING

    @cached_property
    def hook(self) -> DtrainHook:
        """Options and store of this process."""
        found: DtrainHook = self.request.app.state.make_hook()
        return found

    @property
    def store(self) -> Store:
        """The provider's store."""
        return self.hook.store

    @cached_property
    def dags(self) -> Dags:
        """The DAGs of the store that the user may read, None for all of them."""
        return self.access.readable(self.store)

    @property
    def names(self) -> Names:
        """Names of trials."""
        found: Names = self.request.app.state.names
        return found

    @property
    def importances(self) -> Importances:
        """Importance of hyperparameters."""
        found: Importances = self.request.app.state.importances
        return found

    @property
    def samples(self) -> Samples:
        """Hyperparameters of trials that are kept."""
        found: Samples = self.request.app.state.samples
        return found

    @property
    def kept(self) -> Kept:
        """Rendered answers and parts of answers that are kept."""
        found: Kept = self.request.app.state.kept
        return found

    def log_action(self, event: str, key: TrialKey | None, **extra: object) -> None:
        """Write an entry of Airflow's audit log for an action of the user."""
        write: Callable[..., None] = self.request.app.state.log_action
        write(event, self.access.name, key, **extra)

    def page(self, version: PageVersion, make: Callable[[], Any]) -> Any:
        """Return the answer of a version of a page with rows of several DAGs.

        :param make: returns the answer, see :meth:`answer`
        :raises NotModifiedError: the client has the answer of this version
        """
        own = version.dags if self.dags is None else version.dags & self.dags
        rights = (None if self.dags is None else sorted(self.dags), sorted(self.access.may_edit(own)))
        period = self.store.db.now().timestamp() // TIMES_S
        return self.answer(version.digest, rights, period, make=make)

    def answer(self, *version: object, make: Callable[[], Any]) -> Any:
        """Return the answer of a version of its data, which all users with the same rights share.

        :param version: everything that the answer depends on, with the rights of the user
        :param make: returns the answer: a model, plain records with the fields of one, or its JSON
        :raises NotModifiedError: the client has the answer of this version
        """
        tag = unless_known(self.request, self.store.store_id, *version)
        return prepared(self.request, self.kept, tag, make)


async def _call(request: Request, access: AccessDep) -> Call:
    return Call(request, access)


CallDep = Annotated[Call, Depends(_call)]
