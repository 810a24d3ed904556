"""Every command of ``airflow dtrain`` with its arguments; the code behind it is imported when it runs."""

from __future__ import annotations

from argparse import BooleanOptionalAction

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand, lazy_load_command

from airflow_provider_dtrain.cli import arguments as a

_DRY_RUN = Arg(("--dry-run",), help="Show what would happen, change nothing", action="store_true")
_SLOT = Arg(("--slot",), help="Only this slot of the host (index)", type=a.count)


def _command(noun: str, verb: str, help: str, *args: Arg, function: str | None = None) -> ActionCommand:
    target = f"airflow_provider_dtrain.cli.{noun}.{function or verb}"
    return ActionCommand(name=verb, help=help, func=lazy_load_command(target), args=(*args, *a.COMMON))


def _hosts() -> GroupCommand:
    return GroupCommand(
        name="hosts",
        help="Register machines and look after them",
        subcommands=(
            _command("registering", "add", "Probe a machine and register it", *_ADD, _DRY_RUN),
            _command("hosts", "list", "List the registered hosts", a.ONLY_POOL, function="list_hosts"),
            _command("hosts", "probe", "Look at hosts again and store what is found", _ANY_HOSTS, _HOST_KEY),
            _command("hosts", "drain", "Grant nothing more; what runs may finish", a.HOST),
            _command("hosts", "enable", "Make a host, or one slot, ready again", a.HOST, _SLOT),
            _command(
                "hosts", "disable", "Drain a host and stop what runs; or switch one slot off", a.HOST, _SLOT, a.YES
            ),
            _command("hosts", "remove", "Forget a host", a.HOST, _FORCE, _DRY_RUN, a.YES),
        ),
    )


_HOST_KEY = Arg(
    ("--accept-host-key",),
    help="Accept exactly this host key without asking, e.g. SHA256:uNiV...",
    type=a.fingerprint,
    metavar="SHA256:...",
)
_ADD = (
    _HOST_KEY,
    Arg(("host",), help="Name to give it; 'local' alone is this machine", type=a.name),
    Arg(("--conn",), help="Airflow connection of type ssh that reaches it", type=a.connection_id, metavar="CONN_ID"),
    Arg(
        ("--slots",),
        help="auto (default): one per GPU, without GPU one per two cores and at least 2; N; or cpu:N",
        type=a.slots,
        default="auto",
    ),
    Arg(("--pool",), help="Pool to put it in (default: 'default', for the host 'local': 'local')", type=a.name),
    Arg(("--python",), help="Interpreter on the host, >= 3.9 (default: python3)", type=a.path),
    Arg(("--remote-dir",), help="Folder on the host for supervisor and payloads", type=a.path),
    Arg(("--state-dir",), help="Folder on a disk of the host itself for run folders and locks", type=a.path),
    Arg(("--address",), help="Address by which other hosts reach it, when it cannot be found", type=a.connection_id),
)
_ANY_HOSTS = Arg(("host",), help="Names of hosts; none: all", type=a.name, nargs="*")
_FORCE = Arg(("--force",), help="Also when something runs there; says what it ends", action="store_true")


def _pools() -> GroupCommand:
    options = (
        Arg(("--fit",), help="best: fill hosts up; worst: spread small gangs", choices=("best", "worst")),
        Arg(("--heterogeneous",), help="Whole hosts of unequal size may form a gang: on or off", type=a.on_off),
        Arg(
            ("--preemption",),
            help="Whom a more urgent gang may interrupt",
            choices=("off", "priority", "slices"),
        ),
        Arg(("--reservations",), help="How many waiting gangs may keep hosts reserved", type=a.count),
        Arg(("--max-wait",), help="A gang that waited so long is protected, e.g. 36h", type=a.seconds),
        Arg(("--protected-share",), help="Most of the pool's slots for protected gangs, e.g. 0.6", type=a.share),
        Arg(("--fresh",), help="A gang that ran for less goes before others, e.g. 2h", type=a.seconds),
        Arg(("--young",), help="One that ran for less goes before older ones, e.g. 8h", type=a.seconds),
        Arg(("--min-run",), help="A gang runs at least so long before it is interrupted, e.g. 30m", type=a.seconds),
        Arg(("--defaults",), help="YAML file with defaults for configurations that run here; - for standard input"),
    )
    return GroupCommand(
        name="pools",
        help="Sets of hosts with one queue each",
        subcommands=(
            _command("pools", "list", "List the pools", function="list_pools"),
            _command("pools", "describe", "Show a pool with its options, hosts and queue", a.POOL),
            _command("pools", "set", "Change options of a pool", a.POOL, *options, function="set_pool"),
            _command("pools", "remove", "Remove a pool that has no hosts", a.POOL, a.YES),
        ),
    )


