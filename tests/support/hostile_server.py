"""A server that answers a client with documents of the declared forms, or with one of them changed by malice."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import io
import json
import random
import re
import tarfile
import threading
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any, Literal

from airflow_provider_dtrain.client import answers as a
from airflow_provider_dtrain.client import common_answers as c
from airflow_provider_dtrain.core import rank_results
from airflow_provider_dtrain.resources.bulk import BulkResult
from airflow_provider_dtrain.resources.checkpoints import TrialCheckpoints
from airflow_provider_dtrain.resources.experiments import ExperimentDetail, ExperimentPage, ExperimentSummary
from airflow_provider_dtrain.resources.explanations import Explanation
from airflow_provider_dtrain.resources.failures import ExperimentFailures, TrialFailure
from airflow_provider_dtrain.resources.gangs import GangPage, GangSummary
from airflow_provider_dtrain.resources.host_checks import HostCheck, HostDescription
from airflow_provider_dtrain.resources.host_days import HostDays, HostStateSpan
from airflow_provider_dtrain.resources.hosts import Cluster, ClusterHost, Holder, Slot
from airflow_provider_dtrain.resources.logs import LogPiece
from airflow_provider_dtrain.resources.media import TrialMedia
from airflow_provider_dtrain.resources.metrics import MetricReports
from airflow_provider_dtrain.resources.provenance import Differences, TrialProvenance
from airflow_provider_dtrain.resources.ranks import AttemptRanks
from airflow_provider_dtrain.resources.reproductions import TrialReproductions
from airflow_provider_dtrain.resources.results import ResultPreview
from airflow_provider_dtrain.resources.telemetry import Profile
from airflow_provider_dtrain.resources.templates import Template, TemplateList
from airflow_provider_dtrain.resources.timeline import TrialTimeline
from airflow_provider_dtrain.resources.trials import TrialDetail, TrialPage
from airflow_provider_dtrain.resources.usage import Usage

#: A window title, a cleared screen, a C1 control sequence, a reversed line, an invisible tag.
CONTROLS = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202eesrever\u2066\U000e0041\x7f"
#: Values in place of others. JSON has no form of its own for the last ones.
EVIL: tuple[Any, ...] = (
    None, True, {}, [], "", 0, -1, 1.5, 2**63, 1e308, CONTROLS, "\0", "x" * 300, "../../evil", "/etc/evil", "a\nb",
    "..", "~/evil", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "2026-01-01", {CONTROLS: CONTROLS},
    [CONTROLS], {"a": {"b": [1, None]}}, ["../../evil"], 10**390,
)  # fmt: skip
RAW = (
    "NaN", "Infinity", "-Infinity", "1e999", "1" * 5000, "1" * 600, '"\\ud800"', "[" * 300 + "]" * 300,
    '{"a":' * 300 + "1" + "}" * 300, "[" * 100_000, "{", '"', "",
)  # fmt: skip
_MARK = "--raw--"


def valid(kind: Any, name: str = "") -> Any:
    """Return a value of a type in JSON, as a friendly server sends it."""
    if name in _GIVEN:
        return _GIVEN[name]
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        made = {one.name: valid(hints[one.name], one.name) for one in dataclasses.fields(kind)}
        return {**made, **copy.deepcopy(_PER_KIND.get(kind, {}))}
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return valid(parts[0])
    if origin in (types.UnionType, typing.Union):
        return valid(parts[0])
    if origin is list:
        return [valid(parts[0]), valid(parts[0])]
    if origin in (dict, Mapping):
        return {"one": valid(parts[1])}
    if origin is Literal:
        return parts[0]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return list(kind)[0].value
    return {str: "text", int: 1, float: 0.5, bool: True, datetime: "2026-11-26T10:00:00+00:00"}.get(kind, 0.25)


#: Fields whose value decides how a command ends.
_GIVEN: dict[str, Any] = {
    "state": "completed", "severity": "warning", "through": "dag", "is_over": True, "is_started": True,
    "start": 0, "attempt": 1, "latest": 1, "content": "bG9nCg==", "next_offset": None, "removed_at": None,
    "refused": None, "code_removed": False, "payload_digest": "a" * 64, "exit_code": 0, "timed_out": False, "killed": 0,
    "truncated": False,
}  # fmt: skip
_PER_KIND: dict[Any, dict[str, Any]] = {
    a.ServerOperation: {"state": "done", "size_bytes": 0, "result": None},
    a.DagRun: {"state": "success"},
    LogPiece: {"ranks": 2},
    GangSummary: {"state": "running"},
    ClusterHost: {"state": "ready"},
    HostStateSpan: {"state": "ready"},
    Holder: {"state": "running"},
    Slot: {"state": "ready"},
    ExperimentSummary: {"dag_id": "dtrain_experiment", "run_id": "run-1"},
    a.Started: {"dag_id": "dtrain_experiment", "run_id": "run-1"},
    a.Validation: {"effective": [{"path": "name", "text": "name: mine"}]},
    a.Probe: {"problem": None},
    HostCheck: {"hosts": ["text"], "problems": [], "findings": [], "evacuated": []},
    TrialMedia: {
        "series": [
            {
                "key": "a/b",
                "items": [
                    {
                        "step": step,
                        "attempt": 1,
                        "kind": "text",
                        "size_bytes": 3,
                        "at": "2026-11-26T10:00:00+00:00",
                        "path": f"work/media/a%2Fb/{step}-attempt1-text.txt",
                    }
                    for step in (1, 2)
                ],
            }
        ]
    },
    a.ScriptOutputs: {
        "rows": [
            {"path": path, "size_bytes": 3, "at": "2026-11-26T10:00:00+00:00", "download": {}}
            for path in ("a.txt", "d/b.txt")
        ]
    },
}


@dataclasses.dataclass(frozen=True)
class Route:
    """A route with the form of its answer."""

    method: str
    pattern: str
    kind: Any

    def answer(self) -> Any:
        """Return the answer of a friendly server."""
        return valid(self.kind)


_RESULTS = {
    "stacks": rank_results.Stacks, "profile": rank_results.ProfileRequest, "exec": rank_results.CommandResult,
    "outputs": a.FetchedOutputs, "probe": a.Probes,
    "doctor": a.Checks, "check": HostCheck, "log": a.Nothing, "checkpoint": a.Nothing,
}  # fmt: skip
ROUTES = (
    Route("GET", r"/experiments", ExperimentPage),
    Route("GET", r"/queue", GangPage),
    Route("GET", r"/cluster", Cluster),
    Route("GET", r"/cluster/usage", Usage),
    Route("GET", r"/cluster/day", HostDays),
    Route("GET", r"/trials", TrialPage),
    Route("GET", r"/trials/1", TrialDetail),
    Route("GET", r"/trials/1/ranks", AttemptRanks),
    Route("GET", r"/trials/1/checkpoints", TrialCheckpoints),
    Route("GET", r"/trials/1/reproductions", TrialReproductions),
    Route("GET", r"/trials/1/provenance", TrialProvenance),
    Route("GET", r"/trials/1/failure", TrialFailure),
    Route("GET", r"/experiments/1/failures", ExperimentFailures),
    Route("GET", r"/differences/(trials|experiments)", Differences),
    Route("GET", r"/experiments/1", ExperimentDetail),
    Route("GET", r"/trials/1/curves", a.ReportedMetrics),
    Route("GET", r"/trials/1/profile", Profile),
    Route("GET", r"/trials/1/timeline", TrialTimeline),
    Route("GET", r"/trials/1/log", LogPiece),
    Route("GET", r"/trials/1/metrics", MetricReports),
    Route("GET", r"/trials/1/outputs", a.ScriptOutputs),
    Route("GET", r"/trials/1/media", TrialMedia),
    Route("GET", r"/trials/1/results", ResultPreview),
    Route("GET", r"/trials/1/explanation", Explanation),
    Route("GET", r"/hosts/a", HostDescription),
    Route("GET", r"/templates(/a/versions)?", TemplateList),
    Route("(GET|PUT)", r"/templates/a", Template),
    Route("POST", r"/templates/validate", a.CheckedTemplate),
    Route("POST", r"/configs/explain", Explanation),
    Route("GET", r"/experiments/1/fork", a.ForkSource),
    Route("GET", r"/api/v2/dags/.*", a.DagRun),
    Route("POST", r"/configs/validate", a.Validation),
    Route("POST", r"/experiments", a.Started),
    Route("POST", r"/experiments/actions", BulkResult),
    Route("POST", r"/trials/1/reproduce", a.Started),
    Route("POST", r"/auth/token", c.Token),
    Route("POST", r"/operations/\w+", a.ServerOperation),
    Route("GET", r"/operations/\d+", a.ServerOperation),
    Route("(POST|PATCH|DELETE)", r"/.*", c.Message),
)


def route_of(kind: Any) -> Route:
    """Return the first route whose answer has records of this type."""
    return next(one for one in ROUTES if one.kind is kind)


def archive(*members: tuple[str, bytes | str]) -> bytes:
    """Return a tar. A text as content is the target of a link."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, content in members:
            one = tarfile.TarInfo(name)
            if isinstance(content, str):
                one.type, one.linkname = tarfile.SYMTYPE, content
                tar.addfile(one)
            else:
                one.size = len(content)
                tar.addfile(one, io.BytesIO(content))
    return plain.getvalue()


