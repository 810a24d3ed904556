"""All commands and their arguments: those of ``airflow dtrain``, of which ``dtrain`` has a part.

The code behind a command is imported when the command runs.
"""

from __future__ import annotations

from argparse import BooleanOptionalAction
from typing import Any

from airflow_provider_dtrain.terminal import arguments as a
from airflow_provider_dtrain.terminal.arguments import Arg, Command, Group
from airflow_provider_dtrain.terminal.arguments import action as _command
from airflow_provider_dtrain.terminal.definition_trials import diagnose, experiment, infer, init, trial

_DRY_RUN = Arg(("--dry-run",), help="Show what would happen without changing anything", action="store_true")
_SLOT = Arg(("--slot",), help="Only this slot of the host (index)", type=a.count, metavar="N")


def _hosts() -> Group:
    return Group(
        name="hosts",
        help="Register and manage hosts",
        commands=(
            _command("hosts_add", "add", "Probe a machine and register it", *_ADD, _DRY_RUN),
            a.reads("cluster", "list", "List the registered hosts", a.ONLY_POOL, function="list_hosts"),
            a.reads("hosts", "describe", "Show a host with its facts, findings and results of checks", a.HOST),
            a.reads(
                "host_days",
                "day",
                "Show what held the slots of a host on a day, its states, checks and slow ranks",
                a.HOST,
                Arg(("--day",), help="Day in UTC (default: the last 24 hours)", type=a.day, metavar="YYYY-MM-DD"),
            ),
            _command("hosts", "probe", "Probe hosts again and store the results", _ANY_HOSTS, _HOST_KEY),
            _command("hosts", "check", "Measure hosts and name slow ones", _ANY_HOSTS, a.ONLY_POOL, *_CHECK),
            _command("hosts", "set", "Set the environment of a host's ranks", a.HOST, *_VARIABLES, function="set_host"),
            a.controls(
                "host",
                "drain",
                "Grant no new slots on hosts; running trials may finish, or resume elsewhere",
                Arg(("host",), help="Names of the hosts", type=a.name, nargs="+"),
                *_EVACUATION,
                _KILL_AT_DEADLINE,
                Arg(("--wait",), help="Return once the hosts are empty", action="store_true"),
                _DRY_RUN,
                _REASON,
            ),
            a.controls("host", "enable", "Enable a host, or one of its slots", a.HOST, _SLOT),
            a.controls("host", "disable", "Drain a host and kill its trials, or disable a slot", a.HOST, _SLOT, a.YES),
            _command("hosts_remove", "remove", "Remove a host", a.HOST, _FORCE, _PURGE, _DRY_RUN, a.YES),
        ),
    )


def _environments() -> Group:
    digest = {"type": a.digest, "metavar": "DIGEST"}
    start = "Start of its digest, as 'environments list' shows it"
    hosts = Arg(("--host",), help="Only this host; repeatable", type=a.name, action="append", metavar="HOST")
    return Group(
        name="environments",
        help="Environments from lock files on the hosts",
        commands=(
            _command(
                "environments", "list", "List the environments on hosts", hosts, a.ONLY_POOL,
                function="list_environments",
            ),
            _command(
                "environments", "show", "Show an environment with its packages", Arg(("digest",), help=start, **digest),
                hosts, function="show_environment",
            ),
            _command(
                "environments", "build", "Build the environment of a configuration on hosts", a.CONFIG,
                a.WITH_TEMPLATE, hosts,
                Arg(("--pool",), help="All hosts of this pool (default: of the configuration's)", type=a.name),
            ),
            _command(
                "environments", "remove", "Remove environments that no run uses",
                Arg(("digest",), help=start, nargs="+", **digest), hosts, _DRY_RUN, a.YES,
            ),
        ),
    )  # fmt: skip