def _templates(group: str) -> GroupCommand:
    file = Arg(("file",), help="YAML file, - for standard input")
    version = Arg(("--version",), help="An earlier version", type=a.count, dest="template_version")
    details = Arg(("-d", "--details"), help="With text and author", action="store_true")
    return GroupCommand(
        name=group,
        help="Stored templates" + (" (short for: template)" if group == "tpl" else ""),
        subcommands=(
            _command("templates", "list", "List the templates", details, function="list_templates"),
            _command("templates", "describe", "Show a template", a.TEMPLATE, version),
            _command("templates", "versions", "List every version of a template", a.TEMPLATE),
            _command(
                "templates", "set", "Create or change a template", a.TEMPLATE, file, _DRY_RUN, function="set_template"
            ),
            _command("templates", "remove", "Remove a template; its versions stay", a.TEMPLATE, a.YES),
        ),
    )


def _config() -> GroupCommand:
    origins = Arg(("--origins",), help="Say for each value whether template or config gave it", action="store_true")
    optional = Arg(("config",), help=a.CONFIG.kwargs["help"], nargs="?")
    template = Arg(
        ("--template",),
        help="Template to merge below the configuration; without a name: the file itself is a template",
        nargs="?",
        default=False,
    )
    return GroupCommand(
        name="config",
        help="Configurations of experiments",
        subcommands=(
            _command("config", "render", "Print the effective configuration", a.CONFIG, a.WITH_TEMPLATE, origins),
            _command("config", "validate", "Name everything that is wrong with a document", optional, template),
        ),
    )


def _trial(group: str) -> GroupCommand:
    follow = Arg(("-f", "--follow"), help="Go on until the trial ends", action="store_true")
    rank = Arg(("--rank",), help="Rank (default 0)", type=a.count, default=0)
    every = Arg(("--all",), help="All ranks, each line with its rank", action="store_true")
    tail = Arg(("--tail",), help="Only the last N KiB of each log", type=a.count, metavar="KIB")
    attempt = Arg(("--attempt",), help="Attempt (default: the latest)", type=a.count)
    limit = Arg(("--limit",), help="At most so many, latest first (default 50)", type=a.count, default=50)
    csv = Arg(("--csv",), help="Comma-separated values", action="store_true")
    removed = Arg(("--removed",), help="Also those that were removed", action="store_true")
    abandoned = Arg(("--abandoned",), help="Also steps that a restarted attempt took again", action="store_true")
    which = Arg(("--group",), help="Only these metrics", choices=("training", "validation"))
    return GroupCommand(
        name=group,
        help="Trials" + (" (short for: trial)" if group == "t" else ""),
        subcommands=(
            _command("trials", "list", "List trials", limit, function="list_trials"),
            _command("trials", "describe", "Show a trial, its ranks and checkpoints", a.TRIAL),
            _command("logs", "logs", "Print the log of a rank", a.TRIAL, follow, rank, every, tail, attempt),
            _command("trials", "metrics", "Print what the trial reported", a.TRIAL, which, csv, abandoned),
            _command("profile", "profile", "Show timings of batches and the hosts' load", a.TRIAL, attempt),
            _command("trials", "checkpoints", "List a trial's checkpoints", a.TRIAL, removed),
            _command("trials", "pause", "Let a trial give its slots back; it keeps its place and its work", a.TRIAL),
            _command("trials", "activate", "Let a paused trial go on", a.TRIAL),
            _command("trials", "set", "Change the priority of a trial", a.TRIAL, a.PRIORITY, function="set_trial"),
            _command("trials", "kill", "Stop a trial on every host", a.TRIAL, a.YES),
        ),
    )


def _others() -> tuple[GroupCommand | ActionCommand, ...]:
    request = Arg(("request",), help="Configuration file, or id of a trial")
    return (
        GroupCommand(
            name="experiment",
            help="Experiments: their share of the queue",
            subcommands=(
                _command(
                    "experiments",
                    "set",
                    "Change priority, weight or cap of all gangs of an experiment",
                    a.EXPERIMENT,
                    a.PRIORITY,
                    Arg(("--weight",), help="Its share beside other experiments; 1 is usual", type=a.weight),
                    Arg(("--max-slots",), help="Most slots that its gangs hold together; 0: no cap", type=a.count),
                    function="set_experiment",
                ),
            ),
        ),
        GroupCommand(
            name="slots",
            help="Accelerators and CPU slots",
            subcommands=(
                _command("slots", "list", "List slots and who holds them", a.ONLY_POOL, function="list_slots"),
            ),
        ),
        GroupCommand(
            name="task",
            help="Gangs that wait or run",
            subcommands=(_command("tasks", "list", "List them in order", a.ONLY_POOL, function="list_tasks"),),
        ),
        GroupCommand(
            name="db",
            help="The store of this provider (not Airflow's metadata database)",
            subcommands=(
                _command("db", "migrate", "Create the store or bring it to this version's schema"),
                _command("db", "check", "Check the store"),
            ),
        ),
        _command("explain", "explain", "Would it fit now, or ever? Why does it wait?", request, a.WITH_TEMPLATE),
        _simulate(),
        _hold(),
        _gc(),
        _command("doctor", "doctor", "Check everything; say what to do about what is wrong"),
    )


