"""Hook for the store and the hosts, for operators, triggers, the CLI and user code."""

from __future__ import annotations

import asyncio
import os
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_provider_dtrain.core.lifecycle.timing import COMMAND_TIMEOUT_S, CONNECT_TIMEOUT_S
from airflow_provider_dtrain.errors import ConflictError, HostProtocolError, NotFoundError
from airflow_provider_dtrain.hooks.hosts import LOCAL_HOST, LOCAL_POOL, host_record_from_facts
from airflow_provider_dtrain.hooks.meter import meter
from airflow_provider_dtrain.hooks.schedulers import ascheduler, job_channel, scheduler
from airflow_provider_dtrain.hooks.settings import Settings, as_server_process, settings
from airflow_provider_dtrain.hosts.transport.registry import needs_connection, transport_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_dtrain.core.external_jobs import ExternalJob
    from airflow_provider_dtrain.hosts.channel.link import HostLink
    from airflow_provider_dtrain.hosts.channel.link_pool import HostAddress, Links
    from airflow_provider_dtrain.hosts.schedulers.base import ExternalScheduler
    from airflow_provider_dtrain.hosts.transport.base import Transport
    from airflow_provider_dtrain.store.records.trials import HostRecord
    from airflow_provider_dtrain.store.store import Store

__all__ = ["DtrainHook", "Settings", "as_server_process", "settings"]