_HOST_KEY = Arg(
    ("--accept-host-key",),
    help="Accept exactly this host key without asking, e.g. SHA256:uNiV...",
    type=a.fingerprint,
    metavar="SHA256:...",
)
_ADD = (
    _HOST_KEY,
    Arg(("host",), help="Name of the host; only 'local' is this machine", type=a.name),
    Arg(("--conn",), help="Airflow connection to the host", type=a.connection_id, metavar="CONN_ID"),
    Arg(
        ("--slots",),
        help="auto (default): one per GPU, without GPU one per two cores, at least 2;\nN: N slots; cpu:N: N CPU slots",
        type=a.slots,
        default="auto",
        metavar="auto|N|cpu:N",
    ),
    Arg(("--pool",), help="Pool of the host (default: 'default', for the host 'local': 'local')", type=a.name),
    Arg(("--python",), help="Interpreter on the host, >= 3.9 (default: python3)", type=a.path, metavar="FILE"),
    Arg(("--remote-dir",), help="Folder on the host for the supervisor and payloads", type=a.path, metavar="DIR"),
    Arg(
        ("--state-dir",),
        help="Folder on a local disk of the host for run folders and locks",
        type=a.path,
        metavar="DIR",
    ),
    Arg(
        ("--lock-dir",),
        help="Folder on the host for the locks of all accounts (owner root, mode 1777), or 'none'\n(default: [dtrain] "
        "lock_dir, else /run/lock)",
        type=a.path,
        metavar="DIR",
    ),
    Arg(("--address",), help="Address by which other hosts reach it, if it cannot be detected", type=a.connection_id),
)
_VARIABLES = (
    Arg(
        ("--env",),
        help="Variable of the ranks on this host, below environment.variables of a configuration; repeatable",
        type=a.variable,
        action="append",
        default=[],
        metavar="NAME=VALUE",
    ),
    Arg(("--unset",), help="Remove a variable; repeatable", action="append", default=[], metavar="NAME"),
)
_ANY_HOSTS = Arg(("host",), help="Names of hosts (default: all)", type=a.name, nargs="*")
_CHECK = (
    Arg(
        ("--wait",),
        help="Wait this long for slots that are in use (default: an error)",
        type=a.seconds,
        default=0.0,
        metavar="TIME",
    ),
    Arg(
        ("--tolerance",),
        help="Share below peers and past from which a rate is named (default 15%%)",
        type=a.share,
        default=0.15,
        metavar="SHARE",
    ),
    Arg(("--python",), help="Interpreter with PyTorch on the hosts (default: that of each host)", metavar="FILE"),
    Arg(
        ("--evacuate",),
        help="Drain the hosts that the check names: gangs there save at their next step and resume elsewhere.\n"
        "The last ready host of a pool stays",
        action="store_true",
    ),
)
_REASON = Arg(("--reason",), help="Reason, shown to other users")
_EVACUATION = (
    Arg(("--now",), help="Gangs there save at their next step and resume elsewhere", action="store_true"),
    Arg(
        ("--by",),
        help="As --now, for gangs that have not ended shortly before TIME:\n22:00, 2026-01-31T22:00, or 2h from now",
        type=a.deadline,
        metavar="TIME",
    ),
)
_KILL_AT_DEADLINE = Arg(
    ("--kill-at-deadline",),
    help="End gangs that cannot resume from a checkpoint at that time as well; they start again",
    action="store_true",
)
_FORCE = Arg(
    ("--force",), help="Remove the host even if trials run there; lists the trials that it ends", action="store_true"
)
_PURGE = Arg(
    ("--purge",),
    help="Also remove the files of this provider there: supervisor, environments, caches, runs with\n"
    "their checkpoints; shows them first",
    action="store_true",
)


#: Begin of the names of arguments that are options of a pool's scheduler.
SCHEDULER = "scheduler_"


def _of_scheduler(flag: str, text: str, *, dest_name: str | None = None, **kwargs: Any) -> Arg:
    """Return an option that ``cli/pools.py`` hands to the scheduler of a pool, which checks its value."""
    name = dest_name or flag.removeprefix("--").replace("-", "_")
    return Arg((flag,), help=text, dest=f"{SCHEDULER}{name}", **kwargs)


