"""Every command of ``airflow dtrain`` with its arguments; the code behind it is imported when it runs."""

from __future__ import annotations

from argparse import BooleanOptionalAction

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

from airflow_provider_dtrain.cli import arguments as a
from airflow_provider_dtrain.cli.arguments import action as _command
from airflow_provider_dtrain.cli.running import experiment, init, trial

_DRY_RUN = Arg(("--dry-run",), help="Show what would happen, change nothing", action="store_true")
_SLOT = Arg(("--slot",), help="Only this slot of the host (index)", type=a.count, metavar="N")


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
        help="auto (default): one per GPU, without GPU one per two cores and at least 2;\nN: so many; cpu:N: CPU slots",
        type=a.slots,
        default="auto",
        metavar="auto|N|cpu:N",
    ),
    Arg(("--pool",), help="Pool to put it in (default: 'default', for the host 'local': 'local')", type=a.name),
    Arg(("--python",), help="Interpreter on the host, >= 3.9 (default: python3)", type=a.path, metavar="FILE"),
    Arg(("--remote-dir",), help="Folder on the host for supervisor and payloads", type=a.path, metavar="DIR"),
    Arg(
        ("--state-dir",),
        help="Folder on a disk of the host itself for run folders and locks",
        type=a.path,
        metavar="DIR",
    ),
    Arg(
        ("--lock-dir",),
        help="Folder of root with mode 1777 on the host for the locks of all accounts, or 'none'\n(default: [dtrain] "
        "lock_dir, else /run/lock)",
        type=a.path,
        metavar="DIR",
    ),
    Arg(("--address",), help="Address by which other hosts reach it, when it cannot be found", type=a.connection_id),
)
_ANY_HOSTS = Arg(("host",), help="Names of hosts; none: all", type=a.name, nargs="*")
_FORCE = Arg(("--force",), help="Also when something runs there; says what it ends", action="store_true")


def _rules(one: str, many: str) -> tuple[tuple[str, tuple[Arg, ...]], ...]:
    """Return the options of a pool's queue.

    :param one: who waits there: a gang, or a job of a trace
    """
    time, share = {"type": a.seconds, "metavar": "TIME"}, {"type": a.share, "metavar": "SHARE"}
    order = (
        Arg(("--fresh",), help=f"A {one} that held slots for less goes first (default 2h)", **time),
        Arg(("--young",), help="One that held slots for less goes next (default 8h)", **time),
        Arg(("--max-wait",), help=f"A {one} that waited so long is protected (default 36h)", **time),
        Arg(("--protected-share",), help=f"Most of the slots that protected {many} take (default 0.6)", **share),
        Arg(
            ("--reservations",),
            help=f"How many waiting {many} may keep hosts reserved (default 2)",
            type=a.count,
            metavar="N",
        ),
    )
    interruptions = (
        Arg(
            ("--preemption",),
            help=f"Whom a {one} may interrupt: nobody (off), worse priorities (default),\n"
            "or also worse classes of its own priority (slices)",
            choices=("off", "priority", "slices"),
        ),
        Arg(("--min-run",), help=f"A {one} runs at least so long before that (default 30m)", **time),
    )
    places = (
        Arg(("--fit",), help=f"best (default): fill hosts up; worst: spread small {many}", choices=("best", "worst")),
        Arg(
            ("--heterogeneous",),
            help=f"Whole hosts of unequal size may serve one {one} (default off)",
            type=a.on_off,
            metavar="on|off",
        ),
    )
    return (("Order of the queue", order), ("Interruptions", interruptions), ("Choice of hosts", places))


def _pools() -> GroupCommand:
    file = "YAML file with defaults for what runs here, - for standard input"
    defaults = ("Configurations", (Arg(("--defaults",), help=file, metavar="FILE"),))
    options = a.InOrder(*_rules("gang", "gangs"), defaults)
    return GroupCommand(
        name="pools",
        help="Sets of hosts with one queue each",
        subcommands=(
            _command("pools", "list", "List the pools", function="list_pools"),
            _command("pools", "describe", "Show a pool with its options, hosts and queue", a.POOL),
            _command("pools", "set", "Change options of a pool", a.POOL, options, function="set_pool"),
            _command("pools", "remove", "Remove a pool that has no hosts", a.POOL, a.YES),
        ),
    )


