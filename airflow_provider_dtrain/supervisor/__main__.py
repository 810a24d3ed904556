"""Roles of the supervisor and their command line.

``follow`` carries commands and bytes over one channel. It forks the detached *supervisor*, which is the parent of a
run's ranks. The other roles are single commands.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tarfile
import time
import zlib
from collections.abc import Iterable
from typing import Any

from .channel.follow import Follow
from .channel.log_search import match_logs
from .channel.run_commands import write_stop_request
from .checks.probe import probe
from .environments.build import build
from .environments.supervised import supervise
from .fields import Fields, parse_object, shorten
from .file_access import below
from .files.archives import receive_archive, send_tree, unpack
from .files.garbage import collect
from .files.layout import Layout, RunFolder
from .files.outputs import OutputSender
from .limits import FENCE_WAIT_S, GO_WAIT_S, MAX_LINE, OUTPUT_FILES, PROTOCOL, UNPACKED_LIMIT
from .names import DIGEST, KINDS, WARM_ROLE, Json
from .refusal import Refused, fenced_refusal, refusal_of
from .run.control import go, go_outcome
from .run.fencing import fence, stop
from .run.forked_program import RankProgram
from .run.launcher import Zygote, launch, read_report
from .run.plan import check_context, check_plan, check_secrets
from .run.rank_exec import run_request
from .run.status import status
from .run.warm_parent import WarmParent


def role_follow(layout: Layout, args: argparse.Namespace) -> int:
    """Serve a channel on standard input and output."""
    try:
        layout.ensure().guard()
    except (Refused, OSError) as error:
        refused = refusal_of(error)
        answer = {"protocol": PROTOCOL, "error": refused.answer()}
        sys.stdout.write(f"DTRAIN/{PROTOCOL} {json.dumps(answer)}\n")
        sys.stderr.write(f"{refused.message}\n")
        return 3
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # The zygote is forked before the first thread exists.
    return Follow(layout, Zygote(layout), 0, 1).run()


def role_receive(layout: Layout, args: argparse.Namespace) -> Any:
    """Store an archive that is read from standard input."""
    if args.kind not in KINDS or not DIGEST.fullmatch(args.digest):
        raise Refused("bad_plan", f"receive expects one of {', '.join(KINDS)} and a SHA-256 in hex.", field="kind")
    receive_archive(layout, args.kind, args.digest, sys.stdin.buffer)
    return "ok"


def role_fetch(layout: Layout, args: argparse.Namespace) -> None:
    """Write a tar of a path in a run's folder to standard output."""
    path = below(checked_run(layout, args.run).path, args.relpath.strip("/") if args.relpath != "/" else "")
    if not os.path.lexists(path):
        raise Refused("not_found", f"{args.run} has no {shorten(args.relpath)} on this host.")
    send_tree(path, sys.stdout.buffer)


def role_outputs(layout: Layout, args: argparse.Namespace) -> None:
    """Write a tar of the files that the ranks of a run wrote or changed.

    Standard input has the limits and the versions of files that the control side has already.
    """
    folder = checked_run(layout, args.run)
    fields = Fields(parse_object(sys.stdin.buffer.read(MAX_LINE)) or {})
    known = fields.inner("known", default={}).values
    limit_bytes = fields.integer("limit_bytes", 0, UNPACKED_LIMIT)
    limit_files = fields.integer("limit_files", 0, OUTPUT_FILES)
    if not os.path.isdir(folder.file("work")):
        raise Refused("not_found", f"{args.run} has no files on this host.")
    library_only = fields.flag("library_only", default=False)
    OutputSender(folder, known, limit_bytes, limit_files, library_only=library_only).send(sys.stdout.buffer)