class _ProcessState:
    """State that all hooks of one process share: a store per URL, and one link per host."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.stores: dict[str, Store] = {}
        self.links: Links | None = None


_process = _ProcessState()


def _shared() -> _ProcessState:
    """Return this process's state. A forked child starts without its parent's connections."""
    global _process
    if _process.pid != os.getpid():
        _process = _ProcessState()
    return _process


class DtrainHook(BaseHook):
    """Store and hosts as configured in ``[dtrain]``.

    Every host except ``local`` is an ordinary Airflow connection of type ``ssh``.
    """

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__()
        self.settings = options or settings()

    @cached_property
    def store(self) -> Store:
        """The provider's store, opened once per process."""
        from airflow_provider_dtrain.store.store import Store

        shared = _shared()
        url = self.settings.sql_alchemy_conn
        with shared.lock:
            if url not in shared.stores:
                shared.stores[url] = Store.open(url, meter=meter())
            return shared.stores[url]

    @property
    def store_url(self) -> str:
        """The URL of the store, without its password.

        :raises StoreError: it is not the URL of a store
        """
        from airflow_provider_dtrain.store.database.connections import parse_url

        return parse_url(self.settings.sql_alchemy_conn).render_as_string(hide_password=True)

    def migrate_store(self) -> str:
        """Create the store, or migrate it to the schema of this version, and return the schema's revision."""
        from airflow_provider_dtrain.store.store import migrate

        return migrate(self.settings.sql_alchemy_conn)

    def drop_store(self, *, force: bool) -> list[str]:
        """Remove the store, and return the names of its tables or files.

        :param force: also while gangs hold slots
        :raises NotNowError: gangs hold or want slots
        """
        from airflow_provider_dtrain.store.store import drop

        return drop(self.settings.sql_alchemy_conn, force=force)

    @property
    def links(self) -> Links:
        """The open channels of this process."""
        from airflow_provider_dtrain.hosts.channel.link_pool import Links

        shared = _shared()
        with shared.lock:
            if shared.links is None:
                shared.links = Links()
            return shared.links

    def address(self, record: HostRecord, connection: Any = None) -> HostAddress:
        """Return the address of a registered host.

        :param connection: the host's connection, if it was fetched already (triggers fetch it with
            ``await``); None = look it up
        """
        if record.external_job_id is not None:
            job = self.store.external_jobs.get(record.external_job_id)
            return self.node_address(record, job, scheduler(self.store.pools.get(record.pool)))
        if connection is None and needs_connection(record.conn_id):
            connection = self._connection(record)
        return self._address(record, lambda: transport_to(record.name, connection, record.host_key))

    def node_address(self, record: HostRecord, job: ExternalJob, of_pool: ExternalScheduler) -> HostAddress:
        """Return the address of a node of an external job."""
        node = record.node or 0

        def connect() -> Transport:
            return job_channel(self.store.store_id, job, of_pool).transport(record.name, node)

        return self._address(record, connect)

    def _address(self, record: HostRecord, make_transport: Callable[[], Transport]) -> HostAddress:
        from airflow_provider_dtrain.hosts.channel.link_pool import HostAddress

        return HostAddress(
            name=record.name,
            remote_dir=record.remote_dir,
            state_dir=record.state_dir,
            lock_dir=record.lock_dir or self.settings.lock_dir or None,
            python=record.python,
            make_transport=make_transport,
        )

    async def aaddress(self, record: HostRecord) -> HostAddress:
        """Return the address of a registered host without blocking the event loop."""
        if record.external_job_id is not None:
            store = self.store
            job = await asyncio.to_thread(store.external_jobs.get, record.external_job_id)
            pool = await asyncio.to_thread(store.pools.get, record.pool)
            return self.node_address(record, job, await ascheduler(pool))
        if not needs_connection(record.conn_id):
            return self.address(record)
        try:
            connection = await self.aget_connection(record.conn_id)
        except Exception as error:
            raise _no_connection(record, error) from error
        return self.address(record, connection)

    def link(
        self, record: HostRecord, address: HostAddress | None = None, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> HostLink:
        """Return the open channel to a registered host, and connect if there is none. Blocks.

        :param timeout_s: time limit for connecting, in seconds
        :raises HostError: the host cannot be reached, or another machine answers
        """
        link = self.links.get(address or self.address(record), timeout_s=timeout_s)
        if not _is_registered(record, link):
            self.links.drop(record.name)
            raise _other_machine(record, link)
        return link

    def open_link(self, record: HostRecord) -> HostLink | None:
        """Return the open channel to a registered host, None if there is none. Never blocks.

        The host's connection is not looked up, because a triggerer gets connections one after the other.
        """

        def unused() -> Transport:
            raise AssertionError("An open channel has its transport.")

        link = self.links.current(self._address(record, unused))
        return link if link is not None and _is_registered(record, link) else None

    def ensure_local(self) -> None:
        """Add this machine as host ``local`` if the store has no host and no pool of an external scheduler."""
        if self.store.hosts.exist() or any(pool.is_external for pool in self.store.pools.list()):
            return
        from airflow_provider_dtrain.hosts.channel.link_pool import HostAddress

        options = self.settings
        address = HostAddress(
            name=LOCAL_HOST,
            remote_dir=options.remote_dir,
            state_dir=None,
            lock_dir=options.lock_dir or None,
            python=options.local_python,
            make_transport=lambda: transport_to(LOCAL_HOST, None, None),
        )
        link = self.links.get(address)
        facts = link.call("probe", timeout_s=COMMAND_TIMEOUT_S).result(COMMAND_TIMEOUT_S)
        record = host_record_from_facts(
            LOCAL_HOST,
            pool=LOCAL_POOL,
            conn_id=None,
            facts=facts,
            hello=link.hello,
            remote_dir=options.remote_dir,
            python=options.local_python,
        )
        try:
            self.store.hosts.ensure_local(record)
        except ConflictError:
            self.log.debug("Host 'local' was added by another process first")

    def _connection(self, record: HostRecord) -> Any:
        try:
            return self.get_connection(str(record.conn_id))
        except Exception as error:
            raise _no_connection(record, error) from error


def _is_registered(record: HostRecord, link: HostLink) -> bool:
    """Return whether the machine that answers is the one that was registered."""
    return not record.machine_id or link.hello.machine_id == record.machine_id


def _other_machine(record: HostRecord, link: HostLink) -> HostProtocolError:
    message = f"Host '{record.name}' answers as machine {link.hello.machine_id}, but it is registered as "
    if link.hello.boot_id == record.boot_id:
        message += (
            f"{record.machine_id}, in the same boot: its /etc/machine-id was changed. Restore it there (echo "
            f"{record.machine_id} > /etc/machine-id), or end its runs, then"
        )
    else:
        message += f"{record.machine_id}. If the machine was replaced,"
    again = f"remove the host and add it again: airflow dtrain hosts remove {record.name}"
    return HostProtocolError(record.name, f"{message} {again}")


def _no_connection(record: HostRecord, error: Exception) -> NotFoundError:
    return NotFoundError(
        f"Host '{record.name}' needs Airflow connection '{record.conn_id}', which cannot be fetched: "
        f"{error}. Add it with: airflow connections add {record.conn_id} --conn-type ssh ..."
    )