SCHEDULER_OPTIONS = (
    Arg(
        ("--backend",),
        help="Who gives out the slots: the queue of this store (hosts, default) or Slurm",
        choices=("hosts", "slurm"),
    ),
    Arg(
        ("--unset",),
        help="Option of the scheduler that gets its default again, e.g. --unset time-limit; repeatable",
        action="append",
        default=[],
        metavar="OPTION",
    ),
    _of_scheduler(
        "--conn", "Airflow connection to a login node; local: sbatch is on this machine", dest_name="conn_id"
    ),
    _of_scheduler("--partition", "Partition of the jobs (default: the cluster's)", metavar="NAME"),
    _of_scheduler("--account", "Account of the jobs", metavar="NAME"),
    _of_scheduler("--qos", "Quality of service of the jobs", metavar="NAME"),
    _of_scheduler("--clusters", "Cluster of the jobs, of several behind one login node", metavar="NAME"),
    _of_scheduler("--slots", "Slots are GPUs (gpu, default) or CPUs (cpu)", choices=("gpu", "cpu")),
    _of_scheduler("--gres-name", "Generic resource that is a slot, instead of --gpus-per-node", metavar="NAME"),
    _of_scheduler("--gres-type", "Type of the GPUs, e.g. a100", metavar="NAME"),
    _of_scheduler("--cpus-per-slot", "CPUs that a job requests for each slot", type=a.count, metavar="N"),
    _of_scheduler("--memory-per-slot", "Memory that a job requests for each slot, e.g. 32G", metavar="SIZE"),
    _of_scheduler("--memory-per-cpu", "The same for each CPU; not both", metavar="SIZE"),
    _of_scheduler(
        "--slots-per-node", "Most slots of a job on one node (default: what nodes have)", type=a.count, metavar="N"
    ),
    _of_scheduler(
        "--time-limit", "Time limit of a job (default: DefaultTime or MaxTime of the partition)", metavar="TIME"
    ),
    _of_scheduler(
        "--time-min", "Shortest time limit to which Slurm may shorten a job, so that it starts sooner", metavar="TIME"
    ),
    _of_scheduler(
        "--setup", "File with lines that a login shell runs on the nodes first, - for standard input", metavar="FILE"
    ),
    _of_scheduler("--python", "Interpreter on the nodes, >= 3.9 (default: python3)", metavar="FILE"),
    _of_scheduler(
        "--sbatch-option",
        "Further option of sbatch, e.g. --sbatch-option=--constraint=a100; repeatable",
        action="append",
        metavar="OPTION",
        dest_name="sbatch_options",
    ),
    _of_scheduler(
        "--without-option",
        "Generated option that is left out, e.g. mem; repeatable",
        action="append",
        metavar="NAME",
        dest_name="without_options",
    ),
    _of_scheduler("--max-jobs", "Most jobs of the pool at one time", type=a.count, metavar="N"),
    _of_scheduler("--port-range", "Ports for the channel to a job, e.g. 40000-40100", metavar="FIRST-LAST"),
    _of_scheduler(
        "--job-output",
        "File on the nodes for the output of jobs, with %%j for the number (default: none)",
        metavar="FILE",
        dest_name="output",
    ),
)


def _rules(one: str, many: str) -> tuple[tuple[str, tuple[Arg, ...]], ...]:
    """Return the options of a pool's queue.

    :param one: word for what waits in the queue: ``gang``, or ``job`` of a trace
    :param many: its plural
    """
    time = {"type": a.seconds, "metavar": "TIME"}
    share = {"type": a.share, "metavar": "SHARE"}
    order = (
        Arg(("--fresh",), help=f"A {one} that used less slots x TIME than this goes first (default 5h)", **time),
        Arg(("--young",), help="One that used less slots x TIME than this goes next (default 17h)", **time),
        Arg(("--max-wait",), help=f"A {one} that has waited this long is protected (default 28h)", **time),
        Arg(("--protected-share",), help=f"Largest share of the slots for protected {many} (default 0.49)", **share),
        Arg(
            ("--reservations",),
            help=f"Number of waiting {many} that may reserve hosts (default 2)",
            type=a.count,
            metavar="N",
        ),
    )
    interruptions = (
        Arg(
            ("--preemption",),
            help=f"What a {one} may interrupt: nothing (off), worse priorities (priority, default),\n"
            "or also worse classes of its own priority (slices)",
            choices=("off", "priority", "slices"),
        ),
        Arg(("--min-run",), help=f"Shortest time that a {one} runs before it is interrupted (default 20m)", **time),
    )
    places = (
        Arg(("--fit",), help=f"best (default): fill hosts up; worst: spread small {many}", choices=("best", "worst")),
        Arg(
            ("--heterogeneous",),
            help=f"Allow one {one} on whole hosts of unequal sizes (default off)",
            type=a.on_off,
            metavar="on|off",
        ),
    )
    return (("Order of the queue", order), ("Interruptions", interruptions), ("Choice of hosts", places))


