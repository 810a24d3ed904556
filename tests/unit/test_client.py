"""``dtrain`` without an Airflow: imports, logins, addresses, refusals, retries. Servers are real ones."""

from __future__ import annotations

import argparse
import gzip
import http.client
import io
import json
import os
import stat
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from airflow_provider_dtrain.client import logins
from airflow_provider_dtrain.client import session as sessions
from airflow_provider_dtrain.client.address import Address, address
from airflow_provider_dtrain.client.client import Client
from airflow_provider_dtrain.client.definition import with_own_commands
from airflow_provider_dtrain.client.live_views import speed_text
from airflow_provider_dtrain.client.logins import Login
from airflow_provider_dtrain.client.main import main, parser
from airflow_provider_dtrain.client.reconnection import Patience
from airflow_provider_dtrain.client.session import AwayError, Session
from airflow_provider_dtrain.errors import LoginError, NotFoundError, ServerError, UsageError
from airflow_provider_dtrain.terminal.cluster import show_hosts
from airflow_provider_dtrain.terminal.output import show, using_commands
from airflow_provider_dtrain.terminal.table import table_lines

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-of-ann"  # noqa: S105 - a value that must never be shown
PASSWORD = "open-sesame"  # noqa: S105
WITHOUT_AIRFLOW = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"airflow", "sqlalchemy", "torch", "pydantic", "httpx", "rich", "fastapi", "yaml"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refused())
from airflow_provider_dtrain.client.main import main
try:
    main(["--help"])
except SystemExit:
    pass
print(main(["trials", "list", "--server", sys.argv[1], "-o", "json"]))
print(main(["trials", "list", "--server", sys.argv[1], "-o", "yaml"]))
"""


@dataclass(frozen=True, kw_only=True)
class Me:
    ok: bool


Behaviour = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers each request by the next behaviour of its server, the last one again and again."""

    protocol_version = "HTTP/1.1"

    def _next(self) -> None:
        server = self.server
        server.seen.append(f"{self.command} {self.path}")
        server.tokens.append(self.headers.get("Authorization"))
        server.tags.append(self.headers.get("If-None-Match"))
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        behaviour = server.behaviours[0] if len(server.behaviours) == 1 else server.behaviours.pop(0)
        behaviour(self)

    do_GET = do_POST = _next

    def log_message(self, *_: object) -> None:
        pass


def answers(status: int, value: object, **headers: str) -> Behaviour:
    def behave(handler: Handler) -> None:
        body = json.dumps(value).encode()
        handler.send_response(status)
        for name, text in headers.items():
            handler.send_header(name.replace("_", "-"), text)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return behave


