"""The store: one object for all persistent state, with a component per subject."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_provider_dtrain.errors import StoreError
from airflow_provider_dtrain.store.attempts import Attempts
from airflow_provider_dtrain.store.comments import CommentStore
from airflow_provider_dtrain.store.configs import Configs, Payloads, Templates
from airflow_provider_dtrain.store.curves import Curves
from airflow_provider_dtrain.store.database import schema, statements
from airflow_provider_dtrain.store.database.connections import (
    create_sqlite_file,
    file_system_of,
    is_pooled,
    make_engine,
    parse_url,
    utcnow,
)
from airflow_provider_dtrain.store.database.schema import drop, migrate
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.deletions import Deletions
from airflow_provider_dtrain.store.events import Events
from airflow_provider_dtrain.store.experiments import Experiments
from airflow_provider_dtrain.store.external_jobs import ExternalJobs
from airflow_provider_dtrain.store.failures import Failures
from airflow_provider_dtrain.store.gangs import Gangs
from airflow_provider_dtrain.store.garbage_collection import Retention
from airflow_provider_dtrain.store.host_days import HostDayRecords
from airflow_provider_dtrain.store.host_rates import HostRates
from airflow_provider_dtrain.store.hosts import Hosts
from airflow_provider_dtrain.store.labels import LabelStore
from airflow_provider_dtrain.store.log_copies import LogCopies
from airflow_provider_dtrain.store.maintenance import MaintenanceWindow
from airflow_provider_dtrain.store.meter import Meter
from airflow_provider_dtrain.store.metrics import Checkpoints, Metrics
from airflow_provider_dtrain.store.notifications import Notifications
from airflow_provider_dtrain.store.operations import Operations
from airflow_provider_dtrain.store.pages.cluster import ClusterPage
from airflow_provider_dtrain.store.pages.experiment_table import ExperimentTable
from airflow_provider_dtrain.store.pages.experiment_timeline import ExperimentTimeline
from airflow_provider_dtrain.store.pages.lookup import LookupPage
from airflow_provider_dtrain.store.pages.rung_page import RungPage
from airflow_provider_dtrain.store.pages.trial_table import TrialTable
from airflow_provider_dtrain.store.places import Places
from airflow_provider_dtrain.store.pools import Pools
from airflow_provider_dtrain.store.provenance import Provenance
from airflow_provider_dtrain.store.queue.control_requests import ControlRequests
from airflow_provider_dtrain.store.queue.explain import QueueView
from airflow_provider_dtrain.store.queue.requests import Queue
from airflow_provider_dtrain.store.records.trials import StoreCheck
from airflow_provider_dtrain.store.recovery import Recovery
from airflow_provider_dtrain.store.run_table.table import RunTable
from airflow_provider_dtrain.store.run_views import RunViews
from airflow_provider_dtrain.store.searches import Searches
from airflow_provider_dtrain.store.shards import Shards
from airflow_provider_dtrain.store.stragglers import Stragglers
from airflow_provider_dtrain.store.submissions import Submissions
from airflow_provider_dtrain.store.telemetry.telemetry import Telemetry
from airflow_provider_dtrain.store.timeline.timeline import Timeline
from airflow_provider_dtrain.store.trials import Trials
from airflow_provider_dtrain.store.usage import UsageRecords
from airflow_provider_dtrain.store.views import STORE_ID
from airflow_provider_dtrain.store.wakeup.watcher import Wakeup
from airflow_provider_dtrain.store.weights import Weights

__all__ = ["Store", "drop", "migrate"]


class Store:
    """The provider's persistent state, with one attribute per subject. Each method of these is one transaction.

    The store talks neither to hosts nor to Airflow. It is safe to use from several threads, from several processes,
    and after a fork.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], datetime] = utcnow, meter: Meter | None = None) -> None:
        #: Shared by all other attributes.
        self.db = db = Database(engine, clock=clock, meter=meter)
        #: Configurations: templates, effective configurations, user code.
        self.templates = Templates(db)
        self.configs = Configs(db)
        self.payloads = Payloads(db)
        #: What users of the API may use in the DAG runs that they requested.
        self.submissions = Submissions(db)
        #: Machines and their slots.
        self.pools = Pools(db)
        self.hosts = Hosts(db)
        self.host_rates = HostRates(db)
        #: Work: experiments, the searches that plan their trials, trials, and launches of these.
        self.experiments = Experiments(db)
        self.searches = Searches(db)
        self.trials = Trials(db)
        self.attempts = Attempts(db)
        #: Slots: requests and passes, their explanation, held gangs, and the wake-up of waiters.
        self.wakeup = Wakeup(db)
        self.queue = Queue(db, self.wakeup)
        self.queue_view = QueueView(db)
        self.gangs = Gangs(db)
        self.external_jobs = ExternalJobs(db)
        #: Requests of users to followers.
        self.control = ControlRequests(db)
        #: Reports of hosts.
        self.events = Events(db)
        self.metrics = Metrics(db)
        self.checkpoints = Checkpoints(db)
        self.weights = Weights(db)
        self.shards = Shards(db)
        self.telemetry = Telemetry(db)
        self.stragglers = Stragglers(db)
        self.usage = UsageRecords(db)
        self.host_days = HostDayRecords(db)
        #: Everything that happened to a trial.
        self.timeline = Timeline(db)
        #: Pages: rows of several subjects by a fixed number of queries, and the texts that users add.
        self.cluster_page = ClusterPage(db)
        self.experiment_table = ExperimentTable(db)
        self.trial_table = TrialTable(db)
        self.experiment_timeline = ExperimentTimeline(db)
        self.rung_page = RungPage(db)
        self.run_table = RunTable(db)
        self.run_views = RunViews(db)
        self.curves = Curves(db)
        self.lookup = LookupPage(db)
        self.labels = LabelStore(db)
        self.places = Places(db)
        self.deletions = Deletions(db)
        self.comments = CommentStore(db)
        self.provenance = Provenance(db)
        self.failures = Failures(db)
        #: Marks of the notifications that were sent.
        self.notifications = Notifications(db)
        #: Work on hosts that users request through the API.
        self.operations = Operations(db)
        #: Complete logs that operations have copied from hosts.
        self.log_copies = LogCopies(db)
        #: Upkeep.
        self.recovery = Recovery(db)
        self.maintenance = MaintenanceWindow(db)
        self.retention = Retention(db)
        #: Random identity of the store, part of the names of its runs.
        self.store_id = self._store_id()

    @classmethod
    def open(cls, url: str, *, clock: Callable[[], datetime] = utcnow, meter: Meter | None = None) -> Store:
        """Return the store at ``url``. A SQLite store is created and migrated when needed.

        :param url: ``sqlite:////absolute/path`` or ``postgresql+psycopg://...``
        :param clock: returns the current time as aware UTC
        :param meter: receives metrics; None = none are emitted
        :raises StoreNotMigratedError: PostgreSQL without the schema of this version, or a schema that it does not know
        :raises StoreError: the URL is wrong, the driver is missing, or the database cannot be reached
        """
        parsed = parse_url(url)
        is_sqlite = parsed.get_backend_name() == "sqlite"
        if is_sqlite and not Path(str(parsed.database)).exists():
            create_sqlite_file(Path(str(parsed.database)))
        engine = make_engine(parsed)
        try:
            if is_sqlite and schema.revision(engine) != schema.HEAD:
                schema.upgrade(engine)
            elif not is_sqlite:
                schema.require_current(engine)
            return cls(engine, clock=clock, meter=meter)
        except BaseException:
            engine.dispose()
            raise

    def close(self) -> None:
        """Close all connections."""
        self.wakeup.close()
        self.db.engine.dispose()

    @reads
    def _store_id(self, conn: Connection) -> str:
        row = statements.first(conn, STORE_ID, {})
        if row is None:
            raise StoreError("The store has no identity: its migration was interrupted. Run: airflow dtrain db migrate")
        return str(row.value)

    def check(self) -> list[StoreCheck]:
        """Return the results of all health checks of the store, in words for an operator."""
        found = schema.revision(self.db.engine)
        message = f"{found}, this version needs {schema.HEAD}"
        checks = [StoreCheck(name="schema", ok=found == schema.HEAD, message=message)]
        return checks + (self._check_sqlite() if self.db.engine.dialect.name == "sqlite" else self._check_postgresql())

    @reads
    def _check_sqlite(self, conn: Connection) -> list[StoreCheck]:
        path = Path(str(self.db.engine.url.database)).resolve()
        mode = stat.S_IMODE(os.stat(path).st_mode)
        open_to_all = f"; only its owner may read it: chmod 600 {path}" if mode & 0o077 else ""
        kind = file_system_of(path)
        journal = str(conn.exec_driver_sql("PRAGMA journal_mode").scalar())
        health = str(conn.exec_driver_sql("PRAGMA quick_check").scalar())
        return [
            StoreCheck(name="mode", ok=not open_to_all, message=f"{mode:04o}" + open_to_all),
            StoreCheck(name="file system", ok=kind not in schema.NETWORK_FILE_SYSTEMS, message=kind),
            StoreCheck(name="journal", ok=journal == "wal", message=journal),
            StoreCheck(name="integrity", ok=health == "ok", message=health),
        ]

    @reads
    def _check_postgresql(self, conn: Connection) -> list[StoreCheck]:
        commit = str(conn.scalar(sa.text("SHOW synchronous_commit")))
        version = str(conn.scalar(sa.text("SHOW server_version")))
        message = f"{commit}; with off, a crash can undo a grant"
        through = "through a pooler; the store works, a direct connection costs less" if is_pooled(conn) else "direct"
        return [
            StoreCheck(name="server", ok=True, message=version),
            StoreCheck(name="connection", ok=True, message=through),
            StoreCheck(name="synchronous_commit", ok=commit not in {"off", "local"}, message=message),
        ]