def _pools() -> Group:
    file = "YAML file with configuration defaults of the pool, - for standard input"
    defaults = ("Configurations", (Arg(("--defaults",), help=file, metavar="FILE"),))
    containers = (
        Arg(
            ("--container-runtime",),
            help="Runtime for environment.image; auto (default): the first one that a host has",
            choices=("auto", "podman", "docker", "apptainer"),
        ),
        Arg(
            ("--container-mounts",),
            help="Folders of the hosts that configurations may mount, with all below them (default: none)",
            type=a.roots,
            metavar="PATH,...",
        ),
        Arg(
            ("--container-devices",),
            help="Devices of the hosts that configurations may map (default: none)",
            type=a.roots,
            metavar="PATH,...",
        ),
        Arg(
            ("--container-capabilities",),
            help="Capabilities that configurations may add, e.g. SYS_PTRACE (default: none)",
            type=a.capabilities,
            metavar="NAME,...",
        ),
    )
    checks = (
        Arg(
            ("--check-before-gangs",),
            help="Check the hosts of a gang before its launch: not (off, default), warn of slow ones (warn),\n"
            "leave slow ones out (exclude), or drain them too, so that other gangs there resume elsewhere (evacuate)",
            choices=("off", "warn", "exclude", "evacuate"),
        ),
        Arg(
            ("--check-every",),
            help="An earlier check of a host suffices for this time (default 1d)",
            type=a.seconds,
            metavar="TIME",
        ),
    )
    options = a.InOrder(
        *_rules("gang", "gangs"),
        ("Host checks", checks),
        defaults,
        ("Containers", containers),
        ("Slots of another scheduler", SCHEDULER_OPTIONS),
    )
    return Group(
        name="pools",
        help="Sets of hosts with one queue each",
        commands=(
            _command("pools", "list", "List the pools", function="list_pools"),
            _command("pools", "describe", "Show a pool with its options, hosts and queue", a.POOL),
            a.reads(
                "usage",
                "usage",
                "Show slot hours by day, of pools, users or DAGs",
                Arg(("--by",), help="Whose hours (default pool)", choices=("pool", "user", "dag"), default="pool"),
                Arg(("--days",), help="Days up to today, in UTC (default 14)", type=a.count, default=14, metavar="N"),
                a.ONLY_POOL,
                Arg(("--csv",), help="Comma-separated values", action="store_true"),
            ),
            _command("pools", "set", "Change options of a pool", a.POOL, options, function="set_pool"),
            _command("pools", "remove", "Remove a pool that has no hosts", a.POOL, a.YES),
        ),
    )


def _templates(group: str) -> Group:
    file = Arg(("file",), help="YAML file, - for standard input")
    version = Arg(("--version",), help="Show an earlier version", type=a.count, dest="template_version", metavar="N")
    details = Arg(("-d", "--details"), help="Also show the text of each template", action="store_true")
    return Group(
        name=group,
        help="Stored templates" + (" (short for: templates)" if group == "tpl" else ""),
        commands=(
            a.checks("templates", "list", "List the templates", details, function="list_templates"),
            a.checks("templates", "describe", "Show a template", a.TEMPLATE, version),
            a.checks("templates", "versions", "List every version of a template", a.TEMPLATE),
            a.checks(
                "templates", "set", "Create or change a template", a.TEMPLATE, file, _DRY_RUN, function="set_template"
            ),
            a.checks("templates", "remove", "Remove a template; its versions stay in the history", a.TEMPLATE, a.YES),
        ),
    )


def _config() -> Group:
    origins = Arg(
        ("--origins",), help="Show the origin of each value: config, template, pool or default", action="store_true"
    )
    optional = Arg(("config",), help=a.CONFIG.kwargs["help"], nargs="?")
    template = Arg(
        ("--template",),
        help="Template to merge under the configuration;\nwithout a name: validate the file itself as a template",
        nargs="?",
        default=False,
    )
    return Group(
        name="configs",
        help="Configurations of experiments",
        commands=(
            _command("config", "render", "Print the effective configuration", a.CONFIG, a.WITH_TEMPLATE, origins),
            a.checks("configs", "validate", "Validate a configuration or template", optional, template),
        ),
    )


def _search() -> Group:
    first = Arg(("--trials",), help="Show the first N trials (default 10)", type=a.count, default=10, metavar="N")
    seed = Arg(("--seed",), help="Experiment seed (default: the configuration's, else 0)", type=a.count, metavar="N")
    return Group(
        name="searches",
        help="Hyperparameter searches",
        commands=(
            _command(
                "search",
                "preview",
                "Show the trials and the cost of a search without running it",
                a.CONFIG,
                a.WITH_TEMPLATE,
                first,
                seed,
            ),
        ),
    )


def _queue() -> Group:
    watch = Arg(("--watch",), help="Show it again after each change, until Ctrl-C", action="store_true")
    return Group(
        name="queue",
        help="Waiting and running gangs",
        commands=(
            a.reads("cluster", "list", "List waiting and running gangs", a.ONLY_POOL, watch, function="list_tasks"),
            _command("queue", "set", "Change the priority of a gang", a.GANG, a.PRIORITY, function="set_task"),
        ),
    )