def role_put(layout: Layout, args: argparse.Namespace) -> Json:
    """Unpack a tar from standard input below a path in a run's folder, which may not be prepared yet."""
    layout.ensure()
    folder = checked_run(layout, args.run)
    if folder.has_tombstone:
        raise fenced_refusal(folder.name)
    path = below(folder.path, args.relpath.rstrip("/"))
    os.makedirs(path, mode=0o700, exist_ok=True)
    try:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|*") as archive:
            unpack(archive, path)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise Refused("bad_archive", f"The archive is damaged: {error}. Send it again.") from error
    return {"ok": True}


def checked_run(layout: Layout, name: str) -> RunFolder:
    """Return the folder of a run that a command line names."""
    return layout.run(Fields({"run": name}).run())


def role_start(layout: Layout, args: argparse.Namespace) -> Json:
    """Prepare a run and start it at once, for a gang of one host or to attach to a living run."""
    layout.ensure()
    document = parse_object(sys.stdin.buffer.read(MAX_LINE)) or {}
    plan = check_plan(document.get("plan", document))
    if plan["run"] != args.run:
        message = f"plan.run: must be the run {shorten(args.run)} of the command, got {plan['run']}"
        raise Refused("bad_plan", message, field="plan.run")
    context, secrets = check_context(document.get("context")), check_secrets(document.get("secrets"))
    request = {"plan": plan, "context": context, "secrets": secrets}
    answer = read_report(launch(layout, json.dumps(request).encode()))
    if not answer.get("ok") or answer["state"] != "prepared":
        return answer
    master = {"master_addr": document.get("master_addr", "127.0.0.1"), "master_port": answer["port"] or 0}
    master["master_port"] = document.get("master_port", master["master_port"])
    found = go(layout, plan["run"], master)
    deadline = time.monotonic() + GO_WAIT_S
    while found is None and time.monotonic() < deadline:
        time.sleep(0.002)
        found = go_outcome(layout.run(plan["run"]))
    return {**answer, **(found or {})}


def role_stop(layout: Layout, args: argparse.Namespace) -> Json:
    """Request the end of a run."""
    return {"ok": True, **stop(layout.ensure(), checked_run(layout, args.run).name, args.grace_s)}


def role_request_stops(layout: Layout, args: argparse.Namespace) -> Json:
    """Ask the ranks of all runs to stop, in each folder whose path begins with a text."""
    asked = []
    parent, begin = os.path.split(args.folders)
    for name in sorted(os.listdir(parent)):
        of_runs = Layout(layout.remote_dir, os.path.join(parent, name))
        if name.startswith(begin) and os.stat(of_runs.state_dir).st_uid == os.getuid():
            asked += of_runs.runs()
            for run in of_runs.runs():
                write_stop_request(of_runs.run(run), {})
    return {"ok": True, "runs": asked}


def role_fence(layout: Layout, args: argparse.Namespace) -> Json:
    """End a run and prevent any later start on this host."""
    return {"ok": True, **fence(layout.ensure(), checked_run(layout, args.run).name, args.token, args.wait_s)}


def role_status(layout: Layout, args: argparse.Namespace) -> Json:
    """Show all runs, or one."""
    names = [checked_run(layout, args.run).name] if args.run else None
    return {"ok": True, **status(layout.ensure(), names=names)}


def role_collect(layout: Layout, args: argparse.Namespace) -> Json:
    """Remove runs that ended long ago."""
    return {"ok": True, **collect(layout.ensure(), args.older_than_s)}


def role_match(layout: Layout, args: argparse.Namespace) -> Json:
    """Search the logs of a run for patterns that are read from standard input."""
    fields = Fields(parse_object(sys.stdin.buffer.read(MAX_LINE)) or {})
    return {"ok": True, **match_logs(checked_run(layout, args.run), fields.texts("patterns", least=1, limit=64))}


def role_exec(layout: Layout, args: argparse.Namespace) -> Json:
    """Run a command in the environment of a rank. The request is a line of standard input, whose end ends it."""
    return run_request(checked_run(layout, args.run))


def role_probe(layout: Layout, args: argparse.Namespace) -> Json:
    """Show the facts of this host."""
    return {"ok": True, **probe(layout.ensure())}


