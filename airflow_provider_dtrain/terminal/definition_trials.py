"""Commands of ``airflow dtrain`` for experiments and trials, with their arguments."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_dtrain.core.lifecycle.states import TRIAL_ENDED, TRIAL_LIVE
from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind
from airflow_provider_dtrain.core.logs.text import LogLevel
from airflow_provider_dtrain.terminal import arguments as a
from airflow_provider_dtrain.terminal.arguments import Arg, Command, Group, action, controls, reads

_LIMIT = Arg(("--limit",), help="At most N, latest first (default 50)", type=a.count, default=50, metavar="N")


#: Options that limit a list of experiments by owner, project and archive.
_PLACE = (
    Arg(("--mine",), help="Only mine", action="store_true"),
    Arg(("--owner",), help="Only those of this user", metavar="USER"),
    Arg(("--project",), help="Only those in this project", metavar="NAME"),
    Arg(
        ("--archived",),
        help="Archived ones: no (default), only or all",
        choices=("no", "only", "all"),
        default="no",
    ),
)


def _bulk() -> tuple[Command, ...]:
    """Return the commands for several experiments at once."""
    ids = Arg(("ids",), help="Ids of experiments", type=a.count, nargs="+", metavar="EXPERIMENT")
    to = Arg(("--project",), help="Name of the project", required=True, metavar="NAME")
    dry_run = Arg(("--dry-run",), help="Show what would be removed without changing anything", action="store_true")
    texts = (
        ("archive", "Leave experiments out of lists; their data stays", ()),
        ("unarchive", "Return archived experiments to the lists", ()),
        ("move", "Move experiments to another project", (to,)),
        ("delete", "Remove experiments with checkpoints, logs and rows, for good", (dry_run, a.YES)),
    )
    return tuple(
        replace(action("bulk", verb, text, ids, *more, function=f"{verb}_experiments"), port="control")
        for verb, text, more in texts
    )


_LOG_SEARCH = (
    Arg(("--grep",), help="Print only lines with this text; case does not matter", metavar="TEXT"),
    Arg(("--regex",), help="Print only lines that match this regular expression of Python", metavar="EXPRESSION"),
    Arg(("--level",), help="Print only lines of this level and of more important ones", choices=(*LogLevel,)),
    Arg(("--since",), help="Print only lines from this time on (22:00, 2026-01-31T22:00, 90m)", type=a.moment),
    Arg(("--until",), help="Print only lines up to this time", type=a.moment),
)


def init() -> Command:
    """Return the command ``init``."""
    folder = Arg(("folder",), help="Target folder (default: Airflow's DAGs folder)", nargs="?")
    return action("experiments_create", "init", "Write the DAG file that 'experiments create' triggers", folder)


def experiment(group: str) -> Group:
    """Return the commands for experiments.

    :param group: name of the group
    """
    weight = Arg(("--weight",), help="Share relative to other experiments; 1 is usual", type=a.weight, metavar="W")
    most = Arg(("--max-slots",), help="Most slots that its gangs hold together; 0: no cap", type=a.count, metavar="N")
    named = Arg(("--name",), help="Only those with this text in their name", metavar="TEXT", default="")
    return Group(
        name=group,
        help="Experiments" + (" (short for: experiments)" if group == "e" else ": start and control them"),
        commands=(
            _create(),
            reads(
                "experiments",
                "list",
                "List experiments with their ids",
                a.WITH_TAGS,
                named,
                *_PLACE,
                _LIMIT,
                function="list_experiments",
            ),
            reads("experiments", "describe", "Show an experiment", a.EXPERIMENT),
            reads(
                "provenance",
                "diff",
                "Show in what experiments differ: configuration, code, packages, devices",
                Arg(("ids",), help="Ids of 2 to 8 experiments", type=a.count, nargs="+", metavar="EXPERIMENT"),
                function="diff_experiments",
            ),
            action("experiments", "config", "Print the effective configuration, secrets masked", a.EXPERIMENT),
            controls("experiment", "pause", "Pause its trials: they release their slots", a.EXPERIMENT, a.YES),
            controls("experiment", "activate", "Resume its paused trials", a.EXPERIMENT),
            controls("experiment", "stop", "End it with its best trial so far: a success", a.EXPERIMENT, a.YES),
            controls("experiment", "kill", "Kill all its trials, on every host and in the queue", a.EXPERIMENT, a.YES),
            *_bulk(),
            controls(
                "experiment",
                "set",
                "Change name, description or tags, and priority, weight or slot cap of all its gangs",
                a.EXPERIMENT,
                a.PRIORITY,
                weight,
                most,
                *a.LABELS,
            ),
        ),
    )


def _create() -> Command:
    return action(
        "experiments_create",
        "create",
        "Start an experiment: store configuration and code, trigger its DAG",
        a.CONFIG,
        *_start_options(),
    )


def infer() -> Command:
    """Return the command ``infer``."""
    optional = Arg(("config",), help=f"{a.CONFIG.kwargs['help']} (default: the options say everything)", nargs="?")
    many = Arg(("--input",), help="File, folder, glob or URL; repeatable", action="append", metavar="PATH")
    to = Arg(("--to",), help="Folder or URL for the results", metavar="PATH")
    processor = Arg(("--processor",), help="module:Name of a BatchProcessor, function or trial class")
    weights = Arg(
        ("--weights",),
        help="Checkpoint: trial:7, trial:7:best, trial:7:300, experiment:NAME, path or URL",
        metavar="CHECKPOINT",
    )
    slots = Arg(("--slots",), help="Number of slots (default: the configuration's, else 1)", type=a.count, metavar="N")
    size = Arg(("--batch-size",), help="Rows per batch, or auto", metavar="N|auto")
    bad = Arg(("--on-bad-shard",), help="End of a shard that failed three times", choices=("fail", "skip"))
    row = Arg(
        ("--on-bad-row",),
        help="A bad row fails its shard, or is left out or marked",
        choices=("fail", "skip", "mark"),
    )
    pool = Arg(("--pool",), help="Pool of hosts", type=a.name)
    return action(
        "infer",
        "infer",
        "Start a batch inference: store configuration and code, trigger the DAG of experiments",
        optional,
        *_start_options(),
        many,
        to,
        processor,
        weights,
        slots,
        size,
        bad,
        row,
        pool,
    )


def diagnose() -> Command:
    """Return the command ``diagnose``."""
    return action(
        "diagnose",
        "diagnose",
        "Find what limits a training: short runs on one gang, a verdict, and what to change",
        a.CONFIG,
        a.WITH_TEMPLATE,
        Arg(("--steps",), help="Measured steps of each run (default 100)", type=a.count, default=100, metavar="N"),
        Arg(
            ("--most-s",),
            help="Time limit of each run (default 5m)",
            type=a.seconds,
            default=300.0,
            metavar="TIME",
        ),
        Arg(
            ("--no-confirm",),
            help="Do not try suggestions that need no change of the program",
            action="store_false",
            dest="confirm",
        ),
        Arg(("--report",), help="Write a report as one HTML page", metavar="FILE"),
    )


def _start_options() -> tuple[Arg, ...]:
    """Return the arguments of commands that trigger the DAG of experiments."""
    code = Arg(("model_dir",), help="Folder of the code (default: model_dir, else the folder of the file)", nargs="?")
    follow = Arg(("-f", "--follow"), help="Follow it until it ends; exit 1 if it fails", action="store_true")
    dag = Arg(("--dag",), help="DAG that runs it (default: dtrain_experiment)", default="dtrain_experiment")
    return code, a.WITH_TEMPLATE, dag, follow


def _reproduce() -> Command:
    secret = Arg(
        ("--secret",),
        help="Private variable of a trial of another user, from this command's environment or with =VALUE; repeatable",
        action="append",
        metavar="NAME",
    )
    follow = Arg(
        ("-f", "--follow"),
        help="Follow it and compare the weights; exit 4 if they differ, 5 if there was nothing to compare",
        action="store_true",
    )
    return action("experiments_create", "reproduce", "Run a trial again from its record", a.TRIAL, secret, follow)


def trial(group: str) -> Group:
    """Return the commands for trials.

    :param group: name of the group
    """
    follow = Arg(("-f", "--follow"), help="Follow the log until the trial ends", action="store_true")
    rank = Arg(("--rank",), help="Rank (default 0)", type=a.count, default=0, metavar="N")
    one_rank = Arg(("--rank",), help="Only this rank (default: all)", type=a.count, metavar="N")
    limit_s = Arg(("--timeout",), help="Seconds, at most 3600 (default 60)", type=a.count, default=60, metavar="S")
    argv = Arg(("argv",), help="Command and its arguments, after --", nargs="+", metavar="COMMAND")
    every = Arg(("--all",), help="Print all ranks, each line with its rank", action="store_true")
    tail = Arg(("--tail",), help="Only the last N KiB of each log", type=a.count, metavar="KIB")
    start = Arg(
        ("--from",), help="First byte to print, as a task log names it", type=a.count, metavar="BYTE", dest="start"
    )
    end = Arg(("--to",), help="Stop before this byte", type=a.count, metavar="BYTE", dest="end")
    attempt = Arg(("--attempt",), help="Attempt (default: the latest)", type=a.count, metavar="N")
    attempt_of = Arg(("--attempt",), help="Only what concerns this attempt", type=a.count, metavar="N")
    kind = Arg(("--kind",), help="Only entries of this kind; repeatable", action="append", choices=(*TimelineKind,))
    csv = Arg(("--csv",), help="Comma-separated values", action="store_true")
    removed = Arg(("--removed",), help="Also list removed checkpoints", action="store_true")
    abandoned = Arg(("--abandoned",), help="Also steps that a later attempt repeated", action="store_true")
    which = Arg(("--group",), help="Only these metrics", choices=("training", "validation", "builtin"))
    paths = Arg(("path",), help="Paths, as 'trials outputs' lists them, or tensorboard (default: all)", nargs="*")
    to = Arg(("--to",), help="Target folder (default: ./trial-<id>)", metavar="DIR")
    where = Arg(
        ("--where",),
        help="Only those that match a filter, such as 'metrics.loss < 0.5 and params.lr < 0.01'",
        metavar="FILTER",
        default="",
    )
    of = Arg(("--experiment",), help="Only trials of this experiment (id)", type=a.count, metavar="EXPERIMENT")
    state = Arg(
        ("--state",),
        help="Only trials in this state",
        choices=(*TRIAL_LIVE, *TRIAL_ENDED),
    )
    return Group(
        name=group,
        help="Trials" + (" (short for: trials)" if group == "t" else ""),
        commands=(
            reads("trials", "list", "List trials", of, state, a.WITH_TAGS, where, _LIMIT, function="list_trials"),
            reads("trials", "describe", "Show a trial, what it was made of, its ranks and checkpoints", a.TRIAL),
            reads(
                "provenance",
                "diff",
                "Show in what trials differ: configuration, code, packages, devices",
                Arg(("ids",), help="Ids of 2 to 8 trials", type=a.count, nargs="+", metavar="TRIAL"),
                function="diff_trials",
            ),
            action(
                "trials_logs",
                "logs",
                "Print the log of a rank",
                a.TRIAL,
                follow,
                rank,
                every,
                tail,
                start,
                end,
                attempt,
                *_LOG_SEARCH,
            ),
            reads("trials", "metrics", "Print the metrics that the trial reported", a.TRIAL, which, csv, abandoned),
            reads("trials", "timeline", "Show everything that happened to a trial", a.TRIAL, attempt_of, kind),
            action(
                "trials_stack",
                "trace",
                "Record the next batches of running ranks with the profiler of PyTorch",
                a.TRIAL,
                Arg(("--batches",), help="Recorded batches (default 3)", type=a.count, default=3, metavar="N"),
                Arg(("--rank",), help="Rank (default 0); repeatable", action="append", type=int, metavar="N"),
                Arg(("--with-stack",), help="Record the lines of the program as well", action="store_true"),
            ),
            action("trials_stack", "stack", "Print the Python stacks of running ranks", a.TRIAL, one_rank),
            action(
                "trials_exec",
                "exec",
                "Run a command in the environment of a rank, if [dtrain] allow_exec is set",
                a.TRIAL,
                rank,
                limit_s,
                argv,
                function="exec_in_rank",
            ),
            _reproduce(),
            reads("profile", "profile", "Show batch timings and system metrics", a.TRIAL, attempt),
            reads("trials", "checkpoints", "List a trial's checkpoints", a.TRIAL, removed),
            reads("results", "results", "Show the first rows of the results of a batch inference", a.TRIAL),
            action("trials_outputs", "outputs", "List the files that a plain script wrote", a.TRIAL),
            action("trials_outputs", "download", "Copy these files to a folder on this machine", a.TRIAL, paths, to),
            action(
                "trials_media",
                "media",
                "List images, tables and texts that a trial reported, or copy them",
                a.TRIAL,
                Arg(("--key",), help="Only those of this key"),
                Arg(("--to",), help="Copy them to this folder", metavar="DIR"),
            ),
            controls("trial", "pause", "Pause a trial: it releases its slots and keeps its place", a.TRIAL, a.YES),
            controls("trial", "activate", "Resume a paused trial", a.TRIAL),
            controls(
                "trial",
                "set",
                "Change name, description, tags or priority of a trial",
                a.TRIAL,
                a.PRIORITY,
                *a.LABELS,
            ),
            controls("trial", "stop", "End a trial with its result so far: a success", a.TRIAL, a.YES),
            controls("trial", "kill", "Kill a trial, on every host or in the queue", a.TRIAL, a.YES),
        ),
    )