def _small_groups() -> tuple[Group | Command, ...]:
    request = Arg(("request",), help="Configuration file, id of a trial, or gang:ID")
    return (
        Group(
            name="slots",
            help="Accelerators and CPU slots",
            commands=(a.reads("cluster", "list", "List slots and their trials", a.ONLY_POOL, function="list_slots"),),
        ),
        Group(
            name="db",
            help="The store of this provider (not Airflow's metadata database)",
            commands=(
                _command("db", "migrate", "Create the store, or migrate it to the schema of this version"),
                _command("db", "check", "Check the store"),
                _command(
                    "db",
                    "drop",
                    "Remove the store with everything in it",
                    Arg(
                        ("--force",),
                        help="Also while gangs hold slots, and if another version made the store",
                        action="store_true",
                    ),
                    a.YES,
                ),
            ),
        ),
        a.checks(
            "configs", "explain", "Show whether a request fits now or ever, or why it waits", request, a.WITH_TEMPLATE
        ),
        _simulate(),
        _maintenance(),
        _gc(),
        _command("doctor", "doctor", "Check the installation and say how to fix each problem"),
    )


def _gc() -> Command:
    return _command(
        "gc",
        "gc",
        "Remove old data of ended trials from the hosts and the store",
        Arg(
            ("--older-than",),
            help="Age in days since the end of the trial (default: [dtrain] retention_days)",
            type=a.count,
            metavar="DAYS",
        ),
        Arg(
            ("--hosts",),
            help="Clean the hosts as well (default); --no-hosts: only the store",
            action=BooleanOptionalAction,
            default=True,
        ),
        Arg(("--checkpoints",), help="Also remove runs that hold the only copy of a checkpoint", action="store_true"),
        _DRY_RUN,
    )


_LENGTH = {"help": "New length of the leases, e.g. 1h", "type": a.seconds, "dest": "hold_for", "metavar": "TIME"}


def _maintenance() -> Group:
    begin = "Extend all leases before a maintenance, so that runs survive it"
    return Group(
        name="maintenance",
        help="Maintenance of the control side, which runs survive",
        commands=(
            _command(
                "maintenance",
                "start",
                begin,
                Arg(("--for",), required=True, **_LENGTH),
                _REASON,
                *_EVACUATION,
                _KILL_AT_DEADLINE,
                Arg(
                    ("--host",),
                    help="With --now or --by: only this host, repeatable (default: all)",
                    type=a.name,
                    action="append",
                    metavar="HOST",
                ),
            ),
            _command("maintenance", "end", "End the maintenance: leases get their usual length again"),
            _command(
                "maintenance",
                "show",
                "Show the maintenance: until when, by which user, and why",
                function="show_maintenance",
            ),
        ),
    )


def _simulate() -> Command:
    time, share, count = (
        {"type": kind, "metavar": name} for kind, name in ((a.seconds, "TIME"), (a.share, "SHARE"), (a.count, "N"))
    )
    columns = "job_id, submit_s, gpus, duration_s; optional: group or vc, priority, max_runtime_s"
    trace = (
        Arg(("--trace",), help=f"CSV file, - for standard input. Columns:\n{columns}", required=True, metavar="FILE"),
        Arg(("--from",), help="Only jobs submitted from this time on, e.g. 30d (default: all)", dest="from_s", **time),
        Arg(("--to",), help="Only jobs submitted before this time (default: all)", dest="to_s", **time),
        Arg(("--limit",), help="At most N jobs, earliest first (default: all)", **count),
    )
    hosts = Arg(
        ("--hosts",),
        help="e.g. 80x8,4x4: 80 hosts of 8 slots, 4 of 4",
        type=a.cluster,
        required=True,
        metavar="HOSTSxSLOTS",
    )
    order, (heading, rules), (places, choice) = _rules("job", "jobs")
    costs = (
        Arg(("--cost",), help="Work lost per interruption (default 60s)", default=60.0, dest="cost_s", **time),
        Arg(("--not-preemptible",), help="Share of jobs that cannot be interrupted (default 0)", default=0.0, **share),
        Arg(("--seed",), help="Seed that selects these jobs (default 0)", default=0, **count),
    )
    return _command(
        "simulate",
        "simulate",
        "Simulate a trace of jobs on given hosts under three scheduling rules",
        a.InOrder(("Trace", trace), (places, (hosts, *choice)), order, (heading, (*rules, *costs))),
        function="run",
    )


def commands() -> tuple[Group | Command, ...]:
    """Return all commands of ``airflow dtrain``."""
    documents = (_templates("templates"), _templates("tpl"), _config(), _search())
    runs = (experiment("experiments"), experiment("e"), trial("trials"), trial("t"))
    return (
        init(),
        infer(),
        diagnose(),
        _hosts(),
        _environments(),
        _pools(),
        _queue(),
        *documents,
        *runs,
        *_small_groups(),
    )