def cuts(handler: Handler) -> None:
    """Send half of an answer, and close the connection."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100")
    handler.end_headers()
    handler.wfile.write(b'{"rows": [')
    handler.close_connection = True


@pytest.fixture
def serve() -> Iterator[Callable[..., ThreadingHTTPServer]]:
    running = []

    def start(*behaviours: Behaviour) -> ThreadingHTTPServer:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.behaviours, server.seen, server.tokens, server.tags = list(behaviours), [], [], []
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    for name in ("DTRAIN_SERVER", "DTRAIN_TOKEN", "DTRAIN_CA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def session(server, token=TOKEN, pauses=None) -> Session:
    return Session(address(server.url), token, sleep=(pauses if pauses is not None else []).append)


def test_dtrain_runs_where_neither_airflow_nor_another_library_is_installed(serve):
    server = serve(answers(200, {"rows": [], "total": 0}))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_AIRFLOW, server.url],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.stderr == "-o yaml needs a library. Install it: pip install pyyaml\n"
    assert done.stdout.endswith("[]\n0\n2\n")


def test_a_table_of_hosts_shortens_the_ids_of_other_stores(capsys):
    def rows() -> list[dict]:
        return [{"name": "a", "other_stores": ["x" * 60, "y", "z"]}, {"name": "b", "other_stores": []}]

    show_hosts(Namespace(output="table"), rows())
    assert "xxxxxxxxxxxxx... and 2 more" in capsys.readouterr().out
    show_hosts(Namespace(output="json"), rows())
    assert "x" * 60 in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("See: airflow dtrain experiments list", "See: dtrain experiments list"),
        ("Reason: airflow dtrain explain 7", "Reason: dtrain explain 7"),
        ("airflow dtrain trials kill 7, or airflow dtrain e list", "dtrain trials kill 7, or dtrain e list"),
        ("See: airflow dtrain pools list", "See: airflow dtrain pools list (on the machine of Airflow)"),
        ("airflow dtrain pools list", "airflow dtrain pools list (on the machine of Airflow)"),
        ("Run: airflow dags unpause x", "Run: airflow dags unpause x (on the machine of Airflow)"),
        ("On the machine of Airflow: airflow dtrain trials logs 7",) * 2,
        ("airflow_provider_dtrain, Airflow's scheduler",) * 2,
    ],
)
def test_a_text_names_commands_that_this_machine_has_or_the_machine_that_has_them(text, shown):
    assert with_own_commands()(text) == shown
    assert with_own_commands()(shown) == shown


def test_errors_of_the_python_client_name_the_commands_of_dtrain(serve):
    detail = {"code": "not_found", "message": "There is no experiment 9.", "hint": "airflow dtrain experiments list"}
    client = Client(serve(answers(404, {"detail": detail})).url, "given")
    with pytest.raises(NotFoundError) as caught:
        client.experiments.get(9)
    assert str(caught.value) == "There is no experiment 9. See: dtrain experiments list"


def _parsers(of: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield of
    for action in of._actions:
        for below in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            yield from _parsers(below)


def test_no_help_text_of_this_program_names_a_command_of_another_machine():
    for one in _parsers(parser()):
        shown = " ".join(one.format_help().split())
        shown = shown.replace("(on the machine of Airflow: airflow dtrain hosts add registers one)", "")
        assert "airflow " not in shown, one.prog


def test_a_table_names_the_command_of_this_program(capsys):
    with using_commands(with_own_commands()):
        show(Namespace(output="table"), [{"reason": "resume with: airflow dtrain trials activate 7"}])
    assert "resume with: dtrain trials activate 7" in capsys.readouterr().out


def test_a_login_is_kept_in_a_file_that_only_its_user_can_read_and_used_afterwards(serve, home, capsys, monkeypatch):
    server = serve(answers(201, {"access_token": TOKEN}), answers(200, {"rows": [], "total": 0}))
    reads, writes = os.pipe()
    os.write(writes, f"{PASSWORD}\n".encode())
    os.close(writes)
    with os.fdopen(reads) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["login", "--server", f"{server.url}/", "--username", "ann", "--password-stdin"]) == 0
    found = [path for path in home.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}
    assert main(["trials", "list", "-o", "json"]) == 0
    assert server.seen == [
        "POST /auth/token",
        "GET /dtrain/api/v1/trials?replaced=true&sort=created_at&order=desc&limit=50",
    ]
    assert server.tokens == [None, f"Bearer {TOKEN}"]
    shown = "".join(capsys.readouterr())
    assert TOKEN not in shown
    assert PASSWORD not in shown
    assert main(["logout"]) == 0
    assert logins.load(server.url) is None


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o610, 0o604, 0o602, 0o601, 0o666])
def test_a_token_that_another_user_can_reach_is_not_used(serve, mode):
    server = serve(answers(200, {"ok": True}))
    path = logins.save(Login(server=server.url, user="ann", token=TOKEN))
    path.chmod(mode)
    with pytest.raises(LoginError, match=f"can be read by other users \\(mode {mode:03o}\\)"):
        session(server, None).get("/me")
    assert server.seen == []
    path.chmod(0o600)
    assert session(server, None).get("/me").record(Me).ok


def test_a_token_is_sent_to_its_own_server_only(serve):
    own, other = serve(answers(200, {"ok": True})), serve(answers(200, {"ok": True}))
    kept = logins.save(Login(server=own.url, user="ann", token=TOKEN))
    taken = logins.save(Login(server=other.url, user="ann", token="x"))
    taken.write_bytes(kept.read_bytes())
    with pytest.raises(LoginError, match="has the token of another server, which is not sent"):
        session(other, None).get("/me")
    assert other.seen == []


def test_long_urls_that_begin_alike_have_files_of_their_own():
    urls = [f"https://air.example/{'a' * 300}/{end}" for end in ("one", "two")]
    for url in urls:
        logins.save(Login(server=url, user="ann", token=url[-3:]))
    assert [logins.load(url).token for url in urls] == ["one", "two"]


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"null", b'{"server": 1, "user": "ann", "token": "t"}', b'{"server": "s", "token": "t"}',
     b"\xff", b"[" * 100_000],
    ids=["empty", "list", "open", "null", "types", "fields", "bytes", "deep"],
)  # fmt: skip
def test_a_damaged_login_is_one_message(serve, content):
    server = serve(answers(200, {"ok": True}))
    logins.save(Login(server=server.url, user="ann", token=TOKEN)).write_bytes(content)
    with pytest.raises(LoginError, match="is damaged. Log in again: dtrain login"):
        session(server, None).get("/me")
    assert server.seen == []


def test_a_refused_password_is_one_message_without_it(serve, monkeypatch, capsys):
    server = serve(answers(401, {"detail": "Invalid credentials"}))
    reads, writes = os.pipe()
    os.write(writes, PASSWORD.encode())
    os.close(writes)
    with os.fdopen(reads) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["login", "--server", server.url, "--username", "ann", "--password-stdin"]) == 1
    assert capsys.readouterr().err == f"{server.url} refused the name or the password of 'ann'.\n"


def test_an_expired_token_is_replaced_by_that_of_a_login_in_the_meantime(serve):
    def expired(handler: Handler) -> None:
        logins.save(Login(server=handler.server.url, user="ann", token="new"))
        answers(401, {"detail": "expired"})(handler)

    server = serve(expired, answers(200, {"ok": True}))
    logins.save(Login(server=server.url, user="ann", token="old"))
    assert session(server, None).get("/me").record(Me).ok
    assert server.tokens == ["Bearer old", "Bearer new"]


@pytest.mark.parametrize(
    ("status", "detail"),
    [(401, "expired"), (403, "Invalid JWT token"), (403, {"code": "forbidden", "message": "Invalid JWT token"})],
    ids=["expired", "other-key", "other-key-of-dtrain"],
)
def test_an_expired_token_without_another_one_says_what_to_do(serve, capsys, status, detail):
    server = serve(answers(status, {"detail": detail}))
    assert main(["trials", "list", "--server", server.url]) == 1
    assert capsys.readouterr().err.endswith(f"it has expired. To log in: dtrain login --server {server.url}\n")


@pytest.mark.parametrize("token", ["line\nbreak", "ünicode", "a\rb"])
def test_a_token_that_is_none_is_refused_without_showing_it(serve, token, monkeypatch, capsys):
    server = serve(answers(200, {"rows": [], "total": 0}))
    monkeypatch.setenv("DTRAIN_TOKEN", token)
    assert main(["trials", "list", "--server", server.url]) == 1
    shown = capsys.readouterr().err
    assert "Check DTRAIN_TOKEN" in shown
    assert token not in shown
    assert server.seen == []


def test_a_read_is_repeated_while_the_server_restarts_and_a_line_drops(serve):
    pauses: list[float] = []
    server = serve(answers(503, {"detail": "later"}), cuts, answers(502, "?"), answers(200, {"ok": True}))
    assert session(server, pauses=pauses).get("/trials").record(Me) == Me(ok=True)
    assert pauses == [0.5, 1.0, 2.0]


def test_a_read_fails_after_some_tries(serve):
    server = serve(answers(503, {"detail": {"code": "store_unavailable", "message": "away", "hint": ""}}))
    with pytest.raises(AwayError, match="away"):
        session(server).get("/me")
    assert len(server.seen) == 4


def test_a_change_that_may_have_been_executed_is_not_repeated(serve):
    server = serve(cuts, answers(200, {}))
    with pytest.raises(AwayError):
        session(server).send("POST", "/trials/1/kill")
    assert len(server.seen) == 1


def test_an_unchanged_answer_is_sent_once(serve):
    server = serve(answers(200, {"ok": True}, ETag='W/"1"'), answers(304, None))
    of = session(server)
    assert [of.get("/queue", keep=True).record(Me) for _ in range(2)] == [Me(ok=True)] * 2
    assert server.tags == [None, 'W/"1"']


@pytest.mark.parametrize("tag", ['"a\x0bb"', "é", "x" * 201, " ", "a\tb"])
def test_a_tag_of_another_form_is_not_sent_back(serve, tag):
    server = serve(answers(200, {"ok": True}, ETag=tag))
    of = session(server)
    assert [of.get("/me", keep=True).record(Me).ok for _ in range(2)] == [True, True]
    assert server.tags == [None, None]


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"1", b"{}", b"null", b'{"rows": {}}', b'{"rows": [{"path": 1}]}', b"[" * 200_000, b"<html>"],
    ids=["empty", "list", "number", "object", "null", "rows-object", "fields", "deep", "page"],
)
@pytest.mark.parametrize(
    "words",
    [
        "trials download 1",
        "trials download-checkpoint 1",
        "experiments fork 1",
        "trials stack 1",
        "trials list",
        "doctor",
    ],
)
def test_an_answer_of_another_form_is_one_message(serve, content, words, capsys, monkeypatch):
    monkeypatch.setenv("DTRAIN_TOKEN", TOKEN)
    server = serve(lambda handler: _send(handler, content))
    assert main([*words.split(), "--server", server.url]) in {1, 2}
    assert len(capsys.readouterr().err.splitlines()) == 1


def _send(handler: Handler, content: bytes) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (gzip.compress(b'{"rows": [], "total": 0}')[:-12], "no JSON"),
        (b"no gzip", "damaged"),
        (gzip.compress(bytes(3 << 20)), "larger than 2 MiB"),
    ],
    ids=["cut", "not-packed", "bomb"],
)
def test_a_packed_answer_is_unpacked_within_the_limit(serve, body, words, monkeypatch):
    monkeypatch.setattr(sessions, "ANSWER_MOST", 2 << 20)
    with pytest.raises(ServerError, match=words):
        session(serve(packed(body))).get("/cluster")
    good = serve(packed(gzip.compress(b'{"ok": true}')))
    assert session(good).get("/cluster").record(Me).ok


def packed(body: bytes) -> Behaviour:
    def behave(handler: Handler) -> None:
        assert handler.headers["Accept-Encoding"] == "gzip"
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return behave


def test_a_redirect_never_gets_the_token(serve):
    other = serve(answers(200, {}))
    server = serve(answers(307, {}, Location=other.url))
    with pytest.raises(ServerError, match="redirects to"):
        session(server).get("/me")
    assert other.seen == []


def test_a_server_that_is_no_airflow_is_named(serve, capsys):
    server = serve(answers(404, "nothing here"))
    assert main(["trials", "list", "--server", server.url]) == 1
    assert "Is it an Airflow 3 API server" in capsys.readouterr().err


def test_a_refusal_has_message_hint_and_kind(serve):
    detail = {"code": "not_found", "message": "There is no trial 9.", "hint": "See the list.", "problems": []}
    with pytest.raises(NotFoundError, match=r"There is no trial 9\. See the list\."):
        session(serve(answers(404, {"detail": detail}))).get("/trials/9")


@pytest.mark.parametrize(
    "rows", [[{}], [{"trial": 1}], "no list", [[1]], None], ids=["empty", "part", "text", "list", "null"]
)
def test_an_answer_of_another_version_is_one_message(serve, rows, capsys):
    server = serve(answers(200, {"rows": rows}))
    assert main(["trials", "list", "--server", server.url]) == 1
    assert "The server sent a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://air.example/", "https://air.example"),
        ("http://air.example:8080/airflow/", "http://air.example:8080/airflow"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_an_address_has_one_form(text, url):
    assert address(text).url == url


@pytest.mark.parametrize(
    "text",
    ["air.example", "ftp://a", "http://", "http://a:99999", "http://ann:pw@a", "http://a?x=1", "http://a/b c", ""],
)
def test_an_address_that_is_none_is_refused(text):
    with pytest.raises(UsageError):
        address(text)


@pytest.mark.parametrize("words", ["trials list", "login --username ann --password-stdin", "experiments fork 1"])
def test_another_machine_is_reached_by_plain_http_only_if_the_user_says_so(words, monkeypatch, capsys):
    reached: list[str] = []

    def refuses(to: Address, ca: str | None) -> http.client.HTTPConnection:
        reached.append(to.host)
        raise ConnectionRefusedError

    monkeypatch.setattr(sessions, "connection", refuses)
    monkeypatch.setattr(sessions, "PAUSES_S", ())
    monkeypatch.setattr(sys, "stdin", io.StringIO(PASSWORD))
    assert main([*words.split(), "--server", "http://air.example"]) == 2
    shown = capsys.readouterr().err
    assert "plain HTTP shows token and password" in shown
    assert "--allow-http or DTRAIN_ALLOW_HTTP=1" in shown
    assert reached == []
    assert main([*words.split(), "--server", "http://air.example", "--allow-http"]) == 1
    monkeypatch.setenv("DTRAIN_ALLOW_HTTP", "1")
    assert main([*words.split(), "--server", "http://air.example"]) == 1
    assert reached == ["air.example"] * 2


def test_this_machine_is_reached_by_plain_http():
    for url in ("http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "https://air.example"):
        Session(address(url))
    for url in ("http://127.0.0.1.example", "http://localhost.example", "http://0.0.0.0", "http://10.0.0.1"):
        with pytest.raises(UsageError):
            Session(address(url))


def test_a_command_without_a_server_is_a_usage_error(capsys):
    assert main(["trials", "list"]) == 2
    assert "DTRAIN_SERVER" in capsys.readouterr().err


def test_a_table_fits_its_width_and_folds_texts():
    rows = [["1", "a long reason why it waits"], ["2", "日本語のテキスト"]]
    assert list(table_lines(["trial", "reason"], rows, width=22)) == [
        "trial  reason",
        "─" * 22,
        "1      a long reason",
        "       why it waits",
        "2      日本語のテキス",
        "       ト",
    ]
    assert list(table_lines(["a", "b"], [["xy", ""]], has_rule=False)) == ["a   b", "xy"]


def test_a_follower_waits_for_a_login_and_continues_and_says_so_once(serve):
    told: list[str] = []
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            logins.save(Login(server=server.url, user="ann", token="new"))

    expired = answers(401, {"detail": "expired"})
    server = serve(expired, expired, expired, answers(502, "?"), expired, answers(200, {"ok": True}))
    logins.save(Login(server=server.url, user="ann", token="old"))
    of = Session(address(server.url), sleep=lambda _: None)
    assert Patience(of, told.append, sleep=sleep).of(lambda: of.get("/me")).record(Me).ok
    assert server.tokens[-1] == "Bearer new"
    assert [words.partition(" ")[0] for words in told] == ["The", server.url]


def test_a_follower_with_a_token_of_its_environment_ends_when_it_expires(serve):
    of = session(serve(answers(401, {"detail": "expired"})))
    with pytest.raises(LoginError):
        Patience(of, pytest.fail).of(lambda: of.get("/me"))


def test_headers_that_were_cut_are_no_answer(serve):
    def cuts_headers(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Le")
        handler.close_connection = True

    server = serve(cuts_headers, answers(200, {"ok": True}))
    assert session(server).get("/me").record(Me).ok
    assert len(server.seen) == 2


@pytest.mark.parametrize(
    ("hparams", "words"),
    [
        ({"global_batch_size": 64}, "speed: 160 samples/s, 2.5 batches/s over the last reports"),
        ({}, "speed: 2.5 batches/s over the last reports"),
        ({"global_batch_size": "many"}, "speed: 2.5 batches/s over the last reports"),
        ({"global_batch_size": float("nan")}, "speed: 2.5 batches/s over the last reports"),
        ({"global_batch_size": True}, "speed: 2.5 batches/s over the last reports"),
    ],
)
def test_a_view_shows_samples_per_second_if_the_size_of_a_batch_is_known(hparams, words):
    assert speed_text(2.5, hparams) == words
