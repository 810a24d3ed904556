"""Tables of the store. A change of them needs a migration."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from airflow_provider_dtrain.core.external_jobs import JobPhase
from airflow_provider_dtrain.core.lifecycle.states import (
    AllocationState,
    AttemptState,
    ExperimentState,
    HostState,
    TrialState,
)
from airflow_provider_dtrain.core.projects import DEFAULT_PROJECT, PROJECT_CHARS
from airflow_provider_dtrain.store.database.connections import StateName, UtcDateTime

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: SQLite generates ids only for plain INTEGER. Without ``sqlite_autoincrement``, it gives the ids of the last rows that
#: were deleted to new ones, and files on hosts, checkpoints and audit rows have ids of trials in their names.
Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Json = sa.JSON(none_as_null=True)
Name = sa.String(63)
AirflowId = sa.String(250)


def _id(name: str = "id") -> sa.Column[int]:
    return sa.Column(name, Id, primary_key=True, autoincrement=True)


def _ref(name: str, target: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, Id, sa.ForeignKey(target), nullable=nullable)


def _int(name: str, default: int = 0) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False, default=default)


def _seconds(name: str, default: float = 0.0) -> sa.Column[float]:
    return sa.Column(name, sa.Float, nullable=False, default=default, server_default=str(default))


def _flag(name: str, default: bool = False) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False, default=default)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, default="")


def _time(name: str, *, nullable: bool = True) -> sa.Column[datetime]:
    return sa.Column(name, UtcDateTime(), nullable=nullable)


#: ``store_id``, by which hosts identify this store, and other settings of the whole store.
meta = sa.Table("meta", metadata, sa.Column("key", Name, primary_key=True), _text("value"))

#: ``token``, the last fencing token in use.
counters = sa.Table(
    "counters", metadata, sa.Column("name", Name, primary_key=True), sa.Column("value", sa.BigInteger, nullable=False)
)

audit = sa.Table(
    "audit",
    metadata,
    _id(),
    _time("at", nullable=False),
    _text("by"),
    sa.Column("action", Name, nullable=False),
    _text("subject"),
    _text("details"),
)

templates = sa.Table(
    "templates",
    metadata,
    sa.Column("name", Name, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    _text("text"),
    _text("set_by"),
    _time("set_at", nullable=False),
    _flag("removed"),
)

configs = sa.Table(
    "configs",
    metadata,
    _id("config_id"),
    sa.Column("digest", sa.String(64), nullable=False, unique=True),
    sa.Column("document", Json, nullable=False),
    sa.Column("origins", Json, nullable=False),
    sa.Column("template", Name),
    sa.Column("template_version", sa.Integer),
    sa.Column("secrets", sa.LargeBinary),
    _time("created_at", nullable=False),
)

payloads = sa.Table(
    "payloads",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
    _time("created_at", nullable=False),
)

#: Lists that many trials share, by their digest: packages of an interpreter (name -> version), and, by the digest of
#: its archive, the files of user code (path -> digest). They stay when the code is removed.
manifests = sa.Table(
    "manifests",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("content", Json, nullable=False),
)

#: Users who have sent user code, by Airflow's ids.
payload_senders = sa.Table(
    "payload_senders",
    metadata,
    sa.Column("digest", sa.String(64), sa.ForeignKey("payloads.digest", ondelete="CASCADE"), primary_key=True),
    sa.Column("user_id", AirflowId, primary_key=True),
)

submissions = sa.Table(
    "submissions",
    metadata,
    sa.Column("dag_id", AirflowId, primary_key=True),
    sa.Column("run_id", AirflowId, primary_key=True),
    _ref("config_id", "configs.config_id"),
    # Old code is removed, and the record stays.
    sa.Column("payload", sa.String(64)),
    sa.Column("user_id", sa.Text),
    # The trial that the DAG run runs again.
    sa.Column("reproduces", Id, index=True),
    # The experiment of which the DAG run is a fork.
    sa.Column("fork_of", Id),
    # State of the code's folder in git, as the user's machine has it; None: the code is not sent from there.
    sa.Column("git", Json),
    _time("created_at", nullable=False),
)

pools = sa.Table(
    "pools",
    metadata,
    sa.Column("name", Name, primary_key=True),
    sa.Column("slot_type", sa.String(8), nullable=False),
    sa.Column("fit", sa.String(8), nullable=False, default="best"),
    _flag("allow_heterogeneous"),
    _int("reservations", 2),
    sa.Column("preemption", sa.String(8), nullable=False, default="priority"),
    _seconds("max_wait_s", 100_800.0),
    _seconds("protected_share", 0.49),
    _seconds("fresh_s", 18_000.0),
    _seconds("young_s", 61_200.0),
    _seconds("min_run_s", 1200.0),
    sa.Column("defaults", Json, nullable=False, default=dict),
    sa.Column("containers", Json, nullable=False, default=dict),
    # Check of the hosts of a gang before its launch, unless it was made within this time.
    sa.Column("host_check", sa.String(8), nullable=False, default="off", server_default="off"),
    _seconds("host_check_every_s", 86_400.0),
    # Who gives out its slots: the queue of this store, or the scheduler of this name with these options.
    sa.Column("backend", sa.String(16), nullable=False, default="hosts", server_default="hosts"),
    sa.Column("scheduler", Json, nullable=False, default=dict),
    # Partitions and limits of an external scheduler as last requested, see core/scheduler_facts.py.
    sa.Column("scheduler_facts", Json),
    # The job states of an external scheduler are asked for by one process at a time.
    _time("polled_at"),
    _time("polling_until"),
    _seconds("poll_every_s", 1.0),
    # A pass is due when the version has changed since the last pass, or at next_due_at.
    sa.Column("version", sa.BigInteger, nullable=False, default=1),
    sa.Column("passed_version", sa.BigInteger, nullable=False, default=0),
    _time("next_due_at"),
    _int("waiting"),
)

hosts = sa.Table(
    "hosts",
    metadata,
    sa.Column("name", Name, primary_key=True),
    sa.Column("pool", Name, sa.ForeignKey("pools.name"), nullable=False, index=True),
    sa.Column("slot_type", sa.String(8), nullable=False),
    _int("slot_count"),
    sa.Column("conn_id", AirflowId),
    sa.Column("address", sa.Text),
    _text("python"),
    _text("remote_dir"),
    sa.Column("state_dir", sa.Text),
    sa.Column("lock_dir", sa.Text),
    sa.Column("host_key", sa.Text),
    # The job of an external scheduler whose node this is, and the node's number there. It is removed with the job.
    _ref("external_job_id", "external_jobs.id", nullable=True),
    sa.Column("node", sa.Integer),
    # Name -> value, of the environment of its ranks.
    sa.Column("variables", Json),
    sa.Column("state", StateName(HostState), nullable=False),
    _text("state_reason"),
    _time("state_since"),
    # Evacuation: time at which no gang may be left on it, None = gangs may finish; and whether gangs that cannot resume
    # from a checkpoint are ended then.
    _time("drain_by"),
    sa.Column("drain_kills", sa.Boolean, nullable=False, default=False, server_default=sa.false()),
    sa.Column("facts", Json, nullable=False),
    _time("facts_at"),
    # Sentences of host checks that name it, one per line.
    sa.Column("findings", sa.Text, nullable=False, default="", server_default=""),
    # Time of the last claim to probe it because it did not answer.
    _time("probed_at"),
    sa.Column("machine_id", sa.String(128)),
    sa.Column("boot_id", sa.String(128)),
    sa.Column("pid_ns", sa.String(128)),
    sa.UniqueConstraint("machine_id", "boot_id", "pid_ns"),
)

#: States that hosts were in before their present one, which is in ``hosts``.
host_states = sa.Table(
    "host_states",
    metadata,
    _id(),
    sa.Column("host", Name, sa.ForeignKey("hosts.name", ondelete="CASCADE"), nullable=False),
    sa.Column("state", StateName(HostState), nullable=False),
    _text("reason"),
    _time("since", nullable=False),
    _time("until", nullable=False),
    sa.Index("ix_host_states_host", "host", "until"),
)

slots = sa.Table(
    "slots",
    metadata,
    sa.Column("host", Name, sa.ForeignKey("hosts.name", ondelete="CASCADE"), primary_key=True),
    sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("device", sa.Text),
    sa.Column("device_name", sa.Text),
    sa.Column("memory_bytes", sa.BigInteger),
    _flag("enabled", True),
    sa.Column("state", sa.String(16), nullable=False, default="ready"),
    # Reason why it is not ready, in words.
    sa.Column("note", sa.Text),
)

#: Results of host checks, see core/host_rates.py.
host_rates = sa.Table(
    "host_rates",
    metadata,
    _id(),
    sa.Column("host", Name, sa.ForeignKey("hosts.name", ondelete="CASCADE"), nullable=False),
    sa.Column("metric", sa.String(16), nullable=False),
    sa.Column("kind", sa.String(200), nullable=False),
    # None: it concerns the whole host.
    sa.Column("slot", sa.Integer),
    # Host to which a transfer went.
    sa.Column("peer", Name),
    sa.Column("value", sa.Float, nullable=False),
    sa.Column("spread", sa.Float, nullable=False),
    # Sentence that names ``host``, ``peer`` or ``both`` because of it.
    sa.Column("finding", sa.Text),
    sa.Column("names", sa.String(8)),
    _time("at", nullable=False),
    sa.Index("ix_host_rates_host", "host", "at"),
    sa.Index("ix_host_rates_kind", "metric", "kind", "at"),
)

experiments = sa.Table(
    "experiments",
    metadata,
    _id(),
    sa.Column("dag_id", AirflowId, nullable=False),
    sa.Column("run_id", AirflowId, nullable=False),
    sa.Column("name", sa.String(250), nullable=False),
    sa.Column("state", StateName(ExperimentState), nullable=False),
    _seconds("weight", 1.0),
    sa.Column("max_slots", sa.Integer),
    # Control request ``pause``, ``stop`` or ``kill`` for all its trials, including later ones.
    sa.Column("control_request", Name),
    sa.Column("requested_by", sa.Text),
    # Airflow's name of the user who triggered the DAG run, else the owner of the task.
    _text("owner"),
    sa.Column("project", sa.String(PROJECT_CHARS), nullable=False, default=DEFAULT_PROJECT),
    # Lists leave it out.
    _flag("archived"),
    # Set while its files and rows are removed.
    _time("delete_requested_at"),
    sa.Column("delete_requested_by", sa.Text),
    _time("created_at", nullable=False),
    _time("ended_at"),
    sa.UniqueConstraint("dag_id", "run_id", "name"),
    sqlite_autoincrement=True,
)

#: One plan of an experiment's trials. If its task is cleared, the task creates the next generation.
searches = sa.Table(
    "searches",
    metadata,
    _id(),
    _ref("experiment_id", "experiments.id"),
    _int("generation", 1),
    sa.Column("dag_id", AirflowId, nullable=False),
    sa.Column("run_id", AirflowId, nullable=False),
    sa.Column("task_id", AirflowId, nullable=False),
    _int("map_index", -1),
    _int("max_tries"),
    _ref("config_id", "configs.config_id"),
    sa.Column("method", Name, nullable=False),
    sa.Column("metric", sa.Text),
    _flag("smaller_is_better", True),
    _int("divisor", 4),
    sa.Column("seed", sa.BigInteger, nullable=False),
    # {bracket: [units of training at each rung]}
    sa.Column("rungs", Json, nullable=False),
    _int("max_trials"),
    _int("max_concurrent_trials"),
    _time("created_at", nullable=False),
    _time("ended_at"),
    # {"metric": metric of the trial last announced as a new best, "by": the announcing task instance, as a list}
    sa.Column("announced", Json),
    sa.UniqueConstraint("dag_id", "run_id", "task_id", "map_index", "max_tries"),
    sa.UniqueConstraint("experiment_id", "generation"),
    sqlite_autoincrement=True,
)

trials = sa.Table(
    "trials",
    metadata,
    _id(),
    _ref("experiment_id", "experiments.id"),
    _int("number"),
    sa.Column("dag_id", AirflowId, nullable=False),
    sa.Column("run_id", AirflowId, nullable=False),
    sa.Column("task_id", AirflowId, nullable=False),
    _int("map_index", -1),
    _int("max_tries"),
    # Index among the trials of its task instance.
    _int("trial_index"),
    _ref("config_id", "configs.config_id"),
    sa.Column("payload", sa.String(64), sa.ForeignKey("payloads.digest")),
    # {"code": digest, "git": state in git, "bundle": Airflow's bundle}
    sa.Column("source", Json),
    sa.Column("hparams", Json, nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("state", StateName(TrialState), nullable=False),
    _int("restarts"),
    _int("max_restarts"),
    # [{"host": name, "until_s": unix seconds}]
    sa.Column("excluded", Json, nullable=False, default=list),
    _time("kill_requested_at"),
    sa.Column("kill_requested_by", sa.Text),
    # Set while a user has paused it.
    _time("pause_requested_at"),
    sa.Column("pause_requested_by", sa.Text),
    # Set once a user has requested that it stops with its best result so far.
    _time("stop_requested_at"),
    sa.Column("stop_requested_by", sa.Text),
    _ref("search_id", "searches.id", nullable=True),
    sa.Column("bracket", sa.Integer, nullable=False, default=0, server_default="0"),
    # Index of its sample among those drawn for its number; is_drawn False: none yet.
    sa.Column("draw", sa.Integer, nullable=False, default=0, server_default="0"),
    sa.Column("is_drawn", sa.Boolean, nullable=False, default=True, server_default=sa.true()),
    # Best finite value of the searcher's metric in a validation, and its step.
    sa.Column("best_metric", sa.Float),
    sa.Column("best_step", sa.BigInteger),
    # Time at which a newer trial of its task instance replaced it, because a user cleared the task.
    _time("cleared_at"),
    sa.Column("failure", Json),
    sa.Column("result", Json),
    _time("created_at", nullable=False),
    _time("ended_at"),
    sa.UniqueConstraint("dag_id", "run_id", "task_id", "map_index", "max_tries", "trial_index"),
    sa.Index("ix_trials_experiment_id", "experiment_id", "number"),
    sa.Index("ix_trials_search_id", "search_id", "number"),
    # Counts of an experiment's trials come from this index alone: the rows of 10,000 trials take three times as long.
    sa.Index(
        "ix_trials_summary",
        *("experiment_id", "state", "cleared_at", "search_id", "best_metric", "ended_at", "is_drawn", "draw"),
    ),
    sa.Index("ix_trials_best", "search_id", "best_metric", "number"),
    # Trials of the present among those of years, and the trials of a user code that may be removed.
    sa.Index(
        "ix_trials_live",
        "state",
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    ),
    sa.Index("ix_trials_payload", "payload", "ended_at"),
    sqlite_autoincrement=True,
)

allocations = sa.Table(
    "allocations",
    metadata,
    _id(),
    # None for a gang that GangSensor holds; see gangs.
    _ref("trial_id", "trials.id", nullable=True),
    sa.Column("pool", Name, nullable=False),
    # As of its pool when it was submitted.
    sa.Column("backend", sa.String(16), nullable=False, default="hosts", server_default="hosts"),
    _int("slots"),
    _int("priority", 42),
    _flag("is_single_host"),
    sa.Column("on_unplaceable", sa.String(8), nullable=False, default="fail"),
    sa.Column("state", StateName(AllocationState), nullable=False),
    # Place in the queue, inherited by the next request of the same trial.
    sa.Column("sequence", sa.BigInteger, nullable=False, default=0),
    sa.Column("token", sa.BigInteger),
    _text("reason"),
    # Begin of the reason's entry in the timeline, None = with the request, and the request's entries before it. Unix
    # seconds, because a pass reads them for every request.
    sa.Column("reason_since_s", sa.Float),
    sa.Column("reason_entries", sa.Integer, nullable=False, default=0, server_default="0"),
    _flag("unplaceable"),
    # No set of the pool's hosts can serve it, as of the last pass, whatever the submission says to do then.
    _flag("never_fits"),
    # Place among the waiting requests, as of the last pass that considered it.
    sa.Column("position", sa.Integer),
    _time("submitted_at", nullable=False),
    # Time of this request; submitted_at is inherited from the first request of the trial.
    _time("requested_at", nullable=False),
    _time("renewed_at", nullable=False),
    _time("granted_at"),
    _time("ended_at"),
    # Counters up to granted_at and up to eligible_since, inherited by the next request of the same trial.
    _seconds("held_s"),
    _seconds("waited_s"),
    _time("eligible_since"),
    sa.Column("paused", sa.Boolean, nullable=False, default=False, server_default=sa.false()),
    sa.Column("max_runtime_s", sa.Float),
    # {host: [slot, ...]} that become free for it, and the hosts that are reserved for it.
    sa.Column("claim", Json),
    sa.Column("reserved_hosts", Json),
    # Expected start, latest or approximate, and in words.
    _time("expected_at"),
    sa.Column("expected", sa.Text, nullable=False, default="", server_default=""),
    # None: as soon as it has written a checkpoint.
    sa.Column("preemptible", sa.Boolean),
    sa.Column("has_checkpoint", sa.Boolean, nullable=False, default=False, server_default=sa.false()),
    sa.Column("cost_s", sa.Float),
    _time("preempted_at"),
    _ref("preempted_for", "allocations.id", nullable=True),
    # One recoverer at a time.
    _time("recovering_until"),
    sa.Column("recoverer", sa.Text),
    sa.Index("ix_allocations_pool_state", "pool", "state", "priority", "sequence"),
    sa.Index("ix_allocations_trial_id", "trial_id"),
    # For lists of trials and experiments: nearly always empty, however long the queue is.
    sa.Index(
        "ix_allocations_never_fits",
        "trial_id",
        sqlite_where=sa.text("never_fits = 1 AND state = 'waiting'"),
        postgresql_where=sa.text("never_fits AND state = 'waiting'"),
    ),
    sqlite_autoincrement=True,
)

#: Jobs of external schedulers. The newest one of an allocation holds its slots, or waits for them.
external_jobs = sa.Table(
    "external_jobs",
    metadata,
    _id(),
    _ref("allocation_id", "allocations.id"),
    sa.Column("pool", Name, nullable=False),
    sa.Column("name", sa.String(128), nullable=False, unique=True),
    # The scheduler's number, as text.
    sa.Column("number", sa.String(64)),
    sa.Column("phase", StateName(JobPhase), nullable=False),
    _text("reason"),
    _flag("is_hopeless"),
    # [node], and {name of the host in this store: node}
    sa.Column("nodes", Json, nullable=False, default=list),
    sa.Column("hosts", Json, nullable=False, default=dict),
    # Encrypted secret of the channel to its nodes.
    sa.Column("access", sa.LargeBinary, nullable=False),
    _time("created_at", nullable=False),
    # Time of the last attempt to submit it.
    _time("submitted_at"),
    _time("started_at"),
    _time("ends_at"),
    # Expected start while it waits, as its scheduler estimates it.
    _time("expected_at"),
    _time("ended_at"),
    # {"kind", "message", "nodes", "cpu_share"}
    sa.Column("end", Json),
    sa.Column("asked_back", sa.Text),
    _time("cancelled_at"),
    sa.Index("ix_external_jobs_allocation_id", "allocation_id"),
    sa.Index(
        "ix_external_jobs_live",
        "pool",
        sqlite_where=sa.text("phase != 'ended'"),
        postgresql_where=sa.text("phase != 'ended'"),
    ),
)

#: Gangs that GangSensor holds for several tasks of a DAG run.
gangs = sa.Table(
    "gangs",
    metadata,
    sa.Column("allocation_id", Id, sa.ForeignKey("allocations.id"), primary_key=True, autoincrement=False),
    sa.Column("dag_id", AirflowId, nullable=False),
    sa.Column("run_id", AirflowId, nullable=False),
    sa.Column("task_id", AirflowId, nullable=False),
    _int("map_index", -1),
    _int("max_tries"),
    _seconds("hold_for_s", 900.0),
    _time("held_until"),
    _int("watch"),
    sa.Column("watcher", sa.Text),
    sa.Column("ended_because", sa.Text),
    # The attempt that uses it, or whose end not every host has confirmed, and those hosts.
    sa.Column("attempt_id", Id),
    sa.Column("unclear", Json, nullable=False, default=list),
    # Not unique: a task that is retried after its gang has ended gets another gang.
    sa.Index("ix_gangs_dag_id_run_id_task_id_map_index", "dag_id", "run_id", "task_id", "map_index"),
)

#: One row per slot of a grant; slot -1 stands for the host of a gang of 0 slots.
allocation_slots = sa.Table(
    "allocation_slots",
    metadata,
    _id(),
    _ref("allocation_id", "allocations.id"),
    sa.Column("token", sa.BigInteger, nullable=False),
    sa.Column("host", Name, nullable=False),
    sa.Column("slot", sa.Integer, nullable=False),
    _time("released_at"),
    sa.Column("proof", sa.String(16)),
    sa.Index("ix_allocation_slots_allocation_id", "allocation_id", "token"),
    # The invariant of the whole store: a slot is granted again only after its release.
    sa.Index(
        "uq_allocation_slots_held",
        "host",
        "slot",
        unique=True,
        sqlite_where=sa.text("released_at IS NULL AND slot >= 0"),
        postgresql_where=sa.text("released_at IS NULL AND slot >= 0"),
    ),
    sa.Index(
        "ix_allocation_slots_live",
        "host",
        "allocation_id",
        sqlite_where=sa.text("released_at IS NULL"),
        postgresql_where=sa.text("released_at IS NULL"),
    ),
    # For the work of a slot on a day.
    sa.Index(
        "ix_allocation_slots_past",
        "host",
        "slot",
        "released_at",
        sqlite_where=sa.text("released_at IS NOT NULL"),
        postgresql_where=sa.text("released_at IS NOT NULL"),
    ),
)

attempts = sa.Table(
    "attempts",
    metadata,
    _id(),
    _ref("trial_id", "trials.id"),
    _int("number", 1),
    _ref("allocation_id", "allocations.id"),
    sa.Column("state", StateName(AttemptState), nullable=False),
    _int("watch"),
    sa.Column("watcher", sa.Text),
    _time("renewed_at"),
    sa.Column("plan", Json),
    sa.Column("master", Json),
    _text("reason"),
    sa.Column("failure", Json),
    sa.Column("result", Json),
    _time("created_at", nullable=False),
    _time("started_at"),
    _time("ended_at"),
    # The task log has all of rank 0's log, or marks for the missing parts.
    sa.Column("log_closed", sa.Boolean, nullable=False, default=False, server_default=sa.false()),
    sa.UniqueConstraint("trial_id", "number"),
    sa.Index("ix_attempts_allocation_id", "allocation_id"),
    sa.Index(
        "ix_attempts_live",
        "trial_id",
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    ),
    sqlite_autoincrement=True,
)

#: What the ranks of an attempt were made of, as its launch found it. See ``store/provenance.py``.
launches = sa.Table(
    "launches",
    metadata,
    sa.Column("attempt_id", Id, sa.ForeignKey("attempts.id"), primary_key=True, autoincrement=False),
    # {"path", "digest"} of the lock file, and {host: facts}
    sa.Column("lock", Json),
    sa.Column("hosts", Json, nullable=False),
)

#: Committed position in each file of a run. A new grant is a new run, whose files begin at 0.
streams = sa.Table(
    "streams",
    metadata,
    sa.Column("attempt_id", Id, sa.ForeignKey("attempts.id"), primary_key=True, autoincrement=False),
    sa.Column("token", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("host", Name, primary_key=True),
    sa.Column("stream", Name, primary_key=True),
    sa.Column("position", sa.BigInteger, nullable=False),
    # Raised when the file was restarted, because its host lost its end in a crash.
    sa.Column("epoch", sa.Integer, nullable=False, default=0, server_default="0"),
)

events = sa.Table(
    "events",
    metadata,
    _id(),
    _ref("attempt_id", "attempts.id"),
    sa.Column("token", sa.BigInteger, nullable=False),
    sa.Column("host", Name, nullable=False),
    sa.Column("stream", Name, nullable=False),
    sa.Column("seq", sa.BigInteger),
    _time("at", nullable=False),
    sa.Column("kind", sa.String(63), nullable=False),
    sa.Column("body", Json, nullable=False),
    sa.Index("ix_events_attempt_id", "attempt_id", "kind"),
)

ranks = sa.Table(
    "ranks",
    metadata,
    sa.Column("attempt_id", Id, sa.ForeignKey("attempts.id"), primary_key=True, autoincrement=False),
    sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("host", Name, nullable=False),
    _int("local_rank"),
    _int("slot", -1),
    sa.Column("pid", sa.BigInteger),
    sa.Column("exit_code", sa.Integer),
    _time("exited_at"),
    sa.Column("error", Json),
    # Libraries and interpreter, as the rank reported them.
    sa.Column("runtime", Json),
    _flag("sent_signal"),
    sa.Column("log_tail", sa.LargeBinary),
    #: Offset behind the last byte of ``log_tail`` in the log; NULL: not known.
    sa.Column("log_end", sa.BigInteger),
)

metrics = sa.Table(
    "metrics",
    metadata,
    _id(),
    _ref("trial_id", "trials.id"),
    _ref("attempt_id", "attempts.id"),
    sa.Column("metric_group", sa.String(16), nullable=False),
    sa.Column("step", sa.BigInteger, nullable=False),
    _int("rank"),
    sa.Column("epoch", sa.Float),
    sa.Column("metrics", Json, nullable=False),
    _time("at", nullable=False),
    sa.Index("ix_metrics_trial_id", "trial_id", "metric_group", "step"),
    # A curve is read by attempts, of which each replaces the reports of the former ones from its first step on.
    sa.Index("ix_metrics_attempt_id", "attempt_id", "metric_group", "step"),
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    _id(),
    _ref("trial_id", "trials.id"),
    _ref("attempt_id", "attempts.id"),
    sa.Column("run", Name, nullable=False),
    sa.Column("host", Name, nullable=False),
    sa.Column("step", sa.BigInteger, nullable=False),
    _text("path"),
    sa.Column("size_bytes", sa.BigInteger),
    sa.Column("sha256", sa.String(64)),
    sa.Column("metrics", Json, nullable=False),
    _time("at", nullable=False),
    sa.Column("copy_url", sa.Text),
    _time("removed_at"),
    # Reason why it is not used: its path is outside the configured places.
    sa.Column("refused", sa.Text),
    sa.Index("ix_checkpoints_trial_id", "trial_id", "step"),
)

#: Reports of trials at the rungs of a search, and the decisions on them. Reports of other trials never change an entry.
rung_entries = sa.Table(
    "rung_entries",
    metadata,
    _id(),
    _ref("search_id", "searches.id"),
    _int("bracket"),
    _int("rung"),
    _ref("trial_id", "trials.id"),
    _ref("attempt_id", "attempts.id"),
    # As reported; None if that was no finite number, and for a trial that failed.
    sa.Column("metric", sa.Float),
    sa.Column("units", sa.BigInteger, nullable=False),
    # Sort key within the rung, smallest first.
    sa.Column("rank_value", sa.Float, nullable=False),
    # None for a trial that failed.
    sa.Column("decision", sa.String(16)),
    # Place among the entries of the rung at the decision, from 1, their number, and the last metric that continued.
    sa.Column("place", sa.Integer),
    sa.Column("entries", sa.Integer),
    sa.Column("cutoff", sa.Float),
    _flag("is_error"),
    _time("at", nullable=False),
    # Time from which it no longer counts, because its trial was cleared.
    _time("left_at"),
    sa.UniqueConstraint("trial_id", "rung"),
    sa.Index(
        "ix_rung_entries_rank",
        "search_id",
        "bracket",
        "rung",
        "rank_value",
        "left_at",
        sqlite_where=sa.text("left_at IS NULL"),
        postgresql_where=sa.text("left_at IS NULL"),
    ),
)

#: Telemetry of one run on one host: the part of its files that is stored, and its latest utilization.
telemetry_hosts = sa.Table(
    "telemetry_hosts",
    metadata,
    sa.Column("attempt_id", Id, sa.ForeignKey("attempts.id"), primary_key=True, autoincrement=False),
    sa.Column("token", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("host", Name, primary_key=True),
    # Number of commits so far: a writer that knows another number has not seen all of them.
    sa.Column("commits", sa.BigInteger, nullable=False),
    # {stream: bytes of it that are stored}, and {stream: {code: {"lines", "bytes", "at"}}}
    sa.Column("positions", Json, nullable=False),
    sa.Column("gaps", Json, nullable=False),
    # First and last second of its points, Unix time.
    sa.Column("first_s", sa.BigInteger, nullable=False),
    sa.Column("last_s", sa.BigInteger, nullable=False),
    # A chunk with the utilization per minute of the last two hours.
    sa.Column("utilization", sa.LargeBinary, nullable=False),
    _time("updated_at", nullable=False),
    sa.Index("ix_telemetry_hosts_host", "host", "updated_at"),
)

#: Points of the metrics of a host, see core/series/chunk.py.
telemetry_chunks = sa.Table(
    "telemetry_chunks",
    metadata,
    _id(),
    _ref("attempt_id", "attempts.id"),
    sa.Column("token", sa.BigInteger, nullable=False),
    sa.Column("host", Name, nullable=False),
    # Empty for a slice, which holds all metrics of some seconds.
    sa.Column("metric", Name, nullable=False),
    # Length of the intervals in seconds, 0 for a slice, and the window that the chunk covers, Unix time.
    sa.Column("step_s", sa.Integer, nullable=False),
    sa.Column("start_s", sa.BigInteger, nullable=False),
    sa.Column("end_s", sa.BigInteger, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.Index("ix_telemetry_chunks_attempt_id", "attempt_id", "metric", "step_s", "start_s"),
    sa.Index("ix_telemetry_chunks_age", "step_s", "end_s"),
)

#: Slow ranks that followers have named.
stragglers = sa.Table(
    "stragglers",
    metadata,
    _id(),
    _ref("attempt_id", "attempts.id"),
    _int("rank"),
    sa.Column("host", Name, nullable=False),
    _time("since", nullable=False),
    _time("named_at", nullable=False),
    # None: it is slow, or was until its attempt ended.
    _time("until"),
    # Busy time divided by that of the other ranks, and the part of a step that it costs the gang.
    sa.Column("ratio", sa.Float, nullable=False),
    sa.Column("cost", sa.Float, nullable=False),
    # A SlowCause, its facts in words, and what to do.
    sa.Column("cause", sa.String(32), nullable=False),
    _text("text"),
    _text("advice"),
    sa.Index("ix_stragglers_attempt_id", "attempt_id", "rank"),
    sa.Index("ix_stragglers_named_at", "named_at", "host"),
)

#: Names and descriptions that users give to experiments and trials.
labels = sa.Table(
    "labels",
    metadata,
    # ``experiment`` or ``trial``
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("object_id", Id, primary_key=True, autoincrement=False),
    # None: the name from the configuration.
    sa.Column("display_name", sa.String(250)),
    _text("description"),
)

tags = sa.Table(
    "tags",
    metadata,
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("object_id", Id, primary_key=True, autoincrement=False),
    sa.Column("tag", sa.String(63), primary_key=True),
    sa.Index("ix_tags_tag", "kind", "tag", "object_id"),
)

#: Facts about trials that no other row keeps, each written in the transaction of the fact.
timeline = sa.Table(
    "timeline",
    metadata,
    _id(),
    _ref("trial_id", "trials.id"),
    # None: it concerns the whole trial, or the attempt follows from the time.
    sa.Column("attempt_id", Id),
    sa.Column("kind", sa.String(32), nullable=False),
    _time("at", nullable=False),
    # End of a wait, and the latest repetition of another fact.
    _time("until"),
    sa.Column("host", Name),
    # The user.
    sa.Column("by", sa.Text),
    _text("words"),
    # A number that the kind explains, such as a token or a priority.
    sa.Column("value", sa.BigInteger),
    # Facts that are merged into it.
    sa.Column("merged", sa.Integer, nullable=False, default=0, server_default="0"),
    sa.Index("ix_timeline_trial_id", "trial_id", "id"),
)

#: Notifications that were sent, or are being sent: each event of a trial or a search at most once.
notifications = sa.Table(
    "notifications",
    metadata,
    _id(),
    _ref("trial_id", "trials.id", nullable=True),
    _ref("search_id", "searches.id", nullable=True),
    sa.Column("event", sa.String(16), nullable=False),
    _time("claimed_at", nullable=False),
    # None: the process that claimed it still sends it, or has died.
    _time("done_at"),
    # Reasons why notifiers failed, in words.
    _text("error"),
    sa.UniqueConstraint("trial_id", "event"),
    sa.UniqueConstraint("search_id", "event"),
)

#: Work on hosts that users request through the API, which a follower or a run of a DAG executes.
operations = sa.Table(
    "operations",
    metadata,
    _id(),
    sa.Column("kind", sa.String(16), nullable=False),
    # None: it concerns no single trial.
    _ref("trial_id", "trials.id", nullable=True),
    sa.Column("arguments", Json, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    # ``follower`` or ``dag``
    sa.Column("through", sa.String(16), nullable=False),
    sa.Column("dag_run", sa.Text),
    sa.Column("state", sa.String(16), nullable=False),
    _time("requested_at", nullable=False),
    _time("alive_at"),
    # Bytes of content that were written, and those of them that the reader has received.
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("read_bytes", sa.BigInteger, nullable=False),
    _time("read_at", nullable=False),
    sa.Column("result", Json),
    sa.Column("error", sa.Text),
    sa.Index("ix_operations_state", "state", "trial_id"),
)

#: Content of operations between their process and their reader. A piece is deleted once the reader has it.
operation_pieces = sa.Table(
    "operation_pieces",
    metadata,
    sa.Column("operation_id", Id, sa.ForeignKey("operations.id"), primary_key=True, autoincrement=False),
    # Offset of its first byte.
    sa.Column("start", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