def _gc() -> ActionCommand:
    return _command(
        "gc",
        "gc",
        "Remove what trials that ended long ago left on hosts and in the store",
        Arg(
            ("--older-than",),
            help="Days since the trial's end (default: [dtrain] retention_days)",
            type=a.count,
            metavar="DAYS",
        ),
        Arg(
            ("--hosts",),
            help="Also look at the hosts (default); --no-hosts: only at the store",
            action=BooleanOptionalAction,
            default=True,
        ),
        Arg(("--checkpoints",), help="Also runs that hold the only copy of a checkpoint", action="store_true"),
        _DRY_RUN,
    )


def _hold() -> ActionCommand:
    return _command(
        "hold",
        "hold",
        "Lengthen all leases before a maintenance, so that runs survive it",
        Arg(("--for",), help="How long nobody renews them, e.g. 1h", type=a.seconds, dest="hold_for", metavar="TIME"),
        Arg(("--reason",), help="Why, for the other people"),
        Arg(("--show",), help="Show whether leases are held, until when and by whom", action="store_true"),
        Arg(("--end",), help="Give them their usual length again", action="store_true"),
    )


def _simulate() -> ActionCommand:
    time, share, count = ({"type": kind, "metavar": name} for kind, name in _UNITS)
    rules = ("off", "priority", "slices")
    return _command(
        "simulate",
        "simulate",
        "Let a trace of jobs run on made-up hosts: waiting times and use under three rules",
        Arg(
            ("--trace",),
            help="CSV: job_id, submit_s, gpus, duration_s, maybe group, priority, max_runtime_s; - is standard input",
            required=True,
            metavar="FILE",
        ),
        Arg(("--hosts",), help="80x8,4x4: 80 of 8 slots, 4 of 4", type=a.cluster, required=True, metavar="HOSTSxSLOTS"),
        Arg(("--cost-s",), help="Work lost per preemption (default 60)", default=60.0, **time),
        Arg(("--not-preemptible",), help="Jobs that nobody may interrupt (default 0)", default=0.0, **share),
        Arg(("--seed",), help="Which jobs those are (default 0)", default=0, **count),
        Arg(("--from",), help="Only jobs submitted from then on, e.g. 30d", dest="from_s", **time),
        Arg(("--to",), help="Only jobs submitted before then", dest="to_s", **time),
        Arg(("--limit",), help="At most so many jobs, earliest first", **count),
        Arg(("--preemption",), help="Whom a job may interrupt (default priority)", choices=rules),
        Arg(("--max-wait",), help="A job that waited so long is protected (default 36h)", dest="max_wait_s", **time),
        Arg(("--protected-share",), help="Most of the slots that protected jobs take (default 0.6)", **share),
        Arg(("--fresh",), help="A job that held slots for less goes first (default 2h)", dest="fresh_s", **time),
        Arg(("--young",), help="One that held slots for less goes next (default 8h)", dest="young_s", **time),
        Arg(("--min-run",), help="A job runs so long before it is interrupted", dest="min_run_s", **time),
        Arg(("--reservations",), help="How many waiting jobs may keep hosts reserved (default 2)", **count),
        Arg(("--fit",), help="best: fill hosts up; worst: spread small gangs", choices=("best", "worst")),
        Arg(("--heterogeneous",), help="Whole hosts of unequal size may form a gang: on or off", type=a.on_off),
        function="run",
    )


_UNITS = ((a.seconds, "TIME"), (a.share, "SHARE"), (a.count, "N"))


def get_dtrain_commands() -> list[GroupCommand]:
    """Return the command group ``dtrain`` for Airflow's CLI."""
    groups = (_hosts(), _pools(), _templates("template"), _templates("tpl"), _config(), _trial("trial"), _trial("t"))
    return [
        GroupCommand(
            name="dtrain",
            help="Train on gangs of slots: hosts, queue, trials",
            subcommands=(*groups, *_others()),
        )
    ]