def _templates(group: str) -> GroupCommand:
    file = Arg(("file",), help="YAML file, - for standard input")
    version = Arg(("--version",), help="An earlier version", type=a.count, dest="template_version", metavar="N")
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
    origins = Arg(
        ("--origins",), help="Say for each value what gave it: config, template, pool or default", action="store_true"
    )
    optional = Arg(("config",), help=a.CONFIG.kwargs["help"], nargs="?")
    template = Arg(
        ("--template",),
        help="Template to merge below the configuration;\nwithout a name: the file itself is a template",
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


def _search() -> GroupCommand:
    first = Arg(("--trials",), help="Show the first N (default 10)", type=a.count, default=10, metavar="N")
    seed = Arg(("--seed",), help="Experiment seed (default: the configuration's, else 0)", type=a.count, metavar="N")
    return GroupCommand(
        name="search",
        help="Hyperparameter searches",
        subcommands=(
            _command(
                "search",
                "preview",
                "Print what a search would try and cost; runs nothing",
                a.CONFIG,
                a.WITH_TEMPLATE,
                first,
                seed,
            ),
        ),
    )


def _others() -> tuple[GroupCommand | ActionCommand, ...]:
    request = Arg(("request",), help="Configuration file, id of a trial, or gang:ID")
    return (
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
            subcommands=(
                _command("tasks", "list", "List gangs that wait or run, in order", a.ONLY_POOL, function="list_tasks"),
                _command("tasks", "set", "Change the priority of a gang", a.GANG, a.PRIORITY, function="set_task"),
            ),
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
            help="Days since the trial's end (default: the option retention_days)",
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
        Arg(
            ("--for",), help="How long nobody will renew them, e.g. 1h", type=a.seconds, dest="hold_for", metavar="TIME"
        ),
        Arg(("--reason",), help="Why, for the other people"),
        Arg(("--show",), help="Show whether leases are held, until when and by whom", action="store_true"),
        Arg(("--end",), help="Give leases their usual length again", action="store_true"),
    )


def _simulate() -> ActionCommand:
    time, share, count = (
        {"type": kind, "metavar": name} for kind, name in ((a.seconds, "TIME"), (a.share, "SHARE"), (a.count, "N"))
    )
    columns = "job_id, submit_s, gpus, duration_s; maybe group or vc, priority, max_runtime_s"
    trace = (
        Arg(("--trace",), help=f"CSV file, - for standard input. Columns:\n{columns}", required=True, metavar="FILE"),
        Arg(("--from",), help="Only jobs submitted from then on, e.g. 30d (default: all)", dest="from_s", **time),
        Arg(("--to",), help="Only jobs submitted before then (default: all)", dest="to_s", **time),
        Arg(("--limit",), help="At most so many jobs, earliest first (default: all)", **count),
    )
    hosts = Arg(
        ("--hosts",), help="e.g. 80x8,4x4: 80 of 8 slots, 4 of 4", type=a.cluster, required=True, metavar="HOSTSxSLOTS"
    )
    order, (heading, rules), (places, choice) = _rules("job", "jobs")
    costs = (
        Arg(("--cost-s",), help="Work lost per interruption (default 60)", default=60.0, **time),
        Arg(("--not-preemptible",), help="Share of jobs that nobody may interrupt (default 0)", default=0.0, **share),
        Arg(("--seed",), help="Which jobs those are (default 0)", default=0, **count),
    )
    return _command(
        "simulate",
        "simulate",
        "Let a trace of jobs run on made-up hosts: waiting times and use under three rules",
        a.InOrder(("Trace", trace), (places, (hosts, *choice)), order, (heading, (*rules, *costs))),
        function="run",
    )


def get_dtrain_commands() -> list[GroupCommand]:
    """Return the command group ``dtrain`` for Airflow's CLI."""
    documents = (_templates("template"), _templates("tpl"), _config(), _search())
    trials = (trial("trial"), trial("trials"), trial("t"))
    groups = (_hosts(), _pools(), *documents, experiment("experiment"), experiment("e"), *trials)
    return [
        GroupCommand(
            name="dtrain",
            help="Train on gangs of slots: hosts, queue, trials",
            subcommands=(init(), *groups, *_others()),
        )
    ]