class HostileServer(ThreadingHTTPServer):
    """A server whose answers can be replaced.

    :ivar replaced: route -> body in place of its own
    :ivar cut: path whose answer ends after half of it, once
    :ivar status: status of all answers
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.begin()

    def begin(self) -> None:
        """Answer as a friendly server does."""
        self.asked: list[Route] = []
        self.paths: list[str] = []
        self.uploads: list[bytes] = []
        self.replaced: dict[Route, bytes] = {}
        self.cut = ""
        self.status = 200
        self.checkpoint = archive(("c/weights", b"1"))
        self.content = b""
        self.file = b"abc"
        self.operation = "log"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HostileServer

    def log_message(self, *_: object) -> None:
        pass

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0].removeprefix("/dtrain/api/v1")
        self.server.paths.append(path)
        status, data = self._answer(path, body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.server.cut and re.fullmatch(self.server.cut, path):
            self.server.cut = ""
            data = data[: len(data) // 2]
            self.close_connection = True
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any

    def _answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        server = self.server
        if path.startswith("/code/"):
            return 404, json.dumps({"detail": {"code": "not_found", "message": "none", "hint": ""}}).encode()
        if path == "/code":
            server.uploads.append(body)
            return 201, json.dumps({"digest": hashlib.sha256(body).hexdigest()}).encode()
        if path.endswith("/content"):
            return 200, server.content
        if path.endswith("/outputs/download"):
            return 200, server.file
        if path.endswith("/download"):
            return 200, server.checkpoint
        if self.command == "POST" and path.startswith("/operations/"):
            server.operation = path.rpartition("/")[2]
        route = next(
            one for one in ROUTES if re.fullmatch(one.method, self.command) and re.fullmatch(one.pattern, path)
        )
        server.asked.append(route)
        answer = route.answer()
        if route.kind is a.ServerOperation:
            answer["result"] = valid(_RESULTS[server.operation])
            answer["size_bytes"] = len(server.content)
        return server.status, server.replaced.get(route, json.dumps(answer).encode())


@contextmanager
def hostile_server() -> Iterator[HostileServer]:
    """Run a hostile server."""
    server = HostileServer()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def changed(answer: Any, draw: random.Random) -> str:
    """Return the JSON of an answer with a value replaced, a field removed, or a name changed, somewhere."""
    answer = copy.deepcopy(answer)
    holder, key = draw.choice(list(_places(answer)))
    what = draw.randrange(10)
    if what == 0 and isinstance(holder, dict):
        del holder[key]
    elif what == 1 and isinstance(holder, dict):
        holder[CONTROLS] = holder.pop(key)
    elif what == 2:
        holder[key] = _MARK
    else:
        holder[key] = draw.choice(EVIL)
    return json.dumps(answer).replace(json.dumps(_MARK), draw.choice(RAW))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each map or list with each of its keys or indices."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)