def role_build(layout: Layout, args: argparse.Namespace) -> None:
    """Build an environment. The request is a line of standard input."""
    build(layout)


def role_download(layout: Layout, args: argparse.Namespace) -> None:
    """Download packages. The request, with the credentials of the index, is a line of standard input."""
    # At the top, each channel to a host would import its modules for HTTPS.
    from .environments.download import download

    download()


def role_warm(layout: Layout, args: argparse.Namespace) -> None:
    """Import what the ranks of a program import, and fork their supervisors."""
    parent = WarmParent(
        layout, int(args.listener), int(args.lock), args.digest, args.record, float(args.idle_s), args.started_with
    )
    parent.serve()


def role_supervise(layout: Layout, args: argparse.Namespace) -> None:
    """Run a program, and end all of its processes at its end or at that of standard input."""
    raise SystemExit(supervise(args.argv, float(args.limit_s), [int(fd) for fd in args.fds.split(",")]))


def parser() -> argparse.ArgumentParser:
    """Return the command line of all roles."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--remote-dir", default=".dtrain", help="archives, relative to the home directory")
    common.add_argument("--state-dir", help="locks and runs; default /var/tmp/dtrain-<uid>/<machine id>")
    text = "folder of root with mode 1777 for the locks of all accounts, or none; default /run/lock if it is one"
    common.add_argument("--lock-dir", help=text)
    top = argparse.ArgumentParser(prog="supervisor", description="The host side of airflow-provider-dtrain.")
    roles = top.add_subparsers(dest="role", required=True)

    def role(name: str, function: Any, *positional: str) -> argparse.ArgumentParser:
        text = (function.__doc__ or "").splitlines()[0]
        one = roles.add_parser(name, parents=[common], help=text, description=text)
        one.set_defaults(function=function)
        for argument in positional:
            one.add_argument(argument)
        return one

    role("follow", role_follow)
    role("receive", role_receive, "kind", "digest")
    role("fetch", role_fetch, "run", "relpath")
    role("outputs", role_outputs, "run")
    role("put", role_put, "run", "relpath")
    role("start", role_start, "run")
    role("stop", role_stop, "run").add_argument("--grace-s", type=float, default=None)
    role("request-stops", role_request_stops, "folders")
    fencing = role("fence", role_fence, "run")
    fencing.add_argument("token", type=int)
    fencing.add_argument("--wait-s", type=float, default=FENCE_WAIT_S)
    role("status", role_status).add_argument("run", nargs="?")
    role("collect", role_collect).add_argument("--older-than-s", type=float, default=7 * 86400)
    role("match", role_match, "run")
    role("exec", role_exec, "run")
    role("probe", role_probe)
    role("build", role_build)
    role("download", role_download)
    role(WARM_ROLE, role_warm, "listener", "lock", "digest", "record", "idle_s")
    role("supervise", role_supervise, "limit_s", "fds").add_argument("argv", nargs=argparse.REMAINDER)
    return top


def main(argv: list[str] | None = None, started_with: Iterable[str] = ()) -> int | RankProgram:
    """Run the role that the command line names. Return the exit status, or in a forked rank its program.

    :param started_with: modules that the interpreter had when it began to run this program
    """
    os.umask(0o077)
    args = parser().parse_args(argv)
    args.started_with = set(started_with)
    layout = Layout(args.remote_dir, args.state_dir, args.lock_dir)
    if args.function is role_follow:
        return int(role_follow(layout, args))
    try:
        found = args.function(layout, args)
    except RankProgram as rank:
        return rank
    except (Refused, OSError) as error:
        found = refusal_of(error).answer()
    if found is not None:
        sys.stdout.write((found if isinstance(found, str) else json.dumps(found)) + "\n")
    sys.stdout.flush()
    return 0 if found is None or isinstance(found, str) or found.get("ok") is True else 1
